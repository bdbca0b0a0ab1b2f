//! The rows of a batch that a function is called for.

use crosslane::batch::{Column, bit};

/// Which rows of a batch are called.
pub(crate) struct Selection {
    rows: usize,
    /// One bit for each row. None if all rows are called.
    bits: Option<Vec<u8>>,
}

impl Selection {
    /// All rows of a batch.
    pub(crate) fn all(rows: usize) -> Self {
        Self { rows, bits: None }
    }

    /// The rows without a NULL in the columns whose NULLs the function does not want to see.
    pub(crate) fn without_nulls(rows: usize, columns: &[Column<'_>], admits_null: &[bool]) -> Self {
        let columns = columns.iter().zip(admits_null).filter(|(_, admits)| !**admits);
        let mut masks = columns.filter_map(|(column, _)| column.validity);
        let bits = masks.next().map(|first| {
            let mut bits = first[..rows.div_ceil(8)].to_vec();
            for mask in masks {
                bits.iter_mut().zip(mask).for_each(|(bits, more)| *bits &= more);
            }
            bits
        });
        Self { rows, bits }
    }

    /// Whether no row is left out because of a NULL.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.bits.is_none()
    }

    /// A bit for each row, which says whether it is called. None if all rows are called.
    pub(crate) fn bits(&self) -> Option<&[u8]> {
        self.bits.as_deref()
    }

    /// The rows whose bit is set. All of them must be among these rows.
    pub(crate) fn only(self, bits: Vec<u8>) -> Self {
        Self { bits: Some(bits), ..self }
    }

    #[inline]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    #[inline]
    pub(crate) fn contains(&self, row: usize) -> bool {
        self.bits.as_ref().is_none_or(|bits| bit(bits, row))
    }

    /// The first called row from `row` on, or the number of rows.
    #[inline]
    pub(crate) fn next(&self, mut row: usize) -> usize {
        while row < self.rows && !self.contains(row) {
            row += 1;
        }
        row
    }

    /// How many rows from `row` on are called without a gap.
    #[inline]
    pub(crate) fn run_length(&self, row: usize) -> usize {
        match &self.bits {
            None => self.rows - row,
            Some(bits) => (row..self.rows).take_while(|row| bit(bits, *row)).count(),
        }
    }

    /// How many of the rows before `row` are called.
    pub(crate) fn count_before(&self, row: usize) -> usize {
        match &self.bits {
            None => row,
            Some(bits) => {
                let rest = (row / 8 * 8..row).filter(|row| bit(bits, *row)).count();
                bits[..row / 8].iter().map(|byte| byte.count_ones() as usize).sum::<usize>() + rest
            }
        }
    }
}
