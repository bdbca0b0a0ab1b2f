//! A connection of the extension's own.

use crosslane::Error;
use libduckdb_sys as ffi;
use std::ffi::{CStr, CString};
use std::ptr;

/// An open connection. Not shared: DuckDB serialises its use, and re-entry hangs.
#[derive(Debug)]
pub(crate) struct Connection(ffi::duckdb_connection);

// SAFETY: a connection may be used by any thread, one at a time.
unsafe impl Send for Connection {}

impl Connection {
    /// # Safety
    /// The database must be open.
    pub(crate) unsafe fn open(database: ffi::duckdb_database) -> Result<Self, Error> {
        let mut connection = ptr::null_mut();
        // SAFETY: the caller vouches for the database.
        if unsafe { ffi::duckdb_connect(database, &raw mut connection) } != ffi::duckdb_state_DuckDBSuccess {
            return Err(Error::Engine("DuckDB refused a connection".into()));
        }
        Ok(Self(connection))
    }

    pub(crate) fn raw(&self) -> ffi::duckdb_connection {
        self.0
    }

    /// The first value of a query's result, as an integer.
    pub(crate) fn number(&self, query: &str) -> Result<i64, Error> {
        let query = CString::new(query).map_err(|error| Error::Engine(error.to_string()))?;
        // SAFETY: the connection is open; the result is destroyed on every way out.
        unsafe {
            let mut result = std::mem::zeroed();
            let state = ffi::duckdb_query(self.0, query.as_ptr(), &raw mut result);
            let outcome = if state == ffi::duckdb_state_DuckDBSuccess {
                let mut chunk = ffi::duckdb_fetch_chunk(result);
                let number = if chunk.is_null() {
                    Err(Error::Engine("an empty result".into()))
                } else {
                    let vector = ffi::duckdb_data_chunk_get_vector(chunk, 0);
                    Ok(ffi::duckdb_vector_get_data(vector).cast::<i64>().read())
                };
                ffi::duckdb_destroy_data_chunk(&raw mut chunk);
                number
            } else {
                let message = ffi::duckdb_result_error(&raw mut result);
                let message = if message.is_null() { c"" } else { CStr::from_ptr(message) };
                Err(Error::Engine(message.to_string_lossy().into_owned()))
            };
            ffi::duckdb_destroy_result(&raw mut result);
            outcome
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the connection is open and nobody uses it any more.
        unsafe { ffi::duckdb_disconnect(&raw mut self.0) };
    }
}
