//! The state of a number.

use super::pending_rows::{PendingRows, RowFormat};
use crosslane::ColumnBuilder;
use pyo3::ffi;
use pyo3::prelude::*;

/// The state of a number. It fills one cache line, because there may be millions of states, which
/// are used in any order.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct State {
    pub(super) instance: Option<Py<PyAny>>,
    /// Rows that are not in the instance. After an exchange a state has either an instance or such
    /// rows.
    pub(super) pending: PendingRows,
}

impl State {
    pub(super) fn of(instance: Py<PyAny>) -> Self {
        Self { instance: Some(instance), pending: PendingRows::default() }
    }

    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        self.instance.is_none() && self.pending.is_empty()
    }

    /// Whether it has rows and no instance yet.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.instance.is_none() && !self.pending.is_empty()
    }

    /// Whether its rows must be added to an instance before the exchange ends.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        !self.pending.is_empty() && (self.instance.is_some() || self.pending.are_many())
    }
}

/// Pending rows that are to be added now.
pub(super) struct DueRows {
    pub(super) columns: Vec<ColumnBuilder>,
    /// The instance of each row.
    pub(super) instances: Vec<*mut ffi::PyObject>,
}

impl DueRows {
    pub(super) fn add(
        &mut self,
        format: &RowFormat,
        rows: &PendingRows,
        instance: *mut ffi::PyObject,
    ) -> PyResult<()> {
        format.read(rows, &mut self.columns)?;
        self.instances.resize(self.instances.len() + rows.count(), instance);
        Ok(())
    }
}
