//! The version of DuckDB.

use libduckdb_sys as ffi;
use std::ffi::CStr;

/// DuckDB's version, for instance `v1.5.6`. DuckDB's functions must have been found.
pub(crate) fn version() -> &'static CStr {
    // SAFETY: the text is DuckDB's own and lasts.
    unsafe { CStr::from_ptr(ffi::duckdb_library_version()) }
}

/// Whether DuckDB's version begins with a text, for instance `v1.`.
pub fn is_version(beginning: &str) -> bool {
    version().to_bytes().starts_with(beginning.as_bytes())
}
