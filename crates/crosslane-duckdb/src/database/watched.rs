//! What libraries were loaded with, so that they can be loaded again.

use crosslane::Sandbox;
use crosslane_process::Watched;
use crosslane_remote::client::{Remote, Watch};

/// The files of a library, and what it was loaded with.
pub(super) struct WatchedLibrary {
    pub(super) files: Watched,
    /// Whether it was loaded with the permission to take names.
    pub(super) replace: bool,
    /// The sandbox of the settings that it was loaded with, if they had one. The file may ask for another.
    pub(super) allowed: Option<Sandbox>,
}

/// A server that loads its files again when they change.
pub(super) struct WatchedServer {
    pub(super) remote: Remote,
    /// Says when the server has other functions. `None` while a thread attaches the server again.
    pub(super) watch: Option<Watch>,
    /// Whether it was attached with the permission to take names.
    pub(super) replace: bool,
}
