//! Writes results into a column: one value, or a list of values by a quick way.

use super::selection::Selection;
use crate::values::fast_path::{self, FastPath};
use crate::values::layout;
use crate::values::{self, Hint, Vm, overflow};
use crosslane::builder::Overflow;
use crosslane::{ColumnBuilder, DataType};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ops::Range;

/// Writes results as rows of a column.
pub(crate) struct ResultWriter<'py> {
    vm: Vm<'py>,
    data_type: DataType,
    /// The writer of any value.
    one: values::Writer<'py>,
}

impl<'py> ResultWriter<'py> {
    /// A writer for a row function's results.
    pub(crate) fn new(py: Python<'py>, data_type: &DataType, hint: Hint<'py>) -> PyResult<Self> {
        Self::of(Vm::new(py), data_type, hint)
    }

    /// A writer for objects in the column that a vectorized function returned.
    pub(crate) fn of_columns(py: Python<'py>, data_type: &DataType) -> PyResult<Self> {
        Self::of(Vm::of_columns(py), data_type, None)
    }

    fn of(vm: Vm<'py>, data_type: &DataType, hint: Hint<'py>) -> PyResult<Self> {
        Ok(Self { vm, data_type: data_type.clone(), one: values::writer(vm, data_type, hint)? })
    }

    /// Adds a value, or NULL for None. After an error the column must be truncated.
    pub(crate) fn write(&self, value: &Bound<'py, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        self.one.write(&self.vm, value, out).map_err(|fault| fault.into_error(&self.vm))
    }

    /// The fast path of the type.
    pub(crate) fn fast_path(&self) -> FastPath {
        match self.data_type {
            DataType::BigInt => FastPath::Int64,
            DataType::Integer => FastPath::Int32,
            DataType::Double => FastPath::Double,
            DataType::Boolean => FastPath::Boolean,
            DataType::Varchar => FastPath::Text,
            _ => FastPath::None,
        }
    }

    /// Adds the values of a list to the column. The column has rows already, and the list has the
    /// results of the called rows behind them. Rows that are not called become NULL. `before` rows
    /// are called before the first value of the list. An error comes with its row. `at` gets the
    /// row of the next value, because a value may be computed only now.
    pub(crate) fn write_all(
        &self,
        list: &Bound<'py, PyList>,
        before: usize,
        selection: &Selection,
        out: &mut ColumnBuilder,
        at: impl Fn(usize),
    ) -> Result<(), (PyErr, usize)> {
        let mut item = selection.count_before(out.rows()) - before;
        while out.rows() < selection.rows() {
            let row = out.rows();
            if !selection.contains(row) {
                out.null();
                continue;
            }
            let end = item + selection.run_length(row);
            while item < end {
                let row = out.rows();
                at(row);
                let added =
                    self.add_plain(list, item..end, out).map_err(|error| (overflow(error), out.rows()))?;
                item += added;
                if added > 0 {
                    continue;
                }
                // The list may lose this value while Python code runs.
                let value = list.get_item(item);
                value.and_then(|value| self.write(&value, out)).map_err(|error| (error, row))?;
                item += 1;
            }
        }
        Ok(())
    }

    /// Adds the first of these values, up to one that is not exactly of the usual type, or does not
    /// fit. Returns how many. No Python code runs here, which could change the list.
    fn add_plain(
        &self,
        list: &Bound<'py, PyList>,
        items: Range<usize>,
        out: &mut ColumnBuilder,
    ) -> Result<usize, Overflow> {
        let count = items.len();
        let mut objects = items.map_while(|item| {
            // SAFETY: a living list gives a borrowed reference, which it keeps until the next
            // value, or null with an exception set.
            let object = unsafe { ffi::PyList_GetItem(list.as_ptr(), item as ffi::Py_ssize_t) };
            if object.is_null() {
                // The list is shorter. The error comes when the missing value is taken.
                drop(PyErr::take(list.py()));
            }
            (!object.is_null()).then_some(object)
        });
        let layout = layout::known();
        // SAFETY: the objects live while they are in the list, and a `Bound` says that the
        // interpreter's lock is held.
        unsafe {
            Ok(match self.fast_path() {
                FastPath::Int64 => out.fixed_while(|| fast_path::integer_of(layout, objects.next()?)),
                FastPath::Int32 => out.fixed_while(|| fast_path::narrow_of(layout, objects.next()?)),
                FastPath::Double => out.fixed_while(|| fast_path::double_of(layout, objects.next()?)),
                FastPath::Boolean => out.boolean_while(|| fast_path::boolean_of(objects.next()?)),
                FastPath::Text => {
                    let mut added = 0;
                    while added < count {
                        let Some(text) = objects.next().and_then(|object| fast_path::text_of(layout, object))
                        else {
                            break;
                        };
                        out.bytes(text)?;
                        added += 1;
                    }
                    added
                }
                FastPath::None => 0,
            })
        }
    }
}
