//! Answers to calls.

use super::error::{CallError, describe, ends_lane};
use crosslane::Failure;
use crosslane::batch::Encode;
use crosslane_process::guest::{Call, GuestLane, RowCounts};
use pyo3::prelude::*;

/// Answers a call with its results.
pub(crate) fn succeed(
    py: Python<'_>,
    lane: &mut GuestLane,
    call: Call,
    results: &dyn Encode,
    row_counts: RowCounts,
) -> PyResult<()> {
    lane.succeed_after(call, results, row_counts, |lane, size| wait_for_room(py, lane, size))
}

/// Answers a call that has failed. Raises the error itself if it ends the lane.
pub(crate) fn fail(
    py: Python<'_>,
    lane: &mut GuestLane,
    call: Call,
    error: impl Into<CallError>,
) -> PyResult<()> {
    let CallError { error, row } = error.into();
    // More calls may lie in the ring.
    if ends_lane(py, &error) {
        return Err(error);
    }
    refuse(py, lane, call, &describe(py, error)?, row)
}

/// Answers a call that has failed, if the text for the engine's users is known.
pub(crate) fn refuse(
    py: Python<'_>,
    lane: &mut GuestLane,
    call: Call,
    failure: &Failure,
    row: Option<usize>,
) -> PyResult<()> {
    lane.fail_after(call, failure, row, |lane, size| wait_for_room(py, lane, size))
}

/// Waits until an answer of so many bytes fits into the lane. The engine may be slow to take its
/// replies, so other threads of this process may run meanwhile.
fn wait_for_room(py: Python<'_>, lane: &mut GuestLane, size: usize) -> PyResult<()> {
    Ok(py.detach(|| lane.wait_for_room(size))?)
}
