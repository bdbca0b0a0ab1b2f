//! The native half of `crosslane.Client`: a server's functions for a program without an engine ([`Session`]).
//!
//! The arguments of one row go from objects to columns and its result back here, without pyarrow; of columns, lanes get
//! slices of pyarrow's arrays. The interpreter's lock is released while a call waits.

use crate::arrow::{self, Direction, Exported};
use crate::client::map::{Ending, Map};
use crate::loops::result_writer::Writer;
use crate::stream;
use crate::values::objects::{self, Vm, overflow};
use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::{CallGroup, Caller, Input, MapOptions, Results, Row};
use crosslane::{ColumnBuilder, DataType, Error, Function, Rows, Settings, Signature};
use crosslane_remote::client::Remote;
use crosslane_remote::session::{Session, Table, with_arguments};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Ends a call that another thread waits for.
#[pyclass(frozen)]
pub(crate) struct Cancellation(Arc<AtomicBool>);

#[pymethods]
impl Cancellation {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Ends the call, or lets it not begin.
    fn cancel(&self) {
        self.0.store(true, Relaxed);
    }
}

/// Connections to a server, for any number of threads.
#[pyclass(frozen)]
pub(crate) struct Client {
    /// `None` when it is closed.
    session: Mutex<Option<Arc<Session>>>,
    /// A fork has none of its threads.
    process: u32,
}

#[pymethods]
impl Client {
    /// Connects. Raises ValueError for what is no address, ConnectionError if no server takes it.
    #[new]
    fn new(py: Python<'_>, addresses: &str, token: Option<String>, lanes: usize) -> PyResult<Self> {
        let remote =
            Remote::new(addresses, token).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let ending = Ending::new(Some(Arc::default()), Arc::default());
        let session = py.detach(|| Session::connect(remote, lanes)).map_err(|error| ending.raise(&error))?;
        Ok(Self { session: Mutex::new(Some(Arc::new(session))), process: std::process::id() })
    }

    /// The signature of each function, and what the server says about it, as JSON.
    fn functions(&self) -> PyResult<Vec<(String, String)>> {
        let session = self.session()?;
        let said = session
            .functions()
            .iter()
            .map(|function| Ok((function.signature.to_string(), serde_json::to_string(&function.spec)?)));
        said.collect::<Result<_, serde_json::Error>>()
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// The result of a function, by its place, for one row of arguments.
    fn call<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        values: Vec<Bound<'py, PyAny>>,
        types: Option<&str>,
        cancellation: Option<&Cancellation>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let given = |function: &Function| {
            let given = values.iter().enumerate();
            given.map(|(at, value)| Given::value(function, at, value)).collect()
        };
        let results = self.used(py, Used { index, types, cancellation }, 1, given, Session::call)?;
        let column = results.column();
        objects::reader(py, column.data_type, None)?.read(&Vm::new(py), &column, 0)
    }

