//! The zygote's handlers of signals.

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

/// Waits until one of the descriptors can be read, or a signal has come.
///
/// # Errors
/// If there is no memory.
pub fn readable(fds: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match rustix::event::poll(&mut fds, None) {
        Ok(_) => Ok(fds.map(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; 2]),
        Err(error) => Err(error.into()),
    }
}

/// The pipe that signal handlers write to, and the time of the last SIGINT.
pub(crate) static BELL: AtomicI32 = AtomicI32::new(-1);
pub(crate) static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(number: libc::c_int) {
    if number == libc::SIGINT {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the place is valid, and the call may be made in a signal handler.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        INTERRUPTED.store(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64, Relaxed);
    }
    // SAFETY: one byte of a constant is written, to a pipe that does not block. errno is restored
    // for the interrupted code.
    unsafe {
        let error = *libc::__errno_location();
        libc::write(BELL.load(Relaxed), b".".as_ptr().cast(), 1);
        *libc::__errno_location() = error;
    }
}

/// Whether this process has a handler of a signal, in any language.
#[must_use]
pub fn is_caught(number: libc::c_int) -> bool {
    // SAFETY: the structure is plain data, which the call fills in; without another one it changes
    // nothing.
    let set = unsafe {
        let mut set: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut set);
        set.sa_sigaction
    };
    set != libc::SIG_DFL && set != libc::SIG_IGN
}

/// The handlers that were there before the zygote's.
pub(crate) struct Signals(Vec<(libc::c_int, libc::sigaction)>);

impl Signals {
    pub(crate) fn take(numbers: &[libc::c_int]) -> Self {
        let handler: extern "C" fn(libc::c_int) = on_signal;
        Self::set(numbers, handler as usize)
    }

    /// Ignores these signals.
    pub(crate) fn ignore(numbers: &[libc::c_int]) -> Self {
        Self::set(numbers, libc::SIG_IGN)
    }

    fn set(numbers: &[libc::c_int], handler: libc::sighandler_t) -> Self {
        let take = |number| {
            // SAFETY: both structures are plain data, and valid; the handler makes only calls that
            // handlers may make.
            unsafe {
                let mut ours: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                ours.sa_sigaction = handler;
                ours.sa_flags = libc::SA_RESTART;
                libc::sigaction(number, &raw const ours, &raw mut before);
                (number, before)
            }
        };
        Self(numbers.iter().copied().map(take).collect())
    }

    /// Restores them, in a fork.
    pub(crate) fn give_back(&self) {
        for (number, before) in &self.0 {
            // SAFETY: the structure is what the kernel gave for this signal.
            unsafe { libc::sigaction(*number, before, std::ptr::null_mut()) };
        }
    }
}
