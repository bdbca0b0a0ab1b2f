//! The arguments of a call, from Python's objects and pyarrow's arrays.

use crate::arrow::{Exported, Piece, Results};
use crate::loops::ResultWriter;
use crate::values::overflow;
use crosslane::batch::{Column, Encode};
use crosslane::call::Input;
use crosslane::{ColumnBuilder, DataType, Error, Function, Rows};
use crosslane_remote::session::with_arguments;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

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
pub(super) struct ArgumentValues {
    data_type: DataType,
    content: Content,
}

enum Content {
    Objects(ColumnBuilder),
    Array(Arc<Exported>),
}

impl ArgumentValues {
    /// The argument of a call of one row.
    pub(super) fn value(function: &Function, at: usize, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (py, data_type) = (value.py(), type_of(function, at)?);
        let mut out = ColumnBuilder::new(data_type);
        out.reserve(1).map_err(overflow)?;
        let written = ResultWriter::new(py, data_type, None)?.write(value, &mut out);
        written.map_err(|error| argument_error(py, error, function, at, None))?;
        Ok(Self { data_type: data_type.clone(), content: Content::Objects(out) })
    }

    /// The arguments of so many rows.
    pub(super) fn columns(
        function: &Function,
        columns: &[Bound<'_, PyAny>],
        rows: usize,
    ) -> PyResult<Vec<Self>> {
        columns.iter().enumerate().map(|(at, column)| Self::column(function, at, column, rows)).collect()
    }

    /// One of these arguments.
    fn column(function: &Function, at: usize, column: &Bound<'_, PyAny>, rows: usize) -> PyResult<Self> {
        let (py, data_type) = (column.py(), type_of(function, at)?);
        let content = if let Ok(list) = column.cast::<PyList>() {
            let writer = ResultWriter::new(py, data_type, None)?;
            let mut out = ColumnBuilder::new(data_type);
            out.reserve(rows).map_err(overflow)?;
            for (row, value) in list.iter().enumerate() {
                writer
                    .write(&value, &mut out)
                    .map_err(|error| argument_error(py, error, function, at, Some(row)))?;
            }
            Content::Objects(out)
        } else {
            Content::Array(Exported::new(column)?)
        };
        let values = Self { data_type: data_type.clone(), content };
        match values.rows() {
            got if got == rows => Ok(values),
            got => Err(PyValueError::new_err(format!("a column of {got} rows where {rows} are due"))),
        }
    }

    fn rows(&self) -> usize {
        match &self.content {
            Content::Objects(out) => out.rows(),
            Content::Array(array) => array.rows(),
        }
    }
}

/// An error about an argument. Its text is that of an error about a result.
pub(super) fn argument_error(
    py: Python<'_>,
    error: PyErr,
    function: &Function,
    at: usize,
    row: Option<usize>,
) -> PyErr {
    let ours =
        [py.get_type::<PyTypeError>(), py.get_type::<PyValueError>(), py.get_type::<PyOverflowError>()];
    let kind = error.get_type(py);
    if !ours.iter().any(|class| class.is(&kind)) {
        // The object itself has raised it.
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
pub(super) struct Arguments<'a> {
    pub(super) function: &'a Function,
    pub(super) columns: Vec<ArgumentValues>,
    pub(super) rows: usize,
    /// The index of a wrong argument, and its error.
    pub(super) failed: Mutex<Option<(usize, PyErr)>>,
}

impl Input for Arguments<'_> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let columns: Vec<Option<Column<'_>>> = self
            .columns
            .iter()
            .map(|ArgumentValues { data_type, content }| match content {
                Content::Objects(out) => Some(out.column(data_type)),
                Content::Array(_) => None,
            })
            .collect();
        let mut pieces = Vec::with_capacity(columns.len());
        for (at, (ArgumentValues { data_type, content }, column)) in
            self.columns.iter().zip(&columns).enumerate()
        {
            let part = match (content, column) {
                (Content::Array(array), _) => {
                    Results::part(array, data_type, rows.start, rows.len()).map(Piece::Array)
                }
                (Content::Objects(_), Some(column)) => Ok(Piece::Rows(Rows::new(column, rows.clone()))),
                (Content::Objects(_), None) => continue,
            };
            pieces.push(part.map_err(|error| {
                let engine_error = Error::Engine(error.to_string());
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, error));
                engine_error
            })?);
        }
        with_arguments(self.function, (&pieces, pieces.len()), rows.len(), take)
    }
}
