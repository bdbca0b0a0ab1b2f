//! The workers of a library, and who gets the next.
//!
//! A server has so many workers for a library at most, each behind a lane. A [`Route`] takes one when it has something to do, and
//! gives it back when nothing is in flight; so a worker never works for two clients at a time, and what one client's call does to its
//! worker befalls no other. Who finds none stands in line.
//!
//! A scan, a stream and the states of an aggregate *hold* their worker for as long as their query needs, which may call other functions of the
//! library meanwhile, or other states. If such workers counted, queries could wait for each other for ever. So the limit is on the workers that
//! are not held, and there may be [`HELD`] times as many in all. So it is with a worker whose client has gone and that has not yet ended what was
//! cancelled then. If all of these are held for [`STUCK`], who waits gets an error.
//!
//! Calls that are known to be long wait behind short ones, for [`PATIENCE`] at most, and leave one worker to the short ones.
//!
//! # Who watches
//! One thread, the watcher, sleeps on the reply rings of all lanes at once, and lets the route of a lane with news take them. It
//! looks at deaths, deadlines and progress every [`TICK`]. It does not spin before it sleeps. While calls come fast, the scheduler's
//! worker that waits for them polls the rings as well ([`BusyPoll`]): they are hushed then, so that workers need not wake the watcher for each
//! reply.
//!
//! A lane whose client does not read is *stalled*: nobody takes its replies, its ring fills, and its worker waits. The watcher leaves it
//! alone until the connection has room again.
//!
//! # Locks
//! In this order: a route's state, a lane, the line of a library. What is granted to another route is delivered when none is
//! held ([`Grant`]).

use crate::connection::gathered;
use crate::route::Route;
use crosslane::lane::{Lane, LaneError};
use crosslane::pool::PooledLane;
use crosslane::{Error, Library};
use crosslane_process::{ProcessLane, Zygote};
use crosslane_ring::{Bell, MappedRing, Slice, Spin, Watch, wait_any};
use crosslane_sched::{BusyPoll, Handle};
use serde::Serialize;
use std::collections::VecDeque;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tracing::error;

/// How often the watcher looks at what tells no news.
const TICK: Duration = Duration::from_millis(10);
/// After so long in line a long call counts as a short one.
const PATIENCE: Duration = Duration::from_millis(100);
/// So many times as many workers may exist while some are held.
const HELD: usize = 16;
/// After so long in line for workers that are all held there is an error.
const STUCK: Duration = Duration::from_secs(30);
/// For how long a worker may go on with what was cancelled.
const GRACE: Duration = Duration::from_secs(2);
/// Messages of it that are thrown away at once.
const MOST_AT_ONCE: usize = 64;
/// How often rings are hushed again. The watcher makes them loud whenever it sleeps, and could not do so if they were hushed all the time.
const HUSH: Duration = Duration::from_micros(100);
/// A lane goes back to its pool after so long without use.
const IDLE: Duration = Duration::from_secs(5);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lane that the server has taken from a pool.
pub(crate) struct Slot {
    /// Which library it is of.
    pub(crate) library: usize,
    /// `None` when it is lost, or back in the pool.
    pub(crate) lane: Mutex<Option<PooledLane<ProcessLane>>>,
    /// Whether its route takes no replies now.
    pub(crate) stalled: AtomicBool,
    watch: Watch<MappedRing>,
    /// Who uses it.
    route: Mutex<Option<Arc<Route>>>,
    is_long: AtomicBool,
    is_held: AtomicBool,
}

impl Slot {
    fn has_news(&self) -> bool {
        !self.stalled.load(Relaxed) && self.watch.has_news()
    }

