//! A stream or a table that one thread at a time reads, and any thread may close.

use super::stop_signal::StopSignal;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// A stream or a table that is read. Its content is dropped at its end, without the interpreter's
/// lock.
pub(super) struct Reading<T: Send> {
    content: Mutex<Option<T>>,
    stop: Arc<StopSignal>,
    /// A fork has none of the threads and workers.
    pub(super) process: u32,
}

impl<T: Send> Reading<T> {
    pub(super) fn new(content: T, stop: Arc<StopSignal>, process: u32) -> Self {
        Self { content: Mutex::new(Some(content)), stop, process }
    }

    /// The next results by `read`, which knows whether it is to stop. None if there are no more.
    pub(super) fn next<R>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&mut T, &StopSignal) -> PyResult<Option<R>>,
    ) -> PyResult<Option<R>> {
        let mut guard = match self.content.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyRuntimeError::new_err("another thread reads this stream"));
            }
        };
        let Some(content) = &mut *guard else {
            return if self.stop.is_closed() { Err(self.stop.cancelled()) } else { Ok(None) };
        };
        let next = read(content, &self.stop);
        if !matches!(next, Ok(Some(_))) {
            let over = guard.take();
            py.detach(|| drop(over));
        }
        next
    }

    /// Whether it is over and its content dropped.
    pub(super) fn is_over(&self) -> bool {
        self.content.try_lock().is_ok_and(|content| content.is_none())
    }

    /// Ends it. If a thread waits for results, it ends when that thread has seen this.
    pub(super) fn close(&self, py: Python<'_>) {
        self.stop.close();
        if let (true, Ok(mut content)) = (self.process == std::process::id(), self.content.try_lock()) {
            let over = content.take();
            py.detach(|| drop(over));
        }
    }
}

impl<T: Send> Drop for Reading<T> {
    fn drop(&mut self) {
        let content = self.content.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        leave(self.process, content);
    }
}

/// Drops a value with threads or workers, without the interpreter's lock.
pub(super) fn leave<T: Send>(process: u32, thing: Option<T>) {
    if process != std::process::id() {
        // Threads that a fork does not have may hold its locks.
        std::mem::forget(thing);
        return;
    }
    Python::attach(|py| py.detach(|| drop(thing)));
}

/// Raises RuntimeError in a fork of the process that has connected.
pub(super) fn check_process(process: u32) -> PyResult<()> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "this process was forked after the client had connected; it needs a client of its own",
    ))
}
