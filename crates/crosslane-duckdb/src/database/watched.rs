//! What libraries were loaded with, so that they can be loaded again.

use crosslane::Sandbox;
use crosslane_process::Watched;
use crosslane_remote::client::{Remote, Watch};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The files of a library, and what it was loaded with.
#[derive(Debug)]
pub(super) struct WatchedLibrary {
    pub(super) files: Watched,
    /// Whether it was loaded with the permission to take names.
    pub(super) replace: bool,
    /// The sandbox of the settings that it was loaded with, if they had one. The file may ask for another.
    pub(super) allowed: Option<Sandbox>,
}

/// The first pause between two attempts to ask a server for its functions. It doubles while the server
/// cannot be reached, and while connections end and the functions are the same.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A connection that has lasted so long is no sign of trouble.
const CALM: Duration = Duration::from_secs(10);

/// A server that loads its files again when they change.
#[derive(Debug)]
pub(super) struct WatchedServer {
    pub(super) remote: Remote,
    /// Says when the server has other functions.
    pub(super) watch: Arc<Watch>,
    /// Whether it was attached with the permission to take names.
    pub(super) replace: bool,
    /// Whether a thread asks the server now.
    is_asked: bool,
    /// When the last attempt has ended.
    since: Instant,
    /// The pause until the next attempt.
    pause: Duration,
    /// When the server is asked, if the watch is over.
    due: Option<Instant>,
    /// Whether the log says that the server cannot be attached.
    was_told: bool,
}

impl WatchedServer {
    /// A server that was just attached.
    pub(super) fn new(remote: Remote, watch: Watch, replace: bool) -> Self {
        Self {
            remote,
            watch: Arc::new(watch),
            replace,
            is_asked: false,
            since: Instant::now(),
            pause: PAUSE,
            due: None,
            was_told: false,
        }
    }

    /// Whether a thread should ask the server for its functions now. The caller then starts it.
    pub(super) fn ask(&mut self) -> bool {
        if self.is_asked || !self.watch.is_over() {
            return false;
        }
        let now = Instant::now();
        if self.due.is_none() && now - self.since > CALM {
            self.pause = PAUSE;
        }
        self.is_asked = now >= *self.due.get_or_insert(self.since + self.pause);
        self.is_asked
    }

    /// Notes that the server has the same functions, with the watch for the next ones.
    pub(super) fn renew(&mut self, watch: Watch) {
        self.watch = Arc::new(watch);
        self.was_told = false;
        self.rest();
        self.due = None;
    }

    /// Notes that the server could not be attached. Returns whether the log does not say so yet.
    pub(super) fn fail(&mut self) -> bool {
        self.rest();
        !std::mem::replace(&mut self.was_told, true)
    }

    fn rest(&mut self) {
        self.is_asked = false;
        self.since = Instant::now();
        self.due = Some(self.since + self.pause);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }
}
