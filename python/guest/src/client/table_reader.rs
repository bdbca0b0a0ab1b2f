//! The rows of a table function that a client reads.

use super::reading::{Reading, check_process};
use super::stop_signal::StopSignal;
use crate::stream::BatchType;
use crosslane::call::{CallGroup, Caller};
use crosslane_remote::session::Table;
use pyo3::prelude::*;
use std::sync::Arc;

/// The rows of a table function that were not taken yet. It has the methods of [`super::Map`], and
/// takes no input.
#[pyclass(frozen)]
pub(crate) struct TableReader {
    reading: Reading<(Table, CallGroup)>,
    columns: String,
}

impl TableReader {
    pub(super) fn new(table: Table, group: CallGroup, stop: Arc<StopSignal>, process: u32) -> Self {
        let columns = table.columns().to_string();
        Self { reading: Reading::new((table, group), stop, process), columns }
    }
}

#[pymethods]
impl TableReader {
    /// The next rows as a StructArray; None if there are no more.
    fn next<'py>(&self, _pull: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = _pull.py();
        check_process(self.reading.process)?;
        let rows = self.reading.next(py, |(table, group), stop| {
            if stop.is_due() {
                return Err(stop.cancelled());
            }
            py.detach(|| table.next(Caller::new(group, 1))).map_err(|error| stop.raise(&error))
        })?;
        let Some(rows) = rows else { return Ok(None) };
        let column = rows.column();
        BatchType::new(py, column.data_type.clone())?.to_pyarrow(py, &column).map(Some)
    }

    /// Whether the table was read, and its lane given back.
    #[getter]
    fn is_over(&self) -> bool {
        self.reading.is_over()
    }

    /// The columns, such as `STRUCT(a BIGINT)`.
    fn columns(&self) -> &str {
        &self.columns
    }

    /// Ends it. If a thread waits for rows, it ends when that thread has seen this.
    fn close(&self, py: Python<'_>) {
        self.reading.close(py);
    }
}
