//! What the registrations of all kinds of functions share.

use crate::types::LogicalType;
use crosslane::{DataType, Error, Field, Signature};
use libduckdb_sys as ffi;
use std::ffi::CString;

pub(crate) fn c_string(name: &str) -> Result<CString, Error> {
    CString::new(name).map_err(|error| Error::Engine(format!("{name:?}: {error}")))
}

/// DuckDB's types of parameters.
pub(crate) fn logical_types(parameters: &[Field]) -> Result<Vec<LogicalType>, Error> {
    parameters.iter().map(|parameter| LogicalType::new(&parameter.data_type)).collect()
}

/// Declares the columns of `rows`, a STRUCT, as those of the results.
///
/// # Errors
/// `rows` is no STRUCT, or DuckDB has not such a column.
///
/// # Safety
/// The info must be that of a `bind` callback of a table function.
pub unsafe fn add_result_columns(info: ffi::duckdb_bind_info, rows: &DataType) -> Result<(), Error> {
    let DataType::Struct(columns) = rows else {
        return Err(Error::Engine(format!("{rows} has no columns")));
    };
    for column in &**columns {
        let (name, logical) = (c_string(&column.name)?, LogicalType::new(&column.data_type)?);
        // SAFETY: as the caller says; DuckDB copies name and type.
        unsafe { ffi::duckdb_bind_add_result_column(info, name.as_ptr(), logical.raw()) };
    }
    Ok(())
}

/// The outcome of a registration.
pub(crate) fn registered(state: ffi::duckdb_state, signature: &Signature) -> Result<(), Error> {
    if state == ffi::duckdb_state_DuckDBSuccess {
        return Ok(());
    }
    Err(Error::Engine(format!("DuckDB refused {signature}; a built-in function may have this name")))
}
