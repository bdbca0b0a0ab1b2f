//! The arguments with which a statement uses a table function.

use super::registration::c_string;
use crate::output::Results;
use crate::types::LogicalType;
use crate::vector::{Chunk, Value};
use crosslane::call::Output;
use crosslane::{DataType, Error, Field};
use libduckdb_sys as ffi;

/// The arguments of one use of a table function as a chunk of one row. A named parameter that was
/// not given is NULL. Without parameters, the chunk has one column without meaning.
///
/// # Errors
/// [`Error::Engine`] for a LIST that is none of the parameter's type, or if there is no memory.
///
/// # Safety
/// The info must be that of a `bind` callback of a function that was registered with these
/// parameters.
pub(super) unsafe fn arguments(
    info: ffi::duckdb_bind_info,
    parameters: &[Field],
    named: &[bool],
) -> Result<Chunk, Error> {
    let filler = [DataType::Boolean];
    let types = parameters.iter().map(|field| &field.data_type);
    let types: Vec<_> = if parameters.is_empty() { filler.iter().collect() } else { types.collect() };
    let logical = types.into_iter().map(LogicalType::new).collect::<Result<Vec<_>, _>>()?;
    let chunk = Chunk::new(&logical)?;
    let mut position = 0;
    for (index, (parameter, named)) in parameters.iter().zip(named).enumerate() {
        // SAFETY: as the caller says; the vector is new, and of the parameter's type.
        unsafe {
            let value = if *named {
                ffi::duckdb_bind_get_named_parameter(info, c_string(&parameter.name)?.as_ptr())
            } else {
                position += 1;
                ffi::duckdb_bind_get_parameter(info, position - 1)
            };
            let vector = ffi::duckdb_data_chunk_get_vector(chunk.0, index as ffi::idx_t);
            put(Value::owned(value), parameter, vector)?;
        }
    }
    // SAFETY: the chunk has space for a row.
    unsafe { ffi::duckdb_data_chunk_set_size(chunk.0, 1) };
    Ok(chunk)
}

/// Writes an argument into its column. DuckDB has cast it to the parameter's type, except for a
/// LIST.
///
/// # Safety
/// The vector must be of the parameter's type, and new.
unsafe fn put(argument: Value, parameter: &Field, vector: ffi::duckdb_vector) -> Result<(), Error> {
    // SAFETY: as the caller says; what DuckDB allocates is destroyed, and it copies what it takes.
    unsafe {
        if argument.is_null() {
            Results::new(vector, &parameter.data_type, 1).null(0);
            return Ok(());
        }
        let DataType::List(element) = &parameter.data_type else {
            ffi::duckdb_vector_reference_value(vector, argument.raw());
            return Ok(());
        };
        let refused = || {
            let (name, due) = (&parameter.name, &parameter.data_type);
            Error::Engine(format!("the argument for {name} is no {due}; cast it: value::{due}"))
        };
        let given = ffi::duckdb_get_type_id(ffi::duckdb_get_value_type(argument.raw()));
        if given != ffi::DUCKDB_TYPE_DUCKDB_TYPE_LIST {
            return Err(refused());
        }
        let child = |index| Value::owned(ffi::duckdb_get_list_child(argument.raw(), index));
        let elements: Vec<_> = (0..ffi::duckdb_get_list_size(argument.raw())).map(child).collect();
        let mut values: Vec<_> = elements.iter().map(Value::raw).collect();
        let element = LogicalType::new(element)?;
        let count = values.len() as ffi::idx_t;
        let list = Value::owned(ffi::duckdb_create_list_value(element.raw(), values.as_mut_ptr(), count));
        if list.raw().is_null() {
            return Err(refused());
        }
        ffi::duckdb_vector_reference_value(vector, list.raw());
    }
    Ok(())
}
