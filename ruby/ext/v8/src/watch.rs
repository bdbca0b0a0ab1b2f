//! One thread for all contexts: it ends calls that take too long, and has calls looked at whose Ruby thread is
//! wanted (by a signal, `Timeout`, `Thread#kill`).
//!
//! It looks at the calls at work every [`TICK`] and costs a call two stores. It runs as long as there are contexts.

use crosslane_gvl::Me;
use crosslane_js::isolate::{Handle, Reason};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);
/// How often a call is told to end before it is ended wherever it is.
const PATIENCE: u32 = 40;

/// A context, as the thread sees it.
pub(crate) struct Watched {
    handle: Arc<Handle>,
    /// The caller of the call at work.
    caller: Mutex<Option<Me>>,
    /// When the call at work is late, in nanoseconds since the process began; 0 if never.
    deadline: AtomicU64,
    /// Whether the VM wants the caller.
    wanted: AtomicBool,
    /// How often the call at work was told.
    told: Mutex<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> u64 {
    static BEGINNING: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGINNING.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

static CONTEXTS: Mutex<(bool, Vec<Weak<Watched>>)> = Mutex::new((false, Vec::new()));

impl Watched {
    pub(crate) fn new(handle: Arc<Handle>) -> Arc<Self> {
        let this = Arc::new(Self {
            handle,
            caller: Mutex::new(None),
            deadline: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            told: Mutex::new(0),
        });
        let mut contexts = lock(&CONTEXTS);
        contexts.1.push(Arc::downgrade(&this));
        if !contexts.0 {
            contexts.0 = std::thread::Builder::new().name("crosslane-v8".into()).spawn(watch).is_ok();
        }
        this
    }

    /// A call begins.
    pub(crate) fn begin(&self, caller: Me, timeout: Option<Duration>) {
        self.wanted.store(false, Relaxed);
        *lock(&self.told) = 0;
        *lock(&self.caller) = Some(caller);
        self.deadline.store(timeout.map_or(0, |timeout| now() + timeout.as_nanos() as u64), Relaxed);
    }

    /// The call is over.
    pub(crate) fn end(&self) {
        self.deadline.store(0, Relaxed);
        *lock(&self.caller) = None;
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
        *lock(&self.told) = 0;
        self.wanted.swap(false, Relaxed) || lock(&self.caller).is_some_and(Me::is_wanted)
    }

    fn look(&self) {
        let caller = lock(&self.caller);
        let Some(me) = *caller else { return };
        let deadline = self.deadline.load(Relaxed);
        let reason = if deadline != 0 && now() > deadline {
            Reason::Timeout
        } else if self.wanted.load(Relaxed) || me.is_wanted() {
            Reason::Closed
        } else {
            return;
        };
        let mut told = lock(&self.told);
        *told += 1;
        // The first time at V8's next check; if there comes none, wherever it is.
        if *told == 1 || *told == PATIENCE {
            self.handle.end(reason, *told == 1);
        }
    }
}

fn watch() {
    loop {
        std::thread::sleep(TICK);
        let contexts: Vec<_> = {
            let mut contexts = lock(&CONTEXTS);
            contexts.1.retain(|context| context.strong_count() > 0);
            if contexts.1.is_empty() {
                contexts.0 = false;
                return;
            }
            contexts.1.iter().filter_map(Weak::upgrade).collect()
        };
        contexts.iter().for_each(|context| context.look());
    }
}
