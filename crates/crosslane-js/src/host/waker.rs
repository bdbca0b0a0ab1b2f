//! Wakes the host's main thread.

use super::attention::Attention;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;

/// Wakes the main thread.
#[derive(Debug)]
pub(crate) struct Waker {
    pub(super) attention: Attention,
    pub(super) end: UnixStream,
}

impl Waker {
    /// Wakes the main thread for an event that it must handle.
    pub(super) fn wake(&self) -> io::Result<()> {
        (&self.end).write_all(b"l")
    }

    /// Notes that a call is at work. The main thread must watch its time and memory.
    pub(crate) fn begin_call(&self) {
        if self.attention.begin() {
            // This fails only if the main thread has ended. Then the process ends.
            let _ = self.wake();
        }
    }
}
