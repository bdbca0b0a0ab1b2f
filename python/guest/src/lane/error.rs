//! Exceptions of calls.

use crosslane::{Failure, RetryAfter};
use pyo3::intern;
use pyo3::prelude::*;

/// An exception, and the row that it is about.
pub(crate) type CallError = crosslane_guest::CallError<PyErr>;

/// The outcome of work on a batch.
pub(crate) type CallResult<T = ()> = Result<T, CallError>;

/// An exception as the engine's users should read it.
pub(crate) fn describe(py: Python<'_>, error: PyErr) -> PyResult<Failure> {
    let retry_after = retry_after(py, &error)?;
    let describe = py.import("crosslane._runtime.errors")?.getattr("describe")?;
    let (class, message, traceback) = describe.call1((error.into_value(py),))?.extract()?;
    Ok(Failure { class, message, traceback, retry_after, ..Failure::default() })
}

/// The time that an exception names for the next try.
pub(super) fn retry_after(py: Python<'_>, error: &PyErr) -> PyResult<Option<RetryAfter>> {
    let retries = py.import(intern!(py, "crosslane._runtime.retries"))?;
    let seconds = retries.call_method1(intern!(py, "retry_after"), (error.value(py),))?;
    Ok(seconds.extract::<Option<f64>>()?.and_then(RetryAfter::seconds))
}

/// Whether an exception ends the lane. Then it is no failure of the call.
pub(crate) fn ends_lane(py: Python<'_>, error: &PyErr) -> bool {
    let class = py.import("crosslane._runtime.errors").and_then(|module| module.getattr("LaneEnded"));
    class.is_ok_and(|class| error.is_instance(py, &class))
}
