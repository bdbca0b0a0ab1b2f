//! The signals that end a stream, or a call of a client.

use crosslane::Error;
use pyo3::exceptions::{
    PyConnectionError, PyKeyboardInterrupt, PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// The signals that end a stream, or a call of a client.
pub(crate) struct StopSignal {
    /// It was closed, possibly by another thread.
    closed: Arc<AtomicBool>,
    /// The terminal's Ctrl-C reached the workers.
    interrupted: AtomicBool,
    /// Whether its client was closed.
    client: Option<Arc<AtomicBool>>,
    /// The exception of a signal's handler.
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

    /// Whether it is to end. A waiting thread asks this, without the interpreter's lock.
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

    /// The exception for the reason of the end.
    pub(crate) fn cancelled(&self) -> PyErr {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.unwrap_or_else(|| match self.closed.load(Relaxed) {
            _ if self.client_is_closed() => PyValueError::new_err("the client was closed"),
            true => PyValueError::new_err("the stream was closed"),
            false => PyKeyboardInterrupt::new_err(()),
        })
    }

    /// The exception for an error.
    pub(crate) fn raise(&self, error: &Error) -> PyErr {
        match error {
            Error::Cancelled { .. } => self.cancelled(),
            Error::TimedOut { .. } => PyTimeoutError::new_err(error.to_string()),
            // For a client, these errors are those of its connection.
            Error::Load { failure, .. } if self.client.is_some() => {
                PyConnectionError::new_err(failure.message.clone())
            }
            Error::Boot(why) if self.client.is_some() => PyConnectionError::new_err(why.clone()),
            _ => PyRuntimeError::new_err(error.to_string()),
        }
    }
}
