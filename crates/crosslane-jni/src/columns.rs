//! Columns that the JVM has made, and columns that it reads.
//!
//! Both sides describe a batch by a table of 64-bit words. Each column has [`WORDS`] words, and its
//! children follow, depth first. In the plugin, `ColumnWriter` writes such tables, and `LaneVector`
//! reads them.
//!
//! | word | content |
//! |---|---|
//! | 0 | the number of rows |
//! | 1 | the address of the validity bitmap, or 0 if no row is NULL |
//! | 2 | the address of the offsets, or 0 if the type has none |
//! | 3 | the address of the values, or 0 if the type has none |
//! | 4 | the number of bytes of values |

use crosslane::batch::{Column, Encode};
use crosslane::call::Input;
use crosslane::{DataType, Error, Layout, Rows};
use std::ops::Range;

/// The words of a column in the table.
pub const WORDS: usize = 5;

/// The number of columns of a type: its own, and those of all types below it.
pub fn count(data_type: &DataType) -> usize {
    1 + data_type.children().map(count).sum::<usize>()
}

/// Reads the columns of a table.
struct Reader<'a> {
    table: &'a [u64],
}

/// # Safety
/// There must be this many bytes at the address. They must not change for the lifetime.
unsafe fn bytes<'a>(address: u64, length: usize) -> &'a [u8] {
    if length == 0 || address == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(address as *const u8, length) }
}

impl<'a> Reader<'a> {
    /// # Safety
    /// As [`read_table`].
    unsafe fn column(&mut self, data_type: &'a DataType) -> Result<Column<'a>, Error> {
        let Some((words, rest)) = self.table.split_at_checked(WORDS) else {
            return Err(Error::Engine("a batch with too few columns".into()));
        };
        self.table = rest;
        let [rows, validity, offsets, data, length] = words else { unreachable!("so many were split off") };
        let rows = *rows as usize;
        let layout = data_type.layout();
        let has_offsets = matches!(layout, Layout::Bytes { .. } | Layout::List);
        // SAFETY: as the caller says. The plugin's memory is aligned to eight bytes.
        let column = unsafe {
            Column {
                data_type,
                rows,
                validity: (*validity != 0).then(|| bytes(*validity, rows.div_ceil(8))),
                offsets: if has_offsets {
                    std::slice::from_raw_parts(*offsets as *const i32, rows + 1)
                } else {
                    &[]
                },
                data: bytes(*data, *length as usize),
                children: data_type.children().map(|child| self.column(child)).collect::<Result<_, _>>()?,
            }
        };
        Ok(column)
    }
}

/// The columns that a table of the JVM describes.
///
/// # Errors
/// [`Error::Engine`] if the table has more or fewer columns than the types.
///
/// # Safety
/// The table must describe columns of these types. These columns must not change for the lifetime.
pub unsafe fn read_table<'a>(
    table: &'a [u64],
    types: impl Iterator<Item = &'a DataType>,
) -> Result<Vec<Column<'a>>, Error> {
    let mut reader = Reader { table };
    // SAFETY: as the caller says.
    let columns = types.map(|data_type| unsafe { reader.column(data_type) }).collect::<Result<_, _>>()?;
    if !reader.table.is_empty() {
        return Err(Error::Engine("a batch with too many columns".into()));
    }
    Ok(columns)
}

/// Appends a column to a table. The column must live until the JVM has read it.
pub fn write_table(column: &Column<'_>, table: &mut Vec<u64>) {
    let address = |bytes: &[u8]| if bytes.is_empty() { 0 } else { bytes.as_ptr() as u64 };
    let offsets = if column.offsets.is_empty() { 0 } else { column.offsets.as_ptr() as u64 };
    let validity = column.validity.map_or(0, address);
    table.extend([column.rows as u64, validity, offsets, address(column.data), column.data.len() as u64]);
    column.children.iter().for_each(|child| write_table(child, table));
}

/// Arguments of a call: some rows of columns.
pub(crate) struct Arguments<'a> {
    pub(crate) rows: Range<usize>,
    pub(crate) columns: Vec<&'a Column<'a>>,
}

impl Input for Arguments<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let rows = self.rows.start + rows.start..self.rows.start + rows.end;
        let columns: Vec<_> = self.columns.iter().map(|column| Rows::new(column, rows.clone())).collect();
        take(&columns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosslane::ColumnBuilder;

    #[test]
    fn a_column_is_the_same_behind_its_addresses() {
        let data_type: DataType = "STRUCT(a VARCHAR[], b DOUBLE)".parse().unwrap();
        let mut builder = ColumnBuilder::new(&data_type);
        for row in 0..10 {
            builder.children[0].children[0].bytes(b"text").unwrap();
            builder.children[0].nested().unwrap();
            builder.children[1].fixed(f64::from(row));
            if row == 3 {
                // A row that is NULL has no values below it.
                builder.children.iter_mut().for_each(|child| child.truncate(3));
                builder.null();
            } else {
                builder.nested().unwrap();
            }
        }
        let column = builder.column(&data_type);
        let mut table = Vec::new();
        write_table(&column, &mut table);
        assert_eq!(table.len(), WORDS * count(&data_type));
        // SAFETY: the builder lives, and no code changes it.
        let read = unsafe { read_table(&table, std::iter::once(&data_type)) }.unwrap();
        for row in 0..10 {
            assert_eq!(crosslane::display::value(&read[0], row), crosslane::display::value(&column, row));
        }
        let too_few = &table[..table.len() - WORDS];
        // SAFETY: as above.
        assert!(unsafe { read_table(too_few, std::iter::once(&data_type)) }.is_err());
    }
}
