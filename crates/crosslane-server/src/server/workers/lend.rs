//! Lends the workers of a library, and has more of them made.

use super::slot::{Borrower, Grant, Slot};
use super::watcher::Watcher;
use crate::lock::lock;
use crosslane::{Error, Library};
use crosslane_process::Zygote;
use crosslane_sched::Handle;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// After so long in line a long call counts as a short one.
const PATIENCE: Duration = Duration::from_millis(100);
/// So many times as many workers may exist while some are held.
const HELD: usize = 16;
/// After so long in line for workers that are all held there is an error.
const STUCK: Duration = Duration::from_secs(30);
/// For how long a worker may go on with what was cancelled.
const GRACE: Duration = Duration::from_secs(2);
/// A lane goes back to its pool after so long without use.
const IDLE: Duration = Duration::from_secs(5);

struct Waiting {
    borrower: Arc<dyn Borrower>,
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

    /// A worker for a route; or a place in line, until [`Borrower::granted`] or [`Borrower::refused`].
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
        if lock(&slot.borrower).take().is_some() {
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
        Self::lend(state, &slot, Arc::clone(&waiting.borrower), waiting.is_long);
        Some(Grant { borrower: waiting.borrower, slot })
    }

    /// Forgets who stands in line.
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
    }

    /// Others in line wait on if there are workers that will be free soon.
    fn not_booted(&self, error: Error) {
        let mut state = lock(&self.state);
        state.count -= 1;
        state.booting -= 1;
        let refused =
            if state.count == state.held { std::mem::take(&mut state.line) } else { VecDeque::new() };
        drop(state);
        refused.into_iter().for_each(|waiting| waiting.borrower.refused(&error));
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

    /// No workers are made any more.
    pub(crate) fn close(self: &Arc<Self>) {
        lock(&self.state).closed = true;
        self.look();
    }
}
