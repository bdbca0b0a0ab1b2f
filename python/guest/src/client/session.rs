//! The native half of `crosslane.Client`: a server's functions, for a program without an engine
//! ([`Session`]).
//!
//! The arguments of one row go from objects to columns, and its result back, without pyarrow. If
//! the arguments are columns, lanes get slices of pyarrow's arrays. The interpreter's lock is
//! released while a call waits.

use super::arguments::{ArgumentValues, Arguments, argument_error};
use super::map::Map;
use super::reading::{check_process, leave};
use super::stop_signal::StopSignal;
use super::table_reader::TableReader;
use crate::arrow::{self, Direction};
use crate::values::{Vm, reader};
use crosslane::call::{CallGroup, Input, MapOptions, Results, Row};
use crosslane::{Error, Function, Settings, Signature};
use crosslane_remote::client::Remote;
use crosslane_remote::session::Session;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ends a call that another thread waits for.
#[pyclass(frozen)]
pub(crate) struct Cancellation(Arc<AtomicBool>);

#[pymethods]
impl Cancellation {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Ends the call, or keeps it from beginning.
    fn cancel(&self) {
        self.0.store(true, Relaxed);
    }
}

/// Connections to a server, for any number of threads.
#[pyclass(frozen)]
pub(crate) struct Client {
    /// `None` when it is closed.
    session: Mutex<Option<Arc<Session>>>,
    /// The process that connected. A fork has none of its threads.
    process: u32,
}

#[pymethods]
impl Client {
    /// Connects. Raises ValueError if the text is no address, ConnectionError if no server takes
    /// the connection.
    #[new]
    fn new(py: Python<'_>, addresses: &str, token: Option<String>, lanes: usize) -> PyResult<Self> {
        let remote =
            Remote::new(addresses, token).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let stop = StopSignal::new(Some(Arc::default()), Arc::default());
        let session = py.detach(|| Session::connect(remote, lanes)).map_err(|error| stop.raise(&error))?;
        Ok(Self { session: Mutex::new(Some(Arc::new(session))), process: std::process::id() })
    }

    /// Whether the server may have loaded other functions since, or has ended.
    fn is_outdated(&self) -> bool {
        self.process == std::process::id() && self.lock().as_ref().is_some_and(|it| it.is_outdated())
    }

    /// A client of the functions that the server has now, or None if they are those of this client.
    /// Both are closed together. Raises ConnectionError if no server takes the connection.
    fn renewed(&self, py: Python<'_>) -> PyResult<Option<Self>> {
        let session = self.session()?;
        let stop = StopSignal::new(Some(Arc::clone(session.closed())), Arc::default());
        let renewed = py.detach(|| session.renewed()).map_err(|error| stop.raise(&error))?;
        Ok(renewed
            .map(|session| Self { session: Mutex::new(Some(Arc::new(session))), process: self.process }))
    }

    /// The signature of each function, and what the server says about it, as JSON.
    fn functions(&self) -> PyResult<Vec<(String, String)>> {
        let session = self.session()?;
        let described = session
            .functions()
            .iter()
            .map(|function| Ok((function.signature.to_string(), serde_json::to_string(&function.spec)?)));
        described
            .collect::<Result<_, serde_json::Error>>()
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// The result of the function with this index, for one row of arguments.
    fn call<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        values: Vec<Bound<'py, PyAny>>,
        types: Option<&str>,
        cancellation: Option<&Cancellation>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments_of = |function: &Function| {
            let values = values.iter().enumerate();
            values.map(|(at, value)| ArgumentValues::value(function, at, value)).collect()
        };
        let usage = FunctionUse { index, types, cancellation };
        let results = self.use_function(py, usage, 1, arguments_of, Session::call)?;
        let column = results.column();
        reader(py, column.data_type, None)?.read(&Vm::new(py), &column, 0)
    }

