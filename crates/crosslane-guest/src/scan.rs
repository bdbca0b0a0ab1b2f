//! The rows of a table on their way to the engine.
//!
//! A scan is an exchange: the function makes rows, and they are sent batch by batch. When a batch
//! is full, it is sent as soon as the engine has taken the batch before, and the next one is begun.
//! So rows are made when they are wanted, while the engine uses the last ones. The first batches
//! are small, so that a query that wants a few rows (LIMIT) gets them soon.
//!
//! The rows that a stream function makes of a batch are sent in the same way, but as long as there
//! is room. The engine may take the rows of an earlier batch first, from another lane.
//!
//! [`Rows`] does everything but the call of the function. A language adds rows when they are made,
//! looks for a cancel between them ([`Rows::look`]), and has a batch sent when it [is
//! full](Rows::is_full).

use crate::calls::{CallError, Language, refuse, succeed};
use crate::values::{Class, Fault, Writer};
use crosslane::batch::{Encode, Plan};
use crosslane::lane::{COUNT, WRITING};
use crosslane::{ColumnBuilder, DataType, Failure, OnError};
use crosslane_process::guest::{Call, Emitted, GuestLane, Room, RowCounts};
use std::io;
use std::time::{Duration, Instant};

/// The most rows of a batch: DuckDB's vector size.
const MOST_ROWS: usize = 2048;
/// The rows of the first batch, and the factor by which the next ones are larger.
const FIRST_ROWS: usize = 16;
const GROWTH: usize = 4;
/// A batch that is so old, or has so many bytes, is sent.
const MOST_TIME: Duration = Duration::from_millis(10);
const MOST_BYTES: usize = 1 << 18;
/// The age and the size are looked at after so many rows. The size is a walk over all columns.
const CHECK_INTERVAL: usize = 64;

/// The rows of a scan that were not sent yet, and the state of the scan.
#[derive(Debug)]
pub struct Rows<L: Language> {
    call: Call,
    /// Whether the engine wants no more rows.
    cancelled: bool,
    writer: Writer<L>,
    out: ColumnBuilder,
    /// Whether the rows are those of a batch of a stream.
    stream: bool,
    on_error: OnError,
    /// The errors of rows that were not sent yet.
    row_counts: RowCounts,
    /// How many rows make a batch now, and when it was begun.
    batch_rows: usize,
    batch_start: Instant,
    /// How many rows were made, up to the most that progress can count.
    made: u32,
}

impl<L: Language> Rows<L> {
    /// No rows yet. The writer writes the columns that the engine wants.
    pub fn new(call: Call, writer: Writer<L>, columns: &DataType, on_error: OnError) -> Self {
        let out = ColumnBuilder::new(columns);
        Self {
            call,
            cancelled: false,
            writer,
            out,
            stream: false,
            on_error,
            row_counts: RowCounts::default(),
            batch_rows: FIRST_ROWS,
            batch_start: Instant::now(),
            made: 0,
        }
    }

    /// No rows yet, of a batch of a stream function.
    pub fn of_stream(call: Call, writer: Writer<L>, columns: &DataType, on_error: OnError) -> Self {
        Self { stream: true, batch_rows: MOST_ROWS, ..Self::new(call, writer, columns, on_error) }
    }

    /// Adds rows by `write`. Values that are no rows are an error of the function. With `on_error`
    /// they are `count` NULLs.
    ///
    /// # Errors
    /// Why the values are no rows.
    pub fn add(
        &mut self,
        language: &L,
        count: usize,
        write: impl FnOnce(&Writer<L>, &mut ColumnBuilder) -> Result<(), Fault<L::Error>>,
    ) -> Result<(), L::Error> {
        let begun = self.out.rows();
        let room = self.out.reserve(count).map_err(Fault::from);
        if let Err(fault) = room.and_then(|()| write(&self.writer, &mut self.out)) {
            self.out.truncate(begun);
            return self.refuse(language, fault.into_error(language), count);
        }
        self.made = self.made.saturating_add(count as u32).min(WRITING - 1);
        Ok(())
    }

    /// Takes an error in the place of rows.
    ///
    /// # Errors
    /// The error, if the rows do not become NULL.
    pub fn refuse(&mut self, language: &L, error: L::Error, count: usize) -> Result<(), L::Error> {
        if self.on_error == OnError::Fail || language.is_final(&error) {
            return Err(error);
        }
        (0..count).for_each(|_| self.out.null());
        self.row_counts.errors += count as u32;
        self.made = self.made.saturating_add(count as u32).min(WRITING - 1);
        Ok(())
    }

