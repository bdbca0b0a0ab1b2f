//! Wakes the host's main thread.

use super::attention::Attention;
use std::io;
use std::os::fd::OwnedFd;

/// Wakes the main thread.
#[derive(Debug)]
pub(crate) struct Waker {
    pub(super) attention: Attention,
    /// A counter in the kernel, which the main thread waits for.
    pub(super) event: OwnedFd,
}

impl Waker {
    /// Wakes the main thread for an event that it must handle.
    pub(super) fn wake(&self) -> io::Result<()> {
        match rustix::io::write(&self.event, &1u64.to_ne_bytes()) {
            // The main thread has been woken so often that the counter is full.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Notes that a call is at work. The main thread must watch its time and memory.
    pub(crate) fn begin_call(&self) {
        if self.attention.begin() {
            // This fails only if the main thread has ended. Then the process ends.
            let _ = self.wake();
        }
    }
}
