//! The warm lanes of a library: checked out, given back, refilled in the background.
//!
//! One thread, the keeper, owns the zygote: it starts it (so that the zygote's parent thread lives
//! as long as the pool), boots lanes, and lets idle ones leave. Everyone else takes a lane from the
//! idle stack, or, only if that is empty, waits for the keeper to boot one. A boot happens without
//! the pool's lock.

use crate::error::Error;
use crate::lane::Lane;
use crate::stats::LaneStats;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Makes lanes of one library.
pub trait Zygote: 'static {
    /// The lanes that it makes.
    type Lane: Lane;

    /// Makes a lane; called by the pool's keeper only. A zygote that died starts again here.
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
    /// After so long without use, idle lanes leave.
    pub idle_timeout: Duration,
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

struct State<L> {
    /// The lane used last is on top: its memory is the warmest.
    idle: Vec<Kept<L>>,
    /// The living lanes, idle and busy.
    lanes: Vec<Arc<LaneStats>>,
    /// Check-outs that wait for a lane to be booted.
    waiting: usize,
    /// Check-outs for which none could be booted, and that wait for a lane of others.
    queued: usize,
    /// Failures of boots for those who wait; never more than they are.
    failures: VecDeque<Error>,
    last_used: Instant,
    options: PoolOptions,
    stats: PoolStats,
    /// Whether idle lanes should be kept ready: since the last use, until the idle timeout.
    keep_warm: bool,
    /// Whether the last boot failed, so that nobody tries until somebody needs one.
    exhausted: bool,
    closed: bool,
}

struct Shared<L> {
    state: Mutex<State<L>>,
    /// Tells the keeper that something is to be done.
    work: Condvar,
    /// Tells those who wait that a lane (or a failure) has come.
    arrival: Condvar,
    /// The process that made the pool: a fork has no keeper, and its copies of the lanes are not its.
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
    /// about itself.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start<T: Send + 'static>(
        options: PoolOptions,
        start: impl FnOnce() -> Result<(Z, T), Error> + Send + 'static,
    ) -> Result<(Self, T), Error> {
        let state = State {
            idle: Vec::new(),
            lanes: Vec::new(),
            waiting: 0,
            queued: 0,
            failures: VecDeque::new(),
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
            process: std::process::id(),
        });
        let (sender, receiver) = mpsc::channel();
        let keeper = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("crosslane-keeper".into())
                .spawn(move || match start() {
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
    /// that is given back.
    ///
    /// # Errors
    /// [`Error::Boot`] if none can be booted, and there are no others.
    pub fn check_out(&self) -> Result<PooledLane<Z::Lane>, Error> {
        let mut state = self.open()?;
        if let Some(lane) = take(&mut state) {
            self.refill(&state);
            return Ok(self.pooled(lane));
        }
        state.stats.waited += 1;
        state.waiting += 1;
        state.keep_warm = true;
        state.last_used = Instant::now();
        self.shared.work.notify_one();
        let mut refused = None;
        loop {
            state = self.shared.arrival.wait(state).unwrap_or_else(PoisonError::into_inner);
            let outcome = match (take(&mut state), state.closed) {
                (Some(lane), _) => Ok(lane),
                (None, true) => Err(Error::Boot("the library was unloaded".into())),
                (None, false) => {
                    if refused.is_none() {
                        refused = state.failures.pop_front();
                        if refused.is_some() {
                            state.waiting -= 1;
                            state.queued += 1;
                        }
                    }
                    match &refused {
                        Some(error) if state.stats.busy == 0 => Err(error.clone()),
                        _ => continue,
                    }
                }
            };
            match refused {
                Some(_) => state.queued -= 1,
                None => {
                    state.waiting -= 1;
                    let waiting = state.waiting;
                    state.failures.truncate(waiting);
                }
            }
            return outcome.map(|lane| self.pooled(lane));
        }
    }

    /// An idle lane, if there is one and nobody waits for it.
    pub fn try_check_out(&self) -> Option<PooledLane<Z::Lane>> {
        let mut state = self.open().ok()?;
        if state.waiting + state.queued > 0 {
            return None;
        }
        let lane = take(&mut state);
        self.refill(&state);
        lane.map(|lane| self.pooled(lane))
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
        PooledLane { stats: lane.stats, lane: Some(lane.lane), shared: Arc::clone(&self.shared) }
    }

    /// Ends the idle lanes whose guest has died, as those do that shared the process of one that has.
    pub fn bury(&self) {
        let mut state = self.shared.lock();
        let mut dead = Vec::new();
        let idle = std::mem::take(&mut state.idle);
        for mut kept in idle {
            match kept.lane.check() {
                Ok(()) => state.idle.push(kept),
                Err(_) => dead.push(kept),
            }
        }
        state.stats.discarded += dead.len() as u64;
        state.lanes.retain(|stats| !dead.iter().any(|kept| Arc::ptr_eq(stats, &kept.stats)));
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
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
        self.shared.arrival.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // A pool may be dropped by its own keeper only if a lane outlives it, which cannot be.
            let _ = keeper.join();
        }
    }
}

