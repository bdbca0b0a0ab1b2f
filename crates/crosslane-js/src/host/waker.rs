//! Wakes the host's main thread.

use super::attention::Attention;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;

/// What wakes the main thread.
#[derive(Debug)]
pub(crate) struct Waker {
    pub(super) attention: Attention,
    pub(super) end: UnixStream,
}

impl Waker {
    /// Something has happened that it must see.
    pub(super) fn wake(&self) -> io::Result<()> {
        (&self.end).write_all(b"l")
    }

    /// A call is at work, and may take too long or too much.
    pub(crate) fn begin_call(&self) {
        if self.attention.begin() {
            // It fails if the main thread is gone, and with it the process.
            let _ = self.wake();
        }
    }
}
