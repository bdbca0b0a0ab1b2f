//! The state of a pool, and the lanes that it lends.

use super::options::{PoolOptions, PoolStats, Stop};
use super::per_thread::Cells;
use super::warm_limit::{Census, Member, WarmLimit};
use crate::error::Error;
use crate::lane::Lane;
use crate::stats::LaneStats;
use crate::trace::Tracer;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long a guest may go on with a cancelled exchange.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// A lane and its statistics.
pub(super) struct Kept<L: Lane> {
    pub(super) lane: L,
    pub(super) stats: Arc<LaneStats>,
    /// When the lane was given back last, or was booted.
    pub(super) since: Instant,
    /// The time until which its guest may go on with an exchange in flight while no caller has the lane.
    pub(super) until: Instant,
    /// Whether the lane prepares itself, and no caller has had it yet.
    pub(super) new: bool,
    pub(super) shared: Arc<Shared<L>>,
}

impl<L: Lane> Kept<L> {
    /// Marks the lane as idle from now on.
    pub(super) fn rest(&mut self) {
        self.since = Instant::now();
        self.stats.busy.store(false, Relaxed);
    }
}

/// What a waiter in the queue waits for; see the module's documentation.
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
    /// The lane used last is on top, because its memory is most likely still in the caches.
    pub(super) idle: Vec<Box<Kept<L>>>,
    /// Lanes that were given back and still work on a cancelled exchange, and new lanes that
    /// prepare themselves.
    pub(super) ending: Vec<Box<Kept<L>>>,
    /// How many lanes in `ending` are new lanes that prepare themselves.
    pub(super) preparing: usize,
    /// Lanes that are not in `idle`.
    pub(super) out: usize,
    /// The statistics of all living lanes, idle and busy.
    pub(super) lanes: Vec<Arc<LaneStats>>,
    /// The queue of waiters, in the order in which they came.
    pub(super) queue: VecDeque<Place<L>>,
    /// The lanes that threads hold beyond a call, with the thread of each.
    pub(super) held: HashMap<u64, ThreadId>,
    pub(super) last_used: Instant,
    pub(super) options: PoolOptions,
    /// The most lanes.
    pub(super) most: usize,
    pub(super) stats: PoolStats,
    /// Whether the pool keeps idle lanes ready: since its last use, until the idle timeout.
    pub(super) keep_warm: bool,
    /// Whether a lane was ever checked out. If no bound is shared, this is true from the start.
    pub(super) used: bool,
    /// The most lanes to keep warm, set when all pools together reach the bound. It is removed when
    /// a waiter finds no lane, or when the bound may allow more lanes.
    pub(super) cap: Option<usize>,
    /// How many idle lanes have to end because all pools together have too many.
    pub(super) surplus: usize,
    /// Whether all pools together may have too many lanes, because this pool has booted some.
    pub(super) unbalanced: bool,
    /// Whether the last boot failed. Then the keeper boots no lane until a waiter needs one.
    pub(super) exhausted: bool,
    pub(super) closed: bool,
}

pub(super) struct Shared<L: Lane> {
    pub(super) state: Mutex<State<L>>,
    /// Lanes that workers have given back a moment ago.
    pub(super) cells: Cells<Kept<L>>,
    /// Notifies the keeper that there is work.
    pub(super) work: Condvar,
    /// Notifies the waiters that a lane is free, a boot failed, or a lane ended.
    pub(super) arrival: Condvar,
    pub(super) stop: Stop,
    /// The bound on idle lanes that the pool shares with others.
    pub(super) warm_limit: Option<Arc<WarmLimit>>,
    pub(super) tracer: Tracer,
    /// The names of the functions that lanes set up.
    pub(super) prepared: OnceLock<String>,
    /// The process that made the pool. A fork has no keeper, and its copies of the lanes belong to
    /// its parent.
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

    /// Whether this process is a fork of the process that made the pool.
    pub(super) fn is_of_a_fork(&self) -> bool {
        self.process != std::process::id()
    }

    /// Closes the cells as long as the pool has to see each lane that comes back, and empties
    /// them.
    pub(super) fn attend(&self, state: &mut State<L>) {
        let closed = !state.queue.is_empty() || state.closed || state.options.idle_timeout.is_zero();
        self.cells.close(closed);
        if closed {
            self.collect(state);
        }
    }

    /// Takes all lanes from the cells.
    pub(super) fn collect(&self, state: &mut State<L>) {
        while let Some(kept) = self.cells.take_any() {
            state.receive(kept);
            if !state.queue.is_empty() {
                self.arrival.notify_all();
            }
        }
    }

    /// Takes a lane back that does not go into a cell, or finds its cell full.
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

    /// Tells the waiters that a lane came back. Also tells the keeper if the lane has to end at
    /// once.
    pub(super) fn tell(&self, state: &State<L>) {
        if !state.queue.is_empty() {
            self.arrival.notify_all();
        }
        if state.options.idle_timeout.is_zero() {
            self.work.notify_one();
        }
    }
}

/// A lane that is checked out. Dropping it ends the lane. [`PooledLane::give_back`] keeps it warm.
pub struct PooledLane<L: Lane> {
    pub(super) kept: Option<Box<Kept<L>>>,
    /// The thread that the pool has recorded as this lane's holder.
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

    /// Takes the lane out. The pool still counts it as checked out.
    pub(super) fn into_kept(mut self) -> Box<Kept<L>> {
        self.kept.take().expect("a lane until it is given back")
    }

    /// The lane's statistics.
    pub fn stats(&self) -> &LaneStats {
        &self.kept().stats
    }

    /// Tells the pool that this thread keeps the lane as long as it needs it, also while it waits
    /// for another lane.
    pub fn hold(&mut self) {
        let this = std::thread::current().id();
        if self.holder != Some(this) {
            self.holder = Some(this);
            self.kept().shared.lock().held.insert(self.id(), this);
        }
    }

    /// Returns the lane to the pool, if its guest lives and each exchange in flight was cancelled.
    /// Otherwise ends the lane.
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

    /// Takes the lane out, if its guest lives and still has to end a cancelled exchange.
    pub(super) fn cancelled(&mut self) -> Option<Box<Kept<L>>> {
        let mut kept = self.kept.take_if(|kept| kept.lane.is_cancelled() && !kept.lane.has_ended())?;
        kept.since = Instant::now();
        kept.until = kept.since + GRACE;
        Some(kept)
    }

    /// Takes the lane out, if its guest lives and no exchange is in flight.
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
            // Another thread may have held the lock when this process was forked. That thread does
            // not exist here, so it cannot release the lock.
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