    /// The results for so many rows of columns, each a pyarrow array of just the type that results of functions have, or a list
    /// of values.
    fn call_batch<'py>(
        &self,
        py: Python<'py>,
        index: usize,
        columns: Vec<Bound<'py, PyAny>>,
        rows: usize,
        types: Option<&str>,
        cancellation: Option<&Cancellation>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let given = |function: &Function| Given::columns(function, &columns, rows);
        let results = self.used(py, Used { index, types, cancellation }, rows, given, Session::call)?;
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
        let used = Used { index, types: None, cancellation };
        let given = |function: &Function| Given::columns(function, &columns, rows);
        let results = self.used(py, used, rows, given, |session, function, group, arguments| {
            session.aggregate(function, group, arguments, (&groups, count))
        })?;
        let (column, vm) = (results.column(), Vm::new(py));
        let reader = objects::reader(py, column.data_type, None)?;
        let values = (0..column.rows).map(|row| reader.read(&vm, &column, row));
        PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
    }

    /// The rows of a table function for one row of arguments.
    fn scan(&self, index: usize, values: Vec<Bound<'_, PyAny>>) -> PyResult<Rest> {
        let session = self.session()?;
        let function = function(&session, index)?;
        let given = values.iter().enumerate();
        let columns = given.map(|(at, value)| Given::value(function, at, value)).collect::<PyResult<_>>()?;
        let arguments = Arguments { function, columns, rows: 1, failed: Mutex::default() };
        let types = function.signature.parameters.iter().map(|field| field.data_type.clone());
        let raised = |error: Error| PyRuntimeError::new_err(error.to_string());
        let table = Row::of(&arguments, types).and_then(|row| session.scan(function, row)).map_err(raised)?;
        let (ending, group) = uses(&session, Arc::default());
        let columns = table.columns().to_string();
        Ok(Rest {
            reading: Mutex::new(Some(Reading { table, group })),
            columns,
            ending,
            process: self.process,
        })
    }

    /// A stream through a function.
    fn map(&self, py: Python<'_>, index: usize, lanes: usize, depth: usize, ordered: bool) -> PyResult<Map> {
        let session = self.session()?;
        let function = function(&session, index)?;
        let (ending, group) = uses(&session, Arc::default());
        let options = MapOptions { lanes, depth, ordered };
        let stream = py.detach(|| session.map(function, options)).map_err(|error| ending.raise(&error))?;
        Ok(Map::over(stream, group, ending, Settings::default().ring_size))
    }

    /// Ends all that is under way. It may be called twice.
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
    fn used(
        &self,
        py: Python<'_>,
        used: Used<'_>,
        rows: usize,
        given: impl FnOnce(&Function) -> PyResult<Vec<Given>>,
        work: impl FnOnce(&Session, &Arc<Function>, CallGroup, &dyn Input) -> Result<Results, Error> + Send,
    ) -> PyResult<Results> {
        let session = self.session()?;
        let results = used.on(py, &session, rows, given, work);
        if let Some(closed) = Arc::into_inner(session) {
            py.detach(|| drop(closed));
        }
        results
    }
}

/// Which rows belong together.
#[derive(FromPyObject)]
enum Groups {
    /// So many, all of them.
    One(usize),
    /// Those whose groups have the same place, of so many.
    Many((Vec<usize>, usize)),
}

/// A function, by its place; the types of its arguments if it takes any; and what ends its use.
#[derive(Clone, Copy)]
struct Used<'a> {
    index: usize,
    types: Option<&'a str>,
    cancellation: Option<&'a Cancellation>,
}

impl Used<'_> {
    fn on(
        self,
        py: Python<'_>,
        session: &Session,
        rows: usize,
        given: impl FnOnce(&Function) -> PyResult<Vec<Given>>,
        work: impl FnOnce(&Session, &Arc<Function>, CallGroup, &dyn Input) -> Result<Results, Error> + Send,
    ) -> PyResult<Results> {
        let declared = function(session, self.index)?;
        let concrete = self.types.map(|types| for_types(declared, types)).transpose()?.map(Arc::new);
        let function = concrete.as_ref().unwrap_or(declared);
        let cancelled = self.cancellation.map(|it| Arc::clone(&it.0)).unwrap_or_default();
        let (ending, group) = uses(session, cancelled);
        let arguments = Arguments { function, columns: given(function)?, rows, failed: Mutex::default() };
        let results = py.detach(|| work(session, function, group, &arguments));
        results.map_err(|error| {
            let failed = arguments.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
            match failed {
                Some((at, wrong)) => about(py, wrong, function, at, None),
                None => ending.raise(&error),
            }
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        leave(self.process, session);
    }
}

/// Lets go of what has threads, without the interpreter's lock.
fn leave<T: Send>(process: u32, thing: Option<T>) {
    if process != std::process::id() {
        // Its locks may be held by threads that a fork has not.
        std::mem::forget(thing);
        return;
    }
    Python::attach(|py| py.detach(|| drop(thing)));
}

fn check_process(process: u32) -> PyResult<()> {
    if process == std::process::id() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "this process was forked after the client had connected; it needs a client of its own",
    ))
}

