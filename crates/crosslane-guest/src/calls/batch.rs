//! A batch, and the outcome of its rows.
//!
//! | a row | becomes |
//! |---|---|
//! | with NULL in a parameter that does not admit it | NULL, without a call |
//! | whose call or result failed | tried again `retries` times, with growing pauses |
//! | that failed for good | NULL with `on_error = null`, else the failure of the call |
//!
//! A vectorized function is called for all rows together, without the rows of the first kind. Of an
//! entry without results (the update of an aggregate) only the calls and the failures count.
//!
//! A language may jump out of its methods within [`Invoke::enter`]. The code there holds nothing
//! that must be dropped.

use super::call_error::CallError;
use super::invoke::Invoke;
use super::prepared::Prepared;
use crate::values::{Argument, Class, Fault, Reader, Refusal};
use crosslane::batch::Column;
use crosslane::lane::WRITING;
use crosslane::{ColumnBuilder, Entry, ErrorPolicy, Verdict};
use crosslane_process::guest::RowCounts;
use crosslane_ring::ProgressWord;

/// The word that tells the engine the current row of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// None if the engine does not want to know.
    pub word: Option<&'a ProgressWord>,
    /// The number of its exchange.
    pub sequence: u32,
}

impl Progress<'_> {
    /// Tells the engine the number of the current row, or a mark of `crosslane::lane`.
    #[inline(always)]
    pub fn set(&self, row: u32) {
        if let Some(word) = self.word {
            word.set(self.sequence, row);
        }
    }

    /// Decides what becomes of rows whose call failed, as [`Batch::retry_or_null`] does.
    pub(crate) fn retry_or_null<L: Invoke>(
        &self,
        language: &L,
        error_policy: ErrorPolicy,
        mishap: CallError<L::Error>,
        tries: &mut u32,
        rows: usize,
        row_counts: &mut RowCounts,
    ) -> Result<Verdict, CallError<L::Error>> {
        if language.is_final(&mishap.error) {
            return Err(mishap);
        }
        // A language may have to call the error for it, which is not worth it without a next try.
        let after = if *tries < error_policy.retries { language.retry_after(&mishap.error)? } else { None };
        let verdict = row_counts.judge(error_policy, mishap, after, tries, rows)?;
        if let Verdict::Again(time) = verdict {
            self.word.iter().for_each(|word| word.rest(time));
            language.pause(time)?;
        }
        Ok(verdict)
    }
}

/// A batch that is worked on.
#[derive(Debug)]
pub struct Batch<'a, L: Invoke> {
    prepared: &'a Prepared<L>,
    language: &'a L,
    callee: &'a L::Callee,
    /// The columns of the fixed arguments.
    arguments: Vec<Argument<'a, L>>,
    /// The column of the LISTs of a variadic function.
    rest: Option<(&'a Reader<L>, &'a Column<'a>)>,
    /// The columns whose NULLs the function does not want to see.
    skipping: Vec<&'a Column<'a>>,
    rows: usize,
    progress: Progress<'a>,
}

