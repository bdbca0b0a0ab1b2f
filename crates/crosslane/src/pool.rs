//! The warm lanes of a library: checked out, given back, refilled in the background.
//!
//! One thread, the keeper, owns the zygote: it starts it (so that the zygote's parent thread lives
//! as long as the pool), boots lanes, and ends lanes that are idle for too long. All other threads take a lane from
//! the idle stack, and wait in line only if it is empty. Lanes boot without the pool's lock.
//!
//! # The line
//! Each waiter has a place in line, and its [`Turn`] says what it waits for:
//!
//! | turn | ended by | becomes |
//! |---|---|---|
//! | `Due` | the keeper, which boots a lane as long as a waiter is due | `Served`, or `Refused` if the boot fails |
//! | `Refused` | the next lane that is given back | `Served`; an error if none will be |
//! | `Served` | the waiter: it takes its lane and leaves the line | |
//!
//! A waiter may leave at any time (its query was cancelled). Whenever the lock is free:
//!
//! 1. While a waiter is due or refused, no lane is idle: a lane that is booted or given back goes to the first such
//!    waiter, and later waiters stand behind it. So no thread can take a lane that was made for another.
//! 2. While a waiter is due, the keeper boots a lane, or has been notified and is about to look.
//! 3. `busy` counts the lanes that are checked out, with those of `Served`. While it is not 0, one of them will come back
//!    or end, and the thread that gives it back or ends it notifies the line.
//! 4. There is one exception to 3: a scan keeps its lane while its thread needs another lane for what it does with the
//!    rows. If all lanes are held by threads that wait in line and were refused, none would ever come back. Then the
//!    first of these waiters gets its error.
//! 5. Lanes boot and end (which may wait for a process) without the lock.

use crate::error::Error;
use crate::lane::Lane;
use crate::stats::LaneStats;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// How often a waiter asks whether it should still wait.
const GLANCE: Duration = Duration::from_millis(10);
/// How long the keeper sleeps if it is told of all that it has to do.
const FOREVER: Duration = Duration::from_secs(3600);

/// Makes lanes of one library.
pub trait Zygote: 'static {
    /// The lanes that it makes.
    type Lane: Lane;

    /// Makes a lane; called by the pool's keeper only. A zygote that died starts again here. It must end soon after
    /// the pool's [`Stop`] is set.
    ///
    /// # Errors
    /// Why no lane can be made.
    fn boot(&mut self) -> Result<Self::Lane, Error>;
}

/// How a pool behaves.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Idle lanes to keep ready while the library is in use.
    pub warm: usize,
    /// Idle lanes end after so long without use.
    pub idle_timeout: Duration,
}

/// Tells a zygote that its pool is being closed, so that it gives up what it waits for.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether the result of the wait is no longer needed.
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// What a pool holds at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Lanes that wait for work.
    pub idle: usize,
    /// Lanes that are checked out.
    pub busy: usize,
    /// Lanes booted since the load.
    pub booted: u64,
    /// Lanes that failed or were ended.
    pub discarded: u64,
    /// Check-outs that had to wait for a boot.
    pub waited: u64,
}

/// A lane and what it has done.
struct Kept<L> {
    lane: L,
    stats: Arc<LaneStats>,
}

/// What one of those in line waits for; see the module's documentation.
enum Turn<L> {
    Due,
    Refused(Error),
    Served(Kept<L>),
}

struct Place<L> {
    ticket: u64,
    thread: ThreadId,
    turn: Turn<L>,
}

struct State<L> {
    /// The lane used last is on top: its memory is the warmest.
    idle: Vec<Kept<L>>,
    /// The living lanes, idle and busy.
    lanes: Vec<Arc<LaneStats>>,
    /// The waiters, in the order in which they came.
    line: VecDeque<Place<L>>,
    /// Who holds which lanes beyond a call.
    held: HashMap<u64, ThreadId>,
    last_used: Instant,
    options: PoolOptions,
    stats: PoolStats,
    /// Whether idle lanes should be kept ready: since the last use, until the idle timeout.
    keep_warm: bool,
    /// Whether the last boot failed: then no lane is booted until a waiter needs one.
    exhausted: bool,
    closed: bool,
}

impl<L: Lane> State<L> {
    /// The warmest idle lane whose guest lives.
    fn take(&mut self) -> Option<Kept<L>> {
        let mut kept = self.idle.pop()?;
        while kept.lane.has_ended() {
            self.forget(&kept.stats);
            kept = self.idle.pop()?;
        }
        self.lend(&kept);
        Some(kept)
    }

