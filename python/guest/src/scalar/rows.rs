//! Calls of a function for one row after the other.

use super::batch::Batch;
use super::columns::{ColumnCalls, MANY};
use crate::declaration::Declaration;
use crate::lane::CallResult;
use crate::loops::{Argument, Cursor, Loop, ResultWriter, RowResults};
use crate::values::Reader;
use crosslane::{ColumnBuilder, Verdict};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::collections::HashMap;

/// The parts that calls of rows need.
pub(crate) struct RowCalls<'py> {
    readers: Vec<Reader<'py>>,
    writer: ResultWriter<'py>,
    /// The function's own loop. A function without parameters, or with any number of them, has
    /// none.
    row_loop: Option<Loop>,
    /// The function as a program over columns, if it can be one.
    columns: Option<Box<ColumnCalls>>,
}

/// How often rows of a batch were tried again.
type Tries = HashMap<usize, u32>;

impl<'py> RowCalls<'py> {
    pub(crate) fn new(declared: &Bound<'py, PyAny>, declaration: &Declaration<'py>) -> PyResult<Self> {
        let (py, signature) = (declared.py(), &declaration.signature);
        let hint = declared.getattr("result_shape")?.extract()?;
        let writer = ResultWriter::new(py, &signature.returns, hint)?;
        let count = signature.parameters.len();
        let row_loop = if signature.variadic || count == 0 {
            None
        } else {
            let make = py.import("crosslane._worker.loops")?.getattr("make")?;
            Some(Loop::new(&make.call1((declared, count))?)?)
        };
        let columns = if row_loop.is_some() {
            ColumnCalls::new(declared, declaration, MANY)?.map(Box::new)
        } else {
            None
        };
        Ok(Self { readers: declaration.readers(py)?, writer, row_loop, columns })
    }

    /// Computes the results of a batch, and writes them.
    pub(super) fn run(&self, batch: Batch<'_, 'py>, out: &mut ColumnBuilder) -> CallResult {
        match &self.columns {
            Some(columns) if columns.is_usable(batch.py)? => {
                let Some(left) = columns.run(&batch, out)? else { return Ok(()) };
                let mut called = columns.results();
                let selection = batch.selection.only(left.clone());
                self.call(&Batch { selection, ..batch }, &mut called)?;
                columns.merge(&left, &called, out)
            }
            _ => self.call(&batch, out),
        }
    }

    /// Calls the function for the rows of a batch, and writes the results.
    fn call(&self, batch: &Batch<'_, 'py>, out: &mut ColumnBuilder) -> CallResult {
        let selection = &batch.selection;
        let mut tries = Tries::new();
        let results = RowResults::new(batch.py, self.writer.fast_path(), selection, out);
        let deferred = match &self.row_loop {
            Some(row_loop) => self.loop_rows(batch, row_loop, results, &mut tries)?,
            None => self.call_rows(batch, results, &mut tries)?,
        };
        // How many of the called rows have a result in the column.
        let written = selection.count_before(out.rows());
        let tell = |row| batch.exchange.tell_written(row);
        while let Err((error, row)) = self.writer.write_all(&deferred, written, selection, out, tell) {
            // A value that cannot be a result is a failed call like any other.
            out.truncate(row);
            let tries = tries.entry(row).or_default();
            match batch.retry_or_null((error, row).into(), tries, 1)? {
                Verdict::Again(_) => {
                    let value = self.call_again(batch, row, tries)?;
                    deferred.set_item(selection.count_before(row) - written, value)?;
                }
                Verdict::Null => out.null(),
            }
        }
        Ok(())
    }

    fn arguments<'a>(&'a self, batch: &'a Batch<'_, 'py>) -> Vec<Argument<'a, 'py>> {
        Argument::all(&self.readers, batch.exchange.columns, &batch.callee.declaration.admits_null).collect()
    }

    /// Calls the rows of a batch by the function's own loop. Returns the results that are not in
    /// the column yet.
    fn loop_rows(
        &self,
        batch: &Batch<'_, 'py>,
        row_loop: &Loop,
        results: RowResults<'_, 'py>,
        tries: &mut Tries,
    ) -> CallResult<Bound<'py, PyList>> {
        let Batch { exchange, selection, .. } = batch;
        let arguments = self.arguments(batch);
        let mut cursor = Cursor::new(row_loop, arguments, exchange.progress, exchange.sequence(), results);
        let mut from = selection.next(0);
        while from < selection.rows() {
            let Err((error, row)) = cursor.run(from) else { break };
            if row == selection.rows() {
                return Err(error.into());
            }
            let value = self.replacement(batch, error, row, tries)?;
            cursor.results().push(row, &value)?;
            from = selection.next(row + 1);
        }
        Ok(cursor.into_results().deferred())
    }

    /// As [`RowCalls::loop_rows`], by one call after the other.
    fn call_rows(
        &self,
        batch: &Batch<'_, 'py>,
        mut results: RowResults<'_, 'py>,
        tries: &mut Tries,
    ) -> CallResult<Bound<'py, PyList>> {
        let Batch { callee, exchange, selection, .. } = batch;
        let arguments = self.arguments(batch);
        let mut caller = callee.caller(&arguments);
        let mut row = selection.next(0);
        while row < selection.rows() {
            exchange.tell(row as u32);
            match caller.call(row) {
                Ok(value) => results.push(row, &value)?,
                Err(error) => results.push(row, &self.replacement(batch, error, row, tries)?)?,
            }
            row = selection.next(row + 1);
        }
        Ok(results.deferred())
    }

    /// The result of a row whose call failed: the result of another try, or None.
    fn replacement(
        &self,
        batch: &Batch<'_, 'py>,
        error: PyErr,
        row: usize,
        tries: &mut Tries,
    ) -> CallResult<Bound<'py, PyAny>> {
        let tries = tries.entry(row).or_default();
        match batch.retry_or_null((error, row).into(), tries, 1)? {
            Verdict::Again(_) => self.call_again(batch, row, tries),
            Verdict::Null => Ok(batch.py.None().into_bound(batch.py)),
        }
    }

    /// Calls a row once more, and then as often as the function may be tried. Returns None if all
    /// tries fail.
    fn call_again(
        &self,
        batch: &Batch<'_, 'py>,
        row: usize,
        tries: &mut u32,
    ) -> CallResult<Bound<'py, PyAny>> {
        let Batch { py, callee, exchange, .. } = batch;
        let arguments = self.arguments(batch);
        let mut caller = callee.caller(&arguments);
        loop {
            exchange.tell(row as u32);
            let error = match caller.call(row) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if let Verdict::Null = batch.retry_or_null((error, row).into(), tries, 1)? {
                return Ok(py.None().into_bound(*py));
            }
        }
    }
}