fn function(session: &Session, index: usize) -> PyResult<&Arc<Function>> {
    session.functions().get(index).ok_or_else(|| PyRuntimeError::new_err(format!("no function {index}")))
}

/// What a function is for arguments of the types of a text such as `(BIGINT)`.
fn for_types(declared: &Function, types: &str) -> PyResult<Function> {
    let concrete: Signature = declared.signature.for_types(types).map_err(PyTypeError::new_err)?;
    let types = concrete.parameters.into_iter().map(|field| field.data_type).collect();
    declared.for_arguments(types).map_err(|error| PyTypeError::new_err(error.to_string()))
}

/// What ends a use of a function.
fn uses(session: &Session, closed: Arc<AtomicBool>) -> (Arc<Ending>, CallGroup) {
    let ending = Arc::new(Ending::new(Some(Arc::clone(session.closed())), closed));
    let stop = Arc::clone(&ending);
    (ending, session.group(move || stop.is_due()))
}

/// The type of an argument.
fn type_of(function: &Function, at: usize) -> PyResult<&DataType> {
    let signature = &function.signature;
    let fixed = signature.fixed().get(at).map(|field| &field.data_type);
    fixed.or(signature.rest()).ok_or_else(|| {
        let count = signature.parameters.len();
        PyTypeError::new_err(format!("{signature} takes {count} argument(s)"))
    })
}

/// The values of an argument.
struct Given {
    data_type: DataType,
    values: Values,
}

enum Values {
    Objects(ColumnBuilder),
    Array(Exported),
}

impl Given {
    /// The argument of a call of one row.
    fn value(function: &Function, at: usize, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (py, data_type) = (value.py(), type_of(function, at)?);
        let mut out = ColumnBuilder::new(data_type);
        out.reserve(1).map_err(overflow)?;
        let written = Writer::new(py, data_type, None)?.write(value, &mut out);
        written.map_err(|error| about(py, error, function, at, None))?;
        Ok(Self { data_type: data_type.clone(), values: Values::Objects(out) })
    }

    /// The arguments of so many rows.
    fn columns(function: &Function, columns: &[Bound<'_, PyAny>], rows: usize) -> PyResult<Vec<Self>> {
        columns.iter().enumerate().map(|(at, column)| Self::column(function, at, column, rows)).collect()
    }

    /// One of them.
    fn column(function: &Function, at: usize, column: &Bound<'_, PyAny>, rows: usize) -> PyResult<Self> {
        let (py, data_type) = (column.py(), type_of(function, at)?);
        let values = if let Ok(list) = column.cast::<PyList>() {
            let writer = Writer::new(py, data_type, None)?;
            let mut out = ColumnBuilder::new(data_type);
            out.reserve(rows).map_err(overflow)?;
            for (row, value) in list.iter().enumerate() {
                writer.write(&value, &mut out).map_err(|error| about(py, error, function, at, Some(row)))?;
            }
            Values::Objects(out)
        } else {
            Values::Array(Exported::new(column)?)
        };
        let given = Self { data_type: data_type.clone(), values };
        match given.rows() {
            got if got == rows => Ok(given),
            got => Err(PyValueError::new_err(format!("a column of {got} rows where {rows} are due"))),
        }
    }

    fn rows(&self) -> usize {
        match &self.values {
            Values::Objects(out) => out.rows(),
            Values::Array(array) => array.rows(),
        }
    }
}

/// An error about an argument, which is told as one about a result.
fn about(py: Python<'_>, error: PyErr, function: &Function, at: usize, row: Option<usize>) -> PyErr {
    let ours =
        [py.get_type::<PyTypeError>(), py.get_type::<PyValueError>(), py.get_type::<PyOverflowError>()];
    let kind = error.get_type(py);
    if !ours.iter().any(|class| class.is(&kind)) {
        // Of an object that was looked at.
        return error;
    }
    let fields = &function.signature.parameters;
    let name = &fields[at.min(fields.len() - 1)].name;
    let text = error.value(py).to_string();
    let text = text.strip_prefix("returned ").unwrap_or(&text);
    let place = row.map(|row| format!(" of row {}", row + 1)).unwrap_or_default();
    PyErr::from_type(kind, format!("{}: {name}{place}: {text}", function.name()))
}

/// The arguments of a call.
struct Arguments<'a> {
    function: &'a Function,
    columns: Vec<Given>,
    rows: usize,
    /// What was wrong with an array, and which.
    failed: Mutex<Option<(usize, PyErr)>>,
}

