//! One thread for all contexts: it ends calls that take too long, or that the program has stopped, and has calls looked
//! at whose Ruby thread is wanted (by a signal, `Timeout`, `Thread#kill`).
//!
//! It looks at the calls at work every [`TICK`], and sleeps while there are none. It runs as long as there are contexts.

use crosslane_gvl::Me;
use crosslane_js::attention::Attention;
use crosslane_js::isolate::{Handle, Reason};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);
/// After which time a call that was told to end is ended wherever it is.
const PATIENCE: Duration = Duration::from_millis(200);

/// A call at work, with those that it is inside of.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    caller: Me,
    /// When it is late. An inner call has no time of its own: it is a part of the outer one.
    deadline: Option<Instant>,
    /// Whether a block of the program runs: it ends by itself, and hears of what the VM wants.
    in_ruby: bool,
    /// When it was told to end.
    told: Option<Instant>,
}

/// A context, as the thread sees it.
pub(crate) struct Watched {
    handle: Arc<Handle>,
    work: Mutex<Option<Work>>,
    /// Whether the VM wants the caller.
    wanted: AtomicBool,
    /// Whether the program has stopped the calls at work. Only written while `work` is locked: so it means those calls,
    /// and none that begins when they have ended.
    stopped: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread, if it runs, and the contexts.
static CONTEXTS: Mutex<(Option<Thread>, Vec<Weak<Watched>>)> = Mutex::new((None, Vec::new()));
static ATTENTION: Attention = Attention::new();

/// Has the thread look, and go on looking for a while.
fn attend() {
    if ATTENTION.begin()
        && let Some(thread) = &lock(&CONTEXTS).0
    {
        thread.unpark();
    }
}

impl Watched {
    pub(crate) fn new(handle: Arc<Handle>) -> Arc<Self> {
        let (work, wanted, stopped) = (Mutex::new(None), AtomicBool::new(false), AtomicBool::new(false));
        let this = Arc::new(Self { handle, work, wanted, stopped });
        let mut contexts = lock(&CONTEXTS);
        contexts.1.push(Arc::downgrade(&this));
        if contexts.0.is_none() {
            let thread = thread::Builder::new().name("crosslane-v8".into()).spawn(watch);
            contexts.0 = thread.ok().map(|thread| thread.thread().clone());
        }
        this
    }

    /// A call begins. Returns the one that it is inside of, for its end.
    pub(crate) fn begin(&self, caller: Me, timeout: Option<Duration>) -> Option<Work> {
        let mut work = lock(&self.work);
        let outer = *work;
        let deadline = match outer {
            Some(outer) => outer.deadline,
            None => timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
        };
        if outer.is_none() {
            self.wanted.store(false, Relaxed);
            self.stopped.store(false, Relaxed);
        }
        *work = Some(Work { caller, deadline, in_ruby: false, told: None });
        drop(work);
        attend();
        outer
    }

    fn is_at_work(&self) -> bool {
        lock(&self.work).is_some()
    }

    /// The call is over. Whether it was stopped before that.
    pub(crate) fn end(&self, outer: Option<Work>) -> bool {
        let mut work = lock(&self.work);
        *work = outer;
        self.is_stopped()
    }

    /// Has the call at work end, with those that it is inside of. False if there is none.
    pub(crate) fn stop(&self) -> bool {
        let work = lock(&self.work);
        if work.is_none() {
            return false;
        }
        self.stopped.store(true, Relaxed);
        drop(work);
        self.look();
        true
    }

    /// Whether the program has stopped the call at work.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// A block of the program begins.
    pub(crate) fn enter_ruby(&self) {
        if let Some(work) = &mut *lock(&self.work) {
            work.in_ruby = true;
        }
    }

    /// The block has ended. A call that is late then ends at V8's next check, before its next block at the latest, however
    /// short the time is that it spends outside of blocks.
    pub(crate) fn leave_ruby(&self) {
        if let Some(work) = &mut *lock(&self.work) {
            work.in_ruby = false;
        }
        self.look();
    }

    /// The VM wants the caller. From any thread, or a signal handler.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Relaxed);
    }

    /// The call at work is not to go on.
    pub(crate) fn end_now(&self) {
        self.handle.end(Reason::Closed, false);
    }

    /// Whether the VM wants the caller, which then finds out what for.
    pub(crate) fn take_wanted(&self) -> bool {
        let mut work = lock(&self.work);
        let Some(work) = &mut *work else { return false };
        work.told = None;
        self.wanted.swap(false, Relaxed) || work.caller.is_wanted()
    }

    /// Tells the call at work to end, if it is to.
    fn look(&self) {
        let mut work = lock(&self.work);
        let Some(work) = work.as_mut().filter(|work| !work.in_ruby) else { return };
        let now = Instant::now();
        let reason = if work.deadline.is_some_and(|deadline| now > deadline) {
            Reason::Timeout
        } else if self.is_stopped() || self.wanted.load(Relaxed) || work.caller.is_wanted() {
            Reason::Closed
        } else {
            return;
        };
        // The first time at V8's next check; if there comes none, wherever it is.
        let late = work.told.map(|told| now - told >= PATIENCE);
        if late != Some(false) {
            work.told = Some(now);
            self.handle.end(reason, late.is_none());
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It may have been the last.
        attend();
    }
}

fn watch() {
    let mut last_call = Instant::now();
    loop {
        let contexts: Vec<_> = {
            let mut contexts = lock(&CONTEXTS);
            contexts.1.retain(|context| context.strong_count() > 0);
            if contexts.1.is_empty() {
                contexts.0 = None;
                return;
            }
            contexts.1.iter().filter_map(Weak::upgrade).collect()
        };
        contexts.iter().for_each(|context| context.look());
        let due = ATTENTION.is_due(&mut last_call, || contexts.iter().any(|context| context.is_at_work()));
        // Those that the program is done with end here, or before.
        drop(contexts);
        if due {
            thread::sleep(TICK);
        } else {
            thread::park();
        }
    }
}
