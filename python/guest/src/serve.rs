//! The guest's loop: take a batch, call the function, answer.

use crate::aggregate::Aggregate;
use crate::arrow::{self, Direction, Results};
use crate::loops::result_writer::Writer;
use crate::loops::row_caller::{Argument, RowCaller};
use crate::loops::row_iterator::{Cursor, Live, Loop, Results as Rows};
use crate::stream::Streams;
use crate::table::Table;
use crate::values::objects::{self, Reader, Vm, Wish, overflow};
use crosslane::batch::Column;
use crosslane::lane::{COUNT, WRITING};
use crosslane::{ColumnBuilder, DataType, Entry, Failure, Instances, Leniency, Signature, Verdict};
use crosslane_process::guest::{Call, GuestLane, Mishaps, Next};
use crosslane_process::limits::MemoryLimit;
use crosslane_ring::ProgressWord;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// Serves the calls of one lane until its engine closes it.
///
/// `memory` and `socket` are the descriptors that the engine sent; `functions` are the library's, in
/// the order in which it declared them. Raises OSError if the engine breaks the protocol.
#[pyfunction]
pub(crate) fn serve(
    py: Python<'_>,
    memory: i32,
    socket: i32,
    functions: Vec<Bound<'_, PyAny>>,
    spin_microseconds: u64,
) -> PyResult<()> {
    // SAFETY: the host received both descriptors for this lane and gives them away here.
    let (memory, socket) = unsafe { (OwnedFd::from_raw_fd(memory), OwnedFd::from_raw_fd(socket)) };
    live(py, memory, socket, functions, Duration::from_micros(spin_microseconds))
}

/// As [`serve`], in Rust.
pub(crate) fn live(
    py: Python<'_>,
    memory: OwnedFd,
    socket: OwnedFd,
    functions: Vec<Bound<'_, PyAny>>,
    spin: Duration,
) -> PyResult<()> {
    // SAFETY: an engine sent them for this lane, which is opened here alone.
    let mut lane = unsafe { GuestLane::open(memory, socket, spin) }?;
    answer_all(py, &mut lane, functions)
}

/// Answers the calls of a lane until its engine closes it.
pub(crate) fn answer_all(
    py: Python<'_>,
    lane: &mut GuestLane,
    functions: Vec<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let library = PyList::new(py, &functions)?;
    let mut aggregates = HashMap::new();
    let mut streams = Streams::default();
    let mut prepared: Vec<Prepared> = functions.into_iter().map(Prepared::new).collect();
    loop {
        let call = match py.detach(|| lane.next_call_or(|| false))? {
            Next::Call(call) => call,
            Next::Cancelled => continue,
            Next::Closed | Next::Stopped => return Ok(()),
        };
        match call.entry() {
            Some(Entry::Call | Entry::Scan | Entry::Partitions | Entry::Map | Entry::Iterate) => {}
            Some(
                Entry::Update | Entry::Combine | Entry::Finish | Entry::Save | Entry::Load | Entry::Forget,
            ) => {
                aggregate(lane, call, &library, &mut aggregates)?;
                continue;
            }
            Some(Entry::SetUp) => {
                run_for_all(lane, call, &library, intern!(py, "set_up"))?;
                continue;
            }
            Some(Entry::TearDown) => {
                run_for_all(lane, call, &library, intern!(py, "tear_down"))?;
                continue;
            }
            _ => {
                lane.fail(call, &call.refusal(), None)?;
                continue;
            }
        }
        let index = call.header.function as usize;
        let count = prepared.len();
        let Some(prepared) = prepared.get_mut(index) else {
            return Err(PyOSError::new_err(format!("a call of function {index} of {count}")));
        };
        let table = match prepared.table() {
            Ok(table) => table,
            Err(error) => {
                lane.fail_after(call, &describe(py, error)?, None, |lane, size| {
                    wait_for_room(py, lane, size)
                })?;
                continue;
            }
        };
        if let Some(table) = table {
            table.answer(py, lane, call)?;
            continue;
        }
        if matches!(call.entry(), Some(Entry::Map | Entry::Iterate)) {
            streams.answer(lane, call, &library)?;
            continue;
        }
        if call.entry() != Some(Entry::Call) {
            lane.fail_after(call, &call.refusal(), None, |lane, size| wait_for_room(py, lane, size))?;
            continue;
        }
        match prepared.get(lane.types(&call)?) {
            Ok((function, out)) => function.answer(py, lane, call, out)?,
            Err(error) if ends_lane(py, &error) => return Err(error),
            Err(error) => {
                let failure = describe(py, error)?;
                lane.fail_after(call, &failure, None, |lane, size| wait_for_room(py, lane, size))?;
            }
        }
    }
}

