//! A lane that several threads of Python use for one exchange.
//!
//! Each thread uses the lane under a lock. No thread waits for that lock while it holds the
//! interpreter's.

use super::batch_type::TypedBatch;
use crosslane_process::guest::{Call, Emitted, GuestLane};
use crosslane_ring::{Alarm, MappedRing};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A lane that several threads of Python use for one exchange.
pub(super) struct SharedLane<'a> {
    pub(super) shared: Arc<Shared>,
    lane: PhantomData<&'a mut GuestLane>,
}

/// The lane, for the time of the exchange.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Whether a thread wants to send results. A thread that waits for a batch then gives up the
    /// lane. The alarm wakes it.
    pub(super) sender_waits: AtomicBool,
    alarm: Alarm<MappedRing>,
}

pub(super) struct State {
    lane: Option<NonNull<GuestLane>>,
    /// The batch that was taken last.
    pub(super) call: Call,
    /// Whether the engine wants no more.
    pub(super) cancelled: bool,
}

// SAFETY: the pointer is used under the lock only, by one thread at a time, and a GuestLane may be
// used by any.
unsafe impl Send for State {}

/// The target of the pointer may be used by any thread.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<GuestLane>();
};

impl Shared {
    /// The lane for a thread that sends. Threads that wait for batches give it up.
    fn lock_to_send(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.sender_waits.store(true, Relaxed);
        self.alarm.sound();
        let state = self.lock(py);
        self.sender_waits.store(false, Relaxed);
        state
    }

    /// The lane for this thread. It waits for other threads without the interpreter's lock.
    pub(super) fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn lane(&mut self) -> Option<&mut GuestLane> {
        // SAFETY: the lane is borrowed mutably as long as the pointer is here ([`SharedLane`]), and
        // the caller holds the lock.
        self.lane.map(|mut lane| unsafe { lane.as_mut() })
    }
}

impl<'a> SharedLane<'a> {
    pub(super) fn new(lane: &'a mut GuestLane, call: Call) -> Self {
        let alarm = lane.alarm();
        let state = Mutex::new(State { lane: Some(NonNull::from(lane)), call, cancelled: false });
        let shared = Arc::new(Shared { state, sender_waits: AtomicBool::new(false), alarm });
        Self { shared, lane: PhantomData }
    }

    /// Sends a batch that is not the last. Returns false if the engine wants no more.
    pub(super) fn send(
        &self,
        py: Python<'_>,
        call: &Call,
        rows: usize,
        batch: &TypedBatch,
    ) -> PyResult<bool> {
        let mut state = self.shared.lock_to_send(py);
        let Some(lane) = state.lane() else { return Ok(false) };
        let sent = send(py, lane, call, rows, batch)?;
        state.cancelled |= !sent;
        Ok(sent)
    }

    pub(super) fn is_cancelled(&self, py: Python<'_>) -> bool {
        self.shared.lock_to_send(py).cancelled
    }
}

impl Drop for SharedLane<'_> {
    fn drop(&mut self) {
        Python::attach(|py| self.shared.lock_to_send(py).lane = None);
    }
}

/// Sends a batch that is not the last. Waits for room without the interpreter's lock. Returns false
/// if the engine wants no more.
pub(super) fn send(
    py: Python<'_>,
    lane: &mut GuestLane,
    call: &Call,
    rows: usize,
    batch: &TypedBatch,
) -> PyResult<bool> {
    match py.detach(|| lane.emit(call, rows, batch, || false))? {
        Emitted::Sent => Ok(true),
        Emitted::Cancelled | Emitted::Stopped => Ok(false),
        Emitted::Failed(failure) => Err(PyMemoryError::new_err(failure.message)),
    }
}
