//! What the registrations of all kinds of functions share.

use crate::types::LogicalType;
use crosslane::{Error, Field, Signature};
use libduckdb_sys as ffi;
use std::ffi::CString;

pub(crate) fn c_string(name: &str) -> Result<CString, Error> {
    CString::new(name).map_err(|error| Error::Engine(format!("{name:?}: {error}")))
}

/// DuckDB's types of parameters.
pub(crate) fn logical_types(parameters: &[Field]) -> Result<Vec<LogicalType>, Error> {
    parameters.iter().map(|parameter| LogicalType::new(&parameter.data_type)).collect()
}

/// The outcome of a registration.
pub(crate) fn registered(state: ffi::duckdb_state, signature: &Signature) -> Result<(), Error> {
    if state == ffi::duckdb_state_DuckDBSuccess {
        return Ok(());
    }
    Err(Error::Engine(format!("DuckDB refused {signature}; a built-in function may have this name")))
}
