//! The decision after a failed call: another try, a NULL, or the failure.

use super::error::{CallError, ends_lane, retry_after};
use super::exchange::Exchange;
use crosslane::RetryAfter;
use crosslane::{ErrorPolicy, Verdict};
use pyo3::intern;
use pyo3::prelude::*;

/// Decides what becomes of rows whose call failed, after `tries` more than the first. It counts,
/// and pauses before another try. Returns the error if there is no other try and the rows do not
/// become NULL.
pub(crate) fn retry_or_null(
    py: Python<'_>,
    exchange: &Exchange<'_>,
    error_policy: ErrorPolicy,
    error: CallError,
    tries: &mut u32,
    rows: usize,
) -> Result<Verdict, CallError> {
    if ends_lane(py, &error.error) {
        return Err(error);
    }
    let after = if *tries < error_policy.retries { retry_after(py, &error.error)? } else { None };
    let verdict = exchange.row_counts.borrow_mut().judge(error_policy, error, after, tries, rows)?;
    if let Verdict::Again(pause) = verdict {
        exchange.progress.rest(pause);
        // Python's own sleep lets signals through.
        py.import(intern!(py, "time"))?.call_method1(intern!(py, "sleep"), (pause.as_secs_f64(),))?;
    }
    Ok(verdict)
}

/// The pause in seconds before try `tries + 1`, after an exception that names a time in seconds for
/// it, or None. None if there is no such try, because the time is too long.
#[pyfunction]
pub(crate) fn pause(tries: u32, after: Option<f64>) -> Option<f64> {
    crosslane::call::pause(tries, after.and_then(RetryAfter::seconds)).map(|pause| pause.as_secs_f64())
}
