//! The destination of the rows of a scan: batches, which are sent when they are long enough or take
//! too long.

use super::partial_batch::PartialBatch;
use crate::lane::{self, CallError, ends_lane, refuse, succeed};
use crosslane::batch::Encode;
use crosslane::call::LONGEST_BATCH;
use crosslane::lane::{COUNT, WRITING};
use crosslane::{ColumnBuilder, DataType, Failure, OnError};
use crosslane_process::guest::{Call, Emitted, GuestLane, RowCounts};
use crosslane_ring::ProgressWord;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// The longest time that a batch grows, about.
const MOST_TIME: Duration = Duration::from_millis(10);
/// A batch with more bytes is sent.
const MOST_BYTES: usize = 1 << 18;
/// The time and the size are looked at after so many rows.
const CHECK_INTERVAL: usize = 64;

/// Why a scan ends before its rows do.
pub(super) enum ScanEnd {
    /// The engine wants no more rows.
    Cancelled,
    Failed(PyErr),
    /// The native half has failed.
    Refused(Failure),
}

impl From<PyErr> for ScanEnd {
    fn from(error: PyErr) -> Self {
        ScanEnd::Failed(error)
    }
}

impl From<std::io::Error> for ScanEnd {
    fn from(error: std::io::Error) -> Self {
        ScanEnd::Failed(error.into())
    }
}

/// The destination of the rows of a scan.
pub(super) struct Sink<'a, 'py> {
    pub(super) py: Python<'py>,
    pub(super) lane: &'a mut GuestLane,
    pub(super) call: Call,
    pub(super) progress: ProgressWord,
    /// The rows that were not sent yet.
    pub(super) out: ColumnBuilder,
    /// The errors and retries of these rows.
    row_counts: RowCounts,
    sent: u64,
    /// The most rows of the current batch.
    longest: usize,
    begun: Instant,
}

impl<'a, 'py> Sink<'a, 'py> {
    /// No rows yet, of a table with these columns.
    pub(super) fn new(
        py: Python<'py>,
        lane: &'a mut GuestLane,
        call: Call,
        rows: &DataType,
        longest: usize,
    ) -> Self {
        let progress = lane.progress().clone();
        Self {
            py,
            lane,
            call,
            progress,
            out: ColumnBuilder::new(rows),
            row_counts: RowCounts::default(),
            sent: 0,
            longest,
            begun: Instant::now(),
        }
    }

    fn rows(&self) -> u64 {
        self.sent + self.out.rows() as u64
    }

    /// Counts a row that was written. Sends the batch if it is due.
    #[inline]
    pub(super) fn row(&mut self) -> Result<(), ScanEnd> {
        let rows = self.out.rows();
        self.tell();
        if self.lane.has_message() && self.lane.is_cancelled(&self.call)? {
            return Err(ScanEnd::Cancelled);
        }
        let due = rows >= self.longest
            || (rows.is_multiple_of(CHECK_INTERVAL) || rows.is_power_of_two())
                && (self.out.size() > MOST_BYTES || self.begun.elapsed() > MOST_TIME);
        if due { self.flush() } else { Ok(()) }
    }

    /// Tells the engine how many rows there are. It needs that for its timeouts.
    #[inline]
    fn tell(&self) {
        let rows = self.rows().min(u64::from(WRITING - 1)) as u32;
        self.progress.set(self.call.header.exchange as u32, rows | COUNT);
    }

    /// Replaces the current row by NULL, or fails with its error.
    #[cold]
    pub(super) fn null_or_fail(&mut self, on_error: OnError, error: PyErr) -> Result<(), ScanEnd> {
        let rows = self.out.rows();
        self.out.truncate(rows);
        if on_error == OnError::Fail || ends_lane(self.py, &error) {
            return Err(ScanEnd::Failed(error));
        }
        self.out.null();
        self.row_counts.errors += 1;
        Ok(())
    }

    /// Sends the rows of the current batch.
    pub(super) fn flush(&mut self) -> Result<(), ScanEnd> {
        let rows = self.out.rows();
        if rows > 0 {
            let out = std::mem::replace(&mut self.out, ColumnBuilder::new(&DataType::Boolean));
            let sent = self.send(rows, &out);
            self.out = out;
            self.out.clear();
            sent?;
            self.longest = (self.longest * 4).min(LONGEST_BATCH);
        }
        self.begun = Instant::now();
        Ok(())
    }

    /// Sends rows when there is room for them. Other threads of Python run meanwhile.
    pub(super) fn send(&mut self, rows: usize, content: &(dyn Encode + Sync)) -> Result<(), ScanEnd> {
        let row_counts = std::mem::take(&mut self.row_counts);
        let Self { py, lane, call, .. } = self;
        let emitted = py.detach(|| lane.emit_with(call, rows, content, row_counts, || false))?;
        match emitted {
            Emitted::Sent => {}
            Emitted::Cancelled => return Err(ScanEnd::Cancelled),
            Emitted::Failed(failure) => return Err(ScanEnd::Refused(failure)),
            Emitted::Stopped => return Err(ScanEnd::Failed(PyRuntimeError::new_err("the lane was stopped"))),
        }
        self.sent += rows as u64;
        self.tell();
        Ok(())
    }

    /// Ends the exchange.
    pub(super) fn finish(mut self, outcome: Result<(), ScanEnd>) -> PyResult<()> {
        let row = self.rows();
        let outcome = match outcome {
            // The rows before the error are sent.
            Err(ScanEnd::Failed(error)) => match self.flush() {
                Ok(()) | Err(ScanEnd::Failed(_)) => Err(ScanEnd::Failed(error)),
                Err(other) => Err(other),
            },
            other => other,
        };
        let Self { py, lane, call, out, row_counts, .. } = self;
        match outcome {
            Ok(()) => succeed(py, lane, call.with_rows(out.rows()), &out, row_counts),
            Err(end) => fail(py, lane, call, end, Some(row)),
        }
    }
}

/// Tells the engine that an exchange has failed, and in which row of the table.
pub(super) fn fail(
    py: Python<'_>,
    lane: &mut GuestLane,
    call: Call,
    end: ScanEnd,
    row: Option<u64>,
) -> PyResult<()> {
    let row = row.and_then(|row| usize::try_from(row).ok());
    match end {
        ScanEnd::Failed(error) => lane::fail(py, lane, call, CallError { error, row }),
        ScanEnd::Refused(failure) => refuse(py, lane, call, &failure, row),
        ScanEnd::Cancelled => {
            succeed(py, lane, call.with_rows(0), &PartialBatch::none(), RowCounts::default())
        }
    }
}
