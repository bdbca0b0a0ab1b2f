//! The Python function, and the options that its calls need.

use crate::lane::{CallError, forgive};
use crosslane::{Leniency, Verdict};
use crosslane_process::guest::Mishaps;
use pyo3::prelude::*;

/// A Python function, and the options that its calls need.
pub(crate) struct Callee {
    pub(crate) callable: Py<PyAny>,
    /// Whether the last argument is a list of any number of arguments.
    pub(crate) variadic: bool,
    /// For each column, whether rows with a NULL in it are called.
    pub(crate) admits_null: Vec<bool>,
    pub(crate) leniency: Leniency,
}

impl Callee {
    /// As [`crate::lane::forgive`].
    pub(crate) fn forgive(
        &self,
        py: Python<'_>,
        error: CallError,
        tries: &mut u32,
        rows: usize,
        mishaps: &mut Mishaps,
    ) -> Result<Verdict, CallError> {
        forgive(py, self.leniency, error, tries, rows, mishaps)
    }
}