/// Answers an exchange of an aggregate.
fn aggregate<'py>(
    lane: &mut GuestLane,
    call: Call,
    functions: &Bound<'py, PyList>,
    aggregates: &mut HashMap<u32, Aggregate<'py>>,
) -> PyResult<()> {
    let (py, index) = (functions.py(), call.header.function);
    let known = match aggregates.entry(index) {
        Occupied(known) => Ok(known.into_mut()),
        Vacant(place) => functions
            .get_item(index as usize)
            .and_then(|declared| Aggregate::new(&declared))
            .map(|new| place.insert(new)),
    };
    match known {
        Ok(known) => known.answer(py, lane, call),
        Err(error) if ends_lane(py, &error) => Err(error),
        Err(error) => {
            let failure = describe(py, error)?;
            lane.fail_after(call, &failure, None, |lane, size| wait_for_room(py, lane, size))
        }
    }
}

/// Answers an exchange that is for all functions of the library with what this function of `crosslane._state` does.
fn run_for_all(
    lane: &mut GuestLane,
    call: Call,
    functions: &Bound<'_, PyList>,
    name: &Bound<'_, PyString>,
) -> PyResult<()> {
    let py = functions.py();
    let run = py.import("crosslane._state")?.call_method1(name, (functions,));
    let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
    match run {
        Ok(_) => lane.succeed_after(call.with_rows(0), &(), Mishaps::default(), wait),
        Err(error) if ends_lane(py, &error) => Err(error),
        Err(error) => lane.fail_after(call, &describe(py, error)?, None, wait),
    }
}

/// Waits until an answer of so many bytes fits into the lane. The engine may be slow to take its replies, and other threads
/// of this process have work to do.
pub(crate) fn wait_for_room(py: Python<'_>, lane: &mut GuestLane, size: usize) -> PyResult<()> {
    Ok(py.detach(|| lane.wait_for_room(size))?)
}

/// A function, and where its results are collected.
type Ready<'py> = (Function<'py>, ColumnBuilder);

/// A declared function, and what was prepared of it for its first calls.
struct Prepared<'py> {
    declared: Bound<'py, PyAny>,
    plain: Option<Ready<'py>>,
    /// Of a function that takes arguments of any type: by the types as text.
    instances: Instances<Box<str>, Ready<'py>>,
    /// Of an `async` function: what it keeps open from call to call, whatever types these have.
    runner: Option<Py<PyAny>>,
    /// What it is if it is a table function; unknown before its first use.
    table: Option<Option<Table<'py>>>,
}

impl<'py> Prepared<'py> {
    fn new(declared: Bound<'py, PyAny>) -> Self {
        Self { declared, plain: None, instances: Instances::default(), runner: None, table: None }
    }

    /// The table function, if it is one.
    fn table(&mut self) -> PyResult<Option<&Table<'py>>> {
        let table = match &mut self.table {
            Some(known) => known,
            none => none.insert(Table::new(&self.declared)?),
        };
        Ok(table.as_ref())
    }

    /// The function for arguments of these types, if its signature does not say which they are.
    fn get(&mut self, types: Option<&str>) -> PyResult<(&Function<'py>, &mut ColumnBuilder)> {
        let Self { declared, plain, instances, runner, .. } = self;
        let mut new = |concrete: &Bound<'py, PyAny>| -> PyResult<_> {
            let function = Function::new(concrete, runner)?;
            let out = ColumnBuilder::new(&function.returns);
            Ok((function, out))
        };
        let (function, out) = match types {
            None => match plain {
                Some(known) => known,
                none => none.insert(new(declared)?),
            },
            Some(types) => instances.get_or_make(types, || {
                new(&declared.call_method1(intern!(declared.py(), "for_types"), (types,))?)
            })?,
        };
        Ok((function, out))
    }
}

/// An exception as the engine's users should read it.
pub(crate) fn describe(py: Python<'_>, error: PyErr) -> PyResult<Failure> {
    let describe = py.import("crosslane._errors")?.getattr("describe")?;
    let (class, message, traceback) = describe.call1((error.into_value(py),))?.extract()?;
    Ok(Failure { class, message, traceback, ..Failure::default() })
}

