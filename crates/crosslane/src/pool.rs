//! The warm lanes of a library: checked out, given back, refilled in the background.
//!
//! One thread, the keeper, owns the zygote: it starts it (so that the zygote's parent thread lives
//! as long as the pool), boots lanes, and ends lanes that are idle for too long. All other threads take a lane from
//! the idle stack, and wait in line only if it is empty. Lanes boot without the pool's lock.
//!
//! # Warm lanes
//! A pool keeps as many lanes ready as [`PoolOptions::warm`] says, until the idle timeout. Pools may share a bound ([`crate::warmth`]):
//! then one that nobody has used keeps one lane, and all together no more than the bound. The keeper asks before it boots a lane that
//! no waiter is due for, and looks what is too much when its lanes were used.
//!
//! # Shelves
//! A worker that has given its lane back takes one for its next batch a moment later. So the lane stays on the
//! thread's shelf ([`crate::spread`]), from which it is taken without the lock and without a cache line that other workers
//! write. It is idle there: who finds no other takes it from the shelf, the keeper collects what lies on shelves when it
//! looks for lanes that nobody has used, and as long as there are waiters the shelves are closed.
//!
//! # The line
//! Each waiter has a place in line, and its [`Turn`] says what it waits for:
//!
//! | turn | ended by | becomes |
//! |---|---|---|
//! | `Due` | the keeper, which boots a lane as long as a waiter is due for whom none prepares itself | `Served`, or `Refused` if the boot fails |
//! | `Refused` | the next lane that is given back | `Served`; an error if none will be |
//! | `Served` | the waiter: it takes its lane and leaves the line | |
//!
//! A waiter may leave at any time (its query was cancelled). Whenever the lock is free:
//!
//! 1. While a waiter is due or refused, no lane is idle: a lane that is booted or given back goes to the first such
//!    waiter, and later waiters stand behind it. So no thread can take a lane that was made for another.
//! 2. While a waiter is due, the keeper boots a lane, or has been notified and is about to look, or as many lanes prepare
//!    themselves as waiters are due.
//! 3. While there is a line the shelves are closed and empty. A lane that a thread puts on one just then comes back to
//!    that thread, which gives it to the line.
//! 4. `out` counts the lanes that are checked out, with those of `Served` and those on shelves. While it is not 0 and
//!    there is a line, one of them will come back or end, and the thread that gives it back or ends it notifies the line.
//! 5. There is one exception to 4: a scan keeps its lane while its thread needs another lane for what it does with the
//!    rows. If all lanes are held by threads that wait in line and were refused, none would ever come back. Then the
//!    first of these waiters gets its error.
//! 6. Lanes boot and end (which may wait for a process) without the lock.
//!
//! # Ending lanes
//! A lane that is given back may be at work on something that was cancelled. The pool keeps it, and throws away what still
//! comes: the keeper does every [`GLANCE`], and who finds no idle lane does, too, also in line. It counts as checked out until its guest has
//! ended the exchange; then it is idle, or goes to the line. A guest that takes longer than [`GRACE`] loses its lane.
//!
//! # Set-up
//! A library may have functions that prepare something on each lane ([`Zygote::set_up`]). A new lane is told to
//! ([`Entry::SetUp`]), and is looked after like one that is ending until it has answered: so a query finds lanes that
//! are prepared. What a guest answers does not matter: a function whose preparation failed tries it again when it is called,
//! and tells its caller. A lane that is lost while it prepares counts as a boot that failed. Before idle lanes end,
//! their guests are told to end what they have prepared ([`Entry::TearDown`]), for which they have [`GRACE`].

use crate::error::Error;
use crate::exchange::{Address, Entry};
use crate::lane::{Lane, LaneError, Patience, wait_any};
use crate::spread::Shelves;
use crate::stats::LaneStats;
use crate::warmth::{Census, Member, SETTLED, Warmth};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// How often a waiter asks whether it should still wait, and the keeper looks after ending lanes.
const GLANCE: Duration = Duration::from_millis(10);
/// For how long a guest may go on with what was cancelled.
const GRACE: Duration = Duration::from_secs(2);
/// For how long who needs a lane waits for the end of one before another is booted: a boot takes longer.
const MOMENT: Duration = Duration::from_millis(2);
/// Messages that are thrown away at once, and for how long. A guest could send more all the time.
const MOST_AT_ONCE: (usize, Duration) = (1024, Duration::from_millis(1));
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

    /// What a new lane is to prepare; `None` if there is nothing.
    fn set_up(&self) -> Option<SetUp> {
        None
    }
}