    /// The results for so many rows of columns. A column is a list of values, or a pyarrow array of
    /// exactly the type that results of functions have.
    fn call_batch<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        columns: Vec<Bound<'py, PyAny>>,
        rows: usize,
        types: Option<&str>,
        cancellation: Option<&Cancellation>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments_of = |function: &Function| ArgumentValues::columns(function, &columns, rows);
        let usage = FunctionUse { index, types, cancellation };
        let results = self.use_function(py, usage, rows, arguments_of, Session::call)?;
        let column = results.column();
        arrow::to_pyarrow(&column, &arrow::pyarrow_type(py, column.data_type, Direction::Argument)?)
    }

    /// The results of an aggregate, as a list: one for each group.
    fn aggregate<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        columns: Vec<Bound<'py, PyAny>>,
        groups: Groups,
        cancellation: Option<&Cancellation>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (groups, count) = match groups {
            Groups::One(rows) => (vec![0; rows], 1),
            Groups::Many((groups, count)) => (groups, count),
        };
        let rows = groups.len();
        let usage = FunctionUse { index, types: None, cancellation };
        let arguments_of = |function: &Function| ArgumentValues::columns(function, &columns, rows);
        let results =
            self.use_function(py, usage, rows, arguments_of, |session, function, group, arguments| {
                session.aggregate(function, group, arguments, (&groups, count))
            })?;
        let (column, vm) = (results.column(), Vm::new(py));
        let result = reader(py, column.data_type, None)?;
        let values = (0..column.rows).map(|row| result.read(&vm, &column, row));
        PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
    }

    /// The rows of a table function for one row of arguments.
    fn scan(&self, index: usize, values: Vec<Bound<'_, PyAny>>) -> PyResult<TableReader> {
        let session = self.session()?;
        let function = function(&session, index)?;
        let values = values.iter().enumerate();
        let columns =
            values.map(|(at, value)| ArgumentValues::value(function, at, value)).collect::<PyResult<_>>()?;
        let arguments = Arguments { function, columns, rows: 1, failed: Mutex::default() };
        let types = function.signature.parameters.iter().map(|field| field.data_type.clone());
        let raised = |error: Error| PyRuntimeError::new_err(error.to_string());
        let table = Row::of(&arguments, types).and_then(|row| session.scan(function, row)).map_err(raised)?;
        let (stop, group) = stop_and_group(&session, Arc::default());
        Ok(TableReader::new(table, group, stop, self.process))
    }

    /// A stream through a function.
    fn map(&self, py: Python<'_>, index: usize, lanes: usize, depth: usize, ordered: bool) -> PyResult<Map> {
        let session = self.session()?;
        let function = function(&session, index)?;
        let (stop, group) = stop_and_group(&session, Arc::default());
        let options = MapOptions { lanes, depth, ordered };
        let stream = py.detach(|| session.map(function, options)).map_err(|error| stop.raise(&error))?;
        Ok(Map::over(stream, group, stop, Settings::default().ring_size))
    }

    /// Ends all calls and streams. It may be called twice.
    fn close(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            let session = self.lock().take();
            py.detach(|| {
                session.iter().for_each(|session| session.close());
                drop(session);
            });
        }
    }
}

impl Client {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> PyResult<Arc<Session>> {
        check_process(self.process)?;
        self.lock().clone().ok_or_else(|| PyValueError::new_err("the client is closed"))
    }

    /// Uses a function with so many rows of arguments.
    fn use_function(
        &self,
        py: Python<'_>,
        usage: FunctionUse<'_>,
        rows: usize,
        arguments_of: impl FnOnce(&Function) -> PyResult<Vec<ArgumentValues>>,
        work: impl FnOnce(&Session, &Arc<Function>, CallGroup, &dyn Input) -> Result<Results, Error> + Send,
    ) -> PyResult<Results> {
        let session = self.session()?;
        let run = || {
            let declared = function(&session, usage.index)?;
            let concrete = usage.types.map(|types| for_types(declared, types)).transpose()?.map(Arc::new);
            let function = concrete.as_ref().unwrap_or(declared);
            let cancelled = usage.cancellation.map(|it| Arc::clone(&it.0)).unwrap_or_default();
            let (stop, group) = stop_and_group(&session, cancelled);
            let arguments =
                Arguments { function, columns: arguments_of(function)?, rows, failed: Mutex::default() };
            let results = py.detach(|| work(&session, function, group, &arguments));
            results.map_err(|error| {
                let failed = arguments.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
                match failed {
                    Some((at, wrong)) => argument_error(py, wrong, function, at, None),
                    None => stop.raise(&error),
                }
            })
        };
        let results = run();
        // The client may have been closed meanwhile.
        if let Some(closed) = Arc::into_inner(session) {
            py.detach(|| drop(closed));
        }
        results
    }
}

/// The groups of the rows of an aggregate.
#[derive(FromPyObject)]
enum Groups {
    /// So many rows in one group.
    One(usize),
    /// The group of each row, and the number of groups.
    Many((Vec<usize>, usize)),
}

/// The index of a function, the types of its arguments if it takes any, and what ends its use.
#[derive(Clone, Copy)]
struct FunctionUse<'a> {
    index: usize,
    types: Option<&'a str>,
    cancellation: Option<&'a Cancellation>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        leave(self.process, session);
    }
}

fn function(session: &Session, index: usize) -> PyResult<&Arc<Function>> {
    session.functions().get(index).ok_or_else(|| PyRuntimeError::new_err(format!("no function {index}")))
}

/// The function for arguments of the types of a text such as `(BIGINT)`.
fn for_types(declared: &Function, types: &str) -> PyResult<Function> {
    let concrete: Signature = declared.signature.for_types(types).map_err(PyTypeError::new_err)?;
    let types = concrete.parameters.into_iter().map(|field| field.data_type).collect();
    declared.for_arguments(types).map_err(|error| PyTypeError::new_err(error.to_string()))
}

/// The signal that ends a use of a function, and the group of its calls.
fn stop_and_group(session: &Session, closed: Arc<AtomicBool>) -> (Arc<StopSignal>, CallGroup) {
    let stop = Arc::new(StopSignal::new(Some(Arc::clone(session.closed())), closed));
    let due = Arc::clone(&stop);
    (stop, session.group(move || due.is_due()))
}
