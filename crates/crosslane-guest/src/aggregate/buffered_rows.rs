//! Rows of a vectorized aggregate that are buffered for the next updates of their groups.
//!
//! An update of a group is called with all its new rows at once, so rows are buffered until there
//! are enough. They are kept as the messages that brought them, and sorted by group for the
//! updates.

use super::groups::Groups;
use crosslane::DataType;
use crosslane::batch::{self, Column, Frame, Malformed};
use std::collections::HashSet;

/// At least so many rows are buffered, or one for each group. Then a group costs less than its
/// rows.
const ENOUGH_ROWS: usize = 1 << 16;
/// Or so many bytes are buffered.
const ENOUGH_BYTES: usize = 64 << 20;

/// The buffered rows.
#[derive(Debug, Default)]
pub(crate) struct BufferedRows {
    messages: Vec<Frame>,
    bytes: usize,
    /// For each row the number of its group, its message, and its place there.
    numbers: Vec<u32>,
    places: Vec<(u32, u32)>,
    /// One more than the highest number so far.
    groups: usize,
}

impl BufferedRows {
    /// Adds rows of a message, each with the number of its group.
    pub(crate) fn add(&mut self, message: &[u8], rows: impl Iterator<Item = (usize, usize)>) {
        let index = self.messages.len() as u32;
        for (number, row) in rows {
            self.groups = self.groups.max(number + 1);
            self.numbers.push(number as u32);
            self.places.push((index, row as u32));
        }
        self.messages.push(Frame::of(message));
        self.bytes += message.len();
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Whether there are enough rows for the updates.
    pub(crate) fn is_full(&self) -> bool {
        self.numbers.len() >= ENOUGH_ROWS.max(self.groups) || self.bytes >= ENOUGH_BYTES
    }

    /// Drops the rows of groups that have ended.
    pub(crate) fn forget(&mut self, ended: impl Iterator<Item = usize>) {
        if self.is_empty() {
            return;
        }
        let ended: HashSet<u32> = ended.map(|number| number as u32).collect();
        let remaining = self.numbers.iter().zip(&self.places).filter(|(number, _)| !ended.contains(number));
        let (numbers, places) = remaining.unzip();
        (self.numbers, self.places) = (numbers, places);
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// The rows, sorted by their groups. The columns of the messages are of these types.
    ///
    /// # Errors
    /// If a message has no such columns.
    pub(crate) fn sorted<'a>(&'a self, types: &'a [DataType]) -> Result<SortedRows<'a>, Malformed> {
        let columns = self.messages.iter().map(|message| batch::columns(message.bytes(), types.iter()));
        Ok(SortedRows {
            groups: Groups::new((0..).zip(self.numbers.iter().copied())),
            columns: columns.collect::<Result<_, _>>()?,
            places: &self.places,
        })
    }
}

/// Buffered rows, sorted by their groups.
#[derive(Debug)]
pub(crate) struct SortedRows<'a> {
    /// The groups, and the numbers of their rows.
    pub(crate) groups: Groups,
    columns: Vec<Vec<Column<'a>>>,
    places: &'a [(u32, u32)],
}

impl<'a> SortedRows<'a> {
    /// The place of a row's value: the column of its message, and the row there.
    pub(crate) fn value(&self, row: u32, column: usize) -> (&Column<'a>, usize) {
        let (message, place) = self.places[row as usize];
        (&self.columns[message as usize][column], place as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosslane::ColumnBuilder;

    fn message(values: &[i64]) -> Vec<u8> {
        let mut column = ColumnBuilder::new(&DataType::BigInt);
        column.fixed_all(values);
        Frame::new(&column, values.len()).unwrap().bytes().to_vec()
    }

    fn values(buffered: &BufferedRows) -> Vec<(usize, Vec<i64>)> {
        let sorted = buffered.sorted(&[DataType::BigInt]).unwrap();
        let value = |row: &u32| {
            let (column, place) = sorted.value(*row, 0);
            column.value(place)
        };
        sorted.groups.iter().map(|(number, rows)| (number, rows.iter().map(value).collect())).collect()
    }

    #[test]
    fn rows_of_several_messages_come_by_their_groups_and_can_be_forgotten() {
        let mut buffered = BufferedRows::default();
        assert!(buffered.is_empty() && values(&buffered).is_empty());
        buffered.add(&message(&[10, 11, 12]), [(1, 0), (0, 2)].into_iter());
        buffered.add(&message(&[20, 21]), [(1, 0), (3, 1)].into_iter());
        assert_eq!(values(&buffered), [(0, vec![12]), (1, vec![10, 20]), (3, vec![21])]);
        buffered.forget([1].into_iter());
        assert_eq!(values(&buffered), [(0, vec![12]), (3, vec![21])]);
        buffered.forget([0, 3].into_iter());
        assert!(buffered.is_empty() && buffered.bytes == 0 && buffered.messages.is_empty());
    }

    #[test]
    fn enough_rows_or_bytes_are_enough() {
        let mut buffered = BufferedRows::default();
        let one = message(&[1]);
        buffered.add(&one, (0..ENOUGH_ROWS - 1).map(|row| (row % 5, 0)));
        assert!(!buffered.is_full());
        buffered.add(&one, [(0, 0)].into_iter());
        assert!(buffered.is_full());
        // More groups have more rows.
        buffered.add(&one, [(2 * ENOUGH_ROWS, 0)].into_iter());
        assert!(!buffered.is_full());
        let mut buffered = BufferedRows::default();
        buffered.add(&vec![0; ENOUGH_BYTES], [(0, 0)].into_iter());
        assert!(buffered.is_full());
    }
}
