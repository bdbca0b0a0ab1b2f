//! Frames that do not fit into a ring. Each is in a memfd of its own, whose descriptor goes over
//! the socket.
//!
//! The sender writes the memfd, seals it, and sends its descriptor. Only then it publishes the ring
//! frame that announces it. So the receiver of the ring frame finds the descriptor on the socket.
//! If the descriptor is not such a memfd, it is refused before it is read, because a read of it may
//! block. The engine reads with `pread` into memory of its own, so that no process can change
//! checked bytes.

use crate::aligned::Aligned;
use crosslane::lane::LaneError;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::Resource;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The tag of a ring frame that holds the message itself.
pub(crate) const INLINE: u32 = 0;
/// The tag of a ring frame that holds only the message's length. The message is in a memfd, whose
/// descriptor is the next one on the socket.
pub(crate) const EXTERNAL: u32 = 1;

/// The file keeps its size, so access to a mapping of it cannot fault.
const SIZED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Memory is allocated in steps of this many bytes, because a signal makes the system begin a step
/// again.
const STEP: u64 = 4 << 20;

/// A memfd mapped as a whole.
#[derive(Debug)]
pub(crate) struct MappedFile {
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping is plain memory with one owner.
unsafe impl Send for MappedFile {}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; nothing borrows it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

impl MappedFile {
    fn map(fd: BorrowedFd<'_>, length: usize, protection: ProtFlags, flags: MapFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, fd, 0)? };
        Ok(Self { base: base.cast(), length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has this length and lives as long as self. Only a receiver that
        // trusts the sender not to write or shrink any more uses it (see the module's
        // documentation).
        unsafe { std::slice::from_raw_parts(self.base, self.length) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only use.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.length) }
    }
}

/// Makes a sealed memfd of `length` bytes that `fill` writes.
///
/// # Errors
/// If the system has no memory for it. The memory is allocated at once. If it were missing later,
/// the write would end the process.
pub(crate) fn create(length: usize, fill: impl FnOnce(&mut [u8])) -> Result<OwnedFd, Errno> {
    let size = length as u64;
    // If files of this size are not allowed, the system sends SIGXFSZ, which ends the process.
    if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|most| size > most) {
        return Err(Errno::FBIG);
    }
    let fd = rustix::fs::memfd_create("crosslane-batch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    for at in (0..size).step_by(STEP as usize) {
        let step = STEP.min(size - at);
        retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), at, step))?;
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let mut mapped = MappedFile::map(fd.as_fd(), length, protection, MapFlags::SHARED)?;
    fill(mapped.bytes_mut());
    drop(mapped);
    match rustix::fs::fcntl_add_seals(&fd, SIZED | SealFlags::WRITE | SealFlags::SEAL) {
        // A process that was forked meanwhile has a copy of the mapping.
        Err(Errno::BUSY) => rustix::fs::fcntl_add_seals(&fd, SIZED | SealFlags::SEAL)?,
        sealed => sealed?,
    }
    Ok(fd)
}

/// Sends a descriptor. With [`SendFlags::DONTWAIT`], it is an error if too many descriptors wait
/// for the receiver.
pub(crate) fn send(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>, flags: SendFlags) -> Result<(), Errno> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"m")], &mut control, flags | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the next descriptor from the socket, which must have arrived already.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let mut fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    let first = fds.next();
    fds.for_each(discard);
    first.ok_or(Errno::BADMSG)
}

/// Closes a descriptor of any kind on a thread of its own. The close may block: for example, for a
/// connection that lingers, or a file whose file system is a program.
fn discard(file: OwnedFd) {
    // If no thread can be made, the failed attempt closes it.
    let _ = std::thread::Builder::new().name("crosslane-discard".into()).spawn(move || drop(file));
}

/// Checks that a file is as the protocol demands. The error says what is wrong with it.
fn check(file: &OwnedFd, length: u64) -> Result<(), String> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| "what came with it is no memory file")?;
    if !seals.contains(SIZED) {
        return Err("its memory file is not sealed against shrinking and growing".into());
    }
    let stat = rustix::fs::fstat(file).map_err(|error| error.to_string())?;
    if stat.st_size as u64 != length {
        return Err(format!("its memory file has {} bytes", stat.st_size));
    }
    // A hole costs its writer no memory, but it costs the reader memory.
    if (stat.st_blocks as u64).saturating_mul(512) < length {
        return Err("its memory file has holes".into());
    }
    Ok(())
}

/// Copies an external frame into memory of our own, if it has at most `largest` bytes. Copies only
/// its `first` bytes if that is given.
pub(crate) fn read(
    file: OwnedFd,
    length: u64,
    largest: usize,
    first: Option<usize>,
    buffer: &mut Aligned,
) -> Result<(), LaneError> {
    let corrupt = |what: String| LaneError::Corrupt(format!("a reply of {length} bytes: {what}"));
    if let Err(what) = check(&file, length) {
        discard(file);
        return Err(corrupt(what));
    }
    let wanted = first.map_or(length, |first| length.min(first as u64));
    if wanted > largest as u64 {
        return Err(LaneError::large_reply(length, largest));
    }
    let bytes = buffer.resize(wanted as usize).map_err(|_| LaneError::no_memory(length))?;
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[done..], done as u64) {
            Ok(0) => return Err(corrupt("its memory file ended early".into())),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(corrupt(error.to_string())),
        }
    }
    Ok(())
}

/// Maps an external frame of a trusted sender.
pub(crate) fn map(file: &OwnedFd, length: u64) -> io::Result<MappedFile> {
    check(file, length).map_err(io::Error::other)?;
    // If a file is sealed against writes, older kernels only allow private mappings of it. They
    // show the same memory.
    Ok(MappedFile::map(file.as_fd(), length as usize, ProtFlags::READ, MapFlags::PRIVATE)?)
}