fn take<L: Lane>(state: &mut State<L>) -> Option<Kept<L>> {
    let mut lane = state.idle.pop()?;
    while lane.lane.has_ended() {
        state.stats.discarded += 1;
        state.lanes.retain(|stats| !Arc::ptr_eq(stats, &lane.stats));
        lane = state.idle.pop()?;
    }
    lane.stats.busy.store(true, Relaxed);
    state.stats.busy += 1;
    state.keep_warm = true;
    Some(lane)
}

/// The keeper's life: boot what is missing, let leave what is idle for too long.
fn keep<Z: Zygote>(shared: &Shared<Z::Lane>, mut zygote: Z) {
    let mut state = shared.lock();
    loop {
        if state.closed {
            break;
        }
        let wanted = if state.keep_warm { state.options.warm.max(1) } else { 0 };
        let few = !state.exhausted && state.idle.len() + state.stats.busy < wanted;
        let missing = state.waiting > state.idle.len() + state.failures.len() || few;
        if missing {
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
                    state.idle.insert(0, Kept { lane, stats });
                }
                Err(error) => {
                    state.exhausted = true;
                    // If nobody waits, the next check-out that must tries again, and gets the error.
                    if state.waiting > state.failures.len() {
                        state.failures.push_back(error);
                    }
                }
            }
            shared.arrival.notify_all();
            continue;
        }
        if state.keep_warm && state.stats.busy == 0 && state.last_used.elapsed() >= state.options.idle_timeout
        {
            state.keep_warm = false;
        }
        if !state.keep_warm && state.stats.busy == 0 && state.waiting == 0 && !state.idle.is_empty() {
            let leaving = std::mem::take(&mut state.idle);
            state.lanes.clear();
            drop(state);
            drop(leaving);
            state = shared.lock();
            continue;
        }
        let patience = if state.idle.is_empty() {
            Duration::from_secs(3600)
        } else {
            state
                .options
                .idle_timeout
                .saturating_sub(state.last_used.elapsed())
                .max(Duration::from_millis(10))
        };
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

    /// Returns the lane to the pool, if nothing of its last use is left in it; else ends it.
    pub fn give_back(mut self) {
        let Some(lane) = self.lane.take() else { return };
        if lane.in_flight() > 0 {
            self.lane = Some(lane);
            return;
        }
        let mut state = self.shared.lock();
        state.stats.busy -= 1;
        state.last_used = Instant::now();
        if state.closed {
            drop(state);
            return;
        }
        let stats = Arc::clone(&self.stats);
        stats.busy.store(false, Relaxed);
        state.idle.push(Kept { lane, stats });
        if state.waiting + state.queued > 0 {
            self.shared.arrival.notify_all();
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
            drop(lane);
            let mut state = self.shared.lock();
            state.stats.busy -= 1;
            state.stats.discarded += 1;
            state.lanes.retain(|stats| !Arc::ptr_eq(stats, &self.stats));
            if state.queued > 0 {
                self.shared.arrival.notify_all();
            }
            self.shared.work.notify_one();
        }
    }
}
