//! The state of a pool, and the lanes that it lends.

use super::options::{PoolOptions, PoolStats, Stop};
use super::per_thread::Shelves;
use super::warmth::{Census, Member, Warmth};
use crate::error::Error;
use crate::lane::Lane;
use crate::stats::LaneStats;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// For how long a guest may go on with what was cancelled.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// A lane and what it has done.
pub(super) struct Kept<L: Lane> {
    pub(super) lane: L,
    pub(super) stats: Arc<LaneStats>,
    /// When it was given back last.
    pub(super) since: Instant,
    /// Until when its guest may go on with what is in flight while nobody has the lane.
    pub(super) until: Instant,
    /// Whether it prepares itself, and nobody had it yet.
    pub(super) new: bool,
    pub(super) shared: Arc<Shared<L>>,
}

impl<L: Lane> Kept<L> {
    /// It has nothing to do from now on.
    pub(super) fn rest(&mut self) {
        self.since = Instant::now();
        self.stats.busy.store(false, Relaxed);
    }
}

/// What one of those in line waits for; see the module's documentation.
pub(super) enum Turn<L: Lane> {
    Due,
    Refused(Error),
    Served(Box<Kept<L>>),
}

pub(super) struct Place<L: Lane> {
    pub(super) ticket: u64,
    pub(super) thread: ThreadId,
    pub(super) turn: Turn<L>,
}

pub(super) struct State<L: Lane> {
    /// The lane used last is on top: its memory is the warmest.
    pub(super) idle: Vec<Box<Kept<L>>>,
    /// Lanes at work on what was cancelled, since they were given back, and new ones that prepare themselves.
    pub(super) ending: Vec<Box<Kept<L>>>,
    /// How many of the latter there are.
    pub(super) preparing: usize,
    /// Lanes that are not in `idle`.
    pub(super) out: usize,
    /// The living lanes, idle and busy.
    pub(super) lanes: Vec<Arc<LaneStats>>,
    /// The waiters, in the order in which they came.
    pub(super) line: VecDeque<Place<L>>,
    /// Who holds which lanes beyond a call.
    pub(super) held: HashMap<u64, ThreadId>,
    pub(super) last_used: Instant,
    pub(super) options: PoolOptions,
    pub(super) stats: PoolStats,
    /// Whether idle lanes should be kept ready: since the last use, until the idle timeout.
    pub(super) keep_warm: bool,
    /// Whether a lane was ever checked out, if that makes a difference.
    pub(super) used: bool,
    /// The most lanes to keep warm, since all pools together had too many; until a waiter finds none.
    pub(super) cap: Option<usize>,
    /// Idle lanes that end because of that.
    pub(super) surplus: usize,
    /// Whether all pools together may have too many lanes since this one has booted some.
    pub(super) unbalanced: bool,
    /// Whether the last boot failed: then no lane is booted until a waiter needs one.
    pub(super) exhausted: bool,
    pub(super) closed: bool,
}

pub(super) struct Shared<L: Lane> {
    pub(super) state: Mutex<State<L>>,
    /// What workers have given back a moment ago.
    pub(super) shelves: Shelves<Kept<L>>,
    /// Notifies the keeper of work.
    pub(super) work: Condvar,
    /// Notifies the waiters of a lane, a failure, or the end of a lane.
    pub(super) arrival: Condvar,
    pub(super) stop: Stop,
    /// The bound on idle lanes that the pool shares with others.
    pub(super) warmth: Option<Arc<Warmth>>,
    /// The functions that lanes set up.
    pub(super) prepared: OnceLock<String>,
    /// The process that made the pool. A fork has no keeper, and its copies of the lanes belong to its parent.
    pub(super) process: u32,
}

impl<L: Lane> Member for Shared<L> {
    fn census(&self) -> Census {
        let mut state = self.lock();
        self.collect(&mut state);
        Census { idle: state.idle.len(), used: state.used.then_some(state.last_used) }
    }

    fn reconsider(&self) {
        self.lock().cap = None;
        self.work.notify_one();
    }

    fn shed(&self, lanes: usize) {
        self.lock().surplus = lanes;
        self.work.notify_one();
    }
}

impl<L: Lane> Shared<L> {
    pub(super) fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pool is another process's, of which this one is a fork.
    pub(super) fn is_of_a_fork(&self) -> bool {
        self.process != std::process::id()
    }

    /// Closes the shelves as long as each lane that comes back is to be looked at, and empties them then.
    pub(super) fn attend(&self, state: &mut State<L>) {
        let closed = !state.line.is_empty() || state.closed || state.options.idle_timeout.is_zero();
        self.shelves.close(closed);
        if closed {
            self.collect(state);
        }
    }

