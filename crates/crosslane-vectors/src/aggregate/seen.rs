//! What a C++ callback of DuckDB's sees, for the callback of the C API that it calls.

use crate::function::{is_version, version};
use crosslane::Error;
use std::cell::Cell;
use std::sync::OnceLock;

/// What a callback of DuckDB's was called with, and its own do not see.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The address of the bind data.
    pub(super) bound: usize,
    /// Whether the sources of a combine stay.
    pub(super) keeps: bool,
    /// How many rows it adds.
    pub(super) rows: usize,
}

thread_local! {
    /// Of the callback that this thread is in.
    pub(super) static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
}

pub(super) fn unknown(what: &str) -> Error {
    let version = version().to_string_lossy();
    Error::Engine(format!(
        "this DuckDB ({version}) has no aggregates that crosslane knows ({what} are not where they were); \
         use a version that crosslane was made for, such as 1.5.6 or 2.0.0"
    ))
}

/// Whether an error of rows and combines waits until results are asked for. DuckDB 1.5's threads that make the tree of a window
/// together wait for ever for one that has failed.
pub(super) fn is_deferred() -> bool {
    static DEFERRED: OnceLock<bool> = OnceLock::new();
    *DEFERRED.get_or_init(|| is_version("v1."))
}
