//! The guest's loop: take a batch, call the function, answer.

use crate::arrow::{self, Direction, Results};
use crate::iterate::{Source, Values};
use crate::reader::Reader;
use crate::row::{Argument, RowCaller};
use crate::writer::Writer;
use crosslane::batch::{Column, Encode, Plan, bit};
use crosslane::{ColumnBuilder, DataType, Failure, Signature};
use crosslane_process::guest::{Call, GuestLane, Mishaps};
use crosslane_process::limits::MemoryLimit;
use crosslane_ring::Control;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// The first pause before a failed call is tried again; it doubles with each try.
const BACKOFF: f64 = 0.05;

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
    // SAFETY: the zygote received both descriptors for this lane and gives them away here.
    let (memory, socket) = unsafe { (OwnedFd::from_raw_fd(memory), OwnedFd::from_raw_fd(socket)) };
    let mut lane = GuestLane::open(memory, socket, Duration::from_micros(spin_microseconds))?;
    let mut prepared: Vec<Option<(Function, ColumnBuilder)>> = functions.iter().map(|_| None).collect();
    loop {
        let Some(call) = py.detach(|| lane.next_call())? else { return Ok(()) };
        let index = call.header.function as usize;
        let Some(declared) = functions.get(index) else {
            return Err(PyOSError::new_err(format!("a call of function {index} of {}", functions.len())));
        };
        if prepared[index].is_none() {
            match Function::new(declared) {
                Ok(function) => {
                    let out = ColumnBuilder::new(&function.returns);
                    prepared[index] = Some((function, out));
                }
                Err(error) => {
                    lane.fail(call, &describe(py, error, declared)?, None)?;
                    continue;
                }
            }
        }
        let Some((function, out)) = &mut prepared[index] else { continue };
        function.answer(py, &mut lane, call, declared, out)?;
    }
}

/// An exception as the engine's users should read it.
fn describe(py: Python<'_>, error: PyErr, declared: &Bound<'_, PyAny>) -> PyResult<Failure> {
    let file = declared.getattr(intern!(py, "file"))?;
    let describe = py.import("crosslane._errors")?.getattr("describe")?;
    let (class, message, traceback) = describe.call1((error.into_value(py), file))?.extract()?;
    Ok(Failure { class, message, traceback, ..Failure::default() })
}

/// What went wrong, and for which row if one is to blame.
struct Mishap {
    error: PyErr,
    row: Option<usize>,
}

impl From<PyErr> for Mishap {
    fn from(error: PyErr) -> Self {
        Mishap { error, row: None }
    }
}

struct Function {
    callable: Py<PyAny>,
    types: Vec<DataType>,
    returns: DataType,
    admits_null: Vec<bool>,
    kind: Kind,
    null_on_error: bool,
    retries: u32,
    memory_limit: Option<u64>,
}

enum Kind {
    /// Called per row.
    /// A function of one parameter goes through `each`, a comprehension of its own.
    Row { readers: Vec<Reader>, writer: Writer, each: Py<PyAny> },
    /// A runner that calls an `async` function for many rows at once.
    Async { readers: Vec<Reader>, writer: Writer },
    /// Called per batch, with pyarrow arrays (which its wrapper turns into what it wants).
    Vectorized { arguments: Vec<Py<PyAny>> },
}

