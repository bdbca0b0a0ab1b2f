//! The batches of a server's clients.

use super::{Distinct, Keeper, Known, NONE, chosen, keeps_nulls};
use crate::batch::{Column, ColumnBuilder, Frame, Typed};
use crate::error::Error;
use crate::function::{Function, KeptResults};
use crate::types::DataType;
use std::sync::Arc;

/// A batch with more rows is not compared: a row may have a bit, and to compare it takes bytes.
const MOST_ROWS: usize = 1 << 20;

/// A batch of a client, for a function that keeps results: which rows are called, and the results of
/// the others.
#[derive(Debug)]
pub struct Reuse {
    kept: KeptResults,
    returns: DataType,
    keeps_nulls: bool,
    distinct: Distinct,
    known: Known,
}

impl Function {
    /// Whether its results are kept.
    pub fn keeps_results(&self) -> bool {
        self.memo.is_some()
    }

    /// Whether its results are kept in a store, which may block the thread that uses it.
    pub fn keeps_in_store(&self) -> bool {
        self.memo.as_ref().is_some_and(|kept| kept.memo.store().is_some())
    }
}

impl Reuse {
    /// Looks for the results of `rows` rows, which a client has sent as `columns`. These must have been
    /// checked. It looks for no more when it has found about
    /// `most` bytes. `None` if the function keeps no results, or if the batch is too large to be
    /// compared.
    pub fn new(function: &Function, columns: &[Column<'_>], rows: usize, most: usize) -> Option<Self> {
        if rows > MOST_ROWS {
            return None;
        }
        let types = columns.iter().map(|column| column.data_type.clone());
        let kept = KeptResults::new(Arc::clone(&function.memo.as_ref()?.memo), types);
        let distinct = Distinct::new(Some(kept.hash), columns, rows)?;
        let returns = function.signature.returns.clone();
        let known = Known::of(Some(&kept), &distinct, &returns, most);
        Some(Self { kept, returns, keeps_nulls: keeps_nulls(function), distinct, known })
    }

    /// The rows of the batch.
    pub fn rows(&self) -> usize {
        self.distinct.numbers.len()
    }

    /// How many rows are called.
    pub fn called(&self) -> usize {
        self.known.unknown.len()
    }

    /// The bytes of the results that were found, about.
    pub fn size(&self) -> usize {
        self.known.results.size()
    }

    /// The row of the batch for a row that is called. Other numbers stay as they are.
    pub fn row(&self, called: u32) -> u32 {
        self.known.unknown.get(called as usize).map_or(called, |(_, row)| *row as u32)
    }

    /// The batch of the rows that are called, of these columns with these types.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn frame(&self, columns: &[Column<'_>], types: Option<&str>) -> Result<Frame, Error> {
        let rows = chosen(columns, &self.known.unknown)?;
        let types = types.map(Arc::from);
        let columns: Vec<_> =
            rows.iter().zip(columns).map(|(rows, column)| rows.column(column.data_type)).collect();
        Frame::new(&Typed { types: types.as_ref(), columns: &columns }, self.called())
    }

    /// Keeps the results of the rows that were called.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn keep(&self, results: &Column<'_>) -> Result<(), Error> {
        let Self { kept, keeps_nulls, distinct, known, .. } = self;
        let mut keeper = Keeper::new(kept, *keeps_nulls, distinct, &known.unknown);
        let outcome = keeper.keep(0, results);
        keeper.store();
        outcome
    }

    /// The results of all rows, for the client. `results` are those of the rows that were called, as
    /// many as [`Reuse::called`]. `None` if the answer would have more than about `most` bytes.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn answer(&self, results: Option<&Column<'_>>, most: usize) -> Result<Option<Frame>, Error> {
        let Self { returns, distinct, known, .. } = self;
        // For each distinct row that was called, its place among the results.
        let mut called = vec![NONE; distinct.firsts.len()];
        known.unknown.iter().zip(0..).for_each(|((number, _), place)| called[*number] = place);
        let known_results = known.results.column(returns);
        let mut all = ColumnBuilder::new(returns);
        all.reserve(self.rows())?;
        for number in &distinct.numbers {
            match (known.places[*number as usize], results) {
                (NONE, Some(results)) => all.copy(results, called[*number as usize] as usize)?,
                (place, _) => all.copy(&known_results, place as usize)?,
            }
            if all.size() > most {
                return Ok(None);
            }
        }
        Ok(Some(Frame::new(&all, self.rows())?))
    }
}
