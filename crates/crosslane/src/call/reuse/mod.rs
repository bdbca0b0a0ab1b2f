//! The rows of a batch whose results are known, and the results that are kept of others.
//!
//! An engine uses this for its own calls ([`super::once`]), and a server for those of its clients
//! ([`Reuse`]). The rule is the same: equal rows are called once, and rows whose result is kept not at
//! all. A result is kept if its call did not fail, and it is a valid value of the function's type.

mod distinct;
mod served;

pub(crate) use distinct::Distinct;
pub use served::Reuse;

use crate::batch::{Column, ColumnBuilder, Frame};
use crate::call::Output;
use crate::error::Error;
use crate::function::{Function, KeptResults, Memo, OnError, milliseconds};
use crate::types::DataType;
use crate::types::values::unfit;

/// The most bytes that are compared.
pub(crate) const LARGEST: usize = 64 << 20;
/// The bytes of kept results that go to the output at once.
const TOGETHER: usize = 1 << 20;
/// How long results wait for others before they are stored, in milliseconds.
const LONGEST_WAIT: u64 = 500;
/// There is no further row.
const NONE: u32 = u32::MAX;

/// A distinct row: its number, and the first row of the batch that is like it.
pub(crate) type Row = (usize, usize);

/// The results of a batch that are kept.
#[derive(Debug)]
pub(crate) struct Known {
    results: ColumnBuilder,
    /// For each distinct row, its place among the results.
    places: Vec<u32>,
    /// The distinct rows without a result, in the order of the batch.
    pub(crate) unknown: Vec<Row>,
}

impl Known {
    /// Looks for the results of distinct rows. It looks for no more when it has found about `most`
    /// bytes.
    pub(crate) fn of(
        kept: Option<&KeptResults>,
        distinct: &Distinct,
        returns: &DataType,
        most: usize,
    ) -> Self {
        let rows = distinct.firsts.iter().copied().enumerate();
        let results = ColumnBuilder::new(returns);
        let mut known = Self { results, places: vec![NONE; distinct.firsts.len()], unknown: Vec::new() };
        let Some(KeptResults { memo, types, .. }) = kept else {
            known.unknown = rows.collect();
            return known;
        };
        for (number, first) in rows {
            if known.results.size() <= most && memo.find(distinct.key(number), &mut known.results) {
                known.places[number] = known.results.rows() as u32 - 1;
            } else {
                known.unknown.push((number, first));
            }
        }
        if let Some(store) = memo.store().filter(|_| !known.unknown.is_empty()) {
            let Self { results, places, unknown } = &mut known;
            let keys: Vec<&[u8]> = unknown.iter().map(|(number, _)| distinct.bare_key(*number)).collect();
            let mut found = store.find(types, &keys).into_iter();
            unknown.retain(|(number, _)| {
                let Some((batch, made)) = found.next().flatten() else { return true };
                if results.size() <= most && memo.adopt(distinct.key(*number), (&batch, made), results) {
                    places[*number] = results.rows() as u32 - 1;
                    return false;
                }
                true
            });
        }
        known
    }

    /// Gives the results to the output. Returns the distinct rows without a result.
    ///
    /// # Errors
    /// Those of the output, or if there is no memory.
    pub(crate) fn give(
        self,
        distinct: &Distinct,
        returns: &DataType,
        output: &mut dyn Output,
    ) -> Result<Vec<Row>, Error> {
        let results = self.results.column(returns);
        let mut together = ColumnBuilder::new(returns);
        for (row, number) in distinct.numbers.iter().enumerate() {
            let place = self.places[*number as usize];
            if place != NONE {
                together.copy(&results, place as usize)?;
            }
            let is_last = row + 1 == distinct.numbers.len() || place == NONE || together.size() > TOGETHER;
            if is_last && together.rows() > 0 {
                let end = if place == NONE { row } else { row + 1 };
                output.accept(end - together.rows(), &together.column(returns))?;
                together.clear();
            }
        }
        Ok(self.unknown)
    }
}

/// Some rows of columns.
///
/// # Errors
/// If there is no memory for them.
pub(crate) fn chosen(columns: &[Column<'_>], rows: &[Row]) -> Result<Vec<ColumnBuilder>, Error> {
    let chosen = |column: &Column<'_>| {
        let mut chosen = ColumnBuilder::new(column.data_type);
        chosen.reserve(rows.len())?;
        rows.iter().try_for_each(|(_, row)| chosen.copy(column, *row))?;
        Ok(chosen)
    };
    columns.iter().map(chosen).collect()
}

/// Results that wait for others before they are stored for later programs: until the end of the batch,
/// for [`TOGETHER`] bytes, or for [`LONGEST_WAIT`]. A store takes about as long for many results as for
/// one.
#[derive(Debug, Default)]
struct Waiting {
    /// The numbers of the distinct rows, and the batches of their results.
    batches: Vec<(usize, Frame)>,
    bytes: usize,
    /// When the first of them came, in milliseconds.
    since: u64,
}

/// Keeps the results of called rows.
pub(crate) struct Keeper<'a> {
    kept: &'a KeptResults,
    distinct: &'a Distinct,
    called: &'a [Row],
    keeps_nulls: bool,
    waiting: Waiting,
}

/// Whether NULLs of a function are kept. With `on_error = null`, a NULL may be a call that failed.
pub(crate) fn keeps_nulls(function: &Function) -> bool {
    function.spec.on_error == OnError::Fail
}

impl<'a> Keeper<'a> {
    /// Keeps the results of `called` rows, also NULLs if `keeps_nulls` ([`keeps_nulls`]).
    pub(crate) fn new(
        kept: &'a KeptResults,
        keeps_nulls: bool,
        distinct: &'a Distinct,
        called: &'a [Row],
    ) -> Self {
        Self { kept, distinct, called, keeps_nulls, waiting: Waiting::default() }
    }

    /// Keeps results that came now: those of the called rows from `first` on.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(crate) fn keep(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        let (now, unfit) = (milliseconds(), unfit(results));
        for row in (0..results.rows).filter(|row| !unfit.contains_key(row)) {
            let (number, _) = self.called[first + row];
            let is_valid = results.is_valid(row);
            if self.keeps_nulls || is_valid {
                self.kept.memo.keep(self.distinct.key(number), (results, row), now);
            }
            // A service that knows nothing today may know something tomorrow, so NULLs are not stored.
            if is_valid && self.kept.memo.store().is_some() {
                let batch = Memo::batch(results, row)?;
                if self.waiting.batches.is_empty() {
                    self.waiting.since = now;
                }
                self.waiting.bytes += batch.bytes().len();
                self.waiting.batches.push((number, batch));
            }
        }
        if self.waiting.bytes > TOGETHER || now.saturating_sub(self.waiting.since) > LONGEST_WAIT {
            self.store();
        }
        Ok(())
    }

    /// Stores the results that wait.
    pub(crate) fn store(&mut self) {
        let Waiting { batches, since, .. } = std::mem::take(&mut self.waiting);
        if let Some(store) = self.kept.memo.store() {
            let keyed =
                batches.iter().map(|(number, batch)| (self.distinct.bare_key(*number), batch.bytes()));
            store.keep(&self.kept.types, &keyed.collect::<Vec<_>>(), since);
        }
    }
}
