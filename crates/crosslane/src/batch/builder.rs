//! A column that grows value by value. Guests collect their results in it.

use crate::batch::{Body, Column, Encode, Plan};
use crate::error::Error;
use crate::types::{DataType, Layout};
use bytemuck::Pod;
use std::collections::TryReserveError;
use std::sync::Arc;

/// A growing column.
#[derive(Debug)]
pub struct ColumnBuilder {
    layout: Layout,
    rows: usize,
    nulls: usize,
    validity: Vec<u8>,
    offsets: Vec<i32>,
    data: Vec<u8>,
    /// The columns of the elements or fields.
    pub children: Vec<ColumnBuilder>,
}

/// Why a column cannot grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Overflow {
    /// More bytes or elements than 32-bit offsets can address.
    #[error("the results of one batch exceed 2 GiB")]
    TooLarge,
    /// The process is short of memory.
    #[error("there is no memory for the results of one batch")]
    NoMemory,
}

impl From<Overflow> for Error {
    fn from(overflow: Overflow) -> Self {
        Error::Engine(overflow.to_string())
    }
}

impl From<TryReserveError> for Overflow {
    fn from(_: TryReserveError) -> Self {
        Overflow::NoMemory
    }
}

impl ColumnBuilder {
    /// An empty column of a type.
    pub fn new(data_type: &DataType) -> Self {
        let layout = data_type.layout();
        let offsets =
            if matches!(layout, Layout::Bytes { .. } | Layout::List) { vec![0] } else { Vec::new() };
        let children = data_type.children().map(ColumnBuilder::new).collect();
        Self { layout, rows: 0, nulls: 0, validity: Vec::new(), offsets, data: Vec::new(), children }
    }

