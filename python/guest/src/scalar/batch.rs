//! A batch of a scalar function.

use crate::declaration::Declaration;
use crate::lane::{CallError, CallResult, Exchange, retry_or_null};
use crate::loops::{Argument, RowCaller, Selection};
use crosslane::Verdict;
use pyo3::prelude::*;

/// A Python function, and the options that its calls need.
pub(super) struct Callee<'py> {
    /// The function itself, or what calls it for a batch.
    pub(super) callable: Bound<'py, PyAny>,
    pub(super) declaration: Declaration<'py>,
}

impl<'py> Callee<'py> {
    /// Calls the function with rows of a batch that has these arguments.
    pub(super) fn caller<'a>(&'a self, arguments: &'a [Argument<'a, 'py>]) -> RowCaller<'a, 'py> {
        RowCaller::new(&self.callable, arguments, self.declaration.signature.variadic)
    }
}

/// A batch, and the function that is called for it.
pub(super) struct Batch<'a, 'py> {
    pub(super) py: Python<'py>,
    pub(super) callee: &'a Callee<'py>,
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
    ) -> CallResult<Verdict> {
        let error_policy = self.callee.declaration.error_policy;
        retry_or_null(self.py, self.exchange, error_policy, error, tries, rows)
    }
}