impl Function {
    fn new(declared: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = declared.py();
        let signature: String = declared.getattr("signature")?.extract()?;
        let signature: Signature = signature.parse().map_err(crate::value_error)?;
        let types: Vec<DataType> = signature.parameters.into_iter().map(|field| field.data_type).collect();
        let returns = signature.returns;
        let shapes: Vec<Option<Bound<'_, PyTuple>>> = declared.getattr("shapes")?.extract()?;
        let result_shape: Option<Bound<'_, PyTuple>> = declared.getattr("result_shape")?.extract()?;
        let readers = || -> PyResult<Vec<Reader>> {
            types.iter().zip(&shapes).map(|(data_type, shape)| Reader::new(py, data_type, shape)).collect()
        };
        let kind: String = declared.getattr("kind")?.extract()?;
        let (kind, callable) = match kind.as_str() {
            "row" => {
                let writer = Writer::new(py, &returns, &result_shape)?;
                let each = py.import("crosslane._loop")?.call_method0("make")?.unbind();
                let kind = Kind::Row { readers: readers()?, writer, each };
                (kind, declared.getattr("callable")?)
            }
            "async" => {
                let kind =
                    Kind::Async { readers: readers()?, writer: Writer::new(py, &returns, &result_shape)? };
                (kind, py.import("crosslane._async")?.getattr("Runner")?.call1((declared,))?)
            }
            _ => {
                let arguments = types
                    .iter()
                    .map(|data_type| Ok(arrow::pyarrow_type(py, data_type, Direction::Argument)?.unbind()))
                    .collect::<PyResult<_>>()?;
                let result = arrow::pyarrow_type(py, &returns, Direction::Result)?;
                let caller = py.import("crosslane._vectors")?.getattr("Caller")?.call1((declared, result))?;
                (Kind::Vectorized { arguments }, caller)
            }
        };
        let on_error: String = declared.getattr("on_error")?.extract()?;
        Ok(Self {
            callable: callable.unbind(),
            types,
            returns,
            admits_null: declared.getattr("admits_null")?.extract()?,
            kind,
            null_on_error: on_error == "null",
            retries: declared.getattr("retries")?.extract()?,
            memory_limit: declared.getattr("memory_limit")?.extract()?,
        })
    }

    fn answer(
        &self,
        py: Python<'_>,
        lane: &mut GuestLane,
        call: Call,
        declared: &Bound<'_, PyAny>,
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        let limit = self.memory_limit.and_then(MemoryLimit::set);
        let mut mishaps = Mishaps::default();
        out.clear();
        let outcome = {
            let columns = lane.columns(self.types.iter())?;
            let control = lane.control();
            self.run(py, &columns, call, control, &mut mishaps, out)
        };
        drop(limit);
        // The engine may be slow to take its replies, and other threads of this process have work to do.
        let mut plan = Plan::default();
        match &outcome {
            Ok(Some(results)) => results.plan(&mut plan),
            Ok(None) => out.plan(&mut plan),
            Err(_) => {}
        }
        py.detach(|| lane.wait_for_room(plan.size()))?;
        match outcome {
            Ok(Some(results)) => lane.succeed(call, &results, mishaps)?,
            Ok(None) => lane.succeed(call, out, mishaps)?,
            Err(mishap) => lane.fail(call, &describe(py, mishap.error, declared)?, mishap.row)?,
        }
        Ok(())
    }

