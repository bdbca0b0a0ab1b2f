//! A pool as its callers use it: start, check out, give back, end.

use super::keeper::{GLANCE, MOMENT, keep};
use super::options::{Common, PoolOptions, PoolStats, Reserved, Stop, Zygote};
use super::per_thread::Cells;
use super::state::{PooledLane, Shared, State};
use crate::error::Error;
use crate::function::Function;
use crate::lane::Lane;
use crate::stats::{LaneStats, now};
use crate::trace::{EventKind, Tracer};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The warm lanes of one library.
pub struct Pool<Z: Zygote> {
    pub(super) shared: Arc<Shared<Z::Lane>>,
    keeper: Option<JoinHandle<()>>,
    /// The pools of functions that have lanes of their own. They end before this pool does.
    reserved: Vec<(Vec<u32>, Self)>,
}

impl<Z: Zygote> fmt::Debug for Pool<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<Z: Zygote> Pool<Z> {
    /// Starts the keeper, which starts the zygote. Returns when the zygote runs, with what `start`
    /// says about it. The zygote keeps the [`Stop`], and looks at it while it waits.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn start<T: Send + 'static>(
        options: PoolOptions,
        start: impl FnOnce(Stop) -> Result<(Z, T), Error> + Send + 'static,
    ) -> Result<(Self, T), Error> {
        Self::start_unless(options, Common::default(), || false, start)
    }

    /// Starts a pool as [`Pool::start`] does. It shares `common` with other pools. The start ends
    /// early if `should_end` says that no caller waits for the pool. `should_end` is called on
    /// the caller's thread.
    ///
    /// # Errors
    /// Those of `start`; [`Error::Boot`] if `should_end` ended it.
    pub fn start_unless<T: Send + 'static>(
        options: PoolOptions,
        common: Common,
        should_end: impl Fn() -> bool,
        start: impl FnOnce(Stop) -> Result<(Z, T), Error> + Send + 'static,
    ) -> Result<(Self, T), Error> {
        let tracer = common.tracer.clone();
        let start = move |stop| {
            let begun = now();
            let (zygote, description) = start(stop)?;
            tracer.ended(EventKind::Load, begun, None);
            let reserved = zygote.reserved();
            Ok((zygote, (description, reserved)))
        };
        let (mut pool, (description, reserved)) =
            Self::start_alone(options, usize::MAX, common.clone(), &should_end, start)?;
        for (Reserved { functions, most }, zygote) in reserved {
            let start = |_| Ok((zygote, ()));
            let (own, ()) = Self::start_alone(options, most, common.clone(), &should_end, start)?;
            pool.reserved.push((functions, own));
        }
        Ok((pool, description))
    }

    /// Starts a pool of at most so many lanes, without pools for functions of their own.
    fn start_alone<T: Send + 'static>(
        options: PoolOptions,
        most: usize,
        Common { warm_limit, tracer }: Common,
        should_end: &dyn Fn() -> bool,
        start: impl FnOnce(Stop) -> Result<(Z, T), Error> + Send + 'static,
    ) -> Result<(Self, T), Error> {
        let state = State {
            idle: Vec::new(),
            ending: Vec::new(),
            preparing: 0,
            out: 0,
            lanes: Vec::new(),
            queue: VecDeque::new(),
            held: HashMap::new(),
            last_used: Instant::now(),
            options,
            most,
            stats: PoolStats::default(),
            keep_warm: true,
            used: warm_limit.is_none(),
            cap: None,
            surplus: 0,
            unbalanced: false,
            exhausted: false,
            closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            cells: Cells::default(),
            work: Condvar::new(),
            arrival: Condvar::new(),
            stop: Stop::default(),
            warm_limit,
            tracer,
            prepared: OnceLock::new(),
            process: std::process::id(),
        });
        shared.attend(&mut shared.lock());
        if let Some(warm_limit) = &shared.warm_limit {
            let member: Weak<Shared<Z::Lane>> = Arc::downgrade(&shared);
            warm_limit.join(member);
        }
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
        // From here on, dropping the pool ends the keeper too.
        let pool = Self { shared, keeper: Some(keeper), reserved: Vec::new() };
        loop {
            match receiver.recv_timeout(GLANCE) {
                Ok(description) => return Ok((pool, description?)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Boot("the keeper thread panicked".into()));
                }
                Err(RecvTimeoutError::Timeout) if should_end() => {
                    return Err(Error::Boot("interrupted while its functions were loaded".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The pool that has the lanes of a function: this one, or one of its own.
    pub fn of(&self, function: &Function) -> &Self {
        let own = self.reserved.iter().find(|(functions, _)| functions.contains(&function.index));
        own.map_or(self, |(_, pool)| pool)
    }

    /// The pools of functions that have lanes of their own, with the numbers of these functions.
    pub fn reserved(&self) -> impl Iterator<Item = (&[u32], &Self)> {
        self.reserved.iter().map(|(functions, pool)| (&functions[..], pool))
    }

    /// The most lanes.
    pub fn most(&self) -> usize {
        self.shared.lock().most
    }

    /// Checks a lane out. It is an idle lane if there is one. Otherwise it is the next lane that
    /// the keeper boots, or, if the boot fails, the next lane that is given back. `None` if
    /// `should_end` says so during the wait. `should_end` is called on the caller's thread, without
    /// the pool's lock.
    ///
    /// # Errors
    /// [`Error::Boot`] if no lane can be booted, and no other lane will come back;
    /// [`Error::Forked`].
    pub fn check_out(&self, should_end: impl Fn() -> bool) -> Result<Option<PooledLane<Z::Lane>>, Error> {
        self.check_process()?;
        if let Some(lane) = self.in_cells() {
            return Ok(Some(lane));
        }
        let mut state = self.shared.lock();
        let mut free = state.take_free(&self.shared.cells);
        if free.is_none() {
            state = self.shared.settle(state, MOMENT);
            free = state.take_free(&self.shared.cells);
        }
        if let Some(kept) = free {
            self.refill(&state);
            return Ok(Some(PooledLane::new(kept)));
        }
        let ticket = state.enqueue();
        self.shared.attend(&mut state);
        self.shared.work.notify_one();
        let mut left = false;
        loop {
            if let Some(outcome) = state.leave(ticket, left) {
                self.shared.attend(&mut state);
                return outcome.map(|kept| kept.map(PooledLane::new));
            }
            state = self.shared.arrival.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
            drop(state);
            left = should_end();
            // The keeper may be busy with a boot.
            state = self.shared.settle(self.shared.lock(), Duration::ZERO);
        }
    }

    /// An idle lane, if there is one and no waiter.
    pub fn try_check_out(&self) -> Option<PooledLane<Z::Lane>> {
        self.check_process().ok()?;
        if let Some(lane) = self.in_cells() {
            return Some(lane);
        }
        let mut state = self.shared.lock();
        let kept = state.take_free(&self.shared.cells);
        self.refill(&state);
        kept.map(PooledLane::new)
    }

    /// Returns a lane to the pool, as [`PooledLane::give_back`] does. This thread finds the lane
    /// again without the pool's lock.
    pub fn give_back(&self, mut lane: PooledLane<Z::Lane>) {
        if lane.holder.is_some() || !Arc::ptr_eq(&lane.kept().shared, &self.shared) {
            return lane.give_back();
        }
        match lane.clean() {
            Some(kept) => {
                if let Err(kept) = self.shared.cells.put(kept) {
                    self.shared.receive(kept);
                }
            }
            None => lane.give_back(),
        }
    }

    /// The lane that this thread has given back, if no other thread has taken it and its guest
    /// lives.
    fn in_cells(&self) -> Option<PooledLane<Z::Lane>> {
        let kept = self.shared.cells.take()?;
        kept.stats.busy.store(true, Relaxed);
        let lane = PooledLane::new(kept);
        // If the guest has ended, dropping the lane tells the pool.
        (!lane.has_ended()).then_some(lane)
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.shared.is_of_a_fork() { Err(Error::Forked) } else { Ok(()) }
    }

    fn refill(&self, state: &State<Z::Lane>) {
        if state.idle.len() + state.out < state.wanted() {
            self.shared.work.notify_one();
        }
    }

    /// Ends the idle lanes whose guest has died, such as lanes that shared a process with a dead
    /// lane.
    pub fn reap(&self) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.shared.lock();
        self.shared.collect(&mut state);
        let (living, dead): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.idle).into_iter().partition(|kept| kept.lane.lives());
        state.idle = living;
        dead.iter().for_each(|kept| state.forget(&kept.stats));
        drop(state);
        drop(dead);
        self.shared.work.notify_one();
        self.reserved.iter().for_each(|(_, pool)| pool.reap());
    }

    /// Changes the options.
    pub fn configure(&self, options: PoolOptions) {
        let mut state = self.shared.lock();
        state.options = options;
        (state.cap, state.unbalanced) = (None, true);
        self.shared.attend(&mut state);
        drop(state);
        self.shared.work.notify_one();
        self.reserved.iter().for_each(|(_, pool)| pool.configure(options));
    }

    /// Ends all these pools at the same time, and waits until they have ended. All begin to end
    /// first, so that no pool boots a lane when another one frees capacity.
    pub fn end_all(pools: impl IntoIterator<Item = Self>) {
        let mut pools: Vec<_> = pools.into_iter().collect();
        pools.iter().for_each(Self::stop);
        pools.iter_mut().for_each(Self::begin_to_end);
        let reserved: Vec<_> = pools.iter_mut().flat_map(|pool| std::mem::take(&mut pool.reserved)).collect();
        drop(reserved);
        pools.iter_mut().for_each(Self::begin_to_end);
    }

    /// Tells the keepers of the pool and of its reserved pools to boot no more lanes.
    fn stop(&self) {
        if !self.shared.is_of_a_fork() {
            self.shared.stop.0.store(true, Relaxed);
            self.reserved.iter().for_each(|(_, pool)| pool.stop());
        }
    }

    /// Begins the end of the pool, without a wait. Dropping the pool waits for the end.
    fn begin_to_end(&mut self) {
        if self.shared.is_of_a_fork() {
            return;
        }
        self.stop();
        if !self.reserved.is_empty() {
            // This pool begins to end when they have ended.
            return self.reserved.iter_mut().for_each(|(_, pool)| pool.begin_to_end());
        }
        // There are no waiters: a waiter borrows the pool.
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.attend(&mut state);
        drop(state);
        self.shared.work.notify_one();
    }

    /// The pool's state now, with that of the pools of functions that have lanes of their own.
    pub fn stats(&self) -> PoolStats {
        self.reserved.iter().fold(self.own_stats(), |sum, (_, pool)| sum.plus(pool.own_stats()))
    }

    /// The pool's state now, without such pools.
    pub fn own_stats(&self) -> PoolStats {
        let state = self.shared.lock();
        let in_cells = self.shared.cells.count().min(state.out);
        PoolStats { idle: state.idle.len() + in_cells, busy: state.out - in_cells, ..state.stats }
    }

    /// The trace of the pool's engine.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.shared.tracer
    }

    /// The statistics of each living lane.
    pub fn lanes(&self) -> Vec<Arc<LaneStats>> {
        let mut lanes = self.shared.lock().lanes.clone();
        lanes.extend(self.reserved.iter().flat_map(|(_, pool)| pool.lanes()));
        lanes
    }
}

impl<Z: Zygote> Drop for Pool<Z> {
    fn drop(&mut self) {
        if self.shared.is_of_a_fork() {
            return;
        }
        self.begin_to_end();
        if !self.reserved.is_empty() {
            self.reserved.clear();
            self.begin_to_end();
        }
        if let Some(keeper) = self.keeper.take() {
            // The keeper could drop its own pool only if a lane outlived the keeper, which cannot
            // happen.
            let _ = keeper.join();
        }
        // If the keeper panicked, it has left these lanes. Each lane refers to the pool, so that
        // the pool would never be freed.
        let mut state = self.shared.lock();
        let left = (std::mem::take(&mut state.idle), std::mem::take(&mut state.ending));
        drop(state);
        drop(left);
        if let Some(warm_limit) = &self.shared.warm_limit {
            warm_limit.leave();
        }
    }
}
