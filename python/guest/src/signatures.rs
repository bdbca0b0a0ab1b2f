//! Signatures and SQL types, as Python reads them.

use crosslane::ddl::{self, Statement};
use crosslane::{DataType, Error, Field, Function, Kind, Signature, TypeNames};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// The name, the names and types of the parameters, the type of the result, and whether the last
/// parameter is variadic.
type SignatureParts = (String, Vec<(String, String)>, String, bool);

/// The parts of a signature, in their normal form: (name, [(parameter, type)], result type,
/// variadic). A variadic last parameter stands for any number of arguments, and its type is that of
/// one argument.
///
/// Raises ValueError if the text is not a signature. A mark shows the place.
#[pyfunction]
pub(crate) fn parse_signature(text: &str) -> PyResult<SignatureParts> {
    let signature: Signature = text.parse().map_err(value_error)?;
    Ok((signature.name.clone(), signature.pairs(), signature.result(), signature.variadic))
}

/// The statements of SQL text, as (kind, text, name, if_exists). The kind is `create` for the definition of a
/// function, `drop` for the drop of one, with its name and whether it need not exist, or `other` for
/// any number of other statements.
#[pyfunction]
pub(crate) fn statements(text: &str) -> Vec<(&'static str, String, String, bool)> {
    let parts = |statement| match statement {
        Statement::Create(text) => ("create", text.to_owned(), String::new(), false),
        Statement::Drop { text, name, if_exists } => ("drop", text.to_owned(), name, if_exists),
        Statement::Other(text) => ("other", text.to_owned(), String::new(), false),
    };
    ddl::statements(text).into_iter().map(parts).collect()
}

/// The names and types of fields.
fn pairs(fields: &[Field]) -> Vec<(String, String)> {
    fields.iter().map(|field| (field.name.clone(), field.data_type.to_string())).collect()
}

/// The columns of a table function's signature as (name, type); None if it returns no table.
///
/// Raises ValueError if the text is not a signature.
#[pyfunction]
pub(crate) fn table_columns(text: &str) -> PyResult<Option<Vec<(String, String)>>> {
    let signature: Signature = text.parse().map_err(value_error)?;
    Ok(match signature.returns {
        DataType::Struct(columns) if signature.table => Some(pairs(&columns)),
        _ => None,
    })
}

/// The columns of the table that a stream function's signature takes, as (name, type); None if it
/// takes none.
///
/// Raises ValueError if the text is not a signature, or does not say the columns.
#[pyfunction]
pub(crate) fn stream_columns(text: &str) -> PyResult<Option<Vec<(String, String)>>> {
    let signature: Signature = text.parse().map_err(value_error)?;
    if Kind::Table.declared(&signature).map_err(PyValueError::new_err)? != Kind::Stream {
        return Ok(None);
    }
    Ok(match signature.parameters.first().map(|field| &field.data_type) {
        Some(DataType::Struct(columns)) => Some(pairs(columns)),
        _ => None,
    })
}

/// The signature for arguments of the types of a text such as `(BIGINT, VARCHAR[])`, and their
/// number.
///
/// Raises ValueError if it takes no such arguments.
#[pyfunction]
pub(crate) fn for_types(signature: &str, types: &str) -> PyResult<(String, usize)> {
    let declared: Signature = signature.parse().map_err(value_error)?;
    let concrete = declared.for_types(types).map_err(PyValueError::new_err)?;
    Ok((concrete.to_string(), concrete.parameters.len()))
}

/// A SQL type in its normal form.
///
/// Raises ValueError if the text is not a SQL type.
#[pyfunction]
pub(crate) fn parse_type(text: &str) -> PyResult<String> {
    let data_type: crosslane::DataType = text.parse().map_err(value_error)?;
    Ok(data_type.to_string())
}

/// The result of a function. In its signatures the names of the dict stand for its types.
///
/// Raises the exception of the function.
#[pyfunction]
pub(crate) fn with_types<'py>(
    types: BTreeMap<String, String>,
    function: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    TypeNames::from(types).within(|| function.call0())
}

/// The error of the functions of a library, which a guest describes as JSON: the class, message and
/// traceback of an exception. None if an engine would load them.
///
/// Raises ValueError if the text describes no functions.
#[pyfunction]
pub(crate) fn wrong_functions(library: &str, text: &str) -> PyResult<Option<(String, String, String)>> {
    let specs = serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))?;
    match Function::all(specs, library) {
        Ok(_) => Ok(None),
        Err(Error::Load { failure, .. }) => Ok(Some((failure.class, failure.message, failure.traceback))),
        Err(error) => Err(PyValueError::new_err(error.to_string())),
    }
}

pub(crate) fn value_error(error: crosslane::signature::SignatureError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
