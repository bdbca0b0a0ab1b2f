//! Why a stream, or a call of a client, is to end.

use crosslane::Error;
use pyo3::exceptions::{
    PyConnectionError, PyKeyboardInterrupt, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Why a stream, or a call of a client, is to end.
pub(crate) struct StopSignal {
    /// It was closed, maybe by another thread.
    closed: Arc<AtomicBool>,
    /// The terminal's Ctrl-C reached the workers.
    interrupted: AtomicBool,
    /// The client whose it is was closed.
    client: Option<Arc<AtomicBool>>,
    /// What a signal's handler has raised.
    raised: Mutex<Option<PyErr>>,
}

impl StopSignal {
    pub(crate) fn new(client: Option<Arc<AtomicBool>>, closed: Arc<AtomicBool>) -> Self {
        Self { closed, interrupted: AtomicBool::new(false), client, raised: Mutex::default() }
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Says that Ctrl-C has reached the workers.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Relaxed);
    }

    /// Whether it was closed, or its client was.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed) || self.client_is_closed()
    }

    fn client_is_closed(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.load(Relaxed))
    }

    /// Asked while a thread waits, without the interpreter's lock.
    pub(crate) fn is_due(&self) -> bool {
        if self.is_closed() || self.interrupted.load(Relaxed) {
            return true;
        }
        // An interpreter that ends waits for nothing.
        match Python::try_attach(|py| py.check_signals()) {
            None => true,
            Some(Ok(())) => false,
            Some(Err(error)) => {
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                true
            }
        }
    }

    /// What Python raises for what has to end.
    pub(crate) fn cancelled(&self) -> PyErr {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.unwrap_or_else(|| match self.closed.load(Relaxed) {
            _ if self.client_is_closed() => PyValueError::new_err("the client was closed"),
            true => PyValueError::new_err("the stream was closed"),
            false => PyKeyboardInterrupt::new_err(()),
        })
    }

    /// What Python raises for an error.
    pub(crate) fn raise(&self, error: &Error) -> PyErr {
        match error {
            Error::Cancelled { .. } => self.cancelled(),
            Error::TimedOut { .. } => PyTimeoutError::new_err(error.to_string()),
            // What a client hears of its server; other libraries are no servers.
            Error::Load { failure, .. } if self.client.is_some() => {
                PyConnectionError::new_err(failure.message.clone())
            }
            Error::Boot(why) if self.client.is_some() => PyConnectionError::new_err(why.clone()),
            _ => PyRuntimeError::new_err(error.to_string()),
        }
    }
}
