//! Columns of states: their numbers, their saved bytes, and their results.

use crate::batch::{Column, ColumnBuilder, Encode};
use crate::call::{Input, Output};
use crate::error::Error;
use crate::types::DataType;
use std::ops::Range;

/// Columns of states' numbers. Columns of another input can follow, from one of its rows on.
pub(super) struct Numbered<'a> {
    pub(super) columns: Vec<Vec<i64>>,
    pub(super) rest: Option<(&'a dyn Input, usize)>,
}

impl Input for Numbered<'_> {
    fn rows(&self) -> usize {
        self.columns.first().map_or(0, Vec::len)
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let columns = self.columns.iter().map(|numbers| {
            let mut column = ColumnBuilder::new(&DataType::BigInt);
            column.fixed_all(&numbers[rows.clone()]);
            column
        });
        let numbers: Vec<_> = columns.collect();
        let Some((rest, from)) = self.rest else {
            take(&numbers);
            return Ok(());
        };
        rest.slice(from + rows.start..from + rows.end, &mut |rest| {
            let numbers = numbers.iter().map(|column| column as &dyn Encode);
            take(&numbers.chain([rest]).collect::<Vec<_>>());
        })
    }
}

/// A column with `self.0` rows of `self.1`: whether the state of a row is kept.
pub(super) struct Keep(pub(super) usize, pub(super) bool);

impl Input for Keep {
    fn rows(&self) -> usize {
        self.0
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let mut column = ColumnBuilder::new(&DataType::Boolean);
        rows.for_each(|_| column.boolean(self.1));
        take(&column);
        Ok(())
    }
}

/// Saved states during a transfer between two lanes.
pub(super) struct Saved {
    pub(super) bytes: Vec<u8>,
    /// The place of each state's bytes; `None` for a row without a state.
    pub(super) places: Vec<Option<Range<usize>>>,
}

impl Saved {
    pub(super) fn new(rows: usize) -> Self {
        Self { bytes: Vec::new(), places: vec![None; rows] }
    }
}

impl Output for Saved {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        let places = self.places.get_mut(first..first + results.rows);
        let places = places.ok_or_else(|| Error::Engine("a state too many".into()))?;
        let room = self.bytes.try_reserve(results.data.len());
        room.map_err(|_| Error::memory(results.data.len()))?;
        for (row, place) in places.iter_mut().enumerate() {
            *place = results.is_valid(row).then(|| {
                let from = self.bytes.len();
                self.bytes.extend_from_slice(results.bytes(row));
                from..self.bytes.len()
            });
        }
        Ok(())
    }
    fn null(&mut self, row: usize) {
        self.places[row] = None;
    }
}

impl Input for Saved {
    fn rows(&self) -> usize {
        self.places.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let mut column = ColumnBuilder::new(&DataType::Blob);
        for place in &self.places[rows] {
            match place {
                Some(place) => {
                    let bytes = &self.bytes[place.clone()];
                    column.bytes(bytes).map_err(|_| Error::memory(bytes.len()))?;
                }
                None => column.null(),
            }
        }
        take(&column);
        Ok(())
    }
}
