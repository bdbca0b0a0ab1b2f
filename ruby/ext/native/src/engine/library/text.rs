//! Texts and states that DuckDB's functions take and return.

use crate::errors::argument_error;
use libduckdb_sys as ffi;
use magnus::Error;
use std::ffi::{CStr, CString, c_char};

pub(crate) const OK: ffi::duckdb_state = ffi::duckdb_state_DuckDBSuccess;

pub(crate) fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| argument_error("a text for DuckDB contains a zero byte"))
}

/// # Safety
/// The text must be a C string, or null.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
