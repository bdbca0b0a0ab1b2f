//! The decision after a failed call: another try, a NULL, or the failure.

use super::error::{CallError, ends_lane};
use crosslane::{ErrorPolicy, Verdict};
use crosslane_process::guest::RowCounts;
use pyo3::intern;
use pyo3::prelude::*;

/// Decides what becomes of rows whose call failed, after `tries` more than the first. It counts,
/// and pauses before another try. Returns the error if there is no other try and the rows do not
/// become NULL.
pub(crate) fn retry_or_null(
    py: Python<'_>,
    error_policy: ErrorPolicy,
    error: CallError,
    tries: &mut u32,
    rows: usize,
    row_counts: &mut RowCounts,
) -> Result<Verdict, CallError> {
    if ends_lane(py, &error.error) {
        return Err(error);
    }
    let verdict = row_counts.judge(error_policy, error, tries, rows)?;
    if let Verdict::Again(pause) = verdict {
        // Python's own sleep lets signals through.
        py.import(intern!(py, "time"))?.call_method1(intern!(py, "sleep"), (pause.as_secs_f64(),))?;
    }
    Ok(verdict)
}

/// The pause in seconds before try `tries + 1`.
#[pyfunction]
pub(crate) fn backoff(tries: u32) -> f64 {
    crosslane::call::backoff(tries).as_secs_f64()
}
