//! The state that a query and DuckDB's threads share: cancellation, and the exceptions of blocks.
//!
//! If a block raises, its query fails with the exception's text. The exception itself is stored
//! ([`crate::lane::exceptions`]). The query's thread raises it again when DuckDB is done.
//!
//! While DuckDB works for a Ruby thread, that thread does not hold the GVL. When the VM needs the
//! thread, the VM sets `interrupted`. The thread checks this flag between two tasks of the query,
//! and while it waits for a lane. Only an exception or a jump ends the query. A signal handler that
//! returns does not end it.

use crate::lane::exceptions;
use crosslane::Error as CallError;
use crosslane::call::CallGroup;
use crosslane_gvl::Unwind;
use crosslane_gvl::{self as gvl, Me, Stand, constant, stand};
use magnus::value::ReprValue;
use magnus::{Error, RModule, Value};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The way in which a block left its query.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Left {
    /// With the exception of this ticket.
    Raised(u64),
    /// With the exception of this ticket, which was meant for the query's thread and not for the
    /// block.
    Stopped(u64),
    /// With a jump of the query's own thread.
    Jumped(i64),
}

/// The reason why a query fails.
#[derive(Debug)]
struct Leaving {
    how: Left,
    /// The error of the block that raised.
    error: Option<CallError>,
}

/// The session of one connection.
pub(crate) struct Session {
    pub(crate) group: Arc<CallGroup>,
    /// The first reason is kept.
    left: Mutex<Option<Leaving>>,
    /// 1 if the VM needs the query's thread. The thread sleeps on it as a futex.
    interrupted: AtomicU32,
    /// The query's thread.
    thread: Mutex<Option<Me>>,
    /// The number of the statement. The planning and the run after it have the same number, unless
    /// another statement begins in between.
    statement: AtomicU64,
    /// Whether the last step that began was the planning of a statement, and not a run.
    planned: AtomicBool,
}

