//! The batch of an exchange.

use super::error::CallResult;
use crosslane::batch::Column;
use crosslane::lane::WRITING;
use crosslane_process::guest::{Call, GuestLane, RowCounts};
use crosslane_ring::ProgressWord;
use pyo3::prelude::*;
use std::cell::RefCell;

/// A batch, the word that tells the engine how far the work is, and what became of the rows.
pub(crate) struct Exchange<'a> {
    pub(crate) columns: &'a [Column<'a>],
    pub(crate) call: Call,
    pub(crate) progress: &'a ProgressWord,
    pub(crate) row_counts: RefCell<RowCounts>,
}

impl<'a> Exchange<'a> {
    /// The exchange of the lane's current call.
    pub(crate) fn new(lane: &'a GuestLane, call: Call, columns: &'a [Column<'a>]) -> Self {
        Self { columns, call, progress: lane.progress(), row_counts: RefCell::default() }
    }

    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.call.header.rows as usize
    }

    #[inline]
    pub(crate) fn sequence(&self) -> u32 {
        self.call.header.exchange as u32
    }

    /// The number of a state, in a column of an aggregate's exchange.
    #[inline]
    pub(crate) fn state(&self, column: usize, row: usize) -> usize {
        self.columns[column].value::<i64>(row) as usize
    }

    /// Does something for each row.
    pub(crate) fn each(&self, mut work: impl FnMut(usize) -> PyResult<()>) -> CallResult {
        (0..self.rows()).try_for_each(|row| {
            self.tell(row as u32);
            work(row).map_err(|error| (error, row).into())
        })
    }

    /// Tells the engine the number of the current row, or a mark of `crosslane::lane`.
    #[inline]
    pub(crate) fn tell(&self, row: u32) {
        self.progress.set(self.sequence(), row);
    }

    /// Tells the engine which row's result is being written.
    pub(crate) fn tell_written(&self, row: usize) {
        self.tell(row as u32 | WRITING);
    }
}
