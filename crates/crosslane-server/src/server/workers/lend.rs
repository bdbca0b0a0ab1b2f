//! Lends the workers of a library to routes, and makes more of them.

use super::slot::{Borrower, Grant, Slot};
use super::watcher::Watcher;
use crosslane::pool::Pool;
use crosslane::{Error, Function, Library, lock};
use crosslane_process::Zygote;
use crosslane_sched::Handle;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// After this long in the queue, a long call counts as a short one.
const PATIENCE: Duration = Duration::from_millis(100);
/// The limit on all workers is this many times the limit on workers that are not held.
const HELD: usize = 16;
/// After this long in the queue, a route gets an error if all workers are held.
const STUCK: Duration = Duration::from_secs(30);
/// How long a worker may go on with cancelled calls.
const GRACE: Duration = Duration::from_secs(2);
/// After this long without use, a lane goes back to its pool.
const IDLE: Duration = Duration::from_secs(5);

struct Waiting {
    borrower: Arc<dyn Borrower>,
    is_long: bool,
    since: Instant,
}

struct State {
    free: Vec<(Arc<Slot>, Instant)>,
    /// Workers that still work on cancelled calls, and when their routes left them.
    ending: Vec<(Arc<Slot>, Instant)>,
    /// How many slots there are, including those that are being made.
    count: usize,
    booting: usize,
    /// How many workers routes have. Of these, `held` are held, and `long` work on long calls.
    lent: usize,
    held: usize,
    long: usize,
    line: VecDeque<Waiting>,
    /// Whether free workers go back to their pool at once.
    lets_go: bool,
    closed: bool,
}

impl State {
    /// The free worker that was used last, of those that are still of use.
    fn take(&mut self) -> Option<Arc<Slot>> {
        let at = self.free.iter().rposition(|(slot, _)| !slot.is_spoilt())?;
        Some(self.free.remove(at).0)
    }
}

/// How many workers of a library are in which state.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Census {
    pub(crate) free: usize,
    /// Workers that a lane has and that count for [`Census::most`].
    pub(crate) working: usize,
    /// Workers that a lane has for a scan, a stream or states, and workers that end cancelled
    /// calls.
    pub(crate) held: usize,
    pub(crate) booting: usize,
    /// Lanes that wait for a worker.
    pub(crate) line: usize,
    pub(crate) most: usize,
}

/// The workers of one library, or those of one function.
pub(crate) struct Workers {
    pub(crate) library: Arc<Library<Zygote>>,
    /// The function that alone uses these workers, if it has workers of its own.
    pub(crate) of: Option<Arc<Function>>,
    index: usize,
    most: usize,
    state: Mutex<State>,
    watcher: Arc<Watcher>,
    handle: Handle,
}

