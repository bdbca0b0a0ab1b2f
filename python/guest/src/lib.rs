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

use crosslane::Sandbox;
use crosslane_process::Files;
use crosslane_process::environment::Needs;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// A hash of the content of each of these files, which are pairs of path and content.
#[pyfunction]
fn hashes(files: Vec<(PyBackedBytes, PyBackedBytes)>) -> BTreeMap<String, String> {
    Files::of(files.iter().map(|(path, content)| (&path[..], &content[..]))).into()
}

/// What a file needs that an interpreter would load: its metadata, and the path of the note of its
/// environment. None if it needs nothing.
///
/// Raises ValueError if something is wrong with the metadata.
#[pyfunction]
fn environment_needs(file: PathBuf, interpreter: PathBuf) -> PyResult<Option<(String, PathBuf)>> {
    let needs = Needs::of(&file, &interpreter).map_err(PyValueError::new_err)?;
    Ok(needs.map(|needs| (needs.metadata, needs.note)))
}

/// The sandbox that a file asks for in its metadata: settings with their values, such as
/// `sandbox=on`. Empty if it asks for none.
///
/// Raises ValueError if something is wrong with the metadata.
#[pyfunction]
fn asked_by(file: PathBuf) -> PyResult<Vec<String>> {
    crosslane_process::guests::asked_by(&file).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The sandbox that a function in `file` asks for by options, given and returned as JSON. None if it asks
/// for none.
///
/// Raises ValueError if something is wrong with an option.
#[pyfunction]
fn own_sandbox(options: &str, file: PathBuf) -> PyResult<Option<String>> {
    let options = serde_json::from_str(options).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let asked = crosslane_process::own_sandbox(options, &file).map_err(PyValueError::new_err)?;
    let json = asked.as_ref().map(serde_json::to_string).transpose();
    json.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The settings that make a sandbox, which is given as JSON, such as `sandbox=on`.
///
/// Raises ValueError if it is no sandbox.
#[pyfunction]
fn words_of_sandbox(sandbox: &str) -> PyResult<Vec<String>> {
    let sandbox: Sandbox =
        serde_json::from_str(sandbox).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(sandbox.words().collect())
}

/// The folder of what is made for this user.
#[pyfunction]
fn cache() -> PathBuf {
    crosslane_process::environment::cache()
}

/// Whether this process has a handler of a signal, in any language.
#[pyfunction]
fn is_caught(number: i32) -> bool {
    crosslane_guest::is_caught(number)
}

/// What the kernel of this machine can enforce: the version of Landlock's interface, and whether it
/// keeps signals within a sandbox.
///
/// Raises OSError if there is no sandbox here; the message says which layer is missing.
#[pyfunction]
fn sandbox_of_this_machine() -> PyResult<(u32, bool)> {
    let machine = crosslane_sandbox::Machine::look().map_err(PyOSError::new_err)?;
    Ok((machine.landlock, machine.scopes_signals()))
}

/// What a worker in a sandbox may use on this machine: how many threads, and how many seconds of processor
/// time between two calls.
#[pyfunction]
fn allowance_of_sandbox() -> (usize, f64) {
    let allowance = crosslane_process::Allowance::of_this_machine();
    (allowance.threads, allowance.between_calls.as_secs_f64())
}

/// Tells the recorder of the engine that a variable of the environment is read.
#[pyfunction]
fn note_variable(name: OsString) {
    crosslane_guest::note_variable(&name);
}

/// The note for the user about the threads of a library that a fork does not have.
#[pyfunction]
fn note(lost: Vec<String>) -> String {
    crosslane_guest::lost_threads_note(&lost)
}

#[pymodule]
mod _guest {
    use super::values;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::client::{Cancellation, Client, Map, set_trace_context};
    #[pymodule_export]
    use super::lane::pause;
    #[pymodule_export]
    use super::scalar::{Elements, why_not_columns};
    #[pymodule_export]
    use super::serve::serve;
    #[pymodule_export]
    use super::signatures::{
        for_types, parse_signature, parse_type, statements, stream_columns, table_columns, with_types,
        wrong_functions,
    };
    #[pymodule_export]
    use super::stream::table_type;
    #[pymodule_export]
    use super::values::is_missing;
    #[pymodule_export]
    use super::zygote::zygote;
    #[pymodule_export]
    use super::{
        allowance_of_sandbox, asked_by, cache, environment_needs, hashes, is_caught, note, note_variable,
        own_sandbox, sandbox_of_this_machine, words_of_sandbox,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        values::datetime::find(module.py())?;
        values::layout::find(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
