//! What is different in a guest whose process is in a sandbox.

use crate::external;
use crosslane::{Failure, Sandbox};
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static SANDBOXED: AtomicBool = AtomicBool::new(false);
static STRICT: AtomicBool = AtomicBool::new(false);
static IS_FORK: AtomicBool = AtomicBool::new(false);
/// The kernel's counts of this process's memory: from the engine, or from [`keep_counts`].
static STATM: OnceLock<OwnedFd> = OnceLock::new();

/// Declares that this process has entered a sandbox, whose lanes may be strict. Failures then say what
/// the sandbox may have forbidden.
pub fn is_sandboxed(is_strict: bool) {
    SANDBOXED.store(true, Relaxed);
    STRICT.store(is_strict, Relaxed);
}

/// Declares that this process is a lane, and a fork of one that has entered a sandbox. Such a lane gets
/// from its engine what it cannot open itself.
pub fn is_sandboxed_fork() {
    IS_FORK.store(true, Relaxed);
}

/// Opens the kernel's counts of this process's memory, for a process that will open nothing more. Without
/// them, [`crate::limits`] knows no sizes.
pub fn keep_counts() {
    if let Ok(counts) = File::open("/proc/self/statm") {
        let _ = STATM.set(counts.into());
    }
}

/// The failure with texts that are short enough to be sent, and with what may help.
pub(crate) fn told(failure: &Failure) -> Failure {
    let mut told = failure.bounded();
    if SANDBOXED.load(Relaxed)
        && let Some(remedy) = Sandbox::remedy(failure, STRICT.load(Relaxed) && IS_FORK.load(Relaxed))
    {
        told.message.push_str("; ");
        told.message.push_str(remedy);
    }
    told
}

/// Takes what the engine sends to a forked lane in a sandbox. The engine has been greeted.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    if IS_FORK.load(Relaxed) {
        retry_on_intr(|| rustix::event::poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], None))?;
        let _ = STATM.set(external::receive(socket)?);
    }
    Ok(())
}

/// The kernel's counts of this process's memory, where the process cannot open them.
pub(crate) fn statm() -> Option<BorrowedFd<'static>> {
    STATM.get().map(AsFd::as_fd)
}
