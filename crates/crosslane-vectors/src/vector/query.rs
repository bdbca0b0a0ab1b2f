//! Running a query for its whole result.

use super::value::copied_text;
use crosslane::Error;
use libduckdb_sys as ffi;
use std::ffi::CStr;

/// DuckDB's error for a query that failed.
#[derive(Debug)]
pub struct QueryError {
    kind: ffi::duckdb_error_type,
    message: String,
}

impl QueryError {
    /// The error of a query that is no C string.
    pub fn syntax(message: String) -> Self {
        Self { kind: ffi::duckdb_error_type_DUCKDB_ERROR_PARSER, message }
    }

    /// Whether the database will never run a query again.
    pub fn is_fatal(&self) -> bool {
        self.kind == ffi::duckdb_error_type_DUCKDB_ERROR_FATAL
    }
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Self {
        Error::Engine(error.message)
    }
}

/// A text in quotes, as SQL has it.
pub fn quoted(text: &str, quote: char) -> String {
    let doubled = text.replace(quote, &format!("{quote}{quote}"));
    format!("{quote}{doubled}{quote}")
}

/// Runs a query, and reads its result.
///
/// # Errors
/// DuckDB's.
///
/// # Safety
/// The connection must be open, and no other thread may use it meanwhile.
pub unsafe fn query<T>(
    connection: ffi::duckdb_connection,
    query: &CStr,
    read: impl FnOnce(&mut ffi::duckdb_result) -> T,
) -> Result<T, QueryError> {
    // SAFETY: as the caller says; the result is destroyed on every way out.
    unsafe {
        let mut result = std::mem::zeroed();
        let state = ffi::duckdb_query(connection, query.as_ptr(), &raw mut result);
        let outcome = if state == ffi::duckdb_state_DuckDBSuccess {
            Ok(read(&mut result))
        } else {
            let kind = ffi::duckdb_result_error_type(&raw mut result);
            Err(QueryError { kind, message: copied_text(ffi::duckdb_result_error(&raw mut result)) })
        };
        ffi::duckdb_destroy_result(&raw mut result);
        outcome
    }
}
