//! A connection of the extension's own.

use crosslane::Error;
use crosslane_vectors::{QueryError, owned_text, query};
use libduckdb_sys as ffi;
use std::cell::Cell;
use std::ffi::CString;
use std::ptr;

/// An open connection. One thread uses it at a time: DuckDB serialises its use, and re-entry hangs.
#[derive(Debug)]
pub(crate) struct Connection {
    raw: ffi::duckdb_connection,
    /// The name of the database whose file was opened, if this connection belongs to the extension.
    database: String,
    /// Whether a transaction is open.
    within: Cell<bool>,
}

// SAFETY: a connection may be used by any thread, one at a time.
unsafe impl Send for Connection {}

impl Connection {
    /// Opens the extension's own connection. Its statements find only what DuckDB and extensions have: a
    /// database file may have macros with the names of functions and operators, which would run.
    ///
    /// # Safety
    /// The database must be open.
    pub(crate) unsafe fn own(database: ffi::duckdb_database) -> Result<Self, Error> {
        // SAFETY: the caller vouches for the database.
        let mut connection = unsafe { Self::open(database)? };
        connection.run("SET search_path = 'system.main'")?;
        let first =
            "SELECT database_name FROM duckdb_databases() WHERE NOT internal ORDER BY database_oid LIMIT 1";
        connection.database = connection.texts(first)?.pop().unwrap_or_default();
        Ok(connection)
    }

    /// # Safety
    /// The database must be open.
    unsafe fn open(database: ffi::duckdb_database) -> Result<Self, Error> {
        let mut connection = ptr::null_mut();
        // SAFETY: the caller vouches for the database.
        if unsafe { ffi::duckdb_connect(database, &raw mut connection) } != ffi::duckdb_state_DuckDBSuccess {
            return Err(Error::Engine("DuckDB refused a connection".into()));
        }
        Ok(Self { raw: connection, database: String::new(), within: Cell::new(false) })
    }

    pub(crate) fn raw(&self) -> ffi::duckdb_connection {
        self.raw
    }

    /// The name of the database whose file was opened.
    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// DuckDB's number of this connection.
    pub(crate) fn number_of_its_own(&self) -> u64 {
        // SAFETY: the connection is open, and the context is destroyed.
        unsafe {
            let mut context = ptr::null_mut();
            ffi::duckdb_connection_get_client_context(self.raw, &raw mut context);
            let number = ffi::duckdb_client_context_get_connection_id(context);
            ffi::duckdb_destroy_client_context(&raw mut context);
            number
        }
    }

    /// Runs a statement without reading its result.
    pub(crate) fn run(&self, statement: &str) -> Result<(), QueryError> {
        self.query(statement, |_| ())
    }

    /// The first value of a query's result, a BIGINT.
    pub(crate) fn number(&self, query: &str) -> Result<i64, QueryError> {
        let number = self.query(query, |result| {
            // SAFETY: the result lives, and its column is of integers.
            unsafe { ffi::duckdb_value_int64(result, 0, 0) }
        })?;
        Ok(number)
    }

    /// The first column of a query's result, a VARCHAR.
    pub(crate) fn texts(&self, query: &str) -> Result<Vec<String>, QueryError> {
        self.query(query, |result| {
            // SAFETY: the result lives.
            let rows = unsafe { ffi::duckdb_row_count(result) };
            // SAFETY: the result lives; the texts are given to the caller.
            let text = |row| unsafe { owned_text(ffi::duckdb_value_varchar(result, 0, row)) };
            (0..rows).map(text).collect()
        })
    }

    /// Runs `body` in a transaction, which is rolled back if `body` fails. Within another
    /// transaction, `body` is a part of that.
    pub(crate) fn transaction<T>(&self, body: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if self.within.get() {
            return body();
        }
        self.begin()?;
        self.end(body())
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) -> Result<(), Error> {
        self.run("BEGIN TRANSACTION")?;
        self.within.set(true);
        Ok(())
    }

    /// Commits the transaction, or rolls it back after an error.
    pub(crate) fn end<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        self.within.set(false);
        let outcome = outcome.and_then(|done| {
            self.run("COMMIT")?;
            Ok(done)
        });
        if outcome.is_err() {
            // A commit that fails has already rolled back; then DuckDB refuses this.
            let _ = self.run("ROLLBACK");
        }
        outcome
    }

    fn query<T>(&self, text: &str, read: impl FnOnce(&mut ffi::duckdb_result) -> T) -> Result<T, QueryError> {
        let text = CString::new(text).map_err(|error| QueryError::syntax(error.to_string()))?;
        // SAFETY: the connection is open, and not shared.
        unsafe { query(self.raw, &text, read) }
    }
}

/// Opens further connections to a database.
///
/// DuckDB's handle of the database is valid until the extension's entry point returns, and nothing
/// else in the C interface opens a connection. The handle's first word is the address of the
/// database, whose first word is its own address. DuckDB uses nothing else of the handle. So a copy
/// of that word is a handle, as long as a connection keeps the database open.
#[derive(Debug)]
pub(crate) struct Instance(usize);

impl Instance {
    /// The instance of a handle; `None` if its layout is not the known one.
    ///
    /// # Safety
    /// The database must be open.
    pub(crate) unsafe fn of(database: ffi::duckdb_database) -> Option<Self> {
        // SAFETY: the handle is an object that begins with a pointer to another, in all known
        // versions of DuckDB.
        unsafe {
            let instance = database.cast::<*const usize>().read();
            let is_itself = !instance.is_null() && instance.is_aligned() && *instance == instance as usize;
            is_itself.then_some(Self(instance as usize))
        }
    }

    /// Opens a connection.
    ///
    /// # Safety
    /// The database must be open.
    pub(crate) unsafe fn connect(&self) -> Result<Connection, Error> {
        let handle = [self.0, 0];
        // SAFETY: as the caller says; DuckDB reads the handle's first word, and keeps none of it.
        unsafe { Connection::open(handle.as_ptr().cast_mut().cast()) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the connection is open, and no code uses it any more.
        unsafe { ffi::duckdb_disconnect(&raw mut self.raw) };
    }
}
