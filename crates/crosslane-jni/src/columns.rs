//! Columns that the JVM has made, and columns that it reads.
//!
//! Both sides tell of a batch by a table of 64-bit words: for each column, and depth first for each of its children, a row
//! of [`WORDS`] words. `ColumnTable` of the plugin writes and reads the same.
//!
//! | word | content |
//! |---|---|
//! | 0 | how many rows the column has |
//! | 1 | the address of the validity bitmap, or 0 if no row is NULL |
//! | 2 | the address of the offsets, or 0 if the type has none |
//! | 3 | the address of the values, or 0 if the type has none |
//! | 4 | how many bytes of values there are |

use crosslane::batch::Column;
use crosslane::{DataType, Error, Layout};

/// How many words of the table a column has.
pub const WORDS: usize = 5;

/// How many columns there are of a type: it and all below it.
pub fn count(data_type: &DataType) -> usize {
    1 + data_type.children().map(count).sum::<usize>()
}

/// Reads the columns of a table.
struct Reader<'a> {
    table: &'a [u64],
}

/// # Safety
/// There must be so many bytes at the address, if there are any, which nobody changes for the lifetime.
unsafe fn bytes<'a>(address: u64, length: usize) -> &'a [u8] {
    if length == 0 || address == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(address as *const u8, length) }
}

impl<'a> Reader<'a> {
    /// # Safety
    /// As [`given`].
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

/// The columns of a batch that the JVM has made.
///
/// # Errors
/// [`Error::Engine`] if the table has other columns than the types.
///
/// # Safety
/// The table must be of these types and tell the truth, and nobody must change what it tells of for the lifetime.
pub unsafe fn given<'a>(
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

/// Adds what the JVM needs to read a column, which must live until it has.
pub fn tell(column: &Column<'_>, table: &mut Vec<u64>) {
    let address = |bytes: &[u8]| if bytes.is_empty() { 0 } else { bytes.as_ptr() as u64 };
    let offsets = if column.offsets.is_empty() { 0 } else { column.offsets.as_ptr() as u64 };
    let validity = column.validity.map_or(0, address);
    table.extend([column.rows as u64, validity, offsets, address(column.data), column.data.len() as u64]);
    column.children.iter().for_each(|child| tell(child, table));
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
                // Of a row that is NULL there is no more to see.
                builder.children.iter_mut().for_each(|child| child.truncate(3));
                builder.null();
            } else {
                builder.nested().unwrap();
            }
        }
        let column = builder.column(&data_type);
        let mut table = Vec::new();
        tell(&column, &mut table);
        assert_eq!(table.len(), WORDS * count(&data_type));
        // SAFETY: the builder lives, and is not changed.
        let read = unsafe { given(&table, std::iter::once(&data_type)) }.unwrap();
        for row in 0..10 {
            assert_eq!(crosslane::display::value(&read[0], row), crosslane::display::value(&column, row));
        }
        let too_few = &table[..table.len() - WORDS];
        // SAFETY: as above.
        assert!(unsafe { given(too_few, std::iter::once(&data_type)) }.is_err());
    }
}