    /// Throws away what comes of what was cancelled. Whether that has ended; `None` if the worker is of no more use.
    fn settle(&self) -> Option<bool> {
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

    /// Whether a free one is of no more use: its worker has ended, or has sent what nobody has asked for.
    fn is_spoilt(&self) -> bool {
        let has_ended =
            |lane: &Option<PooledLane<ProcessLane>>| lane.as_ref().is_none_or(|lane| lane.has_ended());
        // Nobody else looks at a free one, or the answer does not matter.
        self.watch.has_news() || self.lane.try_lock().is_ok_and(|lane| has_ended(&lane))
    }
}

/// A worker for who stood in line.
#[must_use = "a grant that is not delivered is a worker that nobody uses"]
pub(crate) struct Grant {
    route: Arc<Route>,
    slot: Arc<Slot>,
}

impl Grant {
    /// To be called without any lock.
    pub(crate) fn deliver(self) {
        Self::deliver_all(vec![self]);
    }

    /// The same for several. A route that needs its worker no more gives it to the next at once, and that may go on through the
    /// whole line: so none calls another.
    pub(crate) fn deliver_all(mut grants: Vec<Self>) {
        while let Some(Self { route, slot }) = grants.pop() {
            grants.extend(route.granted(slot));
        }
    }
}

struct Waiting {
    route: Arc<Route>,
    is_long: bool,
    since: Instant,
}

struct State {
    free: Vec<(Arc<Slot>, Instant)>,
    /// Those that are at work on what was cancelled, since their routes left them.
    ending: Vec<(Arc<Slot>, Instant)>,
    /// Slots, and those that are being made.
    count: usize,
    booting: usize,
    /// How many of them a route has, of these how many are held, and how many work on long calls.
    lent: usize,
    held: usize,
    long: usize,
    line: VecDeque<Waiting>,
    closed: bool,
}

impl State {
    /// The free worker that was used last, if it lives.
    fn take(&mut self) -> Option<Arc<Slot>> {
        let at = self.free.iter().rposition(|(slot, _)| !slot.is_spoilt())?;
        Some(self.free.remove(at).0)
    }
}

/// The workers of a library at a moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Census {
    pub(crate) free: usize,
    /// Those that a lane has and that count for [`Census::most`].
    pub(crate) working: usize,
    /// Those that a lane has for a scan, a stream or states, and those that end what was cancelled.
    pub(crate) held: usize,
    pub(crate) booting: usize,
    /// Lanes in line for one.
    pub(crate) line: usize,
    pub(crate) most: usize,
}

/// The workers of one library.
pub(crate) struct Workers {
    pub(crate) library: Arc<Library<Zygote>>,
    index: usize,
    most: usize,
    state: Mutex<State>,
    watcher: Arc<Watcher>,
    handle: Handle,
}

impl Workers {
    pub(crate) fn new(
        library: Arc<Library<Zygote>>,
        index: usize,
        most: usize,
        watcher: Arc<Watcher>,
        handle: Handle,
    ) -> Arc<Self> {
        let state = State {
            free: Vec::new(),
            ending: Vec::new(),
            count: 0,
            booting: 0,
            lent: 0,
            held: 0,
            long: 0,
            line: VecDeque::new(),
            closed: false,
        };
        Arc::new(Self { library, index, most, state: Mutex::new(state), watcher, handle })
    }