    /// Runs the function over a batch, into `out` or as the results that it returns.
    fn run(
        &self,
        py: Python<'_>,
        columns: &[Column<'_>],
        call: Call,
        control: &Control,
        mishaps: &mut Mishaps,
        out: &mut ColumnBuilder,
    ) -> Result<Option<Results>, Mishap> {
        let rows = call.header.rows as usize;
        let sequence = call.header.sequence as u32;
        // The columns whose NULLs the function does not want to see.
        let skipping: Vec<&Column<'_>> = columns
            .iter()
            .zip(&self.admits_null)
            .filter_map(|(column, admits)| (!admits && column.validity.is_some()).then_some(column))
            .collect();
        match &self.kind {
            Kind::Row { readers, writer, each }
                if columns.len() == 1 && skipping.is_empty() && self.retries == 0 && !self.null_on_error =>
            {
                let argument = Argument::new(&readers[0], &columns[0], self.admits_null[0]);
                let mut source = Source { argument, rows, control, sequence, begun: 0 };
                // SAFETY: the source stays here, untouched, until the iterator is closed.
                let values = unsafe { Values::open(py, &mut source)? };
                let results = each.bind(py).call1((self.callable.bind(py), values.object()));
                values.close();
                let blame = |error: PyErr, row: usize| Mishap { error, row: Some(row) };
                let results = results.map_err(|error| blame(error, source.begun.saturating_sub(1)))?;
                let results = results.cast::<PyList>().map_err(PyErr::from)?;
                writer.write_all(results, out).map_err(|(error, row)| blame(error, row))?;
                Ok(None)
            }
            Kind::Row { readers, writer, .. } => {
                let mut caller = RowCaller::new(self.callable.bind(py), readers, columns, &self.admits_null);
                for row in 0..rows {
                    if skipping.iter().any(|column| !column.is_valid(row)) {
                        out.null();
                        continue;
                    }
                    control.set_progress(sequence, row as u32);
                    let mut tries = 0;
                    loop {
                        let outcome = caller.call(row).and_then(|value| writer.write(&value, out));
                        let Err(error) = outcome else { break };
                        out.truncate(row);
                        if tries < self.retries {
                            pause(py, tries)?;
                            tries += 1;
                            mishaps.retries += 1;
                        } else if self.null_on_error {
                            mishaps.errors += 1;
                            out.null();
                            break;
                        } else {
                            return Err(Mishap { error, row: Some(row) });
                        }
                    }
                }
                Ok(None)
            }
            Kind::Async { readers, writer } => {
                let arguments = PyList::empty(py);
                for row in 0..rows {
                    if skipping.iter().any(|column| !column.is_valid(row)) {
                        arguments.append(py.None())?;
                        continue;
                    }
                    let values =
                        readers.iter().zip(columns).map(|(reader, column)| reader.read(py, column, row));
                    let values: PyResult<Vec<_>> = values.collect();
                    let values = values.map_err(|error| Mishap { error, row: Some(row) })?;
                    arguments.append(PyTuple::new(py, values)?)?;
                }
                let progress = Bound::new(py, Progress { control: control.clone(), sequence })?;
                let run = self.callable.bind(py).call1((arguments, progress));
                let (results, errors, retries): (Bound<'_, PyList>, u32, u32) = match run {
                    Ok(outcome) => outcome.extract()?,
                    Err(error) => {
                        let row = error.value(py).getattr(intern!(py, "__crosslane_row__"));
                        let row = row.ok().and_then(|row| row.extract().ok());
                        return Err(Mishap { error, row });
                    }
                };
                *mishaps = Mishaps { errors, retries };
                for (row, value) in results.iter().enumerate() {
                    if let Err(error) = writer.write(&value, out) {
                        out.truncate(row);
                        if !self.null_on_error {
                            return Err(Mishap { error, row: Some(row) });
                        }
                        mishaps.errors += 1;
                        out.null();
                    }
                }
                if out.rows() != rows {
                    return Err(PyRuntimeError::new_err("the runner lost rows").into());
                }
                Ok(None)
            }
            Kind::Vectorized { arguments } => {
                control.set_progress(sequence, u32::MAX);
                let mask = mask(&skipping, rows);
                let mut tries = 0;
                loop {
                    let attempt = || -> PyResult<Results> {
                        let arrays = columns
                            .iter()
                            .zip(arguments)
                            .map(|(column, data_type)| arrow::to_pyarrow(column, data_type.bind(py)))
                            .collect::<PyResult<Vec<_>>>()?;
                        let array = self.callable.bind(py).call1((arrays, rows))?;
                        Results::new(&array, &self.returns, mask.as_deref())
                    };
                    match attempt() {
                        Ok(results) => return Ok(Some(results)),
                        Err(_) if tries < self.retries => {
                            pause(py, tries)?;
                            tries += 1;
                            mishaps.retries += 1;
                        }
                        Err(_) if self.null_on_error => {
                            mishaps.errors += rows as u32;
                            (0..rows).for_each(|_| out.null());
                            return Ok(None);
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }
}

/// A bitmap of the rows in which no column is NULL; `None` if there are no NULLs at all.
fn mask(columns: &[&Column<'_>], rows: usize) -> Option<Vec<u8>> {
    let mut mask = vec![0xFF; rows.div_ceil(8)];
    let validities: Vec<&[u8]> = columns.iter().filter_map(|column| column.validity).collect();
    for validity in &validities {
        mask.iter_mut().zip(*validity).for_each(|(mask, byte)| *mask &= byte);
    }
    let any = (0..rows).any(|row| !bit(&mask, row));
    (any && !validities.is_empty()).then_some(mask)
}

/// Waits before another try, and lets signals through.
fn pause(py: Python<'_>, tries: u32) -> PyResult<()> {
    let seconds = BACKOFF * f64::from(2u32.saturating_pow(tries.min(6)));
    py.import(intern!(py, "time"))?.call_method1(intern!(py, "sleep"), (seconds,))?;
    Ok(())
}

/// Tells the engine how many rows of a batch are done, so that it can tell slow from stuck.
#[pyclass(frozen)]
struct Progress {
    control: Control,
    sequence: u32,
}

#[pymethods]
impl Progress {
    fn __call__(&self, done: u32) {
        // The highest bit keeps a count from being taken for a row.
        self.control.set_progress(self.sequence, done | 1 << 31);
    }
}
