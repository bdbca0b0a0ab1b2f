//! What all connections of a server use.

use super::connections::Connections;
use super::served::{Seal, ServedFunction};
use super::workers::{Watcher, Workers};
use crosslane::stats::Counter;
use std::sync::Arc;

/// What all connections of a server use.
pub(crate) struct Shared {
    pub(crate) functions: Vec<ServedFunction>,
    /// The workers of each library.
    pub(crate) workers: Vec<Arc<Workers>>,
    pub(super) watcher: Arc<Watcher>,
    pub(super) seal: Seal,
    pub(super) token: Option<String>,
    /// The first message to a client, with its prefix.
    pub(super) welcome: Vec<u8>,
    /// The most bytes of a message.
    pub(super) largest: usize,
    pub(crate) connections: Arc<Connections>,
    /// Connections that were refused because there were too many, or because the server was
    /// shutting down.
    pub(crate) refused: Counter,
    /// Connections that were ended because of what the client did.
    pub(crate) violations: Counter,
}
