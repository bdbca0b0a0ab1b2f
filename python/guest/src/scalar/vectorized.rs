//! Calls of a function with whole columns.

use super::batch::Batch;
use super::columns::ColumnCalls;
use crate::arrow::{self, Direction, Results};
use crate::declaration::Declaration;
use crate::lane::CallResult;
use crate::loops::{ResultWriter, Selection};
use crosslane::{ColumnBuilder, Verdict};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Calls with a pyarrow array for each column. `crosslane._worker.vectors.Caller` turns them into what the
/// function takes. It returns an array, or a list for the writer.
pub(crate) struct VectorizedCalls<'py> {
    /// The pyarrow types of the arguments.
    arguments: Vec<Py<PyAny>>,
    writer: ResultWriter<'py>,
    /// The user's function of rows as a program over columns, if an engine calls one.
    columns: Option<Box<ColumnCalls>>,
}

impl<'py> VectorizedCalls<'py> {
    /// The calls, and the `Caller`.
    pub(crate) fn new(
        declared: &Bound<'py, PyAny>,
        declaration: &Declaration<'_>,
    ) -> PyResult<(Self, Bound<'py, PyAny>)> {
        let (py, signature) = (declared.py(), &declaration.signature);
        let types = signature.parameters.iter().map(|field| &field.data_type);
        let arguments = types
            .map(|data_type| Ok(arrow::pyarrow_type(py, data_type, Direction::Argument)?.unbind()))
            .collect::<PyResult<_>>()?;
        let result = arrow::pyarrow_type(py, &signature.returns, Direction::Result)?;
        let caller = py.import("crosslane._worker.vectors")?.getattr("Caller")?.call1((declared, result))?;
        let columns = ColumnCalls::new(declared, declaration, usize::MAX)?.map(Box::new);
        Ok((Self { arguments, writer: ResultWriter::of_columns(py, &signature.returns)?, columns }, caller))
    }

    /// Calls the function for a batch, until that succeeds or there is no other try.
    pub(super) fn run(&self, batch: &Batch<'_, 'py>, out: &mut ColumnBuilder) -> CallResult<Option<Results>> {
        if let Some(columns) = &self.columns
            && columns.is_usable(batch.py)?
        {
            if columns.run(batch, out)?.is_none() {
                return Ok(None);
            }
            out.clear();
            batch.exchange.row_counts.borrow_mut().by_columns = 0;
        }
        let rows = batch.exchange.rows();
        let mut tries = 0;
        loop {
            batch.exchange.tell(u32::MAX);
            let error = match self.call(batch, out) {
                Ok(results) => return Ok(results),
                Err(error) => error,
            };
            out.clear();
            if let Verdict::Null = batch.retry_or_null(error, &mut tries, rows)? {
                (0..rows).for_each(|_| out.null());
                return Ok(None);
            }
        }
    }

    fn call(&self, batch: &Batch<'_, 'py>, out: &mut ColumnBuilder) -> CallResult<Option<Results>> {
        let Batch { py, callee, exchange, .. } = batch;
        let arrays = exchange.columns.iter().zip(&self.arguments);
        let arrays = arrays.map(|(column, data_type)| arrow::to_pyarrow(column, data_type.bind(*py)));
        let arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        let result = callee.callable.call1((arrays, exchange.rows()))?;
        let Ok(list) = result.cast::<PyList>() else {
            return Ok(Some(Results::new(&result, &callee.declaration.signature.returns)?));
        };
        let all = Selection::all(list.len());
        self.writer.write_all(list, 0, &all, out, |row| exchange.tell_written(row))?;
        Ok(None)
    }
}
