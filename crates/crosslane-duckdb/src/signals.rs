//! What ends a call from outside: an interrupt of its connection, and Ctrl-C.
//!
//! The terminal sends Ctrl-C (SIGINT) to all processes of a program, and the zygote tells of it. A notebook sends it to the engine's
//! process alone. There Python's main thread gives its query up, and waits for the tasks of other threads, which DuckDB cannot
//! reach in a call. So a handler of ours notes the moment, and calls the program's own handler. It is put before that handler when the
//! extension is loaded, and again when a call waits: the program may have set another one meanwhile.
//!
//! A handler that was set later may call ours in its turn, as what was there before it. Then ours calls the one that it knew before.

use crosslane::call::{CallGroup, CallGroups};
use crosslane::stats::now;
use crosslane_vectors::Client;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::{mem, ptr};

/// Who waits for an answer: the connection of the statement that asks, or nobody's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    client: Option<Client>,
}

impl Asker {
    /// A program that loads the extension.
    pub(crate) const PROGRAM: Self = Self { client: None };

    /// That of a statement, for as long as the statement runs.
    pub(crate) fn of(client: Client) -> Self {
        Self { client: Some(client) }
    }

    /// Whether it was told to wait no longer for what began at a moment.
    pub(crate) fn should_end(self, begun: u64) -> bool {
        // SAFETY: the callbacks of the connection's statements ask, while these run.
        self.client.is_some_and(|client| unsafe { client.is_interrupted() }) || ctrl_c_since(begun)
    }
}

/// The calls of a query's connection.
pub(crate) fn group_of(groups: &CallGroups, client: Client) -> Arc<CallGroup> {
    let asker = Asker::of(client);
    groups.of(client.connection, move |begun| asker.should_end(begun))
}

/// Whether the process has got SIGINT since a moment.
pub(crate) fn ctrl_c_since(begun: u64) -> bool {
    notice_ctrl_c();
    LAST.load(Relaxed) > begun
}

/// When SIGINT came last.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The handlers that ours was put before, the newest last. They are never freed, since a signal may come at any time.
static BEFORE: [AtomicPtr<libc::sigaction>; 8] = [const { AtomicPtr::new(ptr::null_mut()) }; 8];
/// How many they are.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The thread whose handler runs, and how often ours was entered there.
static HANDLING: AtomicI32 = AtomicI32::new(0);
static DEPTH: AtomicUsize = AtomicUsize::new(0);

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Puts our handler before the program's, unless that is done, or the program has none.
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
    // SAFETY: those that are counted are set, and never freed.
    let known = |index: usize| unsafe { (*BEFORE[index].load(SeqCst)).sa_sigaction };
    // A handler that the program has set again takes the place of what came after it.
    let place = (0..count).find(|index| known(*index) == current.sa_sigaction).unwrap_or(count);
    let Some(before) = BEFORE.get(place) else { return };
    let mut action = current;
    action.sa_sigaction = ours;
    action.sa_flags |= libc::SA_SIGINFO;
    if place == count {
        before.store(Box::into_raw(Box::new(current)), SeqCst);
    }
    COUNT.store(place + 1, SeqCst);
    // SAFETY: ours does what a handler may: it reads a clock and numbers, and calls another one.
    unsafe { libc::sigaction(libc::SIGINT, &raw const action, ptr::null_mut()) };
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    LAST.store(now(), Relaxed);
    // SAFETY: it only returns a number.
    let thread = unsafe { libc::gettid() };
    // Signals that come to two threads at once are one Ctrl-C: the second calls the newest handler, too.
    let nested = HANDLING.load(SeqCst) == thread;
    let depth = if nested { DEPTH.load(SeqCst) + 1 } else { 0 };
    let outer = if nested { thread } else { 0 };
    HANDLING.store(thread, SeqCst);
    DEPTH.store(depth, SeqCst);
    if let Some(index) = COUNT.load(SeqCst).checked_sub(1 + depth) {
        // SAFETY: those that are counted are set, and never freed; an action has a handler of the kind that its flags say.
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
