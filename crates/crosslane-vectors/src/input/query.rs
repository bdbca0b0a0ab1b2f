//! The query of a stream: its text, and its result, chunk by chunk.

use crate::vector::{Chunk, copied_text, owned_text, quoted};
use crosslane::{Error, Field};
use libduckdb_sys as ffi;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Write;
use std::ptr;

/// DuckDB's error text as an error.
///
/// # Safety
/// The text must be null or DuckDB's, and live.
unsafe fn refused(text: *const c_char) -> Error {
    // SAFETY: as the caller says.
    Error::Engine(unsafe { copied_text(text) })
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|error| Error::Engine(format!("a query: {error}")))
}

struct Extracted(ffi::duckdb_extracted_statements);

impl Drop for Extracted {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_extracted(&raw mut self.0) };
    }
}

#[derive(Debug)]
struct Prepared(ffi::duckdb_prepared_statement);

impl Prepared {
    /// # Errors
    /// DuckDB's, and if it is not one statement.
    ///
    /// # Safety
    /// The connection must be open.
    unsafe fn new(connection: ffi::duckdb_connection, query: &str) -> Result<Self, Error> {
        let query = c_string(query)?;
        // SAFETY: as the caller says; what DuckDB makes is destroyed on every way out, also where
        // it fails.
        unsafe {
            let mut extracted = ptr::null_mut();
            let count = ffi::duckdb_extract_statements(connection, query.as_ptr(), &raw mut extracted);
            let extracted = Extracted(extracted);
            match count {
                0 => {
                    let error = ffi::duckdb_extract_statements_error(extracted.0);
                    return Err(if error.is_null() { not_one("nothing") } else { refused(error) });
                }
                1 => {}
                _ => return Err(not_one(&format!("{count} statements"))),
            }
            let mut prepared = Self(ptr::null_mut());
            let state =
                ffi::duckdb_prepare_extracted_statement(connection, extracted.0, 0, &raw mut prepared.0);
            if state != ffi::duckdb_state_DuckDBSuccess {
                return Err(refused(ffi::duckdb_prepare_error(prepared.0)));
            }
            Ok(prepared)
        }
    }

    fn columns(&self) -> Vec<String> {
        // SAFETY: the statement lives; the texts are given to the caller.
        unsafe {
            let count = ffi::duckdb_prepared_statement_column_count(self.0);
            let name = |column| owned_text(ffi::duckdb_prepared_statement_column_name(self.0, column));
            (0..count).map(name).collect()
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_prepare(&raw mut self.0) };
    }
}

fn not_one(what: &str) -> Error {
    Error::Engine(format!("the query of a stream is one SELECT, not {what}"))
}

/// Wraps a user's query in one that returns the columns of a function's input, found by name and
/// cast to their types. The result can be prepared.
///
/// # Errors
/// [`Error::Engine`] with DuckDB's error, or if the user's query is not one SELECT without
/// parameters, or lacks a column.
///
/// # Safety
/// The connection must be open, and no other thread may use it meanwhile.
pub unsafe fn query_for(
    connection: ffi::duckdb_connection,
    query: &str,
    wanted: &[Field],
) -> Result<String, Error> {
    // SAFETY: as the caller says.
    let given = unsafe {
        let given = Prepared::new(connection, query)?;
        if ffi::duckdb_prepared_statement_type(given.0)
            != ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_SELECT
        {
            return Err(not_one("another statement"));
        }
        if ffi::duckdb_nparams(given.0) > 0 {
            return Err(Error::Engine(
                "the query of a stream has no parameters: write the values into its text".into(),
            ));
        }
        given.columns()
    };
    let query = cast(query, &given, wanted)?;
    // SAFETY: as above.
    drop(unsafe { Prepared::new(connection, &query)? });
    Ok(query)
}