/// Some rows of an argument.
enum Piece<'a> {
    Rows(Rows<'a>),
    Part(arrow::Part<'a>),
}

impl Encode for Piece<'_> {
    fn plan(&self, plan: &mut Plan) {
        match self {
            Piece::Rows(rows) => rows.plan(plan),
            Piece::Part(part) => part.plan(plan),
        }
    }
    fn write(&self, body: &mut Body<'_>) {
        match self {
            Piece::Rows(rows) => rows.write(body),
            Piece::Part(part) => part.write(body),
        }
    }
}

impl Input for Arguments<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let columns: Vec<Option<Column<'_>>> = self
            .columns
            .iter()
            .map(|Given { data_type, values }| match values {
                Values::Objects(out) => Some(out.column(data_type)),
                Values::Array(_) => None,
            })
            .collect();
        let mut pieces = Vec::with_capacity(columns.len());
        for (at, (Given { data_type, values }, column)) in self.columns.iter().zip(&columns).enumerate() {
            let part = match (values, column) {
                (Values::Array(array), _) => array.part(data_type, rows.start, rows.len()).map(Piece::Part),
                (Values::Objects(_), Some(column)) => Ok(Piece::Rows(Rows::new(column, rows.clone()))),
                (Values::Objects(_), None) => continue,
            };
            pieces.push(part.map_err(|error| {
                let told = Error::Engine(error.to_string());
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, error));
                told
            })?);
        }
        with_arguments(self.function, (&pieces, pieces.len()), rows.len(), take)
    }
}

/// A table that is read.
struct Reading {
    table: Table,
    group: CallGroup,
}

/// The rows of a table function that were not taken yet. It has the methods of [`Map`], and takes no input.
#[pyclass(frozen)]
pub(crate) struct Rest {
    reading: Mutex<Option<Reading>>,
    columns: String,
    ending: Arc<Ending>,
    process: u32,
}

#[pymethods]
impl Rest {
    /// The next rows as a StructArray; None if there are no more.
    fn next<'py>(&self, _pull: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = _pull.py();
        check_process(self.process)?;
        let mut guard = match self.reading.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyRuntimeError::new_err("another thread reads this stream"));
            }
        };
        let Some(Reading { table, group }) = &mut *guard else {
            return if self.ending.is_closed() { Err(self.ending.cancelled()) } else { Ok(None) };
        };
        if self.ending.is_due() {
            let over = guard.take();
            py.detach(|| drop(over));
            return Err(self.ending.cancelled());
        }
        let next = py.detach(|| table.next(Caller::new(group, 1)));
        if !matches!(next, Ok(Some(_))) {
            let over = guard.take();
            py.detach(|| drop(over));
        }
        let Some(rows) = next.map_err(|error| self.ending.raise(&error))? else { return Ok(None) };
        let column = rows.column();
        stream::Table::new(py, column.data_type.clone())?.to_pyarrow(py, &column).map(Some)
    }

    /// Whether the table was read, and its lane given back.
    #[getter]
    fn is_over(&self) -> bool {
        self.reading.try_lock().is_ok_and(|reading| reading.is_none())
    }

    /// The columns, such as `STRUCT(a BIGINT)`.
    fn columns(&self) -> &str {
        &self.columns
    }

    /// Ends it; if a thread waits for rows, when that has seen it.
    fn close(&self, py: Python<'_>) {
        self.ending.close();
        if let (true, Ok(mut reading)) = (self.process == std::process::id(), self.reading.try_lock()) {
            let over = reading.take();
            py.detach(|| drop(over));
        }
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        let reading = self.reading.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        leave(self.process, reading);
    }
}