    fn lend(&mut self, kept: &Kept<L>) {
        kept.stats.busy.store(true, Relaxed);
        self.stats.busy += 1;
        self.keep_warm = true;
    }

    fn forget(&mut self, stats: &Arc<LaneStats>) {
        self.stats.discarded += 1;
        self.lanes.retain(|living| !Arc::ptr_eq(living, stats));
    }

    /// Whether there are waiters.
    fn is_awaited(&self) -> bool {
        self.line.iter().any(|place| !matches!(place.turn, Turn::Served(_)))
    }

    fn is_due(&self) -> bool {
        self.line.iter().any(|place| matches!(place.turn, Turn::Due))
    }

    /// Gives a free lane to the first waiter; returns it if there is none.
    fn serve(&mut self, kept: Kept<L>) -> Option<Kept<L>> {
        let Some(at) = self.line.iter().position(|place| !matches!(place.turn, Turn::Served(_))) else {
            return Some(kept);
        };
        self.lend(&kept);
        self.line[at].turn = Turn::Served(kept);
        None
    }

    /// Passes the failure of a boot to the first waiter that is due.
    fn refuse(&mut self, error: Error) {
        if let Some(place) = self.line.iter_mut().find(|place| matches!(place.turn, Turn::Due)) {
            place.turn = Turn::Refused(error);
        }
    }

    /// A place at the end of the line.
    fn stand(&mut self) -> u64 {
        self.stats.waited += 1;
        self.keep_warm = true;
        self.last_used = Instant::now();
        let thread = std::thread::current().id();
        self.line.push_back(Place { ticket: self.stats.waited, thread, turn: Turn::Due });
        self.stats.waited
    }

    /// Whether no busy lane will come back before one of the waiters has got a lane.
    fn is_stuck(&self) -> bool {
        let refused = |thread: &ThreadId| {
            let mut line = self.line.iter();
            line.any(|place| place.thread == *thread && matches!(place.turn, Turn::Refused(_)))
        };
        self.held.values().filter(|thread| refused(thread)).count() == self.stats.busy
    }

    /// How a wait ended: with a lane, with none because the waiter left, or with an error. `None` if it goes on.
    fn leave(&mut self, ticket: u64, left: bool) -> Option<Result<Option<Kept<L>>, Error>> {
        let at = self.line.iter().position(|place| place.ticket == ticket)?;
        let over = match &self.line[at].turn {
            Turn::Served(_) => true,
            Turn::Refused(_) if self.is_stuck() => true,
            Turn::Refused(_) | Turn::Due => left,
        };
        let place = if over { self.line.remove(at)? } else { return None };
        Some(match place.turn {
            Turn::Served(kept) => Ok(Some(kept)),
            Turn::Refused(error) if !left => Err(error),
            Turn::Refused(_) | Turn::Due => Ok(None),
        })
    }
}

struct Shared<L> {
    state: Mutex<State<L>>,
    /// Notifies the keeper of work.
    work: Condvar,
    /// Notifies the waiters of a lane, a failure, or the end of a lane.
    arrival: Condvar,
    stop: Stop,
    /// The process that made the pool. A fork has no keeper, and its copies of the lanes belong to its parent.
    process: u32,
}

