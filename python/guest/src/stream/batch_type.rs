//! The types of batches, and batches with their types.

use crate::arrow::{self, Direction, Results};
use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::{map_types, table_of};
use crosslane::{DataType, Instances};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::sync::Arc;

/// The pyarrow type of the batches of a table with these columns, such as `STRUCT(a BIGINT, b
/// VARCHAR)`. It is the type of batches that are read from a lane, or of batches that are sent.
///
/// Raises ValueError if it is no SQL type.
#[pyfunction]
#[pyo3(signature = (columns, sent=false))]
pub(crate) fn table_type<'py>(py: Python<'py>, columns: &str, sent: bool) -> PyResult<Bound<'py, PyAny>> {
    let table: DataType = columns.parse().map_err(crate::signatures::value_error)?;
    arrow::pyarrow_type(py, &table, if sent { Direction::Result } else { Direction::Argument })
}

/// The type of the batches of a table: its columns, the same as text, and the pyarrow type.
#[derive(Debug)]
pub(crate) struct BatchType {
    pub(crate) columns: DataType,
    pub(crate) text: Arc<str>,
    arrow: Py<PyAny>,
}

impl BatchType {
    pub(crate) fn new(py: Python<'_>, columns: DataType) -> PyResult<Self> {
        let text = map_types(&columns).into();
        let arrow = arrow::pyarrow_type(py, &columns, Direction::Argument)?.unbind();
        Ok(Self { columns, text, arrow })
    }

    pub(crate) fn to_pyarrow<'py>(
        &self,
        py: Python<'py>,
        column: &Column<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        arrow::to_pyarrow(column, self.arrow.bind(py))
    }
}

/// The types of batches that were seen, by their texts.
#[derive(Default)]
pub(crate) struct BatchTypes(Instances<Box<str>, Arc<BatchType>>);

impl BatchTypes {
    /// The type of a text such as `(STRUCT(a BIGINT))`.
    pub(crate) fn get(&mut self, py: Python<'_>, types: &str) -> PyResult<Arc<BatchType>> {
        let table = self.0.get_or_make(types, || {
            let columns = table_of(types).ok_or_else(|| {
                PyOSError::new_err(format!("a batch of the types {types}, which are no table"))
            })?;
            BatchType::new(py, columns).map(Arc::new)
        })?;
        Ok(Arc::clone(table))
    }
}

/// A batch that is sent, with its types.
pub(crate) struct TypedBatch {
    results: Results,
    types: Arc<str>,
}

impl TypedBatch {
    /// A pyarrow StructArray of the table.
    pub(crate) fn new(array: &Bound<'_, PyAny>, table: &BatchType) -> PyResult<Self> {
        Ok(Self { results: Results::new(array, &table.columns)?, types: Arc::clone(&table.text) })
    }
}

impl Encode for TypedBatch {
    fn plan(&self, plan: &mut Plan) {
        plan.types(&self.types);
        self.results.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.results.write(body);
    }
}
