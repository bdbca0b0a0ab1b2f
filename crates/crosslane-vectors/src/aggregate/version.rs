//! What differs between versions of DuckDB.

use crate::function::{is_version, version};
use crosslane::Error;
use std::sync::OnceLock;

/// The error for a DuckDB whose objects have another layout than the known ones.
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