impl<'a, L: Invoke> Batch<'a, L> {
    pub(crate) fn new(
        prepared: &'a Prepared<L>,
        language: &'a L,
        callee: &'a L::Callee,
        columns: &'a [Column<'a>],
        rows: usize,
        progress: Progress<'a>,
    ) -> Self {
        let Prepared { readers, admits_null, variadic, .. } = prepared;
        let fixed = readers.len() - usize::from(*variadic);
        let all = || readers.iter().zip(columns);
        Self {
            prepared,
            language,
            callee,
            arguments: all()
                .zip(admits_null)
                .take(fixed)
                .map(|((reader, column), sees_null)| Argument::new(reader, column, *sees_null))
                .collect(),
            rest: all().nth(fixed),
            skipping: columns
                .iter()
                .zip(admits_null)
                .filter_map(|(column, admits)| (!admits && column.validity.is_some()).then_some(column))
                .collect(),
            rows,
            progress,
        }
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The function that is called.
    pub fn callee(&self) -> &'a L::Callee {
        self.callee
    }

    /// The progress of the batch.
    pub fn progress(&self) -> Progress<'a> {
        self.progress
    }

    /// Whether a row becomes NULL without a call.
    #[inline(always)]
    pub fn skips(&self, row: usize) -> bool {
        self.skipping.iter().any(|column| !column.is_valid(row))
    }

    /// Gives the arguments of a row to `take`, one by one.
    ///
    /// # Errors
    /// If the language cannot make one.
    #[inline(always)]
    pub fn arguments(&self, row: usize, mut take: impl FnMut(L::Value)) -> Result<(), L::Error> {
        for argument in &self.arguments {
            take(argument.get(self.language, row)?);
        }
        if let Some((reader, column)) = self.rest {
            for at in column.elements(row) {
                take(reader.element(self.language, column, at)?);
            }
        }
        Ok(())
    }

    /// The same for the arguments behind the first `count` columns. The function must have a fixed
    /// number of arguments.
    ///
    /// # Errors
    /// As [`Batch::arguments`].
    #[inline(always)]
    pub(crate) fn arguments_behind(
        &self,
        count: usize,
        row: usize,
        mut take: impl FnMut(L::Value),
    ) -> Result<(), L::Error> {
        for argument in &self.arguments[count..] {
            take(argument.get(self.language, row)?);
        }
        Ok(())
    }

    /// An argument of a row.
    pub(crate) fn argument(&self, column: usize, row: usize) -> Result<L::Value, L::Error> {
        self.arguments[column].get(self.language, row)
    }

    /// The entry of the function.
    pub(crate) fn entry(&self) -> Entry {
        self.prepared.entry
    }

    /// Adds a result, if the entry has results.
    ///
    /// # Errors
    /// Why the value is no result. The column may then hold a part of it.
    #[inline(always)]
    pub fn write(&self, result: &L::Value, out: &mut ColumnBuilder) -> Result<(), Fault<L::Error>> {
        match &self.prepared.writer {
            Some(writer) => writer.write(self.language, result, out),
            None => Ok(()),
        }
    }

    /// Decides what becomes of rows whose call failed, after `tries` more than the first. It
    /// counts, and pauses before another try.
    ///
    /// # Errors
    /// The error, if there is no other try and the rows do not become NULL; or what ended the
    /// pause.
    pub fn retry_or_null(
        &self,
        mishap: CallError<L::Error>,
        tries: &mut u32,
        rows: usize,
        row_counts: &mut RowCounts,
    ) -> Result<Verdict, CallError<L::Error>> {
        let error_policy = self.prepared.error_policy;
        self.progress.retry_or_null(self.language, error_policy, mishap, tries, rows, row_counts)
    }

    /// Calls for one row after the other.
    pub(crate) fn run_rows(&self, out: &mut ColumnBuilder) -> Result<RowCounts, CallError<L::Error>> {
        self.run_rows_by(out, |row, values, out| self.run_row(row, values, out))
    }

    /// Does `work` for all rows that are not NULL, one after the other.
    pub(crate) fn run_rows_by(
        &self,
        out: &mut ColumnBuilder,
        mut work: impl FnMut(usize, &mut L::Arguments, &mut ColumnBuilder) -> Result<(), Fault<L::Error>>,
    ) -> Result<RowCounts, CallError<L::Error>> {
        let language = self.language;
        let mut row_counts = RowCounts::default();
        let mut row = 0;
        let mut tries = (0, 0);
        while row < self.rows {
            let mut fault = None;
            let entered = language.enter(self.callee, |values| {
                while row < self.rows {
                    if self.skips(row) {
                        out.null();
                        row += 1;
                        continue;
                    }
                    self.progress.set(row as u32);
                    if let Err(what) = work(row, values, out) {
                        fault = Some(what);
                        return;
                    }
                    row += 1;
                }
            });
            let error = match (entered, fault) {
                (Err(error), _) => error,
                (Ok(()), Some(fault)) => fault.into_error(language),
                (Ok(()), None) => break,
            };
            // All rows were done before the error, so no call has failed.
            if row == self.rows {
                return Err(error.into());
            }
            out.truncate(row);
            if tries.0 != row {
                tries = (row, 0);
            }
            match self.retry_or_null(CallError { error, row: Some(row) }, &mut tries.1, 1, &mut row_counts)? {
                Verdict::Again(_) => {}
                Verdict::Null => {
                    out.null();
                    row += 1;
                }
            }
        }
        Ok(row_counts)
    }

    #[inline(always)]
    fn run_row(
        &self,
        row: usize,
        values: &mut L::Arguments,
        out: &mut ColumnBuilder,
    ) -> Result<(), Fault<L::Error>> {
        let language = self.language;
        self.arguments(row, |value| language.argument(values, value)).map_err(Fault::Failed)?;
        let result = language.call(self.callee, values).map_err(Fault::Failed)?;
        self.write(&result, out)
    }

    /// Calls the function once, with whole columns.
    pub(crate) fn run_vectorized(&self, out: &mut ColumnBuilder) -> Result<RowCounts, CallError<L::Error>> {
        let language = self.language;
        let mut row_counts = RowCounts::default();
        let rows: Vec<usize> = (0..self.rows).filter(|row| !self.skips(*row)).collect();
        let mut tries = 0;
        loop {
            self.progress.set(u32::MAX);
            let mut fault = None;
            let mut written = None;
            let entered = language.enter(self.callee, |values| {
                fault = self.call_columns(&rows, values, &mut written, out).err();
            });
            let error = match (entered, fault) {
                (Err(error), _) => error,
                (Ok(()), Some(fault)) => fault.into_error(language),
                (Ok(()), None) => return Ok(row_counts),
            };
            out.clear();
            match self.retry_or_null(
                CallError { error, row: written },
                &mut tries,
                self.rows,
                &mut row_counts,
            )? {
                Verdict::Again(_) => {}
                Verdict::Null => {
                    (0..self.rows).for_each(|_| out.null());
                    return Ok(row_counts);
                }
            }
        }
    }

    /// Calls the function with a list for each column, and writes the elements of the list that it
    /// returns. `written` gets the row of the current element.
    fn call_columns(
        &self,
        rows: &[usize],
        values: &mut L::Arguments,
        written: &mut Option<usize>,
        out: &mut ColumnBuilder,
    ) -> Result<(), Fault<L::Error>> {
        let language = self.language;
        let failed = Fault::Failed;
        for argument in &self.arguments {
            let list = language.list(rows.len(), |at| argument.get(language, rows[at]));
            language.argument(values, list.map_err(failed)?);
        }
        if let Some((reader, column)) = self.rest {
            // All lists of a batch have the same length, so they are so many columns more.
            let width = rows.first().map_or(0, |row| column.elements(*row).len());
            for place in 0..width {
                let list = language.list(rows.len(), |at| {
                    reader.element(language, column, column.elements(rows[at]).start + place)
                });
                language.argument(values, list.map_err(failed)?);
            }
        }
        let result = language.call(self.callee, values).map_err(failed)?;
        let expected = rows.len();
        let mut count = 0;
        let mut next = 0;
        let wrong = |count: usize| {
            Fault::refused(Class::Value, format!("returned {count} results for {expected} rows"))
        };
        let each = |found: usize, value: &L::Value| {
            if found != expected {
                return Err(wrong(found));
            }
            let Some(row) = rows.get(count).copied() else { return Err(wrong(count + 1)) };
            (next..row).for_each(|_| out.null());
            (next, count) = (row + 1, count + 1);
            *written = Some(row);
            self.progress.set(row as u32 | WRITING);
            self.write(value, out)
        };
        match language.with_elements(&result, each) {
            Ok(written) => written?,
            Err(Refusal::Failed(error)) => return Err(Fault::Failed(error)),
            Err(_) => {
                let shown = language.shown(&result).map_err(failed)?;
                return Err(Fault::refused(
                    Class::Type,
                    format!("returned {shown} where a list of results is due"),
                ));
            }
        }
        if count != expected {
            return Err(wrong(count));
        }
        (next..self.rows).for_each(|_| out.null());
        Ok(())
    }
}
