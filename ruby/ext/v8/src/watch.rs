//! One thread watches the calls of all contexts. It ends calls that take too long or that the
//! program has stopped. If the VM needs a call's Ruby thread (for a signal, `Timeout` or
//! `Thread#kill`), it interrupts the call, which then handles the VM's interrupts.
//!
//! The thread checks the running calls every [`TICK`], and sleeps while there are none. It runs
//! while there are contexts.

use crosslane_gvl::Me;
use crosslane_js::attention::Attention;
use crosslane_js::embed::process::Ender;
use crosslane_js::isolate::{Handle, Reason};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);

/// What ends a running call.
pub(crate) trait Ends: Send + Sync {
    /// As [`Handle::end`]. Returns false if V8 has not begun with the call.
    fn end(&self, reason: Reason, stack: bool) -> bool;

    /// A block has left the running script, which must end.
    fn left(&self);

    /// The time after which a call that was told to end is ended wherever it is.
    fn patience(&self) -> Duration;
}

impl Ends for Handle {
    fn end(&self, reason: Reason, stack: bool) -> bool {
        self.end(reason, stack);
        true
    }

    fn left(&self) {
        self.end(Reason::Closed, false);
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(200)
    }
}

impl Ends for Ender {
    fn end(&self, reason: Reason, stack: bool) -> bool {
        self.end(reason, stack)
    }

    /// The answer for the block tells it.
    fn left(&self) {}

    /// Another process may not run for a while, and it asks back by a message.
    fn patience(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// A running call, with the calls around it.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    caller: Me,
    /// The time from which the call is late. An inner call has no deadline of its own: it is a part
    /// of the outer call.
    deadline: Option<Instant>,
    /// Whether a block of the program runs. A block ends by itself, and the VM interrupts it.
    in_ruby: bool,
    /// The time at which it was told to end.
    told: Option<Instant>,
}

/// The thread's data about a context.
pub(crate) struct Watched {
    handle: Arc<dyn Ends>,
    work: Mutex<Option<Work>>,
    /// Whether the VM needs the calling thread.
    wanted: AtomicBool,
    /// Whether the program has stopped the running calls. It is written only while `work` is
    /// locked. So it concerns these calls, and no later one.
    stopped: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the contexts of a process share. A fork has another one: the thread does not run there, and what
/// another thread had locked stays locked.
struct Shared {
    process: u32,
    /// The thread, if it runs, and the contexts.
    contexts: Mutex<(Option<Thread>, Vec<Weak<Watched>>)>,
    attention: Attention,
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

impl Shared {
    /// That of this process.
    fn get() -> &'static Self {
        let process = std::process::id();
        let known = SHARED.load(Acquire);
        // SAFETY: what is stored there is never freed.
        if let Some(known) = unsafe { known.as_ref() }.filter(|known| known.process == process) {
            return known;
        }
        let (contexts, attention) = (Mutex::new((None, Vec::new())), Attention::new());
        let fresh = Box::into_raw(Box::new(Self { process, contexts, attention }));
        match SHARED.compare_exchange(known, fresh, AcqRel, Acquire) {
            // SAFETY: as above.
            Ok(_) => unsafe { &*fresh },
            Err(first) => {
                // SAFETY: no other thread knows it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: as above. Another thread of this process has stored it.
                unsafe { &*first }
            }
        }
    }

    /// Makes the thread check the calls, and continue to check for a while.
    fn attend(&self) {
        if self.attention.begin()
            && let Some(thread) = &lock(&self.contexts).0
        {
            thread.unpark();
        }
    }
}

impl Watched {
    pub(crate) fn new(handle: Arc<dyn Ends>) -> Arc<Self> {
        let (work, wanted, stopped) = (Mutex::new(None), AtomicBool::new(false), AtomicBool::new(false));
        let this = Arc::new(Self { handle, work, wanted, stopped });
        let shared = Shared::get();
        let mut contexts = lock(&shared.contexts);
        contexts.1.push(Arc::downgrade(&this));
        if contexts.0.is_none() {
            let thread = thread::Builder::new().name("crosslane-v8".into()).spawn(|| watch(shared));
            contexts.0 = thread.ok().map(|thread| thread.thread().clone());
        }
        this
    }

    /// Registers the begin of a call. Returns the call around it, which `end` needs.
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
        Shared::get().attend();
        outer
    }

    fn is_at_work(&self) -> bool {
        lock(&self.work).is_some()
    }

    /// Registers the end of the call. Returns whether it was stopped before.
    pub(crate) fn end(&self, outer: Option<Work>) -> bool {
        let mut work = lock(&self.work);
        *work = outer;
        self.is_stopped()
    }

    /// Ends the running call and the calls around it. Returns false if no call runs.
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

    /// Whether the program has stopped the running call.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Registers the begin of a block of the program.
    pub(crate) fn enter_ruby(&self) {
        if let Some(work) = &mut *lock(&self.work) {
            work.in_ruby = true;
        }
    }

    /// Registers the end of the block. A late call then ends at V8's next check. This is before its
    /// next block at the latest, however short the time between the blocks is.
    pub(crate) fn leave_ruby(&self) {
        if let Some(work) = &mut *lock(&self.work) {
            work.in_ruby = false;
        }
        self.look();
    }

    /// The VM needs the calling thread. Any thread or a signal handler may call this.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Relaxed);
    }

    /// Ends the running call at once.
    pub(crate) fn end_now(&self) {
        self.handle.left();
    }

    /// Whether the VM needs the calling thread. The caller then handles the VM's interrupts.
    pub(crate) fn take_wanted(&self) -> bool {
        let mut work = lock(&self.work);
        let Some(work) = &mut *work else { return false };
        work.told = None;
        self.wanted.swap(false, Relaxed) || work.caller.is_wanted()
    }

    /// Tells the running call to end, if it must end.
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
        // A call first ends at V8's next check. If no check comes in time, it ends wherever it is.
        let late = work.told.map(|told| now - told >= self.handle.patience());
        if late != Some(false) && self.handle.end(reason, late.is_none()) {
            work.told = Some(now);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // This may have been the last context.
        Shared::get().attend();
    }
}

fn watch(shared: &Shared) {
    let mut last_call = Instant::now();
    loop {
        let contexts: Vec<_> = {
            let mut contexts = lock(&shared.contexts);
            contexts.1.retain(|context| context.strong_count() > 0);
            if contexts.1.is_empty() {
                contexts.0 = None;
                return;
            }
            contexts.1.iter().filter_map(Weak::upgrade).collect()
        };
        contexts.iter().for_each(|context| context.look());
        let due =
            shared.attention.is_due(&mut last_call, || contexts.iter().any(|context| context.is_at_work()));
        // Contexts that the program no longer uses are dropped here, or were dropped before.
        drop(contexts);
        if due {
            thread::sleep(TICK);
        } else {
            thread::park();
        }
    }
}
