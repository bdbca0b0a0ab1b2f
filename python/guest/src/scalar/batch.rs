//! A batch of a scalar function.

use crate::lane::{CallError, CallResult, Exchange, retry_or_null};
use crate::loops::Selection;
use crosslane::{ErrorPolicy, Verdict};
use crosslane_process::guest::RowCounts;
use pyo3::prelude::*;

/// A Python function, and the options that its calls need.
pub(super) struct Callee {
    pub(super) callable: Py<PyAny>,
    /// Whether the last argument is a list of any number of arguments.
    pub(super) variadic: bool,
    /// For each column, whether rows with a NULL in it are called.
    pub(super) admits_null: Vec<bool>,
    pub(super) error_policy: ErrorPolicy,
}

/// A batch, and the function that is called for it.
pub(super) struct Batch<'a, 'py> {
    pub(super) py: Python<'py>,
    pub(super) callee: &'a Callee,
    pub(super) exchange: &'a Exchange<'a>,
    /// The rows that are called.
    pub(super) selection: Selection,
}

impl Batch<'_, '_> {
    /// As [`crate::lane::retry_or_null`].
    pub(super) fn retry_or_null(
        &self,
        error: CallError,
        tries: &mut u32,
        rows: usize,
        row_counts: &mut RowCounts,
    ) -> CallResult<Verdict> {
        retry_or_null(self.py, self.exchange, self.callee.error_policy, error, tries, rows, row_counts)
    }
}
