//! Ends calls of an isolate, from any thread.

use super::engine::Reason;
use super::ffi;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ends the calls of an isolate, from any thread.
pub struct Handle {
    state: Mutex<State>,
    ended: Condvar,
    /// Counts the tries of calls. It grows by one before each pause between two tries, and by one
    /// after it. So it is odd in a pause.
    tries: AtomicU64,
}

struct State {
    /// `None` when the isolate is gone.
    isolate: Option<NonNull<ffi::ClIsolate>>,
    /// Why a wait outside of V8 must end.
    reason: Option<Reason>,
}

// SAFETY: the pointer is only used for functions that any thread may call while the isolate lives.
// The isolate lives as long as the mutex is locked.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Tells the handle that the isolate is gone. Returns false if it was gone already.
    pub(crate) fn forget(&self) -> bool {
        self.lock().isolate.take().is_some()
    }

    pub(crate) fn new(isolate: NonNull<ffi::ClIsolate>) -> Arc<Self> {
        let state = State { isolate: Some(isolate), reason: None };
        Arc::new(Self { state: Mutex::new(state), ended: Condvar::new(), tries: AtomicU64::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call that runs now, if there is one. With `stack`, V8 notes the stack first. V8 can
    /// do this only at a check, so call this again without `stack` after some time.
    pub fn end(&self, reason: Reason, stack: bool) {
        let mut state = self.lock();
        state.reason = Some(reason);
        self.ended.notify_all();
        if let Some(isolate) = state.isolate {
            // SAFETY: the isolate lives as long as the lock is held.
            unsafe { ffi::cl_terminate(isolate.as_ptr(), reason as u32, stack) };
        }
    }

    /// Returns why the call that runs now must end. `None` if it may go on.
    pub fn pending(&self) -> Option<Reason> {
        let state = self.lock();
        // SAFETY: the isolate lives as long as the lock is held.
        match state.isolate.map_or(0, |isolate| unsafe { ffi::cl_pending(isolate.as_ptr()) }) {
            0 => None,
            number => Some(Reason::of(number)),
        }
    }

    /// Returns whether the call that runs now has come to a check since the last request for a
    /// sign. Then requests the next sign. `None` without a call.
    pub(crate) fn sign(&self) -> Option<bool> {
        let state = self.lock();
        // SAFETY: the isolate lives as long as the lock is held.
        match state.isolate.map_or(ffi::IDLE, |isolate| unsafe { ffi::cl_sign(isolate.as_ptr()) }) {
            ffi::IDLE => None,
            sign => Some(sign == ffi::HEARD),
        }
    }

    /// Returns a number that is different for each try of a row. `None` in the pause between two
    /// tries.
    pub(crate) fn attempt(&self) -> Option<u64> {
        let tries = self.tries.load(Relaxed);
        tries.is_multiple_of(2).then_some(tries)
    }

    /// Waits between two tries. This wait does not count for the timeout. Returns false if no
    /// caller waits for the call any more.
    pub(crate) fn rest(&self, time: Duration) -> bool {
        self.tries.fetch_add(1, Relaxed);
        let ended = self.pause(time);
        self.tries.fetch_add(1, Relaxed);
        ended != Err(Reason::Closed)
    }

    /// Waits outside of V8.
    ///
    /// # Errors
    /// The reason why another thread ended the wait.
    pub(crate) fn pause(&self, time: Duration) -> Result<(), Reason> {
        let state = self.lock();
        let (mut state, _) = self
            .ended
            .wait_timeout_while(state, time, |state| state.reason.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.reason.take().map_or(Ok(()), Err)
    }

    pub(crate) fn begin(&self) {
        self.lock().reason = None;
    }
}