impl Workers {
    pub(crate) fn new(
        library: Arc<Library<Zygote>>,
        of: Option<Arc<Function>>,
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
            lets_go: false,
            closed: false,
        };
        Arc::new(Self { library, of, index, most, state: Mutex::new(state), watcher, handle })
    }

    /// The pool that has their lanes.
    pub(crate) fn pool(&self) -> &Pool<Zygote> {
        let pool = &self.library.pool;
        self.of.as_ref().map_or(pool, |function| pool.of(function))
    }

    /// How many calls wait for a worker.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).line.len()
    }

    /// The state of the workers now.
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

    /// Gives a worker to a route. If there is none, the route waits in the queue until
    /// [`Borrower::granted`] or [`Borrower::refused`].
    pub(crate) fn acquire(self: &Arc<Self>, borrower: Arc<dyn Borrower>, is_long: bool) -> Option<Arc<Slot>> {
        let mut state = lock(&self.state);
        let slot = if self.admits(&state, is_long) { state.take() } else { None };
        if let Some(slot) = slot {
            Self::lend(&mut state, &slot, borrower, is_long);
            return Some(slot);
        }
        state.line.push_back(Waiting { borrower, is_long, since: Instant::now() });
        self.boot_if_due(&mut state);
        None
    }

    /// Whether a call may have a free worker now.
    fn admits(&self, state: &State, is_long: bool) -> bool {
        let working = state.lent - state.held;
        working < self.most && (!is_long || self.most == 1 || state.long + 1 < self.most)
    }

    fn lend(state: &mut State, slot: &Arc<Slot>, borrower: Arc<dyn Borrower>, is_long: bool) {
        slot.is_long.store(is_long, Relaxed);
        state.lent += 1;
        state.long += usize::from(is_long);
        let mut used = lock(&slot.borrower);
        slot.stalled.store(false, Relaxed);
        *used = Some(borrower);
    }

    /// Marks a worker as held: its route keeps it while the client waits for something else.
    pub(crate) fn hold(self: &Arc<Self>, slot: &Arc<Slot>) {
        if !slot.is_held.swap(true, Relaxed) {
            let mut state = lock(&self.state);
            state.held += 1;
            state.long -= usize::from(slot.is_long.swap(false, Relaxed));
            self.boot_if_due(&mut state);
        }
    }

    /// Ends the loan of a worker.
    fn end_loan(state: &mut State, slot: &Slot) {
        if lock(&slot.borrower).take().is_some() {
            state.lent -= 1;
        }
        state.held -= usize::from(slot.is_held.swap(false, Relaxed));
        state.long -= usize::from(slot.is_long.swap(false, Relaxed));
    }

    /// Takes a worker back. The next route in the queue may get it.
    pub(crate) fn release(&self, slot: Arc<Slot>) -> Option<Grant> {
        let mut state = lock(&self.state);
        Self::end_loan(&mut state, &slot);
        state.free.push((slot, Instant::now()));
        self.next(&mut state)
    }

    /// Takes a worker back that still works on cancelled calls. It is free when it has ended these.
    /// It has [`GRACE`] for that.
    pub(crate) fn retire(self: &Arc<Self>, slot: Arc<Slot>) {
        let mut state = lock(&self.state);
        Self::end_loan(&mut state, &slot);
        state.ending.push((slot, Instant::now()));
        self.boot_if_due(&mut state);
    }

    /// Frees the workers that have ended their cancelled calls. Ends those that are of no more use,
    /// or that need longer than [`GRACE`].
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

    /// A free worker for the next route in the queue.
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
        Self::lend(state, &slot, Arc::clone(&waiting.borrower), waiting.is_long);
        Some(Grant { borrower: waiting.borrower, slot })
    }

    /// Removes a route from the queue.
    pub(crate) fn leave(&self, borrower: &dyn Borrower) {
        let is_other = |waiting: &Waiting| !std::ptr::addr_eq(Arc::as_ptr(&waiting.borrower), borrower);
        lock(&self.state).line.retain(is_other);
    }

    /// Forgets a worker that is lost, or was given back to the pool.
    pub(crate) fn forget(self: &Arc<Self>, slot: &Arc<Slot>) {
        self.watcher.remove(slot);
        let mut state = lock(&self.state);
        Self::end_loan(&mut state, slot);
        state.count -= 1;
        self.boot_if_due(&mut state);
    }

    /// Makes another worker if more routes wait than workers are being made, and the limits allow
    /// it.
    fn boot_if_due(self: &Arc<Self>, state: &mut State) {
        // The pool of a function's own workers does not make more of them than the function allows.
        let ending = if self.of.is_some() { 0 } else { state.ending.len() };
        let free = state.count - state.held - ending;
        let may = free < self.most && state.count < self.most * HELD;
        if state.closed || state.line.is_empty() || !may || !state.free.is_empty() {
            return;
        }
        state.count += 1;
        state.booting += 1;
        let this = Arc::clone(self);
        // The pool may start a process first, so this is a blocking task.
        drop(self.handle.spawn_blocking(move || this.boot()));
    }

    fn boot(self: &Arc<Self>) {
        let checked_out = self.pool().check_out(|| lock(&self.state).closed);
        let mut lane = match checked_out {
            Ok(Some(lane)) => lane,
            Ok(None) => return self.not_booted(Error::Boot("the server is shutting down".into())),
            Err(error) => return self.not_booted(error),
        };
        lane.share();
        let slot = Arc::new(Slot {
            workers: self.index,
            watch: lane.watch(),
            lane: Mutex::new(Some(lane)),
            stalled: AtomicBool::new(false),
            borrower: Mutex::new(None),
            is_long: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
        });
        self.watcher.add(&slot);
        lock(&self.state).booting -= 1;
        if let Some(grant) = self.release(slot) {
            grant.deliver();
        }
        self.boot_if_due(&mut lock(&self.state));
        if lock(&self.state).closed {
            // The last look may be over.
            self.look();
        }
    }

    /// Refuses the routes that wait if all other workers are held. Otherwise the routes wait on,
    /// because a worker will be free soon.
    fn not_booted(&self, error: Error) {
        let mut state = lock(&self.state);
        state.count -= 1;
        state.booting -= 1;
        let refused =
            if state.count == state.held { std::mem::take(&mut state.line) } else { VecDeque::new() };
        drop(state);
        refused.into_iter().for_each(|waiting| waiting.borrower.refused(&error));
    }

    /// Gives back workers that were not used for a while or have ended. Also serves the queue.
    pub(crate) fn look(self: &Arc<Self>) {
        self.settle();
        let mut state = lock(&self.state);
        let grant = self.next(&mut state);
        let now = Instant::now();
        let idle = if state.closed || state.lets_go { Duration::ZERO } else { IDLE };
        let unused = |(slot, since): &(Arc<Slot>, Instant)| now - *since >= idle || slot.is_spoilt();
        let (unused, free): (Vec<_>, Vec<_>) = std::mem::take(&mut state.free).into_iter().partition(unused);
        state.free = free;
        let all_held = state.held == state.count && state.count == self.most * HELD;
        let stuck = |waiting: &Waiting| all_held && now - waiting.since > STUCK;
        let (stuck, line): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut state.line).into_iter().partition(stuck);
        state.line = line;
        drop(state);
        for waiting in stuck {
            waiting.borrower.refused(&Error::Boot(format!(
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

    /// Gives free workers back at once from now on. Another queue of the same library may need them.
    pub(crate) fn let_go(self: &Arc<Self>) {
        lock(&self.state).lets_go = true;
        self.look();
    }

    /// Makes no workers from now on.
    pub(crate) fn close(self: &Arc<Self>) {
        lock(&self.state).closed = true;
        self.look();
    }
}
