//! What a call, or a step of a scan, ends with.

use super::results::Results;
use crosslane::Failure;
use crosslane_process::guest::FailureCounts;
use std::sync::atomic::AtomicU64;

/// How a call ended.
#[derive(Debug)]
pub enum Answer<'a> {
    /// The results of its rows.
    Done(Results<'a>, FailureCounts),
    /// It succeeded, and has no results.
    Nothing(FailureCounts),
    /// Why it failed, and in which row if one row is the cause.
    Failed(Failure, Option<usize>),
    /// Nobody waits for the call any more.
    Closed,
}

/// How a step of a scan ended.
#[derive(Debug)]
pub enum Step<'a> {
    /// The scan was begun, or ended.
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
    /// Why the scan failed. Rows from before the failure may be left.
    Failed(Failure),
    /// Nobody waits for the scan any more.
    Closed,
}

/// How a guest notices during a scan that the engine has sent a message: a word, and the value that
/// the word had without a message.
#[derive(Debug, Clone, Copy)]
pub struct News<'a>(pub &'a AtomicU64, pub u64);
