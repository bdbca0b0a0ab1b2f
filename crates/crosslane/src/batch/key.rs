//! Rows as bytes that tell whether two rows are equal.

use crate::batch::{Column, bit};
use crate::types::Layout;

/// Appends the bytes of one row of some columns. The bytes of two rows with the same types are equal
/// if, and only if, all values are. Numbers are compared by their bits, so 0.0 and -0.0 differ.
pub(crate) fn append_key(columns: &[Column<'_>], row: usize, key: &mut Vec<u8>) {
    columns.iter().for_each(|column| append(column, row, key));
}

fn append(column: &Column<'_>, row: usize, key: &mut Vec<u8>) {
    let is_valid = column.is_valid(row);
    key.push(u8::from(is_valid));
    if !is_valid {
        return;
    }
    match column.data_type.layout() {
        Layout::Bits => key.push(u8::from(bit(column.data, row))),
        Layout::Fixed(width) => key.extend_from_slice(&column.data[row * width..(row + 1) * width]),
        Layout::Bytes { .. } => {
            let bytes = column.bytes(row);
            key.extend_from_slice(&(bytes.len() as u32).to_ne_bytes());
            key.extend_from_slice(bytes);
        }
        Layout::List | Layout::FixedList(_) => {
            let elements = column.elements(row);
            key.extend_from_slice(&(elements.len() as u32).to_ne_bytes());
            elements.for_each(|element| append(&column.children[0], element, key));
        }
        Layout::Struct => column.children.iter().for_each(|child| append(child, row, key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::ColumnBuilder;
    use crate::types::DataType;

    #[test]
    fn only_equal_rows_have_equal_keys() {
        let data_type: DataType = "STRUCT(a VARCHAR, b BOOLEAN, c DOUBLE)[]".parse().unwrap();
        let mut lists = ColumnBuilder::new(&data_type);
        // Each list differs from all others.
        let rows: [&[(&str, Option<bool>, f64)]; 8] = [
            &[],
            &[("", None, 0.0)],
            &[("", None, -0.0)],
            &[("", Some(false), 0.0)],
            &[("a", Some(true), f64::NAN), ("b", Some(true), 1.0)],
            &[("ab", Some(true), f64::NAN), ("", Some(true), 1.0)],
            &[("ab", Some(true), f64::NAN)],
            &[("", None, 0.0), ("", None, 0.0)],
        ];
        for _ in 0..2 {
            lists.null();
            for row in rows {
                for (text, flag, number) in row {
                    let structs = &mut lists.children[0];
                    structs.children[0].bytes(text.as_bytes()).unwrap();
                    match flag {
                        Some(flag) => structs.children[1].boolean(*flag),
                        None => structs.children[1].null(),
                    }
                    structs.children[2].fixed(*number);
                    structs.nested().unwrap();
                }
                lists.nested().unwrap();
            }
        }
        let columns = [lists.column(&data_type)];
        let key = |row| {
            let mut key = Vec::new();
            append_key(&columns, row, &mut key);
            key
        };
        let count = rows.len() + 1;
        for one in 0..2 * count {
            for other in 0..2 * count {
                assert_eq!(key(one) == key(other), one % count == other % count, "{one} and {other}");
            }
        }
    }
}