/// What a lane prepares before it is lent.
#[derive(Debug, Clone)]
pub struct SetUp {
    /// The functions that do, for the error of a lane that is not ready in time, or dies.
    pub functions: String,
    /// How long it may take.
    pub limit: Duration,
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
struct Kept<L: Lane> {
    lane: L,
    stats: Arc<LaneStats>,
    /// When it was given back last.
    since: Instant,
    /// Until when its guest may go on with what is in flight while nobody has the lane.
    until: Instant,
    /// Whether it prepares itself, and nobody had it yet.
    new: bool,
    shared: Arc<Shared<L>>,
}

impl<L: Lane> Kept<L> {
    /// Throws away what the guest sends of what was cancelled. Whether it has ended that.
    ///
    /// # Errors
    /// If the lane must not be used again.
    fn settle(&mut self) -> Result<bool, LaneError> {
        let begun = Instant::now();
        for _ in 0..MOST_AT_ONCE.0 {
            if self.lane.in_flight() == 0 {
                return Ok(true);
            }
            if begun.elapsed() > MOST_AT_ONCE.1 {
                break;
            }
            // There may be more behind a message that was thrown away.
            match self.lane.try_collect() {
                Ok(_) | Err(LaneError::TooLarge(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Why its guest may not go on, if it may not.
    fn overdue(&mut self) -> Option<String> {
        if Instant::now() >= self.until {
            return Some("this took longer than load_timeout".into());
        }
        (!self.lane.lives())
            .then(|| self.lane.check().map_or_else(|error| error.to_string(), |()| "has ended".into()))
    }

    /// It has nothing to do from now on.
    fn rest(&mut self) {
        self.since = Instant::now();
        self.stats.busy.store(false, Relaxed);
    }
}

/// What one of those in line waits for; see the module's documentation.
enum Turn<L: Lane> {
    Due,
    Refused(Error),
    Served(Box<Kept<L>>),
}

struct Place<L: Lane> {
    ticket: u64,
    thread: ThreadId,
    turn: Turn<L>,
}

struct State<L: Lane> {
    /// The lane used last is on top: its memory is the warmest.
    idle: Vec<Box<Kept<L>>>,
    /// Lanes at work on what was cancelled, since they were given back, and new ones that prepare themselves.
    ending: Vec<Box<Kept<L>>>,
    /// How many of the latter there are.
    preparing: usize,
    /// Lanes that are not in `idle`.
    out: usize,
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
    /// Whether a lane was ever checked out, if that makes a difference.
    used: bool,
    /// The most lanes to keep warm, since all pools together had too many; until a waiter finds none.
    cap: Option<usize>,
    /// Idle lanes that end because of that.
    surplus: usize,
    /// Whether all pools together may have too many lanes since this one has booted some.
    unbalanced: bool,
    /// Whether the last boot failed: then no lane is booted until a waiter needs one.
    exhausted: bool,
    closed: bool,
}

impl<L: Lane> State<L> {
    /// A lane for who does not wait, unless others do.
    fn take_free(&mut self, shelves: &Shelves<Kept<L>>) -> Option<Box<Kept<L>>> {
        if self.is_awaited() { None } else { self.take(shelves) }
    }

    /// The warmest idle lane whose guest lives, or one from a shelf.
    fn take(&mut self, shelves: &Shelves<Kept<L>>) -> Option<Box<Kept<L>>> {
        loop {
            let mut kept = self.idle.pop();
            if kept.is_none() {
                kept = shelves.take_any();
                self.out -= usize::from(kept.is_some());
            }
            let kept = kept?;
            if !kept.lane.has_ended() {
                self.lend(&kept);
                return Some(kept);
            }
            self.forget(&kept.stats);
        }
    }

    fn lend(&mut self, kept: &Kept<L>) {
        kept.stats.busy.store(true, Relaxed);
        self.out += 1;
        self.keep_warm = true;
        self.used = true;
    }

    /// How many lanes there should be when nobody waits.
    fn wanted(&self) -> usize {
        let warm = match (self.keep_warm, self.used) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.options.warm.max(1),
        };
        self.cap.map_or(warm, |cap| warm.min(cap))
    }

    /// The idle lanes that are too many in all pools together.
    fn take_surplus(&mut self) -> Vec<Box<Kept<L>>> {
        let count = std::mem::take(&mut self.surplus).min(self.idle.len());
        if count > 0 {
            self.cap = Some(self.idle.len() + self.out - count);
        }
        // Those that were used longest ago.
        let leaving: Vec<_> = self.idle.drain(..count).collect();
        self.lanes.retain(|living| !leaving.iter().any(|kept| Arc::ptr_eq(&kept.stats, living)));
        leaving
    }

    /// Takes a lane back that is not used any more. It goes to the first waiter, or is idle.
    fn receive(&mut self, kept: Box<Kept<L>>) {
        self.out -= 1;
        self.last_used = self.last_used.max(kept.since);
        if let Some(kept) = self.serve(kept) {
            self.idle.push(kept);
        }
    }

    fn forget(&mut self, stats: &Arc<LaneStats>) {
        self.stats.discarded += 1;
        self.lanes.retain(|living| !Arc::ptr_eq(living, stats));
    }

    /// Whether there are waiters.
    fn is_awaited(&self) -> bool {
        self.line.iter().any(|place| !matches!(place.turn, Turn::Served(_)))
    }

    /// Whether a waiter is due for whom no lane prepares itself.
    fn is_due(&self) -> bool {
        self.line.iter().filter(|place| matches!(place.turn, Turn::Due)).count() > self.preparing
    }

    /// Gives a free lane to the first waiter; returns it if there is none.
    fn serve(&mut self, kept: Box<Kept<L>>) -> Option<Box<Kept<L>>> {
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
        self.used = true;
        self.cap = None;
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
        self.held.values().filter(|thread| refused(thread)).count() == self.out
    }

    /// How a wait ended: with a lane, with none because the waiter left, or with an error. `None` if it goes on.
    fn leave(&mut self, ticket: u64, left: bool) -> Option<Result<Option<Box<Kept<L>>>, Error>> {
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

struct Shared<L: Lane> {
    state: Mutex<State<L>>,
    /// What workers have given back a moment ago.
    shelves: Shelves<Kept<L>>,
    /// Notifies the keeper of work.
    work: Condvar,
    /// Notifies the waiters of a lane, a failure, or the end of a lane.
    arrival: Condvar,
    stop: Stop,
    /// The bound on idle lanes that the pool shares with others.
    warmth: Option<Arc<Warmth>>,
    /// The functions that lanes set up.
    prepared: OnceLock<String>,
    /// The process that made the pool. A fork has no keeper, and its copies of the lanes belong to its parent.
    process: u32,
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
    fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pool is another process's, of which this one is a fork.
    fn is_of_a_fork(&self) -> bool {
        self.process != std::process::id()
    }

    /// Closes the shelves as long as each lane that comes back is to be looked at, and empties them then.
    fn attend(&self, state: &mut State<L>) {
        let closed = !state.line.is_empty() || state.closed || state.options.idle_timeout.is_zero();
        self.shelves.close(closed);
        if closed {
            self.collect(state);
        }
    }

    /// Takes all lanes from the shelves.
    fn collect(&self, state: &mut State<L>) {
        while let Some(kept) = self.shelves.take_any() {
            state.receive(kept);
            if !state.line.is_empty() {
                self.arrival.notify_all();
            }
        }
    }

    /// Takes a lane back that no shelf has room for, or that is not to lie on one.
    fn receive(&self, kept: Box<Kept<L>>) {
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
    fn tell(&self, state: &State<L>) {
        if !state.line.is_empty() {
            self.arrival.notify_all();
        }
        if state.options.idle_timeout.is_zero() {
            self.work.notify_one();
        }
    }

    /// Looks after the ending lanes. If `patience` is not zero, waits for so long until one is free.
    fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<L>>,
        patience: Duration,
    ) -> MutexGuard<'a, State<L>> {
        if state.ending.is_empty() {
            return state;
        }
        // A look that panics drops them, which ends them, and counts.
        let mut ending: Vec<_> = std::mem::take(&mut state.ending).into_iter().map(PooledLane::new).collect();
        drop(state);
        let until = Instant::now() + patience;
        let (mut free, mut lost, mut unprepared) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let mut at = 0;
            while at < ending.len() {
                let kept = ending[at].kept_mut();
                let over = match kept.settle() {
                    Ok(true) => {
                        free.push(ending.swap_remove(at));
                        continue;
                    }
                    Ok(false) => kept.overdue(),
                    Err(error) => Some(error.to_string()),
                };
                match over {
                    None => at += 1,
                    Some(why) => {
                        unprepared.extend(kept.new.then_some(why));
                        lost.push(ending.swap_remove(at));
                    }
                }
            }
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() || !free.is_empty() || ending.is_empty() {
                break;
            }
            let lanes: Vec<_> = ending.iter_mut().map(|lane| &mut **lane).collect();
            wait_any(&lanes, Patience::Spin, rest);
        }
        let [ending, free] = [ending, free].map(|lanes| lanes.into_iter().map(PooledLane::into_kept));
        let (mut ending, free): (Vec<_>, Vec<_>) = (ending.collect(), free.collect());
        state = self.lock();
        if !ending.is_empty() {
            state.ending.append(&mut ending);
            // It may have found none of them meanwhile.
            self.work.notify_one();
        }
        for why in unprepared {
            // Without a waiter, the next check-out that finds no idle lane tries again, and gets the error.
            state.exhausted = true;
            let functions = self.prepared.get().map_or("its functions", String::as_str);
            state.refuse(Error::Boot(format!("the set-up of {functions}: {why}")));
            self.arrival.notify_all();
        }
        if !lost.is_empty() {
            // Dropping them ends the lanes, and tells who waits. Who is refused is so before, or the keeper would boot another.
            drop(state);
            drop(lost);
            state = self.lock();
        }
        for mut kept in free {
            state.preparing -= usize::from(std::mem::take(&mut kept.new));
            kept.rest();
            state.receive(kept);
            self.tell(&state);
        }
        state
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
        Self::start_unless(options, None, || false, start)
    }

    /// The same for a pool that may share a bound on its idle lanes, unless `should_end` says that nobody waits for it any more. It is
    /// asked on the caller's thread.
    ///
    /// # Errors
    /// Those of `start`; [`Error::Boot`] if it was ended.
    pub fn start_unless<T: Send + 'static>(
        options: PoolOptions,
        warmth: Option<Arc<Warmth>>,
        should_end: impl Fn() -> bool,
        start: impl FnOnce(Stop) -> Result<(Z, T), Error> + Send + 'static,
    ) -> Result<(Self, T), Error> {
        let state = State {
            idle: Vec::new(),
            ending: Vec::new(),
            preparing: 0,
            out: 0,
            lanes: Vec::new(),
            line: VecDeque::new(),
            held: HashMap::new(),
            last_used: Instant::now(),
            options,
            stats: PoolStats::default(),
            keep_warm: true,
            used: warmth.is_none(),
            cap: None,
            surplus: 0,
            unbalanced: false,
            exhausted: false,
            closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            shelves: Shelves::default(),
            work: Condvar::new(),
            arrival: Condvar::new(),
            stop: Stop::default(),
            warmth,
            prepared: OnceLock::new(),
            process: std::process::id(),
        });
        shared.attend(&mut shared.lock());
        if let Some(warmth) = &shared.warmth {
            let member: Weak<Shared<Z::Lane>> = Arc::downgrade(&shared);
            warmth.join(member);
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
        // What it does when it is dropped ends the keeper, too.
        let pool = Self { shared, keeper: Some(keeper) };
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

    /// A lane: an idle one, or, if there is none, the next that the keeper boots, or, if it cannot boot one, the next
    /// that is given back. `None` if `should_end` says so while it waits; it is asked on the caller's thread, without
    /// the pool's lock.
    ///
    /// # Errors
    /// [`Error::Boot`] if none can be booted, and there are no others; [`Error::Forked`].
    pub fn check_out(&self, should_end: impl Fn() -> bool) -> Result<Option<PooledLane<Z::Lane>>, Error> {
        self.check_process()?;
        if let Some(lane) = self.shelved() {
            return Ok(Some(lane));
        }
        let mut state = self.shared.lock();
        let mut free = state.take_free(&self.shared.shelves);
        if free.is_none() {
            state = self.shared.settle(state, MOMENT);
            free = state.take_free(&self.shared.shelves);
        }
        if let Some(kept) = free {
            self.refill(&state);
            return Ok(Some(PooledLane::new(kept)));
        }
        let ticket = state.stand();
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
        if let Some(lane) = self.shelved() {
            return Some(lane);
        }
        let mut state = self.shared.lock();
        let kept = state.take_free(&self.shared.shelves);
        self.refill(&state);
        kept.map(PooledLane::new)
    }

    /// Returns a lane to the pool, as [`PooledLane::give_back`] does, but where this thread finds it again without the
    /// pool's lock.
    pub fn give_back(&self, mut lane: PooledLane<Z::Lane>) {
        if lane.holder.is_some() || !Arc::ptr_eq(&lane.kept().shared, &self.shared) {
            return lane.give_back();
        }
        match lane.clean() {
            Some(kept) => {
                if let Err(kept) = self.shared.shelves.put(kept) {
                    self.shared.receive(kept);
                }
            }
            None => lane.give_back(),
        }
    }

    /// The lane that this thread has given back, if nobody has taken it and its guest lives.
    fn shelved(&self) -> Option<PooledLane<Z::Lane>> {
        let kept = self.shared.shelves.take()?;
        kept.stats.busy.store(true, Relaxed);
        let lane = PooledLane::new(kept);
        // Dropping it tells the pool.
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

    /// Ends the idle lanes whose guest has died, such as those that shared a process with one that died.
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
    }

    /// Changes the options from now on.
    pub fn configure(&self, options: PoolOptions) {
        let mut state = self.shared.lock();
        state.options = options;
        (state.cap, state.unbalanced) = (None, true);
        self.shared.attend(&mut state);
        drop(state);
        self.shared.work.notify_one();
    }

    /// Ends pools side by side, and waits for it. None boots a lane for which another has made room.
    pub fn end_all(pools: impl IntoIterator<Item = Self>) {
        let mut pools: Vec<_> = pools.into_iter().collect();
        pools.iter_mut().for_each(Self::begin_to_end);
    }

    /// Begins what dropping the pool waits for.
    fn begin_to_end(&mut self) {
        if self.shared.is_of_a_fork() {
            return;
        }
        self.shared.stop.0.store(true, Relaxed);
        // There are no waiters: a waiter borrows the pool.
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.attend(&mut state);
        drop(state);
        self.shared.work.notify_one();
    }

    /// What the pool holds now.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared.lock();
        let shelved = self.shared.shelves.count().min(state.out);
        PoolStats { idle: state.idle.len() + shelved, busy: state.out - shelved, ..state.stats }
    }

    /// What each living lane has done.
    pub fn lanes(&self) -> Vec<Arc<LaneStats>> {
        self.shared.lock().lanes.clone()
    }
}

impl<Z: Zygote> Drop for Pool<Z> {
    fn drop(&mut self) {
        if self.shared.is_of_a_fork() {
            return;
        }
        self.begin_to_end();
        if let Some(keeper) = self.keeper.take() {
            // A pool may be dropped by its own keeper only if a lane outlives it, which cannot be.
            let _ = keeper.join();
        }
        // Those that a keeper has left which panicked. Each knows the pool, so that it would live for ever.
        let mut state = self.shared.lock();
        let left = (std::mem::take(&mut state.idle), std::mem::take(&mut state.ending));
        drop(state);
        drop(left);
        if let Some(warmth) = &self.shared.warmth {
            warmth.leave();
        }
    }
}

/// What the keeper does: it boots missing lanes, looks after those that are ending, and ends lanes that are idle for too
/// long.
fn keep<Z: Zygote>(shared: &Arc<Shared<Z::Lane>>, mut zygote: Z) {
    let set_up = zygote.set_up();
    if let Some(set_up) = &set_up {
        let _ = shared.prepared.set(set_up.functions.clone());
    }
    let limit = set_up.map(|set_up| set_up.limit);
    let mut tearing_down: Vec<JoinHandle<()>> = Vec::new();
    let mut state = shared.lock();
    loop {
        let patience = if state.is_due() { MOMENT } else { Duration::ZERO };
        state = shared.settle(state, patience);
        if state.closed {
            break;
        }
        let few = !state.exhausted && state.idle.len() + state.out < state.wanted();
        let due = state.is_due();
        if few || due {
            drop(state);
            if !due && shared.warmth.as_ref().is_some_and(|warmth| !warmth.has_room()) {
                state = shared.lock();
                state.cap = Some(state.idle.len() + state.out);
                continue;
            }
            let booted = zygote.boot().and_then(|lane| begin(lane, limit));
            state = shared.lock();
            match booted {
                Ok((lane, prepares)) => {
                    (state.exhausted, state.unbalanced) = (false, true);
                    state.stats.booted += 1;
                    let stats = LaneStats { id: lane.id(), process: lane.process(), ..LaneStats::default() };
                    let stats = Arc::new(stats);
                    state.lanes.push(Arc::clone(&stats));
                    let since = Instant::now();
                    let (until, new) = (prepares.unwrap_or(since), prepares.is_some());
                    let kept = Box::new(Kept { lane, stats, since, until, new, shared: Arc::clone(shared) });
                    if new {
                        kept.stats.busy.store(true, Relaxed);
                        state.out += 1;
                        state.preparing += 1;
                        state.ending.push(kept);
                    } else if let Some(kept) = state.serve(kept) {
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
        // Those that are in use are back on their shelves a moment later.
        shared.collect(&mut state);
        if state.keep_warm && state.out == 0 && state.last_used.elapsed() >= state.options.idle_timeout {
            state.keep_warm = false;
        }
        let leaving = if !state.keep_warm && state.out == 0 {
            state.lanes.clear();
            state.surplus = 0;
            std::mem::take(&mut state.idle)
        } else {
            state.take_surplus()
        };
        if !leaving.is_empty() {
            drop(state);
            tearing_down.retain(|thread| !thread.is_finished());
            match limit {
                None => drop(leaving),
                Some(_) => tearing_down.extend(tear_down_apart(leaving)),
            }
            state = shared.lock();
            continue;
        }
        let idle_timeout = state.options.idle_timeout;
        if state.unbalanced && state.out == 0 && (!state.used || state.last_used.elapsed() >= SETTLED) {
            drop(state);
            let balanced = shared.warmth.as_ref().is_none_or(|warmth| warmth.balance());
            state = shared.lock();
            state.unbalanced = !balanced;
            if state.surplus > 0 {
                continue;
            }
        }
        let patience = match state.out {
            _ if !state.keep_warm => FOREVER,
            0 => idle_timeout.saturating_sub(state.last_used.elapsed()),
            // Who gives a lane back tells only if it is to leave at once; else it leaves no sooner than so long after.
            _ if idle_timeout.is_zero() => FOREVER,
            _ => idle_timeout,
        };
        let patience = if state.ending.is_empty() { patience.max(GLANCE) } else { GLANCE };
        let patience = if state.unbalanced { patience.min(SETTLED) } else { patience };
        state = shared.work.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
    }
    let mut leaving = (std::mem::take(&mut state.idle), std::mem::take(&mut state.ending));
    drop(state);
    if limit.is_some() {
        tear_down(&mut leaving.0);
    }
    drop(leaving);
    for thread in tearing_down {
        let _ = thread.join();
    }
}

/// Ends lanes that are not needed now on a thread of its own: the next query needs others, which the keeper boots.
fn tear_down_apart<L: Lane>(lanes: Vec<Box<Kept<L>>>) -> Option<JoinHandle<()>> {
    // Without a thread, they end without a tear-down.
    std::thread::Builder::new()
        .name("crosslane-tear-down".into())
        .spawn(move || {
            let mut lanes = lanes;
            tear_down(&mut lanes);
        })
        .ok()
}

/// Has a new lane prepare its functions, if there is something to prepare. Returns until when it may.
fn begin<L: Lane>(mut lane: L, limit: Option<Duration>) -> Result<(L, Option<Instant>), Error> {
    let Some(limit) = limit else { return Ok((lane, None)) };
    match lane.submit(Address::whole(0, Entry::SetUp), 0, &()) {
        Ok(Some(_)) => Ok((lane, Some(Instant::now() + limit))),
        Ok(None) => Err(Error::Boot("a new worker has no room for a message".into())),
        Err(error) => Err(Error::Boot(error.to_string())),
    }
}

/// Has the guests of idle lanes end what they have prepared, side by side.
fn tear_down<L: Lane>(lanes: &mut [Box<Kept<L>>]) {
    let until = Instant::now() + GRACE;
    let told = lanes.iter_mut().filter_map(|kept| {
        let sent = kept.lane.submit(Address::whole(0, Entry::TearDown), 0, &());
        matches!(sent, Ok(Some(_))).then_some(kept)
    });
    let mut told: Vec<_> = told.collect();
    loop {
        told.retain_mut(|kept| matches!(kept.settle(), Ok(false)) && kept.lane.lives());
        let rest = until.saturating_duration_since(Instant::now());
        if told.is_empty() || rest.is_zero() {
            return;
        }
        let lanes: Vec<_> = told.iter_mut().map(|kept| &mut kept.lane).collect();
        wait_any(&lanes, Patience::Sleep, rest.min(GLANCE));
    }
}

/// A lane that is checked out. Dropping it ends the lane; [`PooledLane::give_back`] keeps it warm.
pub struct PooledLane<L: Lane> {
    kept: Option<Box<Kept<L>>>,
    /// The thread that the pool knows as this lane's.
    holder: Option<ThreadId>,
}

impl<L: Lane> fmt::Debug for PooledLane<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.kept.as_ref().map(|kept| kept.lane.id());
        f.debug_struct("PooledLane").field("lane", &id).finish_non_exhaustive()
    }
}

impl<L: Lane> PooledLane<L> {
    fn new(kept: Box<Kept<L>>) -> Self {
        Self { kept: Some(kept), holder: None }
    }

    fn kept(&self) -> &Kept<L> {
        self.kept.as_ref().expect("a lane until it is given back")
    }

    fn kept_mut(&mut self) -> &mut Kept<L> {
        self.kept.as_mut().expect("a lane until it is given back")
    }

    /// The lane, which is still counted as checked out.
    fn into_kept(mut self) -> Box<Kept<L>> {
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
    fn cancelled(&mut self) -> Option<Box<Kept<L>>> {
        let mut kept = self.kept.take_if(|kept| kept.lane.is_cancelled() && !kept.lane.has_ended())?;
        kept.since = Instant::now();
        kept.until = kept.since + GRACE;
        Some(kept)
    }

    /// The lane, if nothing of its last use is left in it.
    fn clean(&mut self) -> Option<Box<Kept<L>>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idle::IdleLane;

    struct Boots(u64);

    impl Zygote for Boots {
        type Lane = IdleLane;
        fn boot(&mut self) -> Result<IdleLane, Error> {
            self.0 += 1;
            Ok(IdleLane { id: self.0, works: None, broken: false })
        }
    }

    fn pool(idle_timeout: Duration) -> Pool<Boots> {
        Pool::start(PoolOptions { warm: 1, idle_timeout }, |_| Ok((Boots(0), ()))).unwrap().0
    }

    fn check_out(pool: &Pool<Boots>) -> PooledLane<IdleLane> {
        pool.check_out(|| false).unwrap().unwrap()
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_worker_finds_its_lane_without_the_lock() {
        let pool = pool(LONG);
        pool.give_back(check_out(&pool));
        let lock = pool.shared.lock();
        for _ in 0..3 {
            let lane = check_out(&pool);
            assert_eq!(lane.id(), 1);
            pool.give_back(lane);
        }
        drop(lock);
        assert_eq!((pool.stats().idle, pool.stats().busy), (1, 0));
    }

    #[test]
    fn who_needs_a_lane_takes_it_from_anothers_shelf() {
        let pool = pool(LONG);
        pool.give_back(check_out(&pool));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let lane = pool.try_check_out().unwrap();
                assert_eq!((lane.id(), pool.stats().busy), (1, 1));
                pool.give_back(lane);
            });
        });
        let lane = check_out(&pool);
        assert_eq!((lane.id(), pool.stats().booted, pool.stats().discarded), (1, 1, 0));
        drop(lane);
        assert_eq!((pool.stats().busy, pool.stats().discarded), (0, 1));
    }

    #[test]
    fn while_somebody_waits_nothing_stays_on_a_shelf() {
        let pool = pool(LONG);
        let lane = check_out(&pool);
        let mut state = pool.shared.lock();
        let ticket = state.stand();
        pool.shared.attend(&mut state);
        drop(state);
        pool.give_back(lane);
        let mut state = pool.shared.lock();
        assert_eq!(pool.shared.shelves.count(), 0);
        let served = state.leave(ticket, false).unwrap().unwrap().unwrap();
        pool.shared.attend(&mut state);
        drop(state);
        pool.give_back(PooledLane::new(served));
        assert_eq!(pool.shared.shelves.count(), 1);
    }

    #[test]
    fn lanes_on_shelves_leave_after_the_idle_timeout_and_with_their_pool() {
        for idle_timeout in [Duration::from_millis(1), Duration::ZERO] {
            let pool = pool(idle_timeout);
            pool.give_back(check_out(&pool));
            while pool.stats().idle > 0 {
                std::thread::yield_now();
            }
        }
        let pool = pool(LONG);
        let (first, second) = (check_out(&pool), check_out(&pool));
        let shared = Arc::downgrade(&pool.shared);
        pool.give_back(first);
        drop(pool);
        assert!(shared.upgrade().is_some(), "a lane is out");
        second.give_back();
        assert!(shared.upgrade().is_none(), "a lane is left");
    }

    /// Waits until the pool holds this.
    fn settles(pool: &Pool<Boots>, wanted: impl Fn(PoolStats) -> bool) {
        while !wanted(pool.stats()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_lane_that_is_ending_goes_to_who_waits_in_line() {
        let pool = pool(LONG);
        let mut lane = check_out(&pool);
        // Until then it is looked at, and somebody stands in line, also on a busy machine.
        lane.works = Some(Instant::now() + Duration::from_millis(500));
        pool.give_back(lane);
        assert_eq!((pool.stats().idle, pool.stats().busy), (0, 1));
        let mut state = pool.shared.lock();
        let ticket = state.stand();
        // The keeper would boot a lane for who is due.
        state.refuse(Error::Boot("no more".into()));
        pool.shared.attend(&mut state);
        drop(state);
        let served = loop {
            if let Some(outcome) = pool.shared.lock().leave(ticket, false) {
                break outcome.unwrap().unwrap();
            }
            std::thread::yield_now();
        };
        assert_eq!((served.lane.id(), pool.stats().booted), (1, 1));
        drop(PooledLane::new(served));
    }

    /// Who looks after the ending lanes has taken them all, and the keeper sees none meanwhile.
    #[test]
    fn the_keeper_learns_of_ending_lanes_that_another_has_looked_after() {
        let pool = pool(LONG);
        let (mut first, mut second) = (check_out(&pool), check_out(&pool));
        first.works = Some(Instant::now() + Duration::from_millis(50));
        second.works = Some(Instant::now() + LONG);
        pool.give_back(first);
        pool.give_back(second);
        drop(pool.shared.settle(pool.shared.lock(), Duration::from_millis(200)));
        settles(&pool, |stats| stats.idle == 1 && stats.discarded == 1);
    }

    #[test]
    fn a_look_at_ending_lanes_that_panics_leaves_none_counted_as_busy() {
        let pool = pool(LONG);
        let mut lanes = [check_out(&pool), check_out(&pool)];
        lanes.iter_mut().for_each(|lane| lane.works = Some(Instant::now() + LONG));
        lanes[1].broken = true;
        let mut state = pool.shared.lock();
        state.ending.extend(lanes.map(PooledLane::into_kept));
        assert_eq!(state.out, 2);
        let look = || drop(pool.shared.settle(state, Duration::ZERO));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).unwrap_err();
        assert_eq!((pool.stats().busy, pool.stats().discarded), (0, 2));
    }
}
