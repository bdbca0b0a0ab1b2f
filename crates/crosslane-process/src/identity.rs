//! Finds the process at the other end of a lane.
//!
//! The engine ends a lane by ending its process. So it must not trust a guest to name that process:
//! a wrong number would end an unrelated process. The guest greets the engine on its lane's socket.
//! The kernel reports the sender of the greeting (`SCM_CREDENTIALS`, translated into the engine's
//! pid namespace). The engine takes a descriptor of that process if it descends from the zygote
//! that the engine started. Signals go through the descriptor.

use crate::poll::is_ready;
use crate::warden::proc::process_group;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use rustix::process::{Pid, PidfdFlags};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The first message of a guest. It is the second of these if the guest writes its stack on
/// SIGQUIT.
const GREETINGS: [&[u8]; 2] = [b"h", b"s"];
/// The most processes between a lane and the zygote's process. A zygote may have been started
/// through programs that wait for it, such as wrappers and sandboxes.
const GENERATIONS: usize = 16;
/// Sends a signal to the group that a process leads. From Linux 6.9 on.
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// A process. While the descriptor is open, its number means no other process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    descriptor: OwnedFd,
    /// Whether the process writes its stack when it gets SIGQUIT.
    pub(crate) tells_stack: bool,
}

impl Process {
    /// Opens a process by its number, which must come from the kernel.
    pub(crate) fn open(pid: i32) -> Result<Self, Errno> {
        let raw = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(Errno::SRCH)?;
        let descriptor = rustix::process::pidfd_open(raw, PidfdFlags::empty())?;
        Ok(Self { pid, descriptor, tells_stack: false })
    }

    /// Opens the process with this number, if it lives and descends from `ancestor`.
    pub(crate) fn below(pid: i32, ancestor: i32) -> Result<Self, Errno> {
        if pid <= 1 || pid == std::process::id() as i32 {
            return Err(Errno::PERM);
        }
        let process = Self::open(pid)?;
        // As long as the descriptor shows it alive, /proc describes this process under its number.
        let descends = descends(pid, ancestor);
        if process.has_ended() {
            return Err(Errno::SRCH);
        }
        if descends { Ok(process) } else { Err(Errno::PERM) }
    }

    /// Whether the process has ended. It may not have been reaped yet.
    pub(crate) fn has_ended(&self) -> bool {
        is_ready(&mut [PollFd::new(&self.descriptor, PollFlags::IN)])
    }

    /// Kills the process and the process group that it leads. This also kills the rest of the group
    /// after the process has ended.
    pub(crate) fn kill(&self) {
        // SAFETY: the call takes numbers and a null pointer.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.descriptor.as_raw_fd(),
                libc::SIGKILL,
                std::ptr::null::<libc::siginfo_t>(),
                PIDFD_SIGNAL_PROCESS_GROUP,
            )
        };
        let too_old = sent != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
        if too_old && process_group(self.pid) == Some(self.pid) && !self.has_ended() {
            // SAFETY: kill takes numbers. The process lives, so the number is still its own, and the
            // group of that number too.
            unsafe { libc::kill(-self.pid, libc::SIGKILL) };
        }
        let _ = rustix::process::pidfd_send_signal(&self.descriptor, rustix::process::Signal::KILL);
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Sends the guest's first message.
pub(crate) fn greet(socket: BorrowedFd<'_>, tells_stack: bool) -> Result<(), Errno> {
    rustix::net::send(socket, GREETINGS[usize::from(tells_stack)], SendFlags::NOSIGNAL).map(drop)
}

/// Makes the kernel report the sender of each message on the socket. Must be called before the
/// other end is given away.
pub(crate) fn expect(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    sockopt::set_socket_passcred(socket, true)
}

/// Takes the greeting. Returns the number of the process that sent it, and whether that process
/// writes its stack. [`Errno::AGAIN`] if no greeting has come.
pub(crate) fn sender(socket: BorrowedFd<'_>) -> Result<(i32, bool), Errno> {
    let mut byte = [0u8; 2];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // The alignment is that of the kernel's headers, and the size is more than credentials need.
    let mut space = [MaybeUninit::<u64>::uninit(); 16];
    // SAFETY: the struct is plain data; the pointers in it are valid for the call.
    let (received, message) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = size_of::<[u64; 16]>() as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        (libc::recvmsg(socket.as_raw_fd(), &mut message, flags), message)
    };
    if received < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let mut pid = None;
    // SAFETY: the kernel has filled the space as the header says. Each part is read within its
    // length.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(&message);
        while !part.is_null() {
            let data = libc::CMSG_DATA(part);
            let length = ((*part).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            match ((*part).cmsg_level, (*part).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                    pid = Some(data.cast::<libc::ucred>().read_unaligned().pid);
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    // The engine expects no descriptors here.
                    for index in 0..length / size_of::<i32>() {
                        libc::close(data.cast::<i32>().add(index).read_unaligned());
                    }
                }
                _ => {}
            }
            part = libc::CMSG_NXTHDR(&message, part);
        }
    }
    // The descriptors of large frames come without credentials.
    sockopt::set_socket_passcred(socket, false)?;
    match pid {
        _ if received == 0 => Err(Errno::CONNRESET),
        Some(pid) => {
            let said = &byte[..received as usize];
            let known = GREETINGS.iter().position(|greeting| *greeting == said).ok_or(Errno::BADMSG)?;
            Ok((pid, known == 1))
        }
        None => Err(Errno::BADMSG),
    }
}

/// The lane's process, if the greeting came from a process that the zygote made.
pub(crate) fn lane_of(zygote: i32, (sender, tells_stack): (i32, bool)) -> Result<Process, Errno> {
    let process = if sender == zygote { Process::open(zygote) } else { Process::below(sender, zygote) };
    Ok(Process { tells_stack, ..process? })
}

fn descends(pid: i32, ancestor: i32) -> bool {
    let mut generations = std::iter::successors(Some(pid), |pid| parent(*pid)).skip(1).take(GENERATIONS);
    generations.any(|pid| pid == ancestor)
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 1)
}
