//! The load of a library.

use super::control::CONTROL;
use super::guest::{Guest, Loaded};
use crosslane::Failure;
use crosslane_process::{Source, hash};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Loads a library. Opens the standard streams again that its file has closed.
pub(crate) fn load(
    guest: &mut impl Guest,
    source: &Source,
    pickles: Option<&OwnedFd>,
) -> Result<Loaded, Failure> {
    let streams = [0, 1, 2].map(|number| {
        // SAFETY: it is only copied, and a number that stands for nothing is an error.
        let stream = unsafe { BorrowedFd::borrow_raw(number) };
        (number, rustix::io::fcntl_dupfd_cloexec(stream, CONTROL + 1))
    });
    let loaded = guest.load(source, pickles);
    for (number, saved) in streams {
        if let Ok(saved) = saved {
            // SAFETY: these numbers are the standard streams', whatever the file has put there.
            unsafe { libc::dup2(saved.as_raw_fd(), number) };
        }
    }
    let opened = guest.open_streams();
    let loaded = loaded?;
    opened.map(|()| loaded)
}

/// A text that tells a loaded library from all others.
pub(crate) fn identity(loaded: &Loaded) -> String {
    let files = loaded.files.clone().unwrap_or_default();
    hash(format!("{}\0{}", loaded.functions, files.hash()).as_bytes())
}