/// A number for a statement that is planned, or that runs again.
fn next_statement() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Relaxed)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("left", &*self.lock()).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Session>| {
            let this = Weak::clone(this);
            let stop = move || this.upgrade().is_some_and(|session| session.must_stop());
            Self {
                group: Arc::new(CallGroup::with_stop(stop)),
                left: Mutex::new(None),
                interrupted: AtomicU32::new(0),
                thread: Mutex::new(None),
                statement: AtomicU64::new(next_statement()),
                planned: AtomicBool::new(false),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Leaving>> {
        lock(&self.left)
    }

    fn leave(&self, how: Left, error: Option<CallError>) {
        self.lock().get_or_insert(Leaving { how, error });
        self.group.cancel();
    }

    /// Stores the jump of a block. Keeps an exception of a block until [`Session::settle`] stores
    /// it. Returns the exception's ticket, or 0. With the GVL.
    pub(crate) fn catch(&self, unwind: Unwind) -> u64 {
        match unwind {
            Unwind::Jump(state) => {
                self.leave(Left::Jumped(state), None);
                0
            }
            Unwind::Raise(exception) => exceptions::add(exception),
        }
    }

    /// Stores an exception or jump of the VM's interrupts for the query's thread. It replaces the
    /// exception of a block and earlier interrupts. Nothing replaces a jump: a jump ends the
    /// thread, or leads out of the query. With the GVL.
    pub(crate) fn stop(&self, unwind: Unwind) {
        let how = match unwind {
            Unwind::Jump(state) => Left::Jumped(state),
            Unwind::Raise(exception) => Left::Stopped(exceptions::add(exception)),
        };
        let mut outranked = None;
        if let Some(Leaving { how: before, .. }) = &mut *self.lock()
            && let Left::Raised(ticket) | Left::Stopped(ticket) = *before
        {
            outranked = Some(ticket);
            *before = how;
        }
        outranked.map(exceptions::take);
        self.leave(how, None);
    }

    /// Stores the exception of a block that fails its call. From then on, all calls of the query
    /// fail with this error. The reason is that DuckDB reports the error of any of its threads,
    /// also of one that was cancelled because of this error.
    ///
    /// # Errors
    /// That of the query, if the call failed.
    pub(crate) fn settle<T>(&self, outcome: Result<T, CallError>) -> Result<T, CallError> {
        outcome.map_err(|error| {
            if let CallError::Raised { failure, .. } = &error
                && failure.ticket != 0
            {
                self.leave(Left::Raised(failure.ticket), Some(error.clone()));
            }
            self.lock().as_ref().and_then(|left| left.error.clone()).unwrap_or(error)
        })
    }

    /// Whether the query must end, even if DuckDB ignores its errors.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(*self.lock(), Some(Leaving { how: Left::Stopped(_) | Left::Jumped(_), .. }))
    }

    /// Whether the block left the query with a jump. A jump cannot be repeated without calling the
    /// block.
    pub(crate) fn has_jumped(&self) -> bool {
        matches!(*self.lock(), Some(Leaving { how: Left::Jumped(_), .. }))
    }

    /// Whether the query has failed. Then no more of its functions may be called.
    pub(crate) fn has_left(&self) -> bool {
        self.lock().is_some()
    }

    /// Begins to plan a statement on this thread. With the GVL.
    pub(crate) fn begin_plan(&self) {
        self.planned.store(false, Relaxed);
        self.begin();
        self.planned.store(true, Relaxed);
    }

    /// The number of the statement that is being planned or run.
    pub(crate) fn statement(&self) -> u64 {
        self.statement.load(Relaxed)
    }

    /// Begins to run a statement on this thread. With the GVL.
    pub(crate) fn begin(&self) {
        if !self.planned.swap(false, Relaxed) {
            self.statement.store(next_statement(), Relaxed);
        }
        *self.lock() = None;
        *lock(&self.thread) = Some(Me::get());
    }

    /// Whether a block has left the query with a jump, or with an exception that ends a program or
    /// a thread. Such a reason counts even if DuckDB ignores the error. While DuckDB plans, it
    /// ignores errors of constants that it tries to compute. With the GVL.
    pub(crate) fn left_for_good(&self) -> Option<Left> {
        let left = self.lock().as_ref()?.how;
        let for_good = match left {
            Left::Raised(ticket) => exceptions::is_final(ticket),
            Left::Stopped(_) | Left::Jumped(_) => true,
        };
        for_good.then_some(left)
    }

    /// Takes the way in which a block has left the query.
    pub(crate) fn left(&self) -> Option<Left> {
        self.lock().take().map(|left| left.how)
    }

    /// The VM needs the query's thread. Another thread or a signal handler calls this.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(1, SeqCst);
        // SAFETY: waking has no requirement but a living word.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.interrupted.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            );
        }
    }

    /// Whether the VM needs this thread, which is the query's.
    pub(crate) fn take_interrupt(&self) -> bool {
        self.interrupted.swap(0, Relaxed) == 1 || lock(&self.thread).is_some_and(Me::is_wanted)
    }

    /// Sleeps for a short time while DuckDB's threads work.
    pub(crate) fn rest(&self, time: Duration) {
        let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        // SAFETY: the word and the time live across the call.
        unsafe {
            let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, self.interrupted.as_ptr(), operation, 0, &raw const time);
        }
    }

    /// Called by calls that wait. On the query's own thread, it handles the VM's interrupts.
    pub(crate) fn must_stop(&self) -> bool {
        if self.has_left() {
            return true;
        }
        if stand() != Stand::Unlocked || !self.take_interrupt() {
            return false;
        }
        gvl::with(|| {}, |unwind| self.stop(unwind));
        self.has_left()
    }
}

/// The exception of a failed query: the block's exception, or an error with DuckDB's message.
pub(crate) fn failure(left: Option<Left>, message: &str) -> Error {
    match left {
        Some(Left::Jumped(state)) => Unwind::Jump(state).into_error(),
        left => {
            let exception = match left {
                Some(Left::Raised(ticket) | Left::Stopped(ticket)) => exceptions::take(ticket),
                _ => None,
            };
            match constant::<RModule>("Crosslane::Errors")
                .and_then(|errors| errors.funcall::<_, _, Value>("raise_again", (exception, message)))
            {
                Err(error) => error,
                Ok(_) => crate::errors::argument_error(message),
            }
        }
    }
}

/// The sessions of a database's connections, by DuckDB's numbers.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
}

impl Sessions {
    pub(crate) fn add(&self, connection: u64) -> Arc<Session> {
        let session = Session::new();
        lock(&self.sessions).insert(connection, Arc::clone(&session));
        session
    }

    pub(crate) fn remove(&self, connection: u64) {
        lock(&self.sessions).remove(&connection);
    }

    /// The session of a connection. A connection that is not ours gets a new one.
    pub(crate) fn of(&self, connection: u64) -> Arc<Session> {
        lock(&self.sessions).get(&connection).cloned().unwrap_or_else(Session::new)
    }
}