    /// For each row, a LIST of its values in some columns. If `skips` is set, a row with a NULL
    /// among these values gets NULL.
    ///
    /// # Errors
    /// [`Overflow`] beyond 2 GiB, or if there is no memory.
    pub fn lists(
        element: &DataType,
        columns: &[Column<'_>],
        rows: usize,
        skips: bool,
    ) -> Result<Self, Overflow> {
        let mut lists = Self::new(&DataType::List(Arc::new(element.clone())));
        lists.reserve(rows)?;
        lists.children[0].reserve(rows.checked_mul(columns.len()).ok_or(Overflow::NoMemory)?)?;
        for row in 0..rows {
            if skips && columns.iter().any(|column| !column.is_valid(row)) {
                lists.null();
                continue;
            }
            columns.iter().try_for_each(|column| lists.children[0].copy(column, row))?;
            lists.nested()?;
        }
        Ok(lists)
    }

    /// Adds one row of a column of the same type.
    ///
    /// # Errors
    /// As [`ColumnBuilder::lists`].
    pub fn copy(&mut self, column: &Column<'_>, row: usize) -> Result<(), Overflow> {
        if !column.is_valid(row) {
            self.null();
            return Ok(());
        }
        match self.layout {
            Layout::Bits => self.boolean(crate::batch::bit(column.data, row)),
            Layout::Fixed(width) => {
                self.data.extend_from_slice(&column.data[row * width..(row + 1) * width]);
                self.end_row(true);
            }
            Layout::Bytes { .. } => self.bytes(column.bytes(row))?,
            Layout::List | Layout::FixedList(_) => {
                let elements = column.elements(row);
                self.children[0].reserve(elements.len())?;
                for element in elements {
                    self.children[0].copy(&column.children[0], element)?;
                }
                self.nested()?;
            }
            Layout::Struct => {
                for (child, column) in self.children.iter_mut().zip(&column.children) {
                    child.copy(column, row)?;
                }
                self.nested()?;
            }
        }
        Ok(())
    }

    /// Adds all rows of a column of the same type, one buffer at a time.
    ///
    /// # Errors
    /// As [`ColumnBuilder::lists`].
    pub fn extend(&mut self, column: &Column<'_>) -> Result<(), Overflow> {
        self.reserve(column.rows)?;
        match self.layout {
            Layout::Bits => extend_bits(&mut self.data, self.rows, column.data, column.rows),
            Layout::Fixed(width) => self.data.extend_from_slice(&column.data[..column.rows * width]),
            Layout::Bytes { .. } => {
                let bytes = &column.data[..column.offsets[column.rows] as usize];
                self.extend_offsets(self.data.len(), column)?;
                self.data.try_reserve(bytes.len())?;
                self.data.extend_from_slice(bytes);
            }
            Layout::List => self.extend_offsets(self.children[0].rows, column)?,
            Layout::FixedList(_) | Layout::Struct => {}
        }
        self.children.iter_mut().zip(&column.children).try_for_each(|(child, more)| child.extend(more))?;
        match column.validity {
            None => self.end_rows(column.rows),
            Some(bits) => (0..column.rows).for_each(|row| self.end_row(crate::batch::bit(bits, row))),
        }
        Ok(())
    }

    /// Adds the offsets of a column whose values follow the first `before` values.
    fn extend_offsets(&mut self, before: usize, column: &Column<'_>) -> Result<(), Overflow> {
        let last = before + column.offsets[column.rows] as usize;
        if i32::try_from(last).is_err() {
            return Err(Overflow::TooLarge);
        }
        self.offsets.extend(column.offsets[1..=column.rows].iter().map(|offset| offset + before as i32));
        Ok(())
    }

    /// The number of rows so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The approximate size of the rows so far, in bytes.
    pub fn size(&self) -> usize {
        let own = self.offsets.len() * size_of::<i32>() + self.data.len();
        own + self.children.iter().map(ColumnBuilder::size).sum::<usize>()
    }

    /// The rows so far, as a column of type `data_type`, which must be the builder's type.
    pub fn column<'a>(&'a self, data_type: &'a DataType) -> Column<'a> {
        debug_assert_eq!(self.layout, data_type.layout());
        let children = self.children.iter().zip(data_type.children());
        Column {
            data_type,
            rows: self.rows,
            validity: (self.nulls > 0).then_some(&self.validity[..]),
            offsets: &self.offsets,
            data: &self.data,
            children: children.map(|(child, data_type)| child.column(data_type)).collect(),
        }
    }

    /// Reserves memory for `rows` more rows, but not for the bytes of texts or the elements of
    /// lists. After that, the fixed part of these rows needs no allocation that could end the
    /// process.
    ///
    /// # Errors
    /// [`Overflow`] if there is no memory, or if 32-bit offsets cannot address so many rows.
    pub fn reserve(&mut self, rows: usize) -> Result<(), Overflow> {
        if self.rows.saturating_add(rows) > i32::MAX as usize {
            return Err(Overflow::TooLarge);
        }
        let validity = (self.rows + rows).div_ceil(8);
        self.validity.try_reserve(validity.saturating_sub(self.validity.len()))?;
        let mut below = rows;
        match self.layout {
            Layout::Bits => self.data.try_reserve(rows.div_ceil(8))?,
            Layout::Fixed(width) => {
                self.data.try_reserve(rows.checked_mul(width).ok_or(Overflow::NoMemory)?)?
            }
            Layout::Bytes { .. } => self.offsets.try_reserve(rows)?,
            Layout::List => return Ok(self.offsets.try_reserve(rows)?),
            Layout::FixedList(length) => below = rows.checked_mul(length).ok_or(Overflow::NoMemory)?,
            Layout::Struct => {}
        }
        self.children.iter_mut().try_for_each(|child| child.reserve(below))
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.nulls = 0;
        self.validity.clear();
        self.offsets.truncate(1);
        self.data.clear();
        self.children.iter_mut().for_each(ColumnBuilder::clear);
    }

    /// Keeps the first `rows` rows only, after a value failed half-way.
    pub fn truncate(&mut self, rows: usize) {
        if rows >= self.rows {
            self.cut_children();
            return;
        }
        if !self.validity.is_empty() {
            self.nulls -= (rows..self.rows).filter(|row| !crate::batch::bit(&self.validity, *row)).count();
            self.validity.truncate(rows.div_ceil(8));
            if !rows.is_multiple_of(8) {
                self.validity[rows / 8] &= (1 << (rows % 8)) - 1;
            }
        }
        self.rows = rows;
        match self.layout {
            Layout::Bits => {
                self.data.truncate(rows.div_ceil(8));
                if !rows.is_multiple_of(8) {
                    self.data[rows / 8] &= (1 << (rows % 8)) - 1;
                }
            }
            Layout::Fixed(width) => self.data.truncate(rows * width),
            Layout::Bytes { .. } => {
                self.offsets.truncate(rows + 1);
                self.data.truncate(self.offsets[rows] as usize);
            }
            Layout::List => self.offsets.truncate(rows + 1),
            Layout::FixedList(_) | Layout::Struct => {}
        }
        self.cut_children();
    }

    fn cut_children(&mut self) {
        let rows = match self.layout {
            Layout::List => self.offsets[self.rows] as usize,
            Layout::FixedList(length) => self.rows * length,
            _ => self.rows,
        };
        self.children.iter_mut().for_each(|child| child.truncate(rows));
    }

    #[inline]
    fn end_row(&mut self, valid: bool) {
        if !valid && self.nulls == 0 {
            self.validity.clear();
            self.validity.resize(self.rows.div_ceil(8), 0xFF);
            if !self.rows.is_multiple_of(8) {
                self.validity[self.rows / 8] = (1 << (self.rows % 8)) - 1;
            }
        }
        if !valid || self.nulls > 0 {
            if self.rows.is_multiple_of(8) {
                self.validity.push(0);
            }
            self.validity[self.rows / 8] |= u8::from(valid) << (self.rows % 8);
            self.nulls += usize::from(!valid);
        }
        self.rows += 1;
    }

    /// Adds a NULL.
    pub fn null(&mut self) {
        match self.layout {
            Layout::Bits => self.bits(false),
            Layout::Fixed(width) => self.data.resize(self.data.len() + width, 0),
            Layout::Bytes { .. } | Layout::List => self.offsets.push(self.offsets[self.rows]),
            Layout::FixedList(length) => {
                self.children.iter_mut().for_each(|child| (0..length).for_each(|_| child.null()));
            }
            Layout::Struct => self.children.iter_mut().for_each(ColumnBuilder::null),
        }
        self.end_row(false);
    }

    /// Makes an existing row NULL. Its value stays in the buffer, and nothing reads it.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn make_null(&mut self, row: usize) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if self.nulls == 0 {
            self.validity.clear();
            extend_bits(&mut self.validity, 0, &vec![0xFF; self.rows.div_ceil(8)], self.rows);
        }
        if crate::batch::bit(&self.validity, row) {
            self.validity[row / 8] &= !(1 << (row % 8));
            self.nulls += 1;
        }
    }

    fn bits(&mut self, value: bool) {
        if self.rows.is_multiple_of(8) {
            self.data.push(0);
        }
        self.data[self.rows / 8] |= u8::from(value) << (self.rows % 8);
    }

    /// Adds a BOOLEAN.
    pub fn boolean(&mut self, value: bool) {
        self.bits(value);
        self.end_row(true);
    }

    /// Adds a fixed-width value. It must have the column's width.
    #[inline]
    pub fn fixed<T: Pod>(&mut self, value: T) {
        debug_assert_eq!(self.layout, Layout::Fixed(size_of::<T>()));
        self.data.extend_from_slice(bytemuck::bytes_of(&value));
        self.end_row(true);
    }

    /// Adds fixed-width values without NULLs.
    pub fn fixed_all<T: Pod>(&mut self, values: &[T]) {
        debug_assert_eq!(self.layout, Layout::Fixed(size_of::<T>()));
        self.data.extend_from_slice(bytemuck::cast_slice(values));
        self.end_rows(values.len());
    }

    /// Adds fixed-width values without NULLs until `next` returns `None`. Returns their number.
    #[inline]
    pub fn fixed_while<T: Pod>(&mut self, mut next: impl FnMut() -> Option<T>) -> usize {
        debug_assert_eq!(self.layout, Layout::Fixed(size_of::<T>()));
        let mut added = 0;
        while let Some(value) = next() {
            self.data.extend_from_slice(bytemuck::bytes_of(&value));
            added += 1;
        }
        self.end_rows(added);
        added
    }

    /// Adds BOOLEANs without NULLs until `next` returns `None`. Returns their number.
    #[inline]
    pub fn boolean_while(&mut self, mut next: impl FnMut() -> Option<bool>) -> usize {
        let mut added = 0;
        while let Some(value) = next() {
            let at = self.rows + added;
            if at.is_multiple_of(8) {
                self.data.push(0);
            }
            self.data[at / 8] |= u8::from(value) << (at % 8);
            added += 1;
        }
        self.end_rows(added);
        added
    }

    /// Counts `count` new rows that are not NULL.
    fn end_rows(&mut self, mut count: usize) {
        if self.nulls == 0 {
            self.rows += count;
            return;
        }
        while count > 0 {
            let bit = self.rows % 8;
            if bit == 0 {
                self.validity.push(0);
            }
            let now = count.min(8 - bit);
            self.validity[self.rows / 8] |= (((1u16 << now) - 1) << bit) as u8;
            self.rows += now;
            count -= now;
        }
    }

    /// Adds bytes, such as a VARCHAR or a BLOB.
    ///
    /// # Errors
    /// [`Overflow`] beyond 2 GiB in one batch, or if there is no memory.
    #[inline]
    pub fn bytes(&mut self, value: &[u8]) -> Result<(), Overflow> {
        let end = i32::try_from(self.data.len() + value.len()).map_err(|_| Overflow::TooLarge)?;
        self.data.try_reserve(value.len())?;
        self.data.extend_from_slice(value);
        self.offsets.push(end);
        self.end_row(true);
        Ok(())
    }

    /// Ends a LIST, MAP, ARRAY or STRUCT. The caller has added its elements or fields to the
    /// children.
    ///
    /// # Errors
    /// [`Overflow`] beyond 2^31 elements in one batch.
    pub fn nested(&mut self) -> Result<(), Overflow> {
        if self.layout == Layout::List {
            self.offsets.push(i32::try_from(self.children[0].rows).map_err(|_| Overflow::TooLarge)?);
        }
        self.end_row(true);
        Ok(())
    }
}

/// Adds `count` bits after the first `rows` bits.
fn extend_bits(bits: &mut Vec<u8>, rows: usize, more: &[u8], count: usize) {
    if rows.is_multiple_of(8) {
        bits.extend_from_slice(&more[..count.div_ceil(8)]);
    } else {
        bits.resize((rows + count).div_ceil(8), 0);
        for row in 0..count {
            let (at, set) = (rows + row, crate::batch::bit(more, row));
            bits[at / 8] |= u8::from(set) << (at % 8);
        }
    }
    // The bits after the last one may be set in `more`.
    if let Some(last) = bits.last_mut().filter(|_| !(rows + count).is_multiple_of(8)) {
        *last &= (1 << ((rows + count) % 8)) - 1;
    }
}

impl Encode for ColumnBuilder {
    fn plan(&self, plan: &mut Plan) {
        plan.column(self.layout, self.rows, self.nulls, self.data.len());
        self.children.iter().for_each(|child| child.plan(plan));
    }

    fn write(&self, body: &mut Body<'_>) {
        body.column(self.layout, &self.validity, &self.offsets, &self.data);
        self.children.iter().for_each(|child| child.write(body));
    }
}
