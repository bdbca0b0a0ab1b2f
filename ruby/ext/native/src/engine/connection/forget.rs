//! Removes functions from DuckDB, so that others can have their names.
//!
//! DuckDB's C interface adds functions but cannot remove them. If a name exists, it refuses a
//! second aggregate and ignores a second table function. It keeps an old scalar function with other
//! types beside the new one. So the replaced function is dropped from the catalog in C++
//! (`shim/forget.cc`), as DuckDB's Python package does it.

use crate::engine::connection::closing::briefly;
use crate::engine::connection::connection::Connection;
use crate::engine::library::catalog::{Catalog, catalog};
use libduckdb_sys as ffi;
use magnus::Error;
use std::ffi::{c_char, c_void};

unsafe extern "C" {
    fn crosslane_forget(
        duckdb: *const Catalog,
        context: *mut c_void,
        name: *const c_char,
        length: usize,
        table: bool,
    ) -> bool;
}

/// Drops the functions of a name, in the connection's transaction if it has one: either the table
/// functions, or all others. Returns whether it did.
pub(crate) fn forget(connection: &Connection, name: String, table: bool) -> Result<bool, Error> {
    let link = connection.link()?;
    let Some(catalog) = catalog() else { return Ok(false) };
    // SAFETY: the connection is open. DuckDB's handle of its context is a structure with the
    // address of that. The functions are those that the shim expects, as their names say, and the
    // text lives across the call.
    let forgotten = briefly(|| unsafe {
        let mut handle = std::ptr::null_mut();
        ffi::duckdb_connection_get_client_context(link.raw, &raw mut handle);
        let context = handle.cast::<*mut c_void>().read();
        let forgotten = crosslane_forget(catalog, context, name.as_ptr().cast(), name.len(), table);
        ffi::duckdb_destroy_client_context(&raw mut handle);
        forgotten
    });
    Ok(forgotten)
}