/// Whether an exception ends the lane: it is no failure of the call that it came to.
pub(crate) fn ends_lane(py: Python<'_>, error: &PyErr) -> bool {
    let class = py.import("crosslane._errors").and_then(|module| module.getattr("LaneEnded"));
    class.is_ok_and(|class| error.is_instance(py, &class))
}

/// What went wrong, and for which row if one is to blame.
pub(crate) struct Mishap {
    pub(crate) error: PyErr,
    pub(crate) row: Option<usize>,
}

impl From<PyErr> for Mishap {
    fn from(error: PyErr) -> Self {
        Mishap { error, row: None }
    }
}

impl From<(PyErr, usize)> for Mishap {
    fn from((error, row): (PyErr, usize)) -> Self {
        Mishap { error, row: Some(row) }
    }
}

struct Function<'py> {
    callable: Py<PyAny>,
    types: Vec<DataType>,
    /// Whether the last argument is a list of any number of arguments.
    variadic: bool,
    returns: DataType,
    admits_null: Vec<bool>,
    kind: Kind<'py>,
    leniency: Leniency,
    memory_limit: Option<u64>,
}

/// The rows that a row function is called with.
struct Batch<'a, 'py> {
    columns: &'a [Column<'a>],
    readers: &'a [Reader<'py>],
    live: &'a Live,
    progress: &'a ProgressWord,
    sequence: u32,
}

impl<'a, 'py> Batch<'a, 'py> {
    fn arguments(&self, sees_null: &[bool]) -> Vec<Argument<'a, 'py>> {
        let columns = self.readers.iter().zip(self.columns).zip(sees_null);
        columns.map(|((reader, column), sees_null)| Argument::new(reader, column, *sees_null)).collect()
    }
}

enum Kind<'py> {
    /// Called per row, by `each`: a loop of its own. A function of no parameters, or of any number, has none.
    Row { readers: Vec<Reader<'py>>, writer: Writer<'py>, each: Option<Loop> },
    /// A runner that calls an `async` function for many rows at once.
    Async { readers: Vec<Reader<'py>>, writer: Writer<'py> },
    /// Called per batch, with pyarrow arrays (which its wrapper turns into what it wants). It returns one, or a list for
    /// the writer.
    Vectorized { arguments: Vec<Py<PyAny>>, writer: Writer<'py> },
}

