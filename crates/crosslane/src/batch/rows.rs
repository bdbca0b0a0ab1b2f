//! Some rows of a column, as a batch.

use crate::batch::{Body, Column, Encode, Plan, bit};
use crate::types::Layout;
use std::ops::Range;

/// Consecutive rows of a column. They are sent as a column of their own.
#[derive(Debug)]
pub struct Rows<'a> {
    column: &'a Column<'a>,
    rows: Range<usize>,
    nulls: usize,
    children: Vec<Rows<'a>>,
}

impl<'a> Rows<'a> {
    /// These rows of a column.
    ///
    /// # Panics
    /// If the column has fewer.
    pub fn new(column: &'a Column<'a>, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= column.rows, "{rows:?} of {} rows", column.rows);
        let nulls = column.validity.map_or(0, |bits| rows.clone().filter(|row| !bit(bits, *row)).count());
        let below = match column.data_type.layout() {
            Layout::List => column.offsets[rows.start] as usize..column.offsets[rows.end] as usize,
            Layout::FixedList(length) => rows.start * length..rows.end * length,
            _ => rows.clone(),
        };
        let children = column.children.iter().map(|child| Rows::new(child, below.clone())).collect();
        Self { column, rows, nulls, children }
    }

    /// The values of these rows, in a column of bytes.
    fn bytes(&self) -> &'a [u8] {
        let offsets = self.column.offsets;
        &self.column.data[offsets[self.rows.start] as usize..offsets[self.rows.end] as usize]
    }

    fn write_offsets(&self, buffer: &mut [u8]) {
        let offsets = &self.column.offsets[self.rows.start..=self.rows.end];
        let first = offsets[0];
        let out: &mut [i32] = bytemuck::cast_slice_mut(buffer);
        out.iter_mut().zip(offsets).for_each(|(out, offset)| *out = offset - first);
    }
}

/// Copies the bits of `rows` to the beginning of `out`, which has exactly the bytes for them.
fn copy_bits(bits: &[u8], rows: &Range<usize>, out: &mut [u8]) {
    let (first, shift) = (rows.start / 8, rows.start % 8);
    if shift == 0 {
        out.copy_from_slice(&bits[first..first + out.len()]);
        return;
    }
    for (at, out) in out.iter_mut().enumerate() {
        let high = bits.get(first + at + 1).copied().unwrap_or_default();
        *out = bits[first + at] >> shift | high << (8 - shift);
    }
}

impl Encode for Rows<'_> {
    fn plan(&self, plan: &mut Plan) {
        let layout = self.column.data_type.layout();
        let bytes = if matches!(layout, Layout::Bytes { .. }) { self.bytes().len() } else { 0 };
        plan.column(layout, self.rows.len(), self.nulls, bytes);
        self.children.iter().for_each(|child| child.plan(plan));
    }

    fn write(&self, body: &mut Body<'_>) {
        let validity = body.buffer();
        if let Some(bits) = self.column.validity.filter(|_| self.nulls > 0) {
            copy_bits(bits, &self.rows, validity);
        }
        let (data, rows) = (self.column.data, &self.rows);
        match self.column.data_type.layout() {
            Layout::Bits => copy_bits(data, rows, body.buffer()),
            Layout::Fixed(width) => {
                body.buffer().copy_from_slice(&data[rows.start * width..rows.end * width]);
            }
            Layout::Bytes { .. } => {
                self.write_offsets(body.buffer());
                body.buffer().copy_from_slice(self.bytes());
            }
            Layout::List => self.write_offsets(body.buffer()),
            Layout::FixedList(_) | Layout::Struct => {}
        }
        self.children.iter().for_each(|child| child.write(body));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::ColumnBuilder;
    use crate::batch::{Frame, columns};
    use crate::types::DataType;

    /// A column of lists of structs, with NULLs at each level.
    fn nested() -> (DataType, ColumnBuilder) {
        let data_type: DataType = "STRUCT(a VARCHAR, b BIGINT, c BOOLEAN, d INTEGER[2])[]".parse().unwrap();
        let mut column = ColumnBuilder::new(&data_type);
        for row in 0..100usize {
            if row % 7 == 3 {
                column.null();
                continue;
            }
            for element in 0..row % 4 {
                let structs = &mut column.children[0];
                if (row + element) % 5 == 0 {
                    structs.null();
                    continue;
                }
                structs.children[0].bytes("ä".repeat(row % 3).as_bytes()).unwrap();
                match row % 3 {
                    0 => structs.children[1].null(),
                    _ => structs.children[1].fixed(row as i64),
                }
                structs.children[2].boolean(row % 2 == 0);
                structs.children[3].children[0].fixed(row as i32);
                structs.children[3].children[0].fixed(-1i32);
                structs.children[3].nested().unwrap();
                structs.nested().unwrap();
            }
            column.nested().unwrap();
        }
        (data_type, column)
    }

    #[test]
    fn any_rows_are_the_same_values() {
        let (data_type, builder) = nested();
        let column = builder.column(&data_type);
        for (start, end) in [(0, 100), (0, 0), (1, 9), (3, 4), (8, 16), (13, 99), (99, 100), (100, 100)] {
            let rows = Rows::new(&column, start..end);
            let frame = Frame::new(&rows, end - start).unwrap();
            let read = columns(frame.bytes(), std::iter::once(&data_type)).unwrap();
            for row in start..end {
                let (there, here) = (
                    crate::types::display::value(&column, row),
                    crate::types::display::value(&read[0], row - start),
                );
                assert_eq!(there, here, "row {row} of {start}..{end}");
                assert_eq!(column.is_valid(row), read[0].is_valid(row - start));
            }
        }
    }

    #[test]
    fn columns_one_behind_the_other_have_the_same_values() {
        let (data_type, builder) = nested();
        let column = builder.column(&data_type);
        let mut all = ColumnBuilder::new(&data_type);
        let pieces = [0..3, 3..3, 3..20, 20..21, 21..64, 64..100];
        for piece in pieces {
            let frame = Frame::new(&Rows::new(&column, piece.clone()), piece.len()).unwrap();
            let read = columns(frame.bytes(), std::iter::once(&data_type)).unwrap();
            all.extend(&read[0]).unwrap();
        }
        let all = all.column(&data_type);
        assert_eq!(all.rows, 100);
        for row in 0..100 {
            assert_eq!(crate::types::display::value(&all, row), crate::types::display::value(&column, row));
        }
    }
}