    /// How many calls wait for a worker.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).line.len()
    }

    /// What there is of workers now.
    pub(crate) fn census(&self) -> Census {
        let state = lock(&self.state);
        let (free, booting) = (state.free.len(), state.booting);
        let working = state.lent - state.held;
        Census {
            free,
            working,
            held: state.count - free - booting - working,
            booting,
            line: state.line.len(),
            most: self.most,
        }
    }

    /// A worker for a route; or a place in line, until [`Route::granted`] or [`Route::refused`].
    pub(crate) fn acquire(self: &Arc<Self>, route: &Arc<Route>, is_long: bool) -> Option<Arc<Slot>> {
        let mut state = lock(&self.state);
        let slot = if self.admits(&state, is_long) { state.take() } else { None };
        if let Some(slot) = slot {
            Self::lend(&mut state, &slot, route, is_long);
            return Some(slot);
        }
        state.line.push_back(Waiting { route: Arc::clone(route), is_long, since: Instant::now() });
        self.boot_if_due(&mut state);
        None
    }

    /// Whether a call may have a free worker now.
    fn admits(&self, state: &State, is_long: bool) -> bool {
        let working = state.lent - state.held;
        working < self.most && (!is_long || self.most == 1 || state.long + 1 < self.most)
    }

    fn lend(state: &mut State, slot: &Arc<Slot>, route: &Arc<Route>, is_long: bool) {
        slot.is_long.store(is_long, Relaxed);
        state.lent += 1;
        state.long += usize::from(is_long);
        let mut used = lock(&slot.route);
        slot.stalled.store(false, Relaxed);
        *used = Some(Arc::clone(route));
    }

    /// Says that a route keeps its worker while its client waits for something else.
    pub(crate) fn hold(self: &Arc<Self>, slot: &Arc<Slot>) {
        if !slot.is_held.swap(true, Relaxed) {
            let mut state = lock(&self.state);
            state.held += 1;
            state.long -= usize::from(slot.is_long.swap(false, Relaxed));
            self.boot_if_due(&mut state);
        }
    }

    /// A route has a worker no more.
    fn end_loan(state: &mut State, slot: &Slot) {
        if lock(&slot.route).take().is_some() {
            state.lent -= 1;
        }
        state.held -= usize::from(slot.is_held.swap(false, Relaxed));
        state.long -= usize::from(slot.is_long.swap(false, Relaxed));
    }

    /// Takes a worker back. Whoever is next in line may have it.
    pub(crate) fn release(&self, slot: Arc<Slot>) -> Option<Grant> {
        let mut state = lock(&self.state);
        Self::end_loan(&mut state, &slot);
        state.free.push((slot, Instant::now()));
        self.next(&mut state)
    }

    /// Takes a worker back that is at work on what was cancelled. It is free when it has ended that, for which it has [`GRACE`].
    pub(crate) fn retire(self: &Arc<Self>, slot: Arc<Slot>) {
        let mut state = lock(&self.state);
        Self::end_loan(&mut state, &slot);
        state.ending.push((slot, Instant::now()));
        self.boot_if_due(&mut state);
    }

    /// Looks after the workers that are ending what was cancelled.
    fn settle(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let closed = state.closed;
        let ending = std::mem::take(&mut state.ending);
        drop(state);
        for (slot, since) in ending {
            match slot.settle() {
                Some(true) => {
                    if let Some(grant) = self.release(slot) {
                        grant.deliver();
                    }
                }
                Some(false) if !closed && since.elapsed() < GRACE => {
                    lock(&self.state).ending.push((slot, since))
                }
                _ => {
                    // Dropping it ends its process.
                    drop(lock(&slot.lane).take());
                    self.forget(&slot);
                }
            }
        }
    }

    /// A free worker for the next in line.
    fn next(&self, state: &mut State) -> Option<Grant> {
        if state.line.is_empty() {
            return None;
        }
        let now = Instant::now();
        let short = |waiting: &Waiting| !waiting.is_long || now - waiting.since > PATIENCE;
        let admits = |waiting: &Waiting| self.admits(state, waiting.is_long);
        let at = state.line.iter().position(|waiting| short(waiting) && admits(waiting));
        let at = at.or_else(|| state.line.iter().position(admits))?;
        let slot = state.take()?;
        let waiting = state.line.remove(at)?;
        Self::lend(state, &slot, &waiting.route, waiting.is_long);
        Some(Grant { route: waiting.route, slot })
    }

    /// Forgets who stands in line.
    pub(crate) fn leave(&self, route: &Arc<Route>) {
        lock(&self.state).line.retain(|waiting| !Arc::ptr_eq(&waiting.route, route));
    }

    /// Forgets a worker that is lost, or was given back to the pool.
    pub(crate) fn forget(self: &Arc<Self>, slot: &Arc<Slot>) {
        self.watcher.remove(slot);
        let mut state = lock(&self.state);
        Self::end_loan(&mut state, slot);
        state.count -= 1;
        self.boot_if_due(&mut state);
    }

    /// Has another worker made if more wait than are being made, and there may be more.
    fn boot_if_due(self: &Arc<Self>, state: &mut State) {
        let free = state.count - state.held - state.ending.len();
        let may = free < self.most && state.count < self.most * HELD;
        if state.closed || state.line.is_empty() || !may || !state.free.is_empty() {
            return;
        }
        state.count += 1;
        state.booting += 1;
        let this = Arc::clone(self);
        // The pool may start a process first.
        drop(self.handle.spawn_blocking(move || this.boot()));
    }

    fn boot(self: &Arc<Self>) {
        let checked_out = self.library.pool.check_out(|| lock(&self.state).closed);
        let mut lane = match checked_out {
            Ok(Some(lane)) => lane,
            Ok(None) => return self.not_booted(Error::Boot("the server is shutting down".into())),
            Err(error) => return self.not_booted(error),
        };
        lane.share();
        let slot = Arc::new(Slot {
            library: self.index,
            watch: lane.watch(),
            lane: Mutex::new(Some(lane)),
            stalled: AtomicBool::new(false),
            route: Mutex::new(None),
            is_long: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
        });
        self.watcher.add(&slot);
        lock(&self.state).booting -= 1;
        if let Some(grant) = self.release(slot) {
            grant.deliver();
        }
        self.boot_if_due(&mut lock(&self.state));
    }

    /// Others in line wait on if there are workers that will be free soon.
    fn not_booted(&self, error: Error) {
        let mut state = lock(&self.state);
        state.count -= 1;
        state.booting -= 1;
        let refused =
            if state.count == state.held { std::mem::take(&mut state.line) } else { VecDeque::new() };
        drop(state);
        refused.into_iter().for_each(|waiting| waiting.route.refused(&error));
    }

    /// Gives workers back that nobody has used for a while, or that have ended, and looks after the line.
    pub(crate) fn look(self: &Arc<Self>) {
        self.settle();
        let mut state = lock(&self.state);
        let grant = self.next(&mut state);
        let now = Instant::now();
        let closed = state.closed;
        let unused = |(slot, since): &(Arc<Slot>, Instant)| closed || now - *since > IDLE || slot.is_spoilt();
        let (unused, free): (Vec<_>, Vec<_>) = std::mem::take(&mut state.free).into_iter().partition(unused);
        state.free = free;
        let all_held = state.held == state.count && state.count == self.most * HELD;
        let stuck = |waiting: &Waiting| all_held && now - waiting.since > STUCK;
        let (stuck, line): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.line).into_iter().partition(stuck);
        state.line = line;
        drop(state);
        for waiting in stuck {
            waiting.route.refused(&Error::Boot(format!(
                "all {} workers of {} hold scans, streams or states of aggregates; more can be had with --workers",
                self.most * HELD,
                self.library.name
            )));
        }
        if let Some(grant) = grant {
            grant.deliver();
        }
        for (slot, _) in unused {
            match lock(&slot.lane).take() {
                Some(lane) if !slot.watch.has_news() => lane.give_back(),
                // Dropping it ends its process.
                _ => {}
            }
            self.forget(&slot);
        }
    }

    /// No workers are made any more.
    pub(crate) fn close(self: &Arc<Self>) {
        lock(&self.state).closed = true;
        self.look();
    }
}

