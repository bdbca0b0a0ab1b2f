//! A worker's lane in the server, and the trait of its borrowers.

use crosslane::lane::{Lane, LaneError};
use crosslane::pool::PooledLane;
use crosslane::{Error, lock};
use crosslane_process::ProcessLane;
use crosslane_ring::{MappedRing, Watch};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The most messages that one [`Slot::settle`] throws away.
const MOST_AT_ONCE: usize = 64;

/// Something that borrows workers: the route of a client's lane.
pub(crate) trait Borrower: Send + Sync {
    /// Takes the worker for which it waited. Returns grants to other borrowers if it does not need
    /// the worker any more.
    fn granted(self: Arc<Self>, slot: Arc<Slot>) -> Vec<Grant>;

    /// Says that it gets no worker.
    fn refused(&self, error: &Error);

    /// Takes what its worker has sent.
    fn pump(self: Arc<Self>);

    /// Tries to give a worker what had to wait for the `rate` of its function.
    fn retry(self: Arc<Self>);

    /// Checks whether its worker lives, how far it is, and whether it is late.
    fn look(self: Arc<Self>, slot: &Arc<Slot>);
}

/// A lane that the server has taken from a pool.
pub(crate) struct Slot {
    /// The index of the [`Workers`](super::Workers) that have it.
    pub(crate) workers: usize,
    /// The lane; `None` when it is lost, or back in the pool.
    pub(crate) lane: Mutex<Option<PooledLane<ProcessLane>>>,
    /// Whether its route takes no replies now.
    pub(crate) stalled: AtomicBool,
    pub(super) watch: Watch<MappedRing>,
    /// The route that uses it.
    pub(super) borrower: Mutex<Option<Arc<dyn Borrower>>>,
    pub(super) is_long: AtomicBool,
    pub(super) is_held: AtomicBool,
}

impl Slot {
    pub(super) fn has_news(&self) -> bool {
        !self.stalled.load(Relaxed) && self.watch.has_news()
    }

    /// Throws away messages of cancelled exchanges. Returns whether these have ended; `None` if the
    /// worker is of no more use.
    pub(super) fn settle(&self) -> Option<bool> {
        let mut guard = lock(&self.lane);
        let lane = guard.as_mut()?;
        for _ in 0..MOST_AT_ONCE {
            if lane.in_flight() == 0 {
                return Some(true);
            }
            if !lane.has_news() {
                break;
            }
            match lane.try_collect() {
                Ok(_) | Err(LaneError::TooLarge(_)) => {}
                Err(_) => return None,
            }
        }
        (lane.in_flight() == 0 || lane.lives()).then(|| lane.in_flight() == 0)
    }

    /// Whether a free worker is of no more use: it has ended, or has sent messages without a call.
    pub(super) fn is_spoilt(&self) -> bool {
        let has_ended =
            |lane: &Option<PooledLane<ProcessLane>>| lane.as_ref().is_none_or(|lane| lane.has_ended());
        // No other thread uses the lane of a free worker. If one does, the answer does not matter.
        self.watch.has_news() || self.lane.try_lock().is_ok_and(|lane| has_ended(&lane))
    }
}

/// A worker for a borrower that waited in the queue.
#[must_use = "a grant that is not delivered is a worker that nobody uses"]
pub(crate) struct Grant {
    pub(super) borrower: Arc<dyn Borrower>,
    pub(super) slot: Arc<Slot>,
}

impl Grant {
    /// Gives the worker to the borrower. The caller must hold no lock.
    pub(crate) fn deliver(self) {
        Self::deliver_all(vec![self]);
    }

    /// Delivers several grants. A route that needs its worker no more grants it to the next one at
    /// once, and this may go on through the whole queue. So the grants are delivered in a loop,
    /// without recursion.
    pub(crate) fn deliver_all(mut grants: Vec<Self>) {
        while let Some(Self { borrower, slot }) = grants.pop() {
            grants.extend(borrower.granted(slot));
        }
    }
}
