//! Calls of an `async` function for several rows at once.

use super::batch::Batch;
use crate::declaration::Declaration;
use crate::lane::{CallError, CallResult};
use crate::loops::ResultWriter;
use crate::values::{Reader, Vm};
use crosslane::lane::COUNT;
use crosslane::{ColumnBuilder, Verdict};
use crosslane_ring::ProgressWord;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::collections::HashMap;
use std::time::Duration;

/// Calls by a `crosslane._worker.coroutines.Runner`, which gets the arguments of all rows.
pub(crate) struct ConcurrentCalls<'py> {
    readers: Vec<Reader<'py>>,
    writer: ResultWriter<'py>,
}

/// The row whose call failed, and its exception.
type Failed<'py> = (usize, Bound<'py, PyAny>);

impl<'py> ConcurrentCalls<'py> {
    pub(crate) fn new(declared: &Bound<'py, PyAny>, declaration: &Declaration<'py>) -> PyResult<Self> {
        let py = declared.py();
        let hint = declared.getattr("result_shape")?.extract()?;
        let writer = ResultWriter::new(py, &declaration.signature.returns, hint)?;
        Ok(Self { readers: declaration.readers(py)?, writer })
    }

    pub(crate) fn run(&self, batch: &Batch<'_, 'py>, out: &mut ColumnBuilder) -> CallResult {
        let Batch { py, callee, exchange, ref selection } = *batch;
        let arguments = PyList::empty(py);
        for row in 0..exchange.rows() {
            if !selection.contains(row) {
                arguments.append(py.None())?;
                continue;
            }
            match self.arguments(batch, row) {
                Ok(values) => arguments.append(values)?,
                Err(error) => {
                    // Another try would read the same, so there is none left.
                    let mut tries = callee.declaration.error_policy.retries;
                    batch.retry_or_null((error, row).into(), &mut tries, 1)?;
                    arguments.append(py.None())?;
                }
            }
        }
        let progress = Progress { word: exchange.progress.clone(), sequence: exchange.sequence() };
        let reported = Bound::new(py, progress)?;
        let run = |rows: &Bound<'py, PyList>, spent: u32| {
            let outcome: (Bound<'py, PyList>, u32, HashMap<usize, u32>, Option<Failed<'py>>) =
                callee.callable.call1((rows, &reported, spent))?.extract()?;
            let (results, errors, tries, failed) = outcome;
            let mut row_counts = exchange.row_counts.borrow_mut();
            row_counts.errors += errors;
            row_counts.retries += tries.values().sum::<u32>();
            match failed {
                Some((row, error)) => Err(CallError::from((PyErr::from_value(error), row))),
                None => Ok((results, tries)),
            }
        };
        let (results, tries) = run(&arguments, 0)?;
        for (row, mut value) in results.iter().enumerate() {
            let mut tries = tries.get(&row).copied().unwrap_or(0);
            exchange.tell_written(row);
            // A value that cannot be a result is a failed call like any other.
            while let Err(error) = self.writer.write(&value, out) {
                out.truncate(row);
                match batch.retry_or_null((error, row).into(), &mut tries, 1)? {
                    Verdict::Again(_) => {
                        exchange.tell(row as u32);
                        let alone = PyList::new(py, [arguments.get_item(row)?])?;
                        let (results, more) =
                            run(&alone, tries).map_err(|error| CallError { row: Some(row), ..error })?;
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
        if out.rows() != exchange.rows() {
            return Err(PyRuntimeError::new_err("the runner lost rows").into());
        }
        Ok(())
    }

    /// The arguments of a row. The elements of a variadic function's list are arguments of their
    /// own.
    fn arguments(&self, batch: &Batch<'_, 'py>, row: usize) -> PyResult<Bound<'py, PyTuple>> {
        let vm = Vm::new(batch.py);
        let values = self.readers.iter().zip(batch.exchange.columns);
        let values = values.map(|(reader, column)| reader.read(&vm, column, row));
        let mut values = values.collect::<PyResult<Vec<_>>>()?;
        if let Some(rest) = values.pop_if(|_| batch.callee.declaration.signature.variadic) {
            values.extend(rest.cast::<PyList>()?.iter());
        }
        PyTuple::new(batch.py, values)
    }
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
        // The highest bit marks a count, which is not the number of a row.
        self.word.set(self.sequence, done | COUNT);
    }

    /// Tells the engine that a row waits for so many seconds before it is called again.
    fn rest(&self, seconds: f64) {
        self.word.rest(Duration::from_secs_f64(seconds));
    }
}
