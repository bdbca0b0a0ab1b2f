//! The options of a tag.

use crate::blocking;
use crate::idle::Polled;
use std::io;
use std::thread;
use std::time::Duration;

/// The options of one tag.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) tag: String,
    pub(super) workers: usize,
    pub(super) reserve: Option<usize>,
    pub(super) dispatchers: usize,
    pub(super) priority: bool,
    pub(super) blocking: usize,
    /// How long a thread for calls that block waits for the next call.
    pub(super) keep: Duration,
    pub(super) polled: Option<Polled>,
}

/// The most threads that Linux allows a process by default. More dispatchers than threads would
/// have no effect.
const MOST: usize = 1 << 15;

impl Options {
    pub(super) fn new(tag: &str) -> Self {
        Options {
            tag: tag.into(),
            workers: thread::available_parallelism().map_or(1, usize::from),
            reserve: None,
            dispatchers: 1,
            priority: true,
            blocking: blocking::LIMIT,
            keep: blocking::KEEP,
            polled: None,
        }
    }

    pub(super) fn reserve(&self) -> usize {
        if self.dispatchers == 0 { 0 } else { self.reserve.unwrap_or(4 * self.workers) }
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let Options { tag, workers, reserve, dispatchers, blocking, .. } = self;
        let fault = if tag.contains('\0') {
            "has a NUL in its name, which threads get".into()
        } else if *workers == 0 {
            "needs at least one worker".into()
        } else if *blocking == 0 {
            "needs at least one thread for calls that block".into()
        } else if let Some(number) = [*workers, reserve.unwrap_or(0), *dispatchers, *blocking]
            .into_iter()
            .find(|number| *number > MOST)
        {
            format!("cannot have {number} threads or dispatchers; {MOST} are the most")
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("the tag {tag:?} {fault}")))
    }
}