impl<L> Shared<L> {
    fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The warm lanes of one library.
pub struct Pool<Z: Zygote> {
    shared: Arc<Shared<Z::Lane>>,
    keeper: Option<JoinHandle<()>>,
}

impl<Z: Zygote> fmt::Debug for Pool<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<Z: Zygote> Pool<Z> {
    /// Starts the keeper, which starts the zygote; returns when that is done, with what it says
    /// about itself. The zygote keeps the [`Stop`], to look at it while it waits.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start<T: Send + 'static>(
        options: PoolOptions,
        start: impl FnOnce(Stop) -> Result<(Z, T), Error> + Send + 'static,
    ) -> Result<(Self, T), Error> {
        let state = State {
            idle: Vec::new(),
            lanes: Vec::new(),
            line: VecDeque::new(),
            held: HashMap::new(),
            last_used: Instant::now(),
            options,
            stats: PoolStats::default(),
            keep_warm: true,
            exhausted: false,
            closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            arrival: Condvar::new(),
            stop: Stop::default(),
            process: std::process::id(),
        });
        let (sender, receiver) = mpsc::channel();
        let keeper = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("crosslane-keeper".into())
                .spawn(move || match start(shared.stop.clone()) {
                    Ok((zygote, description)) => {
                        let _ = sender.send(Ok(description));
                        keep(&shared, zygote);
                    }
                    Err(error) => {
                        let _ = sender.send(Err(error));
                    }
                })
                .map_err(|error| Error::Boot(error.to_string()))?
        };
        let description =
            receiver.recv().unwrap_or_else(|_| Err(Error::Boot("the keeper thread panicked".into())))?;
        Ok((Self { shared, keeper: Some(keeper) }, description))
    }

    /// A lane: an idle one, or, if there is none, the next that the keeper boots, or, if it cannot boot one, the next
    /// that is given back. `None` if `should_end` says so while it waits; it is asked on the caller's thread, without
    /// the pool's lock.
    ///
    /// # Errors
    /// [`Error::Boot`] if none can be booted, and there are no others.
    pub fn check_out(&self, should_end: impl Fn() -> bool) -> Result<Option<PooledLane<Z::Lane>>, Error> {
        let mut state = self.open()?;
        if !state.is_awaited()
            && let Some(kept) = state.take()
        {
            self.refill(&state);
            return Ok(Some(self.pooled(kept)));
        }
        let ticket = state.stand();
        self.shared.work.notify_one();
        let mut left = false;
        loop {
            if let Some(outcome) = state.leave(ticket, left) {
                return outcome.map(|kept| kept.map(|kept| self.pooled(kept)));
            }
            state = self.shared.arrival.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
            drop(state);
            left = should_end();
            state = self.shared.lock();
        }
    }

    /// An idle lane, if there is one and no waiter.
    pub fn try_check_out(&self) -> Option<PooledLane<Z::Lane>> {
        let mut state = self.open().ok()?;
        if state.is_awaited() {
            return None;
        }
        let kept = state.take();
        self.refill(&state);
        kept.map(|kept| self.pooled(kept))
    }

    fn open(&self) -> Result<MutexGuard<'_, State<Z::Lane>>, Error> {
        if self.shared.process != std::process::id() {
            return Err(Error::Boot(
                "this process was forked after the functions were loaded; open the database and load them \
                 after the fork"
                    .into(),
            ));
        }
        Ok(self.shared.lock())
    }

    fn refill(&self, state: &State<Z::Lane>) {
        if state.idle.len() + state.stats.busy < state.options.warm {
            self.shared.work.notify_one();
        }
    }

    fn pooled(&self, lane: Kept<Z::Lane>) -> PooledLane<Z::Lane> {
        PooledLane {
            stats: lane.stats,
            lane: Some(lane.lane),
            holder: None,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Ends the idle lanes whose guest has died, such as those that shared a process with one that died.
    pub fn reap(&self) {
        let mut state = self.shared.lock();
        let (living, dead): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.idle).into_iter().partition(|kept| kept.lane.lives());
        state.idle = living;
        dead.iter().for_each(|kept| state.forget(&kept.stats));
        drop(state);
        drop(dead);
        self.shared.work.notify_one();
    }

    /// Changes the options from now on.
    pub fn configure(&self, options: PoolOptions) {
        self.shared.lock().options = options;
        self.shared.work.notify_one();
    }

    /// What the pool holds now.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared.lock();
        PoolStats { idle: state.idle.len(), ..state.stats }
    }

    /// What each living lane has done.
    pub fn lanes(&self) -> Vec<Arc<LaneStats>> {
        self.shared.lock().lanes.clone()
    }
}

impl<Z: Zygote> Drop for Pool<Z> {
    fn drop(&mut self) {
        if self.shared.process != std::process::id() {
            return;
        }
        self.shared.stop.0.store(true, Relaxed);
        // There are no waiters: a waiter borrows the pool.
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
        if let Some(keeper) = self.keeper.take() {
            // A pool may be dropped by its own keeper only if a lane outlives it, which cannot be.
            let _ = keeper.join();
        }
    }
}

