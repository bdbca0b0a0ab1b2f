//! The connection of a query.

use super::interrupt::Client;
use crate::vector::Value;
use libduckdb_sys as ffi;

/// The connection of a query, and its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The setting `threads`; 1 if it cannot be read.
    pub threads: usize,
    /// The connection, and whether it was interrupted.
    pub client: Client,
}

impl Context {
    /// Reads a context, and destroys it.
    ///
    /// # Safety
    /// The context must be DuckDB's, given to the caller.
    pub unsafe fn take(mut context: ffi::duckdb_client_context) -> Self {
        // SAFETY: each handle is destroyed once, also if it is null.
        unsafe {
            let mut scope = 0;
            let value =
                ffi::duckdb_client_context_get_config_option(context, c"threads".as_ptr(), &raw mut scope);
            let value = Value::owned(value);
            let threads = if value.raw().is_null() { 1 } else { ffi::duckdb_get_int64(value.raw()) };
            let client = Client::of(context);
            ffi::duckdb_destroy_client_context(&raw mut context);
            Self { threads: usize::try_from(threads).unwrap_or(1).max(1), client }
        }
    }

    /// The context of a scalar function's init.
    ///
    /// # Safety
    /// `info` must be DuckDB's.
    pub unsafe fn of_init(info: ffi::duckdb_init_info) -> Self {
        // SAFETY: as the caller says.
        unsafe {
            let mut context = std::ptr::null_mut();
            ffi::duckdb_scalar_function_init_get_client_context(info, &raw mut context);
            Self::take(context)
        }
    }

    /// The context of a table function's bind.
    ///
    /// # Safety
    /// `info` must be DuckDB's.
    pub unsafe fn of_bind(info: ffi::duckdb_bind_info) -> Self {
        // SAFETY: as the caller says.
        unsafe {
            let mut context = std::ptr::null_mut();
            ffi::duckdb_table_function_get_client_context(info, &raw mut context);
            Self::take(context)
        }
    }
}
