//! The results of a call whose engine has no storage of its own for them.

use super::Output;
use crate::batch::{self, Column, ColumnBuilder, Frame, Rows};
use crate::error::Error;
use crate::types::DataType;
use std::collections::BTreeMap;
use std::ops::Range;

/// Results in the order of their rows. They may come in any order.
#[derive(Debug)]
pub struct Results {
    data_type: DataType,
    column: ColumnBuilder,
    /// Results that came before earlier rows, by their first row.
    early: BTreeMap<usize, ColumnBuilder>,
}

impl Results {
    /// An empty list of results of this type.
    pub fn new(data_type: DataType) -> Self {
        let column = ColumnBuilder::new(&data_type);
        Self { data_type, column, early: BTreeMap::new() }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.column.rows()
    }

    /// The rows so far.
    pub fn column(&self) -> Column<'_> {
        self.column.column(&self.data_type)
    }

    /// Adds the rows of a column from row `first` on.
    ///
    /// # Errors
    /// [`Error::Engine`] if the rows do not fit.
    pub fn rest(&mut self, column: &Column<'_>, first: usize) -> Result<(), Error> {
        self.part(column, first..column.rows)
    }

    /// Adds some rows of a column.
    ///
    /// # Errors
    /// As [`Results::rest`].
    pub fn part(&mut self, column: &Column<'_>, rows: Range<usize>) -> Result<(), Error> {
        if rows == (0..column.rows) {
            return Ok(self.column.extend(column)?);
        }
        let count = rows.len();
        let rows = Frame::new(&Rows::new(column, rows), count)?;
        let column = batch::column(rows.bytes(), column.data_type)?;
        Ok(self.column.extend(&column)?)
    }

    fn put(
        &mut self,
        first: usize,
        put: impl FnOnce(&mut ColumnBuilder) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if first == self.column.rows() {
            put(&mut self.column)?;
        } else {
            let mut early = ColumnBuilder::new(&self.data_type);
            put(&mut early)?;
            self.early.insert(first, early);
        }
        while let Some(next) = self.early.remove(&self.column.rows()) {
            self.column.extend(&next.column(&self.data_type))?;
        }
        Ok(())
    }
}

impl Output for Results {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.put(first, |column| Ok(column.extend(results)?))
    }

    fn null(&mut self, row: usize) {
        if row < self.column.rows() {
            return self.column.make_null(row);
        }
        let early = self.early.range_mut(..=row).next_back();
        if let Some((first, early)) = early.filter(|(first, early)| row - **first < early.rows()) {
            return early.make_null(row - first);
        }
        // A NULL needs only reserved memory, or a few bytes.
        let _ = self.put(row, |column| {
            column.null();
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_put_in_order() {
        let numbers = |values: &[i64]| {
            let mut builder = ColumnBuilder::new(&DataType::BigInt);
            builder.fixed_all(values);
            builder
        };
        let mut results = Results::new(DataType::BigInt);
        results.accept(3, &numbers(&[3, 4]).column(&DataType::BigInt)).unwrap();
        results.null(4);
        results.null(2);
        results.accept(0, &numbers(&[0, 1]).column(&DataType::BigInt)).unwrap();
        results.null(1);
        assert_eq!(results.rows(), 5);
        let column = results.column();
        let shown: Vec<_> =
            (0..5).map(|row| crate::types::display::value(&column, row).to_string()).collect();
        assert_eq!(shown, ["0", "NULL", "NULL", "3", "NULL"]);
    }
}
