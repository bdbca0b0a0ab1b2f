//! How a call or a step of a scan ends.

use super::results::Results;
use crosslane::Failure;
use crosslane_process::guest::RowCounts;
use std::sync::atomic::AtomicU64;

/// How a call ended.
#[derive(Debug)]
pub enum Answer<'a> {
    /// The results of the call's rows.
    Done(Results<'a>, RowCounts),
    /// The call succeeded, and has no results.
    Nothing(RowCounts),
    /// Why the call failed, and the row if one row is the cause.
    Failed(Failure, Option<usize>),
    /// No caller waits for the call any more.
    Closed,
}

/// How a step of a scan ended.
#[derive(Debug)]
pub enum Step<'a> {
    /// The scan has begun, or has ended.
    Done,
    /// The next batch of rows.
    Rows {
        /// The rows.
        results: Results<'a>,
        /// How many rows there are.
        rows: usize,
        /// How many of them failed and are NULL.
        errors: u32,
        /// Whether this is the last batch.
        last: bool,
    },
    /// The scan waits, and the engine has sent a message.
    Interrupted,
    /// Why the scan failed. The isolate may still have rows from before the failure.
    Failed(Failure),
    /// No caller waits for the scan any more.
    Closed,
}

/// Shows a guest during a scan whether the engine has sent a message. Has a word, and the value of
/// this word without a message.
#[derive(Debug, Clone, Copy)]
pub struct News<'a>(pub &'a AtomicU64, pub u64);