fn cast(query: &str, given: &[String], wanted: &[Field]) -> Result<String, Error> {
    let called =
        |name: &str| given.iter().filter(|given| given.to_lowercase() == name.to_lowercase()).count();
    let missing: Vec<_> = wanted.iter().filter(|field| called(&field.name) == 0).collect();
    if !missing.is_empty() {
        let missing: Vec<_> = missing.into_iter().map(|field| field.name.as_str()).collect();
        return Err(Error::Engine(format!(
            "the query of a stream has no column {}; its columns are {}",
            missing.join(", "),
            given.join(", ")
        )));
    }
    if let Some(field) = wanted.iter().find(|field| called(&field.name) > 1) {
        return Err(Error::Engine(format!("the query of a stream has several columns {}", field.name)));
    }
    let mut columns = String::new();
    for field in wanted {
        let comma = if columns.is_empty() { "" } else { ", " };
        let name = quoted(&field.name, '"');
        let _ = write!(columns, "{comma}CAST({name} AS {}) AS {name}", field.data_type);
    }
    // As a string, the query may end with a semicolon or a comment.
    Ok(format!("SELECT {columns} FROM system.main.query({})", quoted(query, '\'')))
}

/// The chunks of a streaming query.
#[derive(Debug)]
pub(super) struct Chunks {
    result: ffi::duckdb_result,
    /// Whether there are no more chunks. DuckDB 1.5 returns an error when it is asked again.
    ended: bool,
    _prepared: Prepared,
}

impl Chunks {
    /// # Safety
    /// The connection must outlive the result, and no other thread may use it meanwhile, except to
    /// interrupt it.
    pub(super) unsafe fn new(connection: ffi::duckdb_connection, query: &str) -> Result<Self, Error> {
        // SAFETY: as the caller says; what DuckDB makes is destroyed on every way out.
        unsafe {
            let prepared = Prepared::new(connection, query)?;
            let mut pending = ptr::null_mut();
            let begun = ffi::duckdb_pending_prepared_streaming(prepared.0, &raw mut pending);
            if begun != ffi::duckdb_state_DuckDBSuccess {
                let error = refused(ffi::duckdb_pending_error(pending));
                ffi::duckdb_destroy_pending(&raw mut pending);
                return Err(error);
            }
            let mut chunks = Self { result: std::mem::zeroed(), ended: false, _prepared: prepared };
            let state = ffi::duckdb_execute_pending(pending, &raw mut chunks.result);
            ffi::duckdb_destroy_pending(&raw mut pending);
            if state != ffi::duckdb_state_DuckDBSuccess {
                return Err(refused(ffi::duckdb_result_error(&raw mut chunks.result)));
            }
            Ok(chunks)
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<Chunk>, Error> {
        if self.ended {
            return Ok(None);
        }
        // SAFETY: the result lives, and the chunk is given to the caller.
        unsafe {
            let chunk = ffi::duckdb_fetch_chunk(self.result);
            if !chunk.is_null() {
                return Ok(Some(Chunk(chunk)));
            }
            self.ended = true;
            let error = ffi::duckdb_result_error(&raw mut self.result);
            let failed = error.as_ref().is_some_and(|error| !CStr::from_ptr(error).is_empty());
            if failed { Err(refused(error)) } else { Ok(None) }
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once, and before its statement.
        unsafe { ffi::duckdb_destroy_result(&raw mut self.result) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosslane::DataType;

    #[test]
    fn columns_are_taken_by_their_names_and_cast() {
        let DataType::Struct(wanted) = r#"STRUCT(id BIGINT, "De""lay" INTEGER)"#.parse().unwrap() else {
            panic!()
        };
        let given = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            cast("SELECT 'x'; --", &given(&["de\"lay", "more", "more", "ID"]), &wanted).unwrap(),
            "SELECT CAST(\"id\" AS BIGINT) AS \"id\", CAST(\"De\"\"lay\" AS INTEGER) AS \"De\"\"lay\" \
             FROM system.main.query('SELECT ''x''; --')"
        );
        let error = |names: &[&str]| cast("", &given(names), &wanted).unwrap_err().to_string();
        assert!(error(&["a", "b"]).ends_with("has no column id, De\"lay; its columns are a, b"));
        assert!(error(&["id", "ID", "de\"lay"]).ends_with("several columns id"));
    }
}