    /// Takes all lanes from the shelves.
    pub(super) fn collect(&self, state: &mut State<L>) {
        while let Some(kept) = self.shelves.take_any() {
            state.receive(kept);
            if !state.line.is_empty() {
                self.arrival.notify_all();
            }
        }
    }

    /// Takes a lane back that no shelf has room for, or that is not to lie on one.
    pub(super) fn receive(&self, kept: Box<Kept<L>>) {
        let mut state = self.lock();
        if state.closed {
            state.out -= 1;
            drop(state);
            return;
        }
        if kept.lane.in_flight() > 0 {
            state.ending.push(kept);
            self.work.notify_one();
            return;
        }
        state.receive(kept);
        self.tell(&state);
    }

    /// Tells who waits for a lane that one came back, and the keeper if it is to leave at once.
    pub(super) fn tell(&self, state: &State<L>) {
        if !state.line.is_empty() {
            self.arrival.notify_all();
        }
        if state.options.idle_timeout.is_zero() {
            self.work.notify_one();
        }
    }
}

/// A lane that is checked out. Dropping it ends the lane; [`PooledLane::give_back`] keeps it warm.
pub struct PooledLane<L: Lane> {
    pub(super) kept: Option<Box<Kept<L>>>,
    /// The thread that the pool knows as this lane's.
    pub(super) holder: Option<ThreadId>,
}

impl<L: Lane> fmt::Debug for PooledLane<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.kept.as_ref().map(|kept| kept.lane.id());
        f.debug_struct("PooledLane").field("lane", &id).finish_non_exhaustive()
    }
}

impl<L: Lane> PooledLane<L> {
    pub(super) fn new(kept: Box<Kept<L>>) -> Self {
        Self { kept: Some(kept), holder: None }
    }

    pub(super) fn kept(&self) -> &Kept<L> {
        self.kept.as_ref().expect("a lane until it is given back")
    }

    pub(super) fn kept_mut(&mut self) -> &mut Kept<L> {
        self.kept.as_mut().expect("a lane until it is given back")
    }

    /// The lane, which is still counted as checked out.
    pub(super) fn into_kept(mut self) -> Box<Kept<L>> {
        self.kept.take().expect("a lane until it is given back")
    }

    /// What the lane has done.
    pub fn stats(&self) -> &LaneStats {
        &self.kept().stats
    }

    /// Says that this thread keeps the lane for as long as it needs to, also while it waits for another.
    pub fn hold(&mut self) {
        let this = std::thread::current().id();
        if self.holder != Some(this) {
            self.holder = Some(this);
            self.kept().shared.lock().held.insert(self.id(), this);
        }
    }

    /// Returns the lane to the pool, if its guest lives, and all that is left of its last use in it was cancelled; else ends
    /// it.
    pub fn give_back(mut self) {
        if self.kept().shared.is_of_a_fork() {
            return;
        }
        let Some(kept) = self.clean().or_else(|| self.cancelled()) else { return };
        let shared = Arc::clone(&kept.shared);
        if self.holder.is_some() {
            shared.lock().held.remove(&kept.lane.id());
        }
        shared.receive(kept);
    }

    /// The lane, if its guest is yet to end what was cancelled.
    pub(super) fn cancelled(&mut self) -> Option<Box<Kept<L>>> {
        let mut kept = self.kept.take_if(|kept| kept.lane.is_cancelled() && !kept.lane.has_ended())?;
        kept.since = Instant::now();
        kept.until = kept.since + GRACE;
        Some(kept)
    }

    /// The lane, if nothing of its last use is left in it.
    pub(super) fn clean(&mut self) -> Option<Box<Kept<L>>> {
        let clean = |kept: &mut Box<Kept<L>>| kept.lane.in_flight() == 0 && !kept.lane.has_ended();
        let mut kept = self.kept.take_if(clean)?;
        kept.rest();
        Some(kept)
    }
}

impl<L: Lane> std::ops::Deref for PooledLane<L> {
    type Target = L;
    fn deref(&self) -> &L {
        &self.kept().lane
    }
}

impl<L: Lane> std::ops::DerefMut for PooledLane<L> {
    fn deref_mut(&mut self) -> &mut L {
        &mut self.kept_mut().lane
    }
}

impl<L: Lane> Drop for PooledLane<L> {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            let Kept { lane, stats, new, shared, .. } = *kept;
            let id = lane.id();
            drop(lane);
            // Another thread may have held the lock when this process was forked, and it is not here to let it go.
            if shared.is_of_a_fork() {
                return;
            }
            let mut state = shared.lock();
            state.out -= 1;
            state.preparing -= usize::from(new);
            if self.holder.is_some() {
                state.held.remove(&id);
            }
            state.forget(&stats);
            if state.is_awaited() {
                shared.arrival.notify_all();
            }
            shared.work.notify_one();
        }
    }
}
