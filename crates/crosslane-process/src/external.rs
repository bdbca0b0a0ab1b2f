//! Frames that outgrow a ring: each in a memfd of its own, whose descriptor travels over the socket.
//!
//! The sender writes the memfd, sends its descriptor, and only then publishes the ring frame that
//! announces it, so that the receiver of the ring frame finds the descriptor waiting. The engine
//! reads with `pread` into memory of its own: a guest that shrinks the file cannot make it fault.

use crate::aligned::Aligned;
use rustix::fs::MemfdFlags;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A memfd mapped as a whole.
#[derive(Debug)]
pub(crate) struct Mapped {
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping is plain memory with one owner.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; nothing borrows it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

impl Mapped {
    fn map(fd: BorrowedFd<'_>, length: usize, protection: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, fd, 0)? };
        Ok(Self { base: base.cast(), length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has this length and lives as long as self. Only a receiver that trusts
        // the sender not to write or shrink any more uses it (see the module's documentation).
        unsafe { std::slice::from_raw_parts(self.base, self.length) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only use.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.length) }
    }
}

/// Makes a memfd of `length` bytes that `fill` writes.
pub(crate) fn create(length: usize, fill: impl FnOnce(&mut [u8])) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create("crosslane-batch", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, length as u64)?;
    let mut mapped = Mapped::map(fd.as_fd(), length, ProtFlags::READ | ProtFlags::WRITE)?;
    fill(mapped.bytes_mut());
    Ok(fd)
}

pub(crate) fn send(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"m")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the next descriptor from the socket, which must be there already.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or(Errno::BADMSG)
}

/// Copies a whole external frame into memory of our own.
pub(crate) fn read(fd: &OwnedFd, length: usize, buffer: &mut Aligned) -> Result<(), Errno> {
    if rustix::fs::fstat(fd)?.st_size as u64 != length as u64 {
        return Err(Errno::BADMSG);
    }
    let bytes = buffer.resize(length);
    let mut done = 0;
    while done < length {
        match rustix::io::pread(fd, &mut bytes[done..], done as u64)? {
            0 => return Err(Errno::BADMSG),
            count => done += count,
        }
    }
    Ok(())
}

/// Maps an external frame of a sender that is trusted.
pub(crate) fn map(fd: &OwnedFd, length: usize) -> Result<Mapped, Errno> {
    if rustix::fs::fstat(fd)?.st_size as u64 != length as u64 {
        return Err(Errno::BADMSG);
    }
    Mapped::map(fd.as_fd(), length, ProtFlags::READ)
}
