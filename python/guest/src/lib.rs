//! The Python guest: the native half of the package `crosslane`.
//!
//! [`zygote`] loads a library and forks its lanes. A lane calls [`serve`], which takes batches from
//! the ring, calls the functions, and writes the results.

mod aggregate;
mod arrow;
mod client;
mod declaration;
mod lane;
mod loops;
mod scalar;
mod serve;
mod signatures;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod values;
mod zygote;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use signatures::value_error;

/// A text that tells these files, as pairs of path and content, from all others.
#[pyfunction]
fn text(files: Vec<(PyBackedBytes, PyBackedBytes)>) -> String {
    crosslane_process::control::text(files.iter().map(|(path, content)| (&path[..], &content[..])))
}

/// The note for the user about the threads of a library that a fork does not have.
#[pyfunction]
fn note(lost: Vec<String>) -> String {
    crosslane_guest::lost_threads_note(&lost)
}

#[pymodule]
fn _guest(module: &Bound<'_, PyModule>) -> PyResult<()> {
    values::datetime::find(module.py())?;
    values::layout::find(module.py())?;
    module.add_function(wrap_pyfunction!(signatures::parse_signature, module)?)?;
    module.add_function(wrap_pyfunction!(signatures::table_columns, module)?)?;
    module.add_function(wrap_pyfunction!(signatures::stream_columns, module)?)?;
    module.add_function(wrap_pyfunction!(signatures::for_types, module)?)?;
    module.add_function(wrap_pyfunction!(signatures::parse_type, module)?)?;
    module.add_function(wrap_pyfunction!(signatures::with_types, module)?)?;
    module.add_function(wrap_pyfunction!(signatures::wrong_functions, module)?)?;
    module.add_function(wrap_pyfunction!(values::is_missing, module)?)?;
    module.add_function(wrap_pyfunction!(lane::backoff, module)?)?;
    module.add_function(wrap_pyfunction!(serve::serve, module)?)?;
    module.add_function(wrap_pyfunction!(zygote::zygote, module)?)?;
    module.add_function(wrap_pyfunction!(stream::table_type, module)?)?;
    module.add_class::<client::Map>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Cancellation>()?;
    module.add_function(wrap_pyfunction!(note, module)?)?;
    module.add_function(wrap_pyfunction!(text, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
