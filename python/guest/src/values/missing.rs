//! The objects that stand for NULL.

use super::datetime;
use pyo3::ffi;
use pyo3::prelude::*;

/// Whether a value stands for NULL: None, or the objects of numpy and pandas. These are known by
/// the names of their types, so that nothing is imported.
#[pyfunction]
pub(crate) fn is_missing(value: &Bound<'_, PyAny>) -> bool {
    if value.is_none() {
        return true;
    }
    let class = value.get_type_ptr();
    let plain = class == &raw mut ffi::PyUnicode_Type
        || class == &raw mut ffi::PyLong_Type
        || class == &raw mut ffi::PyFloat_Type
        || class == &raw mut ffi::PyBool_Type
        || class == &raw mut ffi::PyBytes_Type
        || class == &raw mut ffi::PyList_Type
        || class == &raw mut ffi::PyDict_Type
        || class == &raw mut ffi::PyTuple_Type;
    if plain || datetime::is_one(value) {
        return false;
    }
    let class = value.get_type();
    let Ok(name) = class.name() else { return false };
    match &*name.to_string_lossy() {
        "NAType" | "NaTType" | "MaskedConstant" => true,
        // NaT does not equal itself. Only numpy's own classes are compared, because they raise
        // nothing.
        "datetime64" | "timedelta64" => {
            class.module().is_ok_and(|module| module == "numpy") && value.ne(value).unwrap_or(false)
        }
        _ => false,
    }
}
