//! What all connections of a server use.

use super::connections::Connections;
use super::offer::Offers;
use crosslane::stats::Counter;
use std::sync::Arc;

/// What all connections of a server use.
pub(crate) struct Shared {
    pub(crate) offers: Offers,
    pub(super) token: Option<String>,
    /// The most bytes of a message.
    pub(super) largest: usize,
    pub(crate) connections: Arc<Connections>,
    /// Connections that were refused because there were too many, or because the server was
    /// shutting down.
    pub(crate) refused: Counter,
    /// Connections that were ended because of what the client did.
    pub(crate) violations: Counter,
}
