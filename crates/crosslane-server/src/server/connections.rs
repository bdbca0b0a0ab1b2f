//! The open connections, and the choice of one to end if there is no room for more bytes.

use super::budget::{Account, Budget};
use crosslane::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Why an idle connection is ended.
pub(crate) const ENDING: &str = "the server is shutting down";
/// Why a connection is ended whose functions the server has replaced.
pub(super) const RELOADED: &str = "the server has loaded its files again";

/// What the server as a whole needs of a connection.
pub(crate) trait OpenConnection: Send + Sync {
    /// Its part of the budget: the bytes that wait for it or for its client.
    fn account(&self) -> &Account;

    /// Ends it to make room.
    fn give_up(&self);

    /// Ends it if nothing is in flight on it.
    fn end_if_idle(&self);

    /// Ends it if its client waits for an offer that is newer than its own. An offer is known by its
    /// number.
    fn end_if_it_watches(&self, newest: u64);

    /// Ends it if it has this offer.
    fn end_if_it_has(&self, offer: u64);

    /// Counts for each function of an offer the exchanges that wait in the server, and those that a
    /// worker has.
    fn count(&self, offer: u64, waiting: &mut [u32], flying: &mut [u32]);
}

/// The connections of a server.
pub(crate) struct Connections {
    open: Mutex<HashMap<u64, Arc<dyn OpenConnection>>>,
    /// How many there may be.
    pub(crate) most: usize,
    /// The bytes of messages that wait, for all connections together.
    pub(crate) budget: Arc<Budget>,
    draining: AtomicBool,
    /// The next connection's number.
    next: AtomicU64,
}

impl Connections {
    pub(super) fn new(most: usize, budget: Arc<Budget>) -> Self {
        let draining = AtomicBool::new(false);
        Self { open: Mutex::default(), most, budget, draining, next: AtomicU64::new(0) }
    }

    /// Why no more connections are taken; `None` if they are.
    pub(super) fn refusal(&self) -> Option<String> {
        if self.is_draining() {
            return Some(ENDING.into());
        }
        let most = self.most;
        (lock(&self.open).len() >= most).then(|| format!("the server has {most} connections already"))
    }

    /// The next connection's number.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Keeps a connection until [`Connections::leave`].
    pub(super) fn join(&self, number: u64, connection: Arc<dyn OpenConnection>) {
        lock(&self.open).insert(number, connection);
    }

    pub(super) fn leave(&self, number: u64) {
        let connection = lock(&self.open).remove(&number);
        drop(connection);
    }

    /// Ends the slow connection that has the most bytes waiting for its client. If no connection is
    /// slow and an answer needs room, this ends the connection with the most bytes of answers.
    pub(super) fn make_room(&self, for_answer: bool) {
        let connections = self.all();
        let slow = connections.iter().filter(|connection| connection.account().is_slow());
        let mut ended = slow.max_by_key(|connection| connection.account().delayed());
        if ended.is_none() && for_answer {
            ended = connections.iter().max_by_key(|connection| connection.account().unread());
        }
        if let Some(connection) = ended {
            connection.give_up();
        }
    }

    /// Takes no more connections from now on.
    pub(super) fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// How many connections were taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.next.load(Relaxed)
    }

    pub(crate) fn all(&self) -> Vec<Arc<dyn OpenConnection>> {
        lock(&self.open).values().cloned().collect()
    }
}
