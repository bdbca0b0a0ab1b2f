//! The bytes of messages that wait in the server. All connections together have one limit.
//!
//! A client's message counts from the moment its length is known, before the rest of it is read. It
//! counts until a worker has it. While there is no room for a message, its connection is not read.
//! A message without rows needs no room: it may be a cancel, and a cancel makes room. An answer
//! counts while its client does not read it. An answer cannot wait for room, so it may exceed the
//! limit.
//!
//! Messages that wait for room are in no queue. Small messages pass a large one, because light
//! calls must not wait for heavy ones. The large one waits until enough calls have ended, or its
//! client gives up.
//!
//! Bytes that wait for a worker become fewer, because calls end. Bytes that wait for a client may
//! not. The client may send the rest of a message one byte at a time, or leave answers unread. So
//! if the budget is used up, one such connection is ended
//! ([`super::connections::Connections::make_room`]).

use crosslane::batch::Header;
use event_listener::Event;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use std::time::{Duration, Instant};

/// The bytes that a message takes in addition to its own.
const BESIDE: usize = 256;
/// The limit that all connections share, and how much of it is used.
#[derive(Debug)]
pub(crate) struct Budget {
    most: usize,
    /// How long bytes may wait for a client while other clients have no room for theirs.
    slow: Duration,
    used: AtomicUsize,
    /// Notified when bytes were given back.
    pub(crate) freed: Event,
    since: Instant,
}

impl Budget {
    pub(crate) fn new(most: usize, slow: Duration) -> Arc<Self> {
        let (used, freed, since) = (AtomicUsize::new(0), Event::new(), Instant::now());
        Arc::new(Self { most, slow, used, freed, since })
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// How long bytes may wait for a client while other clients have no room for theirs.
    pub(crate) fn slow(&self) -> Duration {
        self.slow
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }
}

/// The part of the budget that a connection uses.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    /// The bytes of a message whose rest is still to come.
    coming: AtomicUsize,
    /// The bytes of answers that the client has not read.
    unread: AtomicUsize,
    /// When bytes of either kind began to wait, in milliseconds since the budget was made.
    since: AtomicU64,
}

impl Account {
    pub(crate) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        let budget = Arc::clone(budget);
        let (coming, unread) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { budget, coming, unread, since: AtomicU64::new(0) })
    }

    /// Takes room for a message whose rest is still to come; `None` if there is none now.
    pub(crate) fn hold(self: &Arc<Self>, length: usize) -> Option<Held> {
        let bytes = length + BESIDE;
        let Budget { most, used, .. } = &*self.budget;
        // The largest message fits if there is no other.
        let is_small = length <= size_of::<Header>();
        let fits = |used: usize| (is_small || used + length <= *most).then_some(used + bytes);
        used.fetch_update(AcqRel, Acquire, fits).ok()?;
        self.delay(&self.coming, bytes);
        Some(Held { account: Arc::clone(self), bytes, is_coming: true })
    }

    /// Counts bytes of answers that wait for the client, even if there is no room for them.
    pub(crate) fn keep(&self, bytes: usize) {
        self.delay(&self.unread, bytes);
        self.budget.used.fetch_add(bytes, AcqRel);
    }

    /// Whether the bytes that are held are within the limit.
    pub(crate) fn fits(&self) -> bool {
        self.budget.used() <= self.budget.most
    }

    /// Gives back bytes of answers that were sent to the client.
    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.unread.fetch_sub(bytes, Relaxed);
            self.free(bytes);
        }
    }

    fn delay(&self, what: &AtomicUsize, bytes: usize) {
        if bytes > 0 {
            if self.delayed() == 0 {
                self.since.store(self.budget.now(), Relaxed);
            }
            what.fetch_add(bytes, Relaxed);
        }
    }

    fn free(&self, bytes: usize) {
        self.budget.used.fetch_sub(bytes, AcqRel);
        self.budget.freed.notify(usize::MAX);
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// How many bytes wait for the client.
    pub(crate) fn delayed(&self) -> usize {
        self.coming.load(Relaxed) + self.unread()
    }

    /// How many bytes of answers the client has not read.
    pub(crate) fn unread(&self) -> usize {
        self.unread.load(Relaxed)
    }

    /// Whether bytes have waited for the client for longer than they may.
    pub(crate) fn is_slow(&self) -> bool {
        let waits = self.budget.now().saturating_sub(self.since.load(Relaxed));
        self.delayed() > 0 && Duration::from_millis(waits) >= self.budget.slow
    }
}

/// Room for a message, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    account: Arc<Account>,
    bytes: usize,
    /// Whether the rest of the message is still to come.
    is_coming: bool,
}

impl Held {
    /// Says that the whole message has come. It does not wait for its client any more.
    pub(crate) fn complete(mut self) -> Self {
        if std::mem::take(&mut self.is_coming) {
            self.account.coming.fetch_sub(self.bytes, Relaxed);
        }
        self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_coming {
            self.account.coming.fetch_sub(self.bytes, Relaxed);
        }
        self.account.free(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_secs(5);

    #[test]
    fn no_more_is_held_than_there_is() {
        let budget = Budget::new(2 * BESIDE + 1000, SLOW);
        let (one, other) = (Account::new(&budget), Account::new(&budget));
        let first = one.hold(600).unwrap();
        let second = other.hold(400).unwrap().complete();
        assert!(one.hold(BESIDE).is_none());
        assert_eq!(budget.used(), budget.most());
        assert_eq!((one.delayed(), other.delayed()), (600 + BESIDE, 0));
        // It may be a cancel.
        assert!(one.hold(size_of::<Header>()).is_some());
        drop(second);
        assert!(other.hold(400).is_some());
        drop(first);
        assert_eq!((budget.used(), one.delayed()), (0, 0));
    }

    #[test]
    fn the_largest_message_fits_alone() {
        let budget = Budget::new(1000, SLOW);
        let account = Account::new(&budget);
        let held = account.hold(1000).unwrap();
        assert!(account.hold(100).is_none());
        drop(held);
        assert!(account.hold(100).is_some());
    }

    #[test]
    fn answers_count_also_without_room() {
        let budget = Budget::new(1000, SLOW);
        let account = Account::new(&budget);
        account.keep(1000);
        assert!(account.fits());
        account.keep(1);
        assert!(!account.fits());
        assert!(account.hold(100).is_none());
        account.give_back(1001);
        assert_eq!((budget.used(), account.delayed()), (0, 0));
        assert!(account.hold(100).is_some());
    }
}
