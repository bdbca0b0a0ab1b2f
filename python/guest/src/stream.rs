//! Batches of a stream, as a lane answers them: a batch of Arrow in, any number of batches out.

use crate::arrow::{self, Direction, Results};
use crate::serve::{describe, ends_lane, wait_for_room};
use crosslane::batch::{Body, Encode, Plan};
use crosslane::call::{map_types, table_of};
use crosslane::{DataType, Instances};
use crosslane_process::guest::{Call, Emitted, GuestLane, Mishaps};
use crosslane_process::limits::MemoryLimit;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// The pyarrow type of the batches of a table, whose columns a text such as `STRUCT(a BIGINT, b VARCHAR)` says.
///
/// Raises ValueError if it is no SQL type.
#[pyfunction]
pub(crate) fn table_type<'py>(py: Python<'py>, columns: &str) -> PyResult<Bound<'py, PyAny>> {
    let table: DataType = columns.parse().map_err(crate::value_error)?;
    arrow::pyarrow_type(py, &table, Direction::Argument)
}

/// A table whose batches travel: its columns, the same as text, and the pyarrow type of a batch.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) columns: DataType,
    pub(crate) text: Arc<str>,
    arrow: Py<PyAny>,
}

impl Table {
    fn new(py: Python<'_>, columns: DataType) -> PyResult<Self> {
        let text = map_types(&columns).into();
        let arrow = arrow::pyarrow_type(py, &columns, Direction::Argument)?.unbind();
        Ok(Self { columns, text, arrow })
    }

    pub(crate) fn to_pyarrow<'py>(
        &self,
        py: Python<'py>,
        column: &crosslane::batch::Column<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        arrow::to_pyarrow(column, self.arrow.bind(py))
    }
}

/// The tables that were seen, by their texts.
#[derive(Default)]
pub(crate) struct Tables(Instances<Box<str>, Arc<Table>>);

impl Tables {
    /// That of a text such as `(STRUCT(a BIGINT))`.
    pub(crate) fn get(&mut self, py: Python<'_>, types: &str) -> PyResult<Arc<Table>> {
        let table = self.0.get_or_make(types, || {
            let columns = table_of(types).ok_or_else(|| {
                PyOSError::new_err(format!("a batch of the types {types}, which are no table"))
            })?;
            Table::new(py, columns).map(Arc::new)
        })?;
        Ok(Arc::clone(table))
    }
}

/// A batch with its types, on its way.
pub(crate) struct Typed {
    results: Results,
    types: Arc<str>,
}

impl Typed {
    /// A pyarrow StructArray of the table.
    pub(crate) fn new(array: &Bound<'_, PyAny>, table: &Table) -> PyResult<Self> {
        Ok(Self { results: Results::new(array, &table.columns)?, types: Arc::clone(&table.text) })
    }
}

impl Encode for Typed {
    fn plan(&self, plan: &mut Plan) {
        plan.types(&self.types);
        self.results.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.results.write(body);
    }
}

/// The stream functions of a lane.
#[derive(Default)]
pub(crate) struct Streams {
    tables: Tables,
}

/// How the answer to a batch ended.
enum Ended {
    /// With its last batch, which is sent.
    Sent,
    /// All was sent, but that it was the last; or nobody wants more.
    Over,
}

impl Streams {
    /// Answers a batch of the input.
    pub(crate) fn answer(
        &mut self,
        lane: &mut GuestLane,
        call: Call,
        functions: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let py = functions.py();
        let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
        let index = call.header.function as usize;
        let Ok(function) = functions.get_item(index) else {
            let count = functions.len();
            return Err(PyOSError::new_err(format!("a batch for function {index} of {count}")));
        };
        match self.map(lane, call, &function) {
            Ok(Ended::Sent) => Ok(()),
            Ok(Ended::Over) => lane.succeed_after(call.with_rows(0), &(), Mishaps::default(), wait),
            Err(error) if ends_lane(py, &error) => Err(error),
            Err(error) => lane.fail_after(call, &describe(py, error)?, None, wait),
        }
    }

    fn map(&mut self, lane: &mut GuestLane, call: Call, function: &Bound<'_, PyAny>) -> PyResult<Ended> {
        let py = function.py();
        let limit: Option<u64> = function.getattr(intern!(py, "memory_limit"))?.extract()?;
        let _limit = limit.and_then(MemoryLimit::set);
        let batch = {
            let types = lane.types(&call)?;
            let types =
                types.ok_or_else(|| PyOSError::new_err("a batch without the types of its columns"))?;
            let table = self.tables.get(py, types)?;
            let columns = lane.columns(std::iter::once(&table.columns))?;
            let column = columns.first().ok_or_else(|| PyOSError::new_err("a batch without columns"))?;
            table.to_pyarrow(py, column)?
        };
        let answers = function.call_method1(intern!(py, "answers"), (batch, lane.most() / 2))?;
        if let Ok(all) = answers.cast::<PyList>() {
            // All is there: the last batch ends the exchange.
            let count = all.len();
            for (at, answer) in all.iter().enumerate() {
                let (rows, batch) = self.typed(&answer)?;
                if at + 1 == count {
                    let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
                    lane.succeed_after(call.with_rows(rows), &batch, Mishaps::default(), wait)?;
                    return Ok(Ended::Sent);
                }
                if !emit(py, lane, &call, rows, &batch)? {
                    break;
                }
            }
            return Ok(Ended::Over);
        }
        for answer in answers.try_iter()? {
            let (rows, batch) = self.typed(&answer?)?;
            if !emit(py, lane, &call, rows, &batch)? {
                answers.call_method0(intern!(py, "close"))?;
                break;
            }
        }
        Ok(Ended::Over)
    }

    /// What `answers` gives for each batch: its types, and a StructArray.
    fn typed(&mut self, answer: &Bound<'_, PyAny>) -> PyResult<(usize, Typed)> {
        let (types, array): (String, Bound<'_, PyAny>) =
            answer.extract().map_err(|_| PyTypeError::new_err("a batch is its types and an array"))?;
        let table = self.tables.get(answer.py(), &types)?;
        Ok((array.len()?, Typed::new(&array, &table)?))
    }
}

/// Sends a batch that is not the last, without the interpreter's lock while there is no room for it. False if nobody wants it.
fn emit(py: Python<'_>, lane: &mut GuestLane, call: &Call, rows: usize, batch: &Typed) -> PyResult<bool> {
    match py.detach(|| lane.emit(call, rows, batch, || false))? {
        Emitted::Sent => Ok(true),
        Emitted::Cancelled | Emitted::Stopped => Ok(false),
        Emitted::Failed(failure) => Err(PyMemoryError::new_err(failure.message)),
    }
}