/// What the keeper does: it boots missing lanes, and ends lanes that are idle for too long.
fn keep<Z: Zygote>(shared: &Shared<Z::Lane>, mut zygote: Z) {
    let mut state = shared.lock();
    loop {
        if state.closed {
            break;
        }
        let wanted = if state.keep_warm { state.options.warm.max(1) } else { 0 };
        let few = !state.exhausted && state.idle.len() + state.stats.busy < wanted;
        if few || state.is_due() {
            drop(state);
            let booted = zygote.boot();
            state = shared.lock();
            match booted {
                Ok(lane) => {
                    state.exhausted = false;
                    state.stats.booted += 1;
                    let stats = LaneStats { id: lane.id(), process: lane.process(), ..LaneStats::default() };
                    let stats = Arc::new(stats);
                    state.lanes.push(Arc::clone(&stats));
                    if let Some(kept) = state.serve(Kept { lane, stats }) {
                        state.idle.insert(0, kept);
                    }
                }
                Err(error) => {
                    // Without a waiter, the next check-out that finds no idle lane tries again, and gets the error.
                    state.exhausted = true;
                    state.refuse(error);
                }
            }
            shared.arrival.notify_all();
            continue;
        }
        if state.keep_warm && state.stats.busy == 0 && state.last_used.elapsed() >= state.options.idle_timeout
        {
            state.keep_warm = false;
        }
        if !state.keep_warm && state.stats.busy == 0 && !state.idle.is_empty() {
            let leaving = std::mem::take(&mut state.idle);
            state.lanes.clear();
            drop(state);
            drop(leaving);
            state = shared.lock();
            continue;
        }
        let idle_timeout = state.options.idle_timeout;
        let patience = match state.stats.busy {
            _ if !state.keep_warm => FOREVER,
            0 => idle_timeout.saturating_sub(state.last_used.elapsed()),
            // Who gives a lane back tells only if it is to leave at once; else it leaves no sooner than so long after.
            _ if idle_timeout.is_zero() => FOREVER,
            _ => idle_timeout,
        };
        let patience = patience.max(GLANCE);
        state = shared.work.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
    }
    let leaving = std::mem::take(&mut state.idle);
    drop(state);
    drop(leaving);
}

/// A lane that is checked out. Dropping it ends the lane; [`PooledLane::give_back`] keeps it warm.
pub struct PooledLane<L: Lane> {
    lane: Option<L>,
    stats: Arc<LaneStats>,
    /// The thread that the pool knows as this lane's.
    holder: Option<ThreadId>,
    shared: Arc<Shared<L>>,
}

impl<L: Lane> fmt::Debug for PooledLane<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledLane").field("lane", &self.lane.as_ref().map(Lane::id)).finish_non_exhaustive()
    }
}

impl<L: Lane> PooledLane<L> {
    /// What the lane has done.
    pub fn stats(&self) -> &LaneStats {
        &self.stats
    }

    /// Says that this thread keeps the lane for as long as it needs to, also while it waits for another.
    pub fn hold(&mut self) {
        let this = std::thread::current().id();
        if self.holder != Some(this) {
            self.holder = Some(this);
            self.shared.lock().held.insert(self.id(), this);
        }
    }

    /// Returns the lane to the pool, if nothing of its last use is left in it; else ends it.
    pub fn give_back(mut self) {
        let Some(lane) = self.lane.take() else { return };
        if lane.in_flight() > 0 || lane.has_ended() {
            self.lane = Some(lane);
            return;
        }
        let mut state = self.shared.lock();
        state.stats.busy -= 1;
        if self.holder.is_some() {
            state.held.remove(&lane.id());
        }
        state.last_used = Instant::now();
        if state.closed {
            drop(state);
            return;
        }
        let stats = Arc::clone(&self.stats);
        stats.busy.store(false, Relaxed);
        match state.serve(Kept { lane, stats }) {
            Some(kept) => state.idle.push(kept),
            None => self.shared.arrival.notify_all(),
        }
        if state.options.idle_timeout.is_zero() {
            self.shared.work.notify_one();
        }
    }
}

impl<L: Lane> std::ops::Deref for PooledLane<L> {
    type Target = L;
    fn deref(&self) -> &L {
        self.lane.as_ref().expect("a lane until it is given back")
    }
}

impl<L: Lane> std::ops::DerefMut for PooledLane<L> {
    fn deref_mut(&mut self) -> &mut L {
        self.lane.as_mut().expect("a lane until it is given back")
    }
}

impl<L: Lane> Drop for PooledLane<L> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            let id = lane.id();
            drop(lane);
            let mut state = self.shared.lock();
            state.stats.busy -= 1;
            if self.holder.is_some() {
                state.held.remove(&id);
            }
            state.forget(&self.stats);
            if state.is_awaited() {
                self.shared.arrival.notify_all();
            }
            self.shared.work.notify_one();
        }
    }
}
