//! The results of the rows that a function is called for.

use super::selection::Selection;
use crate::values::FastPath;
use crate::values::layout::{self, Layout};
use crosslane::ColumnBuilder;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Takes the results of the rows of a batch, one after the other.
pub(crate) struct RowResults<'a, 'py> {
    py: Python<'py>,
    pub(super) layout: Option<Layout>,
    fast_path: FastPath,
    pub(super) selection: &'a Selection,
    out: &'a mut ColumnBuilder,
    /// All results from the first one on that only the writer can turn into a value. The writer may
    /// run Python code for that, so it does it after all rows were called.
    deferred: Option<Bound<'py, PyList>>,
}

impl<'a, 'py> RowResults<'a, 'py> {
    pub(crate) fn new(
        py: Python<'py>,
        fast_path: FastPath,
        selection: &'a Selection,
        out: &'a mut ColumnBuilder,
    ) -> Self {
        Self { py, layout: layout::known(), fast_path, selection, out, deferred: None }
    }

    pub(crate) fn py(&self) -> Python<'py> {
        self.py
    }

    /// Adds the result of a called row, behind the results of all such rows before it.
    #[inline(always)]
    pub(crate) fn push(&mut self, row: usize, result: &Bound<'py, PyAny>) -> PyResult<()> {
        if self.deferred.is_none() {
            if !self.selection.is_whole() {
                while self.out.rows() < row {
                    self.out.null();
                }
            }
            // SAFETY: the token says that the interpreter's lock is held.
            if unsafe { self.fast_path.add(self.layout, result.as_ptr(), self.out) } {
                return Ok(());
            }
        }
        self.push_deferred(result)
    }

    fn push_deferred(&mut self, result: &Bound<'py, PyAny>) -> PyResult<()> {
        self.deferred.get_or_insert_with(|| PyList::empty(self.py)).append(result)
    }

    /// The results that are not in the column yet. They are those of the last called rows.
    pub(crate) fn deferred(self) -> Bound<'py, PyList> {
        self.deferred.unwrap_or_else(|| PyList::empty(self.py))
    }
}