/// The thread that waits for all workers.
pub(crate) struct Watcher {
    slots: Mutex<Arc<Vec<Arc<Slot>>>>,
    /// Counts the changes of the list.
    version: AtomicU64,
    bell: Bell,
    stop: AtomicBool,
    start: Instant,
    /// When who polls hushes the rings again, in microseconds since the start.
    hushes: AtomicU64,
}

impl Watcher {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::default(),
            version: AtomicU64::new(0),
            bell: Bell::default(),
            stop: AtomicBool::new(false),
            start: Instant::now(),
            hushes: AtomicU64::new(0),
        })
    }

    /// Begins to watch; `look` is called every [`TICK`]. A panic is logged, and the thread goes on with the next message: without it
    /// the calls of all clients would wait for ever.
    pub(crate) fn start(
        self: &Arc<Self>,
        look: impl Fn() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let this = Arc::clone(self);
        std::thread::Builder::new().name("crosslane-watcher".into()).spawn(move || {
            // What panicked may do so again at once.
            while catch_unwind(AssertUnwindSafe(|| this.run(&look))).is_err() && !this.stop.load(Relaxed) {
                error!("the thread that takes results has panicked; it goes on");
                thread::sleep(TICK);
            }
        })
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.bell.ring();
    }

    /// Has it look at once.
    pub(crate) fn wake(&self) {
        self.version.fetch_add(1, Relaxed);
        self.bell.ring();
    }

    fn add(&self, slot: &Arc<Slot>) {
        Arc::make_mut(&mut lock(&self.slots)).push(Arc::clone(slot));
        self.wake();
    }

    fn remove(&self, slot: &Arc<Slot>) {
        Arc::make_mut(&mut lock(&self.slots)).retain(|other| !Arc::ptr_eq(other, slot));
        self.wake();
    }

    fn run(&self, look: impl Fn()) {
        // What comes from workers is passed on before who computes goes on.
        let slice = Slice::new(true);
        slice.shorten();
        let mut next = Instant::now() + TICK;
        while !self.stop.load(Relaxed) {
            let version = self.version.load(Relaxed);
            let slots = self.slots();
            let has_news = || slots.iter().any(|slot| slot.has_news());
            let changed = || self.stop.load(Relaxed) || self.version.load(Relaxed) != version;
            let waiters = slots.iter().filter(|slot| !slot.stalled.load(Relaxed));
            let waiters = waiters.map(|slot| slot.watch.waiter()).chain(iter::once(self.bell.waiter()));
            let timeout = next.saturating_duration_since(Instant::now());
            wait_any(waiters, Spin(Duration::ZERO), timeout, || has_news() || changed());
            self.serve_all(&slots);
            if Instant::now() >= next {
                next = Instant::now() + TICK;
                slots.iter().for_each(|slot| self.look(slot));
                look();
            }
        }
    }

    fn slots(&self) -> Arc<Vec<Arc<Slot>>> {
        Arc::clone(&lock(&self.slots))
    }

    /// Takes what there is of all lanes.
    fn serve_all(&self, slots: &[Arc<Slot>]) {
        gathered(|| slots.iter().filter(|slot| slot.has_news()).for_each(|slot| self.serve(slot)));
    }

    fn serve(&self, slot: &Arc<Slot>) {
        let used = lock(&slot.route);
        let Some(route) = used.clone() else {
            // Nobody has asked for it, and the next look finds out why; or its route was quicker, and has given it back.
            slot.stalled.store(slot.watch.has_news(), Relaxed);
            return;
        };
        drop(used);
        route.pump();
    }

    fn look(&self, slot: &Arc<Slot>) {
        let route = lock(&slot.route).clone();
        if let Some(route) = route {
            route.look(slot);
        }
    }
}

