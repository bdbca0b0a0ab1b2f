//! Ends calls after an interrupt of their connection, and after Ctrl-C.
//!
//! A terminal sends Ctrl-C (SIGINT) to all processes of a program, and the zygote reports it. A
//! notebook sends it only to the engine's process. There Python's main thread gives up its query,
//! and waits for the tasks of other threads, which DuckDB cannot end during a call. So our handler
//! stores the time, and calls the program's own handler. It is installed before that handler when
//! the extension is loaded, and again when a call waits, because the program may have set another
//! handler.
//!
//! A handler that was set later may call ours as its predecessor. Then ours calls the handler that
//! it found before.

use crosslane::call::{CallGroup, CallGroups};
use crosslane::stats::now;
use crosslane_vectors::Client;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::{mem, ptr};

/// The waiting side: the connection of a statement, or a program that loads the extension.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    client: Option<Client>,
}

impl Asker {
    /// A program that loads the extension, without a statement.
    pub(crate) const PROGRAM: Self = Self { client: None };

    /// The connection of a statement, as long as the statement runs.
    pub(crate) fn of(client: Client) -> Self {
        Self { client: Some(client) }
    }

    /// Whether a wait that began at a time should end.
    pub(crate) fn should_end(self, begun: u64) -> bool {
        // SAFETY: callbacks of the connection's statements call this while the statements run.
        self.client.is_some_and(|client| unsafe { client.is_interrupted() }) || ctrl_c_since(begun)
    }
}

/// The calls of a query's connection.
pub(crate) fn group_of(groups: &CallGroups, client: Client) -> Arc<CallGroup> {
    let asker = Asker::of(client);
    groups.of(client.connection, move |begun| asker.should_end(begun))
}

/// Whether the process has received SIGINT since a time.
pub(crate) fn ctrl_c_since(begun: u64) -> bool {
    notice_ctrl_c();
    LAST.load(Relaxed) > begun
}

/// When SIGINT came last.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The handlers before which ours was installed, the newest last. They are never freed, because a
/// signal may come at any time.
static BEFORE: [AtomicPtr<libc::sigaction>; 8] = [const { AtomicPtr::new(ptr::null_mut()) }; 8];
/// How many handlers there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The thread whose handler runs, and how deep our handler is nested there.
static HANDLING: AtomicI32 = AtomicI32::new(0);
static DEPTH: AtomicUsize = AtomicUsize::new(0);

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Installs our handler before the program's, unless that is done, or the program has none.
pub(crate) fn notice_ctrl_c() {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let ours = handle as Handler as usize;
    // SAFETY: an action is plain memory, which the call fills.
    let mut current: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the place is valid.
    let known = unsafe { libc::sigaction(libc::SIGINT, ptr::null(), &raw mut current) } == 0;
    if !known || [ours, libc::SIG_DFL, libc::SIG_IGN].contains(&current.sa_sigaction) {
        return;
    }
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let count = COUNT.load(SeqCst);
    // SAFETY: the first `count` handlers are set, and never freed.
    let known = |index: usize| unsafe { (*BEFORE[index].load(SeqCst)).sa_sigaction };
    // If the program sets an earlier handler again, the later ones are forgotten.
    let place = (0..count).find(|index| known(*index) == current.sa_sigaction).unwrap_or(count);
    let Some(before) = BEFORE.get(place) else { return };
    let mut action = current;
    action.sa_sigaction = ours;
    action.sa_flags |= libc::SA_SIGINFO;
    if place == count {
        before.store(Box::into_raw(Box::new(current)), SeqCst);
    }
    COUNT.store(place + 1, SeqCst);
    // SAFETY: our handler is async-signal-safe: it reads a clock and atomics, and calls another
    // handler.
    unsafe { libc::sigaction(libc::SIGINT, &raw const action, ptr::null_mut()) };
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    LAST.store(now(), Relaxed);
    // SAFETY: it only returns a number.
    let thread = unsafe { libc::gettid() };
    // Signals to two threads at once are one Ctrl-C: the second thread also calls the newest
    // handler.
    let nested = HANDLING.load(SeqCst) == thread;
    let depth = if nested { DEPTH.load(SeqCst) + 1 } else { 0 };
    let outer = if nested { thread } else { 0 };
    HANDLING.store(thread, SeqCst);
    DEPTH.store(depth, SeqCst);
    if let Some(index) = COUNT.load(SeqCst).checked_sub(1 + depth) {
        // SAFETY: the first `COUNT` handlers are set, and never freed. The flags of an action tell
        // the kind of its handler.
        unsafe {
            let before = &*BEFORE[index].load(SeqCst);
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                mem::transmute::<usize, Handler>(before.sa_sigaction)(signal, info, context);
            } else {
                mem::transmute::<usize, extern "C" fn(c_int)>(before.sa_sigaction)(signal);
            }
        }
    }
    DEPTH.store(depth.saturating_sub(1), SeqCst);
    HANDLING.store(outer, SeqCst);
}
