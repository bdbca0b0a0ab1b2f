//! Calls of a function for one row after the other.

use super::callee::Callee;
use crate::declaration::Declaration;
use crate::lane::{CallError, Exchange};
use crate::loops::{Argument, Cursor, Loop, ResultWriter, RowCaller, RowResults, Selection};
use crate::values::Reader;
use crosslane::{ColumnBuilder, Verdict};
use crosslane_process::guest::Mishaps;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::HashMap;

/// What is prepared for calls of rows.
pub(crate) struct RowCalls<'py> {
    readers: Vec<Reader<'py>>,
    writer: ResultWriter<'py>,
    /// The function's own loop. A function without parameters, or with any number of them, has
    /// none.
    each: Option<Loop>,
}

/// The rows of a batch that are called.
struct Batch<'a, 'py> {
    calls: &'a RowCalls<'py>,
    callee: &'a Callee,
    exchange: &'a Exchange<'a>,
    selection: &'a Selection,
}

/// The failed calls of a batch.
struct Failures<'a> {
    /// How often rows were tried again.
    tries: HashMap<usize, u32>,
    mishaps: &'a mut Mishaps,
}

impl<'py> RowCalls<'py> {
    pub(crate) fn new(declared: &Bound<'py, PyAny>, declaration: &Declaration<'py>) -> PyResult<Self> {
        let (py, signature) = (declared.py(), &declaration.signature);
        let hint = declared.getattr("result_shape")?.extract()?;
        let writer = ResultWriter::new(py, &signature.returns, hint)?;
        let count = signature.parameters.len();
        let each = if signature.variadic || count == 0 {
            None
        } else {
            let make = py.import("crosslane._loop")?.getattr("make")?;
            Some(Loop::new(&make.call1((declared, count))?)?)
        };
        Ok(Self { readers: declaration.readers(py)?, writer, each })
    }

    /// Calls the function for the rows of a batch, and writes the results.
    pub(crate) fn run(
        &self,
        py: Python<'py>,
        callee: &Callee,
        exchange: &Exchange<'_>,
        selection: &Selection,
        mishaps: &mut Mishaps,
        out: &mut ColumnBuilder,
    ) -> Result<(), CallError> {
        let batch = Batch { calls: self, callee, exchange, selection };
        let mut failures = Failures { tries: HashMap::new(), mishaps };
        let results = RowResults::new(py, self.writer.fast_path(), selection, out);
        let later = match &self.each {
            Some(each) => batch.loop_rows(each, results, &mut failures)?,
            None => batch.call_rows(py, results, &mut failures)?,
        };
        // How many of the called rows have a result in the column.
        let written = selection.count_before(out.rows());
        let tell = |row| exchange.tell_written(row);
        while let Err((error, row)) = self.writer.write_all(&later, written, selection, out, tell) {
            // What cannot be a result is a failed call like any other.
            out.truncate(row);
            let tries = failures.tries.entry(row).or_default();
            match callee.forgive(py, (error, row).into(), tries, 1, failures.mishaps)? {
                Verdict::Again(_) => {
                    let value = batch.call_again(py, row, tries, failures.mishaps)?;
                    later.set_item(selection.count_before(row) - written, value)?;
                }
                Verdict::Null => out.null(),
            }
        }
        Ok(())
    }
}

impl<'a, 'py> Batch<'a, 'py> {
    fn arguments(&self) -> Vec<Argument<'a, 'py>> {
        Argument::all(&self.calls.readers, self.exchange.columns, &self.callee.admits_null).collect()
    }

    fn caller<'b>(&'b self, py: Python<'py>, arguments: &'b [Argument<'b, 'py>]) -> RowCaller<'b, 'py> {
        RowCaller::new(self.callee.callable.bind(py), arguments, self.callee.variadic)
    }

    /// Calls the rows of a batch by the function's own loop. Returns the results that are not in
    /// the column yet.
    fn loop_rows(
        &self,
        each: &Loop,
        results: RowResults<'_, 'py>,
        failures: &mut Failures<'_>,
    ) -> Result<Bound<'py, PyList>, CallError> {
        let (py, selection) = (results.py(), self.selection);
        let (progress, sequence) = (self.exchange.progress, self.exchange.sequence());
        let mut cursor = Cursor::new(each, self.arguments(), progress, sequence, results);
        let mut from = selection.next(0);
        while from < selection.rows() {
            let Err((error, row)) = cursor.run(from) else { break };
            if row == selection.rows() {
                return Err(error.into());
            }
            let value = self.replacement(py, error, row, failures)?;
            cursor.results().push(row, &value)?;
            from = selection.next(row + 1);
        }
        Ok(cursor.into_results().later())
    }

    /// As [`Batch::loop_rows`], by one call after the other.
    fn call_rows(
        &self,
        py: Python<'py>,
        mut results: RowResults<'_, 'py>,
        failures: &mut Failures<'_>,
    ) -> Result<Bound<'py, PyList>, CallError> {
        let arguments = self.arguments();
        let mut caller = self.caller(py, &arguments);
        let mut row = self.selection.next(0);
        while row < self.selection.rows() {
            self.exchange.tell(row as u32);
            match caller.call(row) {
                Ok(value) => results.push(row, &value)?,
                Err(error) => results.push(row, &self.replacement(py, error, row, failures)?)?,
            }
            row = self.selection.next(row + 1);
        }
        Ok(results.later())
    }

    /// The result of a row whose call failed: that of another try, or None.
    fn replacement(
        &self,
        py: Python<'py>,
        error: PyErr,
        row: usize,
        failures: &mut Failures<'_>,
    ) -> Result<Bound<'py, PyAny>, CallError> {
        let tries = failures.tries.entry(row).or_default();
        match self.callee.forgive(py, (error, row).into(), tries, 1, failures.mishaps)? {
            Verdict::Again(_) => self.call_again(py, row, tries, failures.mishaps),
            Verdict::Null => Ok(py.None().into_bound(py)),
        }
    }

    /// Calls a row once more, and then as often as the function may be tried. Returns None if all
    /// tries fail.
    fn call_again(
        &self,
        py: Python<'py>,
        row: usize,
        tries: &mut u32,
        mishaps: &mut Mishaps,
    ) -> Result<Bound<'py, PyAny>, CallError> {
        let arguments = self.arguments();
        let mut caller = self.caller(py, &arguments);
        loop {
            self.exchange.tell(row as u32);
            let error = match caller.call(row) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if let Verdict::Null = self.callee.forgive(py, (error, row).into(), tries, 1, mishaps)? {
                return Ok(py.None().into_bound(py));
            }
        }
    }
}
