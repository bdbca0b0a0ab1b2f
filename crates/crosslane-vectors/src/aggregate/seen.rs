//! What our C++ callbacks see, for the callbacks of the C API that run inside of them.

use crate::function::{is_version, version};
use crosslane::Error;
use std::cell::Cell;
use std::sync::OnceLock;

/// Arguments of a C++ callback that the callbacks of the C API do not get.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// The address of the bind data.
    pub(super) bound: usize,
    /// Whether the sources of a combine are still used after it.
    pub(super) keeps: bool,
    /// How many rows an update adds.
    pub(super) rows: usize,
}

thread_local! {
    /// The arguments of the callback that runs on this thread.
    pub(super) static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
}

pub(super) fn unknown(what: &str) -> Error {
    let version = version().to_string_lossy();
    Error::Engine(format!(
        "this DuckDB ({version}) has no aggregates that crosslane knows ({what} are not where they were); \
         use a version that crosslane was made for, such as 1.5.6 or 2.0.0"
    ))
}

/// Whether an error of an update or combine waits until results are requested. In DuckDB 1.5,
/// threads build the tree of a window together, and wait for ever for a thread that has failed.
pub(super) fn is_deferred() -> bool {
    static DEFERRED: OnceLock<bool> = OnceLock::new();
    *DEFERRED.get_or_init(|| is_version("v1."))
}