impl<'py> Function<'py> {
    /// `runner` is that of an `async` function, once it was called.
    fn new(declared: &Bound<'py, PyAny>, runner: &mut Option<Py<PyAny>>) -> PyResult<Self> {
        let py = declared.py();
        let signature: String = declared.getattr("signature")?.extract()?;
        let signature: Signature = signature.parse().map_err(crate::value_error)?;
        if signature.takes_any() {
            return Err(PyOSError::new_err(format!(
                "a call of {signature} without the types of its arguments"
            )));
        }
        let variadic = signature.variadic;
        let types: Vec<DataType> = signature.parameters.into_iter().map(|field| field.data_type).collect();
        let returns = signature.returns;
        let shapes: Vec<Wish<'py>> = declared.getattr("shapes")?.extract()?;
        let result_shape: Wish<'py> = declared.getattr("result_shape")?.extract()?;
        let readers = || -> PyResult<Vec<Reader<'py>>> {
            let each = types.iter().zip(&shapes);
            each.map(|(data_type, shape)| objects::reader(py, data_type, shape.clone())).collect()
        };
        let kind: String = declared.getattr("kind")?.extract()?;
        let (kind, callable) = match kind.as_str() {
            "row" => {
                let writer = Writer::new(py, &returns, result_shape)?;
                let each = if variadic || types.is_empty() {
                    None
                } else {
                    let make = py.import("crosslane._loop")?.getattr("make")?;
                    Some(Loop::new(&make.call1((declared, types.len()))?)?)
                };
                let kind = Kind::Row { readers: readers()?, writer, each };
                (kind, declared.call_method0("callee")?)
            }
            "async" => {
                let kind =
                    Kind::Async { readers: readers()?, writer: Writer::new(py, &returns, result_shape)? };
                if runner.is_none() {
                    let made = py.import("crosslane._async")?.getattr("Runner")?.call1((declared,))?;
                    *runner = Some(made.unbind());
                }
                (kind, runner.as_ref().map_or_else(|| declared.clone(), |runner| runner.bind(py).clone()))
            }
            _ => {
                let arguments = types
                    .iter()
                    .map(|data_type| Ok(arrow::pyarrow_type(py, data_type, Direction::Argument)?.unbind()))
                    .collect::<PyResult<_>>()?;
                let result = arrow::pyarrow_type(py, &returns, Direction::Result)?;
                let caller = py.import("crosslane._vectors")?.getattr("Caller")?.call1((declared, result))?;
                (Kind::Vectorized { arguments, writer: Writer::of_columns(py, &returns)? }, caller)
            }
        };
        let on_error: String = declared.getattr("on_error")?.extract()?;
        Ok(Self {
            callable: callable.unbind(),
            types,
            variadic,
            returns,
            admits_null: declared.getattr("admits_null")?.extract()?,
            kind,
            leniency: Leniency {
                retries: declared.getattr("retries")?.extract()?,
                on_error: on_error.parse().map_err(PyValueError::new_err)?,
            },
            memory_limit: declared.getattr("memory_limit")?.extract()?,
        })
    }

    fn answer(
        &self,
        py: Python<'py>,
        lane: &mut GuestLane,
        call: Call,
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        let limit = self.memory_limit.and_then(MemoryLimit::set);
        let mut mishaps = Mishaps::default();
        out.clear();
        let outcome = {
            let columns = lane.columns(self.types.iter())?;
            let progress = lane.progress();
            self.run(py, &columns, call, progress, &mut mishaps, out)
        };
        drop(limit);
        let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
        match outcome {
            Ok(Some(results)) => lane.succeed_after(call, &results, mishaps, wait),
            Ok(None) => lane.succeed_after(call, out, mishaps, wait),
            // Further calls may lie in the ring.
            Err(mishap) if ends_lane(py, &mishap.error) => Err(mishap.error),
            Err(mishap) => lane.fail_after(call, &describe(py, mishap.error)?, mishap.row, wait),
        }
    }

    /// Runs the function over a batch, into `out` or as the results that it returns.
    fn run(
        &self,
        py: Python<'py>,
        columns: &[Column<'_>],
        call: Call,
        progress: &ProgressWord,
        mishaps: &mut Mishaps,
        out: &mut ColumnBuilder,
    ) -> Result<Option<Results>, Mishap> {
        let rows = call.header.rows as usize;
        let sequence = call.header.exchange as u32;
        out.reserve(rows).map_err(overflow)?;
        // The columns whose NULLs the function does not want to see.
        let skipping: Vec<&Column<'_>> = columns
            .iter()
            .zip(&self.admits_null)
            .filter_map(|(column, admits)| (!admits && column.validity.is_some()).then_some(column))
            .collect();
        let live = Live::new(rows, &skipping);
        let writing = |row: usize| progress.set(sequence, row as u32 | WRITING);
        match &self.kind {
            Kind::Row { readers, writer, each } => {
                let batch = Batch { columns, readers, live: &live, progress, sequence };
                let mut failed = HashMap::new();
                let taken = Rows::new(py, writer.plain(), &live, out);
                let later = match each {
                    Some(each) => self.each(each, &batch, taken, &mut failed, mishaps)?,
                    None => self.one_by_one(py, &batch, taken, &mut failed, mishaps)?,
                };
                // How many of the rows that are called are in the column.
                let there = live.before(out.rows());
                while let Err((error, row)) = writer.write_all(&later, there, &live, out, writing) {
                    // What cannot be a result is a failed call like any other.
                    out.truncate(row);
                    let tries = failed.entry(row).or_default();
                    match self.forgive(py, (error, row).into(), tries, 1, mishaps)? {
                        Verdict::Again(_) => {
                            let value = self.again(py, &batch, row, tries, mishaps)?;
                            later.set_item(live.before(row) - there, value)?;
                        }
                        Verdict::Null => out.null(),
                    }
                }
                Ok(None)
            }
            Kind::Async { readers, writer } => {
                let arguments = PyList::empty(py);
                for row in 0..rows {
                    if !live.is_live(row) {
                        arguments.append(py.None())?;
                        continue;
                    }
                    match self.arguments(py, readers, columns, row) {
                        Ok(values) => arguments.append(values)?,
                        Err(error) => {
                            // Another try would read the same: there is none left.
                            let mut tries = self.leniency.retries;
                            self.forgive(py, (error, row).into(), &mut tries, 1, mishaps)?;
                            arguments.append(py.None())?;
                        }
                    }
                }
                let reported = Bound::new(py, Progress { word: progress.clone(), sequence })?;
                let run = |rows: &Bound<'py, PyList>, spent: u32, mishaps: &mut Mishaps| {
                    let outcome: (Bound<'py, PyList>, u32, HashMap<usize, u32>, Option<Failed<'py>>) =
                        self.callable.bind(py).call1((rows, &reported, spent))?.extract()?;
                    let (results, errors, tries, failed) = outcome;
                    mishaps.errors += errors;
                    mishaps.retries += tries.values().sum::<u32>();
                    match failed {
                        Some((row, error)) => Err(Mishap::from((PyErr::from_value(error), row))),
                        None => Ok((results, tries)),
                    }
                };
                let (results, tries) = run(&arguments, 0, mishaps)?;
                for (row, mut value) in results.iter().enumerate() {
                    let mut tries = tries.get(&row).copied().unwrap_or(0);
                    writing(row);
                    // What cannot be a result is a failed call like any other.
                    while let Err(error) = writer.write(&value, out) {
                        out.truncate(row);
                        match self.forgive(py, (error, row).into(), &mut tries, 1, mishaps)? {
                            Verdict::Again(_) => {
                                progress.set(sequence, row as u32);
                                let alone = PyList::new(py, [arguments.get_item(row)?])?;
                                let (results, more) = run(&alone, tries, mishaps)
                                    .map_err(|mishap| Mishap { row: Some(row), ..mishap })?;
                                tries += more.get(&0).copied().unwrap_or(0);
                                value = results.get_item(0)?;
                            }
                            Verdict::Null => {
                                out.null();
                                break;
                            }
                        }
                    }
                }
                if out.rows() != rows {
                    return Err(PyRuntimeError::new_err("the runner lost rows").into());
                }
                Ok(None)
            }
            Kind::Vectorized { arguments, writer } => {
                let attempt = |out: &mut ColumnBuilder| -> Result<Option<Results>, Mishap> {
                    let arrays = columns
                        .iter()
                        .zip(arguments)
                        .map(|(column, data_type)| arrow::to_pyarrow(column, data_type.bind(py)))
                        .collect::<PyResult<Vec<_>>>()?;
                    let result = self.callable.bind(py).call1((arrays, rows))?;
                    match result.cast::<PyList>() {
                        Ok(list) => {
                            let all = Live::new(list.len(), &[]);
                            writer.write_all(list, 0, &all, out, writing).map(|()| None).map_err(Mishap::from)
                        }
                        Err(_) => Ok(Some(Results::new(&result, &self.returns)?)),
                    }
                };
                let mut tries = 0;
                loop {
                    progress.set(sequence, u32::MAX);
                    let mishap = match attempt(out) {
                        Ok(results) => return Ok(results),
                        Err(mishap) => mishap,
                    };
                    out.clear();
                    match self.forgive(py, mishap, &mut tries, rows, mishaps)? {
                        Verdict::Again(_) => {}
                        Verdict::Null => {
                            (0..rows).for_each(|_| out.null());
                            return Ok(None);
                        }
                    }
                }
            }
        }
    }

    /// Calls the rows of a batch by the function's own loop. `failed` gets how often rows were tried again. Returns the
    /// results that are not in the column yet.
    fn each(
        &self,
        each: &Loop,
        batch: &Batch<'_, 'py>,
        results: Rows<'_, 'py>,
        failed: &mut HashMap<usize, u32>,
        mishaps: &mut Mishaps,
    ) -> Result<Bound<'py, PyList>, Mishap> {
        let (py, live) = (results.py(), batch.live);
        let arguments = batch.arguments(&self.admits_null);
        let mut cursor = Cursor::new(each, arguments, batch.progress, batch.sequence, results);
        let mut from = live.next(0);
        while from < live.rows() {
            let Err((error, row)) = cursor.run(from) else { break };
            if row == live.rows() {
                return Err(error.into());
            }
            let value = self.instead(py, batch, ((error, row).into(), row), failed, mishaps)?;
            cursor.results().push(row, &value)?;
            from = live.next(row + 1);
        }
        Ok(cursor.into_results().later())
    }

    /// As [`Function::each`], by one call after the other.
    fn one_by_one(
        &self,
        py: Python<'py>,
        batch: &Batch<'_, 'py>,
        mut results: Rows<'_, 'py>,
        failed: &mut HashMap<usize, u32>,
        mishaps: &mut Mishaps,
    ) -> Result<Bound<'py, PyList>, Mishap> {
        let arguments = batch.arguments(&self.admits_null);
        let mut caller = RowCaller::new(self.callable.bind(py), &arguments, self.variadic);
        let mut row = batch.live.next(0);
        while row < batch.live.rows() {
            batch.progress.set(batch.sequence, row as u32);
            match caller.call(row) {
                Ok(value) => results.push(row, &value)?,
                Err(error) => {
                    let failure = ((error, row).into(), row);
                    results.push(row, &self.instead(py, batch, failure, failed, mishaps)?)?;
                }
            }
            row = batch.live.next(row + 1);
        }
        Ok(results.later())
    }

    /// What a row's result is after its call failed: that of another try, or None.
    fn instead(
        &self,
        py: Python<'py>,
        batch: &Batch<'_, 'py>,
        (mishap, row): (Mishap, usize),
        failed: &mut HashMap<usize, u32>,
        mishaps: &mut Mishaps,
    ) -> Result<Bound<'py, PyAny>, Mishap> {
        let tries = failed.entry(row).or_default();
        match self.forgive(py, Mishap { row: Some(row), ..mishap }, tries, 1, mishaps)? {
            Verdict::Again(_) => self.again(py, batch, row, tries, mishaps),
            Verdict::Null => Ok(py.None().into_bound(py)),
        }
    }

    /// The result of a row that is called once more, and then as often as it may be; None if that does not help.
    fn again(
        &self,
        py: Python<'py>,
        batch: &Batch<'_, 'py>,
        row: usize,
        tries: &mut u32,
        mishaps: &mut Mishaps,
    ) -> Result<Bound<'py, PyAny>, Mishap> {
        let arguments = batch.arguments(&self.admits_null);
        let mut caller = RowCaller::new(self.callable.bind(py), &arguments, self.variadic);
        loop {
            batch.progress.set(batch.sequence, row as u32);
            let error = match caller.call(row) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if let Verdict::Null = self.forgive(py, (error, row).into(), tries, 1, mishaps)? {
                return Ok(py.None().into_bound(py));
            }
        }
    }

    /// The arguments of a row, those of a variadic function's list one by one.
    fn arguments(
        &self,
        py: Python<'py>,
        readers: &[Reader<'py>],
        columns: &[Column<'_>],
        row: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let vm = Vm::new(py);
        let values = readers.iter().zip(columns).map(|(reader, column)| reader.read(&vm, column, row));
        let mut values = values.collect::<PyResult<Vec<_>>>()?;
        if let Some(rest) = values.pop_if(|_| self.variadic) {
            values.extend(rest.cast::<PyList>()?.iter());
        }
        PyTuple::new(py, values)
    }

    /// What becomes of rows whose call failed, after `tries` more than the first: it pauses before another, and counts.
    /// The error itself if there is none, and the rows do not become NULL.
    fn forgive(
        &self,
        py: Python<'_>,
        mishap: Mishap,
        tries: &mut u32,
        rows: usize,
        mishaps: &mut Mishaps,
    ) -> Result<Verdict, Mishap> {
        forgive(py, self.leniency, mishap, tries, rows, mishaps)
    }
}

/// As [`Function::forgive`], for anything with such options.
pub(crate) fn forgive(
    py: Python<'_>,
    leniency: Leniency,
    mishap: Mishap,
    tries: &mut u32,
    rows: usize,
    mishaps: &mut Mishaps,
) -> Result<Verdict, Mishap> {
    if ends_lane(py, &mishap.error) {
        return Err(mishap);
    }
    let verdict = mishaps.judge(leniency, mishap, tries, rows)?;
    if let Verdict::Again(pause) = verdict {
        // It lets signals through.
        py.import(intern!(py, "time"))?.call_method1(intern!(py, "sleep"), (pause.as_secs_f64(),))?;
    }
    Ok(verdict)
}

/// The row whose call failed, and its exception.
type Failed<'py> = (usize, Bound<'py, PyAny>);

/// The pause in seconds before try `tries + 1`.
#[pyfunction]
pub(crate) fn backoff(tries: u32) -> f64 {
    crosslane::call::backoff(tries).as_secs_f64()
}

/// Tells the engine how many rows of a batch are done, so that it can tell slow from stuck.
#[pyclass(frozen)]
struct Progress {
    word: ProgressWord,
    sequence: u32,
}

#[pymethods]
impl Progress {
    fn __call__(&self, done: u32) {
        // The highest bit keeps a count from being taken for a row.
        self.word.set(self.sequence, done | COUNT);
    }
}
