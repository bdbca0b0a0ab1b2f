//! Answers to calls.

use super::call_error::CallError;
use super::language::Language;
use crosslane::Failure;
use crosslane::batch::Encode;
use crosslane_process::guest::{Call, GuestLane, RowCounts};

/// Answers a call that has failed.
///
/// # Errors
/// If the engine is gone or broke the protocol, or the error itself if it ends the lane.
pub fn fail<L: Language>(
    language: &L,
    lane: &mut GuestLane,
    call: Call,
    mishap: CallError<L::Error>,
) -> Result<(), L::Error> {
    refuse(language, lane, call, &language.describe(mishap.error)?, mishap.row)
}

/// Answers a call that has failed, if the text for the engine's users is known.
///
/// # Errors
/// If the engine is gone or broke the protocol, or what ended the wait for room.
pub fn refuse<L: Language>(
    language: &L,
    lane: &mut GuestLane,
    call: Call,
    failure: &Failure,
    row: Option<usize>,
) -> Result<(), L::Error> {
    lane.fail_after(call, failure, row, |lane, size| language.wait_for_room(lane, size))
}

/// Answers a call without results, such as a set-up.
///
/// # Errors
/// As [`fail`].
pub fn done<L: Language>(
    language: &L,
    lane: &mut GuestLane,
    call: Call,
    outcome: Result<(), L::Error>,
) -> Result<(), L::Error> {
    match outcome {
        Ok(()) => succeed(language, lane, call.with_rows(0), &(), RowCounts::default()),
        Err(error) => fail(language, lane, call, error.into()),
    }
}

/// Answers a call with its results.
///
/// # Errors
/// As [`refuse`].
pub fn succeed<L: Language>(
    language: &L,
    lane: &mut GuestLane,
    call: Call,
    results: &dyn Encode,
    row_counts: RowCounts,
) -> Result<(), L::Error> {
    lane.succeed_after(call, results, row_counts, |lane, size| language.wait_for_room(lane, size))
}