impl BusyPoll for Watcher {
    fn look(&self) -> bool {
        let slots = self.slots();
        let now = self.start.elapsed().as_micros() as u64;
        if now >= self.hushes.load(Relaxed) {
            self.hushes.store(now + HUSH.as_micros() as u64, Relaxed);
            slots.iter().for_each(|slot| slot.watch.hush());
        }
        slots.iter().any(|slot| slot.has_news())
    }

    fn handle(&self) {
        self.serve_all(&self.slots());
    }

    fn rest(&self) {
        self.hushes.store(0, Relaxed);
        self.slots().iter().for_each(|slot| slot.watch.unhush());
    }
}

/// Whether the worker of a lane lives, and how it ended if it does not.
pub(crate) fn check(lane: &mut ProcessLane) -> Result<(), String> {
    if lane.lives() { Ok(()) } else { lane.check().map_err(|error| error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_watcher_goes_on_after_a_panic() {
        let watcher = Watcher::new();
        let (sender, looked) = mpsc::channel();
        let thread = watcher.start(move || {
            sender.send(()).expect("the test waits");
            panic!("a test's");
        });
        // The second look comes after the first has panicked.
        looked.recv().unwrap();
        looked.recv().unwrap();
        watcher.stop();
        drop(looked);
        thread.unwrap().join().unwrap();
    }
}