    /// Whether there are enough rows for a batch.
    pub fn is_full(&self) -> bool {
        let rows = self.out.rows();
        let is_large = || {
            (rows.is_multiple_of(CHECK_INTERVAL) || rows.is_power_of_two()) && self.out.size() > MOST_BYTES
        };
        rows >= self.batch_rows || rows > 0 && (self.batch_start.elapsed() > MOST_TIME || is_large())
    }

    /// Whether so many more rows are too many for the batch.
    pub fn overflows(&self, count: usize) -> bool {
        self.out.rows() + count > MOST_ROWS
    }

    /// Tells the engine how many rows were made, so that it can tell slow from stuck.
    pub fn tell(&self, lane: &GuestLane) {
        lane.progress().set(self.call.header.exchange as u32, COUNT | self.made);
    }

    /// Asks without waiting whether the engine wants more rows.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    pub fn look(&mut self, lane: &mut GuestLane) -> io::Result<bool> {
        if lane.has_message() && !self.cancelled {
            self.cancelled = lane.is_cancelled(&self.call)?;
        }
        Ok(!self.cancelled)
    }

    /// Sends the rows so far when there is room for them. Returns whether the engine wants more.
    ///
    /// # Errors
    /// If the engine broke the protocol, if the wait was ended, or if there is no memory.
    pub fn turn(&mut self, language: &L, lane: &mut GuestLane) -> Result<bool, L::Error> {
        while self.await_room(language, lane)? {
            // There is room, so this does not wait.
            match lane.emit_with(&self.call, self.out.rows(), &self.out, self.row_counts, || true)? {
                Emitted::Sent => {
                    self.out.clear();
                    self.row_counts = RowCounts::default();
                    self.batch_rows = (self.batch_rows * GROWTH).min(MOST_ROWS);
                    self.batch_start = Instant::now();
                    return Ok(true);
                }
                Emitted::Cancelled => self.cancelled = true,
                Emitted::Stopped => {}
                Emitted::Failed(failure) => return Err(no_memory(language, &failure)),
            }
        }
        Ok(false)
    }

    /// Ends a scan that has no more rows. Returns whether the engine was told. It is not told if it
    /// wants no more.
    ///
    /// # Errors
    /// As [`Rows::turn`].
    pub fn finish(&mut self, language: &L, lane: &mut GuestLane) -> Result<bool, L::Error> {
        if !self.await_room(language, lane)? {
            return Ok(false);
        }
        let call = self.call.with_rows(self.out.rows());
        let sent = lane.offer(call, &self.out, self.row_counts)?;
        sent.map_err(|failure| no_memory(language, &failure))?;
        Ok(true)
    }

    /// The number of the row that is being made, from 0.
    pub fn made(&self) -> usize {
        self.made as usize
    }

    /// Ends a scan whose function was left, by an error or because the engine wants no more rows.
    /// An engine that still wants rows is told the error, behind the rows so far.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol, or the error itself if it ends the lane.
    pub fn leave(
        &mut self,
        language: &L,
        lane: &mut GuestLane,
        mishap: Option<CallError<L::Error>>,
    ) -> Result<(), L::Error> {
        let mut failure = match mishap {
            Some(CallError { error, row }) if !self.cancelled => Some((language.describe(error)?, row)),
            _ => None,
        };
        while let Some((known, row)) = &failure {
            // The rows before the error are rows of the table. With `on_error` the table ends
            // there.
            let sent = if self.out.rows() > 0 { self.turn(language, lane) } else { Ok(true) };
            match sent.and_then(|wanted| Ok(wanted && self.await_room(language, lane)?)) {
                Ok(true) => return refuse(language, lane, self.call, known, *row),
                Ok(false) => break,
                Err(error) => {
                    self.out.clear();
                    failure = Some((language.describe(error)?, None));
                }
            }
        }
        self.out.clear();
        succeed(language, lane, self.call.with_rows(0), &self.out, RowCounts::default())
    }

    /// Waits until there is room for the rows so far. The rows of a scan wait until the engine has
    /// taken all others, and the rows of a stream until they fit. Returns whether the engine wants
    /// more.
    fn await_room(&mut self, language: &L, lane: &mut GuestLane) -> Result<bool, L::Error> {
        let room = if self.stream {
            let mut plan = Plan::default();
            self.out.plan(&mut plan);
            Room::Of(plan.size())
        } else {
            Room::All
        };
        if !self.cancelled {
            self.cancelled = !language.await_room(lane, &self.call, room)?;
        }
        Ok(!self.cancelled)
    }
}

/// The error for the function. The engine gets the same failure, so that the scan is over for both.
fn no_memory<L: Language>(language: &L, failure: &Failure) -> L::Error {
    language.error(Class::NoMemory, &failure.message)
}
