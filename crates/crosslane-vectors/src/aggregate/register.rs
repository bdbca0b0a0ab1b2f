//! Registers a function as an aggregate.

use super::callbacks::{CALLBACKS, destroyed};
use super::hooks::replace;
use super::uses::{Aggregate, Registered};
use crate::function::callback::drop_box;
use crate::function::{c_string, logical_types, registered};
use crate::types::LogicalType;
use crosslane::{Entry, Error, Function};
use libduckdb_sys as ffi;

/// Makes a function callable as an aggregate on all connections of the database, from the next
/// statement on.
///
/// # Errors
/// [`Error::Engine`] if it is no aggregate, or DuckDB refuses it, or this DuckDB is not known.
///
/// # Safety
/// The connection must be open.
pub unsafe fn register_aggregate(
    connection: ffi::duckdb_connection,
    function: &Function,
    aggregate: impl Aggregate,
) -> Result<(), Error> {
    function.entry(Entry::Update)?;
    let signature = &function.signature;
    let name = c_string(function.name())?;
    let returns = LogicalType::new(&signature.returns)?;
    let parameters = logical_types(&signature.parameters)?;
    let sees_null = function.admits_null();
    let declared = Function::new(function.index, function.spec.clone())?;
    // SAFETY: all handles live across the calls; what is registered is freed by DuckDB through
    // `drop_box`.
    unsafe {
        let mut raw = ffi::duckdb_create_aggregate_function();
        if let Err(error) = replace(raw) {
            ffi::duckdb_destroy_aggregate_function(&raw mut raw);
            return Err(error);
        }
        ffi::duckdb_aggregate_function_set_name(raw, name.as_ptr());
        parameters
            .iter()
            .for_each(|parameter| ffi::duckdb_aggregate_function_add_parameter(raw, parameter.raw()));
        ffi::duckdb_aggregate_function_set_return_type(raw, returns.raw());
        if sees_null {
            ffi::duckdb_aggregate_function_set_special_handling(raw);
        }
        let extra = Registered { function: declared, aggregate: Box::new(aggregate) };
        let extra = Box::into_raw(Box::new(extra)).cast();
        ffi::duckdb_aggregate_function_set_extra_info(raw, extra, Some(drop_box::<Registered>));
        ffi::duckdb_aggregate_function_set_functions(
            raw,
            Some(CALLBACKS.size),
            Some(CALLBACKS.init),
            Some(CALLBACKS.update),
            Some(CALLBACKS.combine),
            Some(CALLBACKS.finalize),
        );
        ffi::duckdb_aggregate_function_set_destructor(raw, Some(destroyed));
        let state = ffi::duckdb_register_aggregate_function(connection, raw);
        ffi::duckdb_destroy_aggregate_function(&raw mut raw);
        registered(state, signature)
    }
}
