//! Checks that a guest's results are values of their type.
//!
//! [`crate::batch::columns`] checks the structure of a frame. A guest that breaks the structure is
//! ended. The checks here find values that can be read but are not valid for the type. Examples are
//! text that is not UTF-8, a time before midnight, and a MAP with a key twice. Such a value is an
//! error of the function in one row, like an exception.

use crate::batch::{Column, member};
use crate::types::display::value;
use crate::types::{DataType, code_width, integer, timetz, wkb};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// A day in microseconds.
const DAY: i64 = 86_400_000_000;
/// The first day of a TIMESTAMP in DuckDB, in days since 1970-01-01. The 64 bits can represent
/// earlier days, but DuckDB has no text for them.
const FIRST_DAY: i64 = -106_751_991;
/// The most bytes of a BIGNUM. DuckDB stores the length in 23 bits.
const LONGEST_BIGNUM: usize = (1 << 23) - 1;
/// Up to this number of keys, the check of a MAP compares each pair of keys. For more keys it sorts
/// them.
const FEW_KEYS: usize = 16;

/// The rows with a value that is not valid for its type, at any depth, each with a text about the
/// value.
pub fn unfit(column: &Column<'_>) -> BTreeMap<usize, String> {
    let mut found = BTreeMap::new();
    look(column, &Some, &mut found);
    found
}

/// Checks a column. `top` returns the row of the batch for a row of this column; `None` if the row
/// is below a NULL.
fn look(column: &Column<'_>, top: &dyn Fn(usize) -> Option<usize>, found: &mut BTreeMap<usize, String>) {
    use DataType as T;
    let data_type = column.data_type;
    let mut blame = |row: usize, what: &dyn Fn() -> String| {
        if column.is_valid(row)
            && let Some(row) = top(row)
        {
            found.entry(row).or_insert_with(what);
        }
    };
    match data_type {
        T::Varchar | T::Json | T::Bit if !is_utf8(column) => {
            let wrong = |row: &usize| std::str::from_utf8(column.bytes(*row)).is_err();
            let what = || format!("returned text that is not UTF-8 where {data_type} is due");
            (0..column.rows).filter(wrong).for_each(|row| blame(row, &what));
        }
        T::Bit => {
            let digits =
                |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(|byte| matches!(byte, b'0' | b'1'));
            for row in (0..column.rows).filter(|row| !digits(column.bytes(*row))) {
                let what = || format!("returned {} where BIT is due: text of 0 and 1", value(column, row));
                blame(row, &what);
            }
        }
        T::BigNum => {
            let fits = |row: &usize| (1..=LONGEST_BIGNUM).contains(&column.bytes(*row).len());
            for row in (0..column.rows).filter(|row| !fits(row)) {
                let length = column.bytes(row).len();
                blame(row, &|| format!("returned an integer of {length} bytes, which does not fit BIGNUM"));
            }
        }
        T::Geometry => {
            for row in 0..column.rows {
                if let Err(why) = wkb::check(column.bytes(row)) {
                    blame(row, &|| format!("returned {} where GEOMETRY is due: {why}", value(column, row)));
                }
            }
        }
        T::Enum(values) => {
            let width = code_width(values.len());
            let code = |bytes: &[u8]| bytes.iter().rev().fold(0, |code, byte| code << 8 | usize::from(*byte));
            for (row, code) in column.data.chunks_exact(width).map(code).enumerate() {
                if code >= values.len() {
                    blame(row, &|| format!("returned code {code}, which is none of {data_type}"));
                }
            }
        }
        T::Decimal { precision, .. } => {
            let limit = 10u128.pow(u32::from(*precision));
            for row in (0..column.rows).filter(|row| column.value::<i128>(*row).unsigned_abs() >= limit) {
                blame(row, &|| format!("returned {}, which does not fit {data_type}", value(column, row)));
            }
        }
        T::Time => numbers(column, "microseconds", 0..=DAY, &mut blame),
        T::TimeNs => numbers(column, "nanoseconds", 0..=DAY * 1000, &mut blame),
        T::TimeTz => {
            let zones = -timetz::MOST_SECONDS..=timetz::MOST_SECONDS;
            for row in 0..column.rows {
                let (micros, offset) = timetz::parts(column.value(row));
                if micros > DAY || !zones.contains(&offset) {
                    blame(row, &|| format!("returned {}, which does not fit TIMETZ", value(column, row)));
                }
            }
        }
        T::Date => {
            let wrong = |row: &usize| column.value::<i32>(*row) == i32::MIN;
            let what = || format!("returned {} days, which does not fit {data_type}", i32::MIN);
            (0..column.rows).filter(wrong).for_each(|row| blame(row, &what));
        }
        T::TimestampS => moments(column, "seconds", 1_000_000, &mut blame),
        T::TimestampMs => moments(column, "milliseconds", 1_000, &mut blame),
        T::Timestamp | T::TimestampTz => moments(column, "microseconds", 1, &mut blame),
        T::Map(_) => keys(column, &mut blame),
        T::Union(_) => tags(column, &mut blame),
        _ => {}
    }
    for child in &column.children {
        let top = |row: usize| {
            let parent = parent(column, row);
            if column.is_valid(parent) { top(parent) } else { None }
        };
        look(child, &top, found);
    }
}

/// The row of a column that contains this row of its child.
fn parent(column: &Column<'_>, row: usize) -> usize {
    match column.data_type {
        DataType::Array(_, length) => row / *length as usize,
        DataType::Struct(_) | DataType::Union(_) => row,
        _ => column.offsets.partition_point(|offset| *offset as usize <= row) - 1,
    }
}

type Blame<'a> = dyn FnMut(usize, &dyn Fn() -> String) + 'a;

fn numbers(column: &Column<'_>, unit: &str, allowed: std::ops::RangeInclusive<i64>, blame: &mut Blame<'_>) {
    let Some(values) = column.values::<i64>() else { return };
    // A fold without a short circuit, so that the compiler uses vector registers.
    if values.iter().fold(true, |fit, value| fit & allowed.contains(value)) {
        return;
    }
    for (row, value) in values.iter().enumerate().filter(|(_, value)| !allowed.contains(value)) {
        blame(row, &|| format!("returned {value} {unit}, which does not fit {}", column.data_type));
    }
}

/// Checks points in time. Both infinities are valid.
fn moments(column: &Column<'_>, unit: &str, micros: i64, blame: &mut Blame<'_>) {
    let allowed = FIRST_DAY * (DAY / micros)..=i64::MAX / micros;
    numbers(column, unit, allowed, &mut |row, what| {
        if column.value::<i64>(row).unsigned_abs() != i64::MAX.unsigned_abs() {
            blame(row, what);
        }
    });
}

/// Whether all strings are UTF-8: all bytes together are UTF-8, and no string begins inside a
/// character.
fn is_utf8(column: &Column<'_>) -> bool {
    let starts = |offset: &i32| column.data.get(*offset as usize).is_none_or(|byte| byte & 0xC0 != 0x80);
    column.data.is_ascii()
        || simdutf8::basic::from_utf8(column.data).is_ok() && column.offsets.iter().all(starts)
}

/// Checks that each UNION has a tag, and that only the tag's member has a value.
fn tags(column: &Column<'_>, blame: &mut Blame<'_>) {
    for row in (0..column.rows).filter(|row| column.is_valid(*row)) {
        let Some(member) = member(column, row) else {
            blame(row, &|| "returned a UNION without a tag".into());
            continue;
        };
        let mut others = column.children.iter().enumerate().skip(1).filter(|(at, _)| *at != member);
        if others.any(|(_, other)| other.is_valid(row)) {
            blame(row, &|| format!("returned a UNION that has more than {}", value(column, row)));
        }
    }
}

/// Checks that the keys of each MAP are not NULL and are different.
fn keys(column: &Column<'_>, blame: &mut Blame<'_>) {
    let entries = &column.children[0];
    let keys = &entries.children[0];
    let mut sorted: Vec<u32> = Vec::new();
    for row in (0..column.rows).filter(|row| column.is_valid(*row)) {
        let range = column.elements(row);
        if (entries.validity.is_some() || keys.validity.is_some())
            && !range.clone().all(|at| entries.is_valid(at) && keys.is_valid(at))
        {
            blame(row, &|| "returned a MAP with the key NULL; keys cannot be NULL".into());
            continue;
        }
        let same = |a: usize, b: usize| order(keys, a, b) == Ordering::Equal;
        let twice = if range.len() <= FEW_KEYS {
            range.clone().find(|at| (range.start..*at).any(|before| same(before, *at)))
        } else {
            sorted.clear();
            if sorted.try_reserve(range.len()).is_err() {
                blame(row, &|| format!("returned a MAP of {} entries, too many for the memory", range.len()));
                continue;
            }
            sorted.extend(range.map(|at| at as u32));
            sorted.sort_unstable_by(|a, b| order(keys, *a as usize, *b as usize));
            let twice = sorted.windows(2).find(|pair| same(pair[0] as usize, pair[1] as usize));
            twice.map(|pair| pair[0] as usize)
        };
        if let Some(at) = twice {
            blame(row, &|| format!("returned a MAP with the key {} twice", value(keys, at)));
        }
    }
}

/// An order of a column's values in which two values are equal if SQL treats them as equal.
fn order(column: &Column<'_>, a: usize, b: usize) -> Ordering {
    use DataType as T;
    let valid = column.is_valid(a);
    match (valid, column.is_valid(b)) {
        (true, true) => {}
        (_, other) => return valid.cmp(&other),
    }
    // Both zeros are equal, and so are all NaNs.
    let float = |value: f64| if value.is_nan() { f64::NAN } else { value + 0.0 };
    match column.data_type {
        T::Boolean => crate::batch::bit(column.data, a).cmp(&crate::batch::bit(column.data, b)),
        T::Float => {
            let value = |row| float(f64::from(column.value::<f32>(row)));
            value(a).total_cmp(&value(b))
        }
        T::Double => float(column.value(a)).total_cmp(&float(column.value(b))),
        // SQL compares intervals with months of 30 days and days of 24 hours.
        T::Interval => {
            let length = |row: usize| {
                let [months, days, low, high] = column.value::<[i32; 4]>(row);
                let micros = i64::from(high) << 32 | i64::from(low as u32);
                (i128::from(months) * 30 + i128::from(days)) * i128::from(DAY) + i128::from(micros)
            };
            length(a).cmp(&length(b))
        }
        T::Varchar | T::Json | T::Blob | T::Bit | T::Geometry => column.bytes(a).cmp(column.bytes(b)),
        T::BigNum => integer::trimmed(column.bytes(a)).cmp(integer::trimmed(column.bytes(b))),
        T::List(_) | T::Array(..) | T::Map(_) => {
            let (a, b) = (column.elements(a), column.elements(b));
            let different = a.clone().zip(b.clone()).map(|(a, b)| order(&column.children[0], a, b));
            different.into_iter().find(|order| order.is_ne()).unwrap_or(a.len().cmp(&b.len()))
        }
        T::Struct(_) | T::Union(_) => {
            let fields = column.children.iter().map(|child| order(child, a, b));
            fields.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        }
        _ => {
            let crate::Layout::Fixed(width) = column.data_type.layout() else { return Ordering::Equal };
            column.data[a * width..(a + 1) * width].cmp(&column.data[b * width..(b + 1) * width])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ColumnBuilder;

    fn of<T: bytemuck::Pod>(data_type: &str, values: &[Option<T>]) -> BTreeMap<usize, String> {
        let data_type: DataType = data_type.parse().unwrap();
        let mut column = ColumnBuilder::new(&data_type);
        values.iter().for_each(|value| match value {
            Some(value) => column.fixed(*value),
            None => column.null(),
        });
        unfit(&column.column(&data_type))
    }

    fn rows(found: &BTreeMap<usize, String>) -> Vec<usize> {
        found.keys().copied().collect()
    }

    #[test]
    fn values_that_no_column_of_the_type_can_hold() {
        let day = 86_400_000_000i64;
        let found = of("TIME", &[Some(0), Some(-1), None, Some(day), Some(day + 1)]);
        assert_eq!(rows(&found), [1, 4]);
        assert_eq!(found[&1], "returned -1 microseconds, which does not fit TIME");
        assert_eq!(rows(&of("DATE", &[Some(i32::MIN), Some(i32::MIN + 1), Some(i32::MAX)])), [0]);
        let ends = [i64::MIN, -i64::MAX, -i64::MAX + 1, 0, i64::MAX - 1, i64::MAX].map(Some);
        assert_eq!(rows(&of("TIMESTAMP", &ends)), [0, 2]);
        assert_eq!(rows(&of("TIMESTAMP_S", &ends)), [0, 2, 4]);
        assert_eq!(rows(&of("TIMESTAMP_MS", &ends)), [0, 2, 4]);
        assert!(of("TIMESTAMP_NS", &ends).is_empty());
        assert_eq!(rows(&of("DECIMAL(3,1)", &[Some(999i128), Some(1000), Some(-1000)])), [1, 2]);
        assert_eq!(
            of("DECIMAL(3,1)", &[Some(1000i128)])[&0],
            "returned 100.0, which does not fit DECIMAL(3,1)"
        );
        assert_eq!(rows(&of("ENUM('a', 'b')", &[Some(1u8), Some(2)])), [1]);
    }

    #[test]
    fn times_with_zones_are_times_of_a_day_and_zones_of_the_earth() {
        use crate::types::timetz::{MOST_SECONDS, bits};
        let most = MOST_SECONDS;
        let ends =
            [bits(0, most), bits(0, -most), bits(DAY, 0), bits(DAY + 1, 0), bits(0, most).wrapping_sub(1)];
        assert_eq!(rows(&of("TIMETZ", &ends.map(Some))), [3, 4]);
        assert_eq!(rows(&of("TIME_NS", &[Some(DAY * 1000), Some(DAY * 1000 + 1), Some(-1)])), [1, 2]);
        let zone = of("TIMETZ", &[Some(bits(DAY + 1, -1800))]);
        assert_eq!(zone[&0], "returned TIMETZ 24:00:00.000001-00:30:00, which does not fit TIMETZ");
    }

    #[test]
    fn bytes_that_are_invalid_for_their_type() {
        let of = |data_type: &str, values: &[&[u8]]| {
            let data_type: DataType = data_type.parse().unwrap();
            let mut column = ColumnBuilder::new(&data_type);
            values.iter().for_each(|value| column.bytes(value).unwrap());
            unfit(&column.column(&data_type))
        };
        assert_eq!(rows(&of("BIT", &[b"", b"01", b"2", b"0 1", b"1"])), [0, 2, 3]);
        assert_eq!(of("BIT", &[b"2"])[&0], "returned '2' where BIT is due: text of 0 and 1");
        assert_eq!(rows(&of("BIGNUM", &[&[], &[0], &[1; LONGEST_BIGNUM], &[1; LONGEST_BIGNUM + 1]])), [0, 3]);
        assert_eq!(rows(&of("GEOMETRY", &[b"", b"\x01\x02\0\0\0\0\0\0\0"])), [0]);
        let map = |keys: [&[u8]; 2]| {
            let data_type: DataType = "MAP(BIGNUM, BIGINT)".parse().unwrap();
            let mut column = ColumnBuilder::new(&data_type);
            for key in keys {
                column.children[0].children[0].bytes(key).unwrap();
                column.children[0].children[1].null();
                column.children[0].nested().unwrap();
            }
            column.nested().unwrap();
            unfit(&column.column(&data_type)).is_empty()
        };
        assert!(map([&[5], &[0xFB]]));
        assert!(!map([&[5], &[5, 0]]));
    }

    #[test]
    fn a_union_has_its_tag_and_the_member_of_that() {
        let data_type: DataType = "UNION(a INTEGER, b VARCHAR)".parse().unwrap();
        let mut column = ColumnBuilder::new(&data_type);
        for (tag, number, text) in [
            (Some(0u8), Some(5), None),
            (Some(1), None, Some("x")),
            (Some(1), Some(5), None),
            (None, None, None),
        ] {
            let [tags, numbers, texts] = &mut column.children[..] else { panic!("a tag and two members") };
            match tag {
                Some(tag) => tags.fixed(tag),
                None => tags.null(),
            }
            match number {
                Some(number) => numbers.fixed::<i32>(number),
                None => numbers.null(),
            }
            match text {
                Some(text) => texts.bytes(text.as_bytes()).unwrap(),
                None => texts.null(),
            }
            column.nested().unwrap();
        }
        column.children[0].fixed(2u8);
        column.children[1].null();
        column.children[2].null();
        column.nested().unwrap();
        column.null();
        let found = unfit(&column.column(&data_type));
        assert_eq!(rows(&found), [2, 3, 4]);
        assert_eq!(found[&2], "returned a UNION that has more than b := NULL");
        assert_eq!(found[&3], "returned a UNION without a tag");
    }

    #[test]
    fn text_is_utf8_in_each_row() {
        let mut column = ColumnBuilder::new(&DataType::Varchar);
        for bytes in [&b"a"[..], &"\u{e4}".as_bytes()[..1], &"\u{e4}".as_bytes()[1..], "\u{e4}".as_bytes()] {
            column.bytes(bytes).unwrap();
        }
        // The bytes of all strings together are UTF-8, but the strings are not.
        assert_eq!(rows(&unfit(&column.column(&DataType::Varchar))), [1, 2]);
    }

    #[test]
    fn a_row_is_found_through_all_levels_and_not_below_a_null() {
        let data_type: DataType = "STRUCT(a TIME[2][])".parse().unwrap();
        let mut column = ColumnBuilder::new(&data_type);
        for row in 0..4 {
            let lists = &mut column.children[0];
            for list in 0..row {
                let array = &mut lists.children[0];
                array.children[0].fixed(0i64);
                array.children[0].fixed(if row + list == 4 || row == 2 { -1i64 } else { 0 });
                array.nested().unwrap();
            }
            lists.nested().unwrap();
            column.nested().unwrap();
        }
        let mut column = column.column(&data_type);
        assert_eq!(rows(&unfit(&column)), [2, 3]);
        column.validity = Some(&[0b1011]);
        assert_eq!(rows(&unfit(&column)), [3]);
    }

    /// The error of a MAP with these entries, in the second of two rows. The first row has an empty
    /// MAP.
    fn map<T: bytemuck::Pod>(key: &str, keys: &[Option<T>]) -> Option<String> {
        let data_type: DataType = format!("MAP({key}, BIGINT)").parse().unwrap();
        let mut column = ColumnBuilder::new(&data_type);
        column.nested().unwrap();
        for key in keys {
            let entries = &mut column.children[0];
            match key {
                Some(key) => entries.children[0].fixed(*key),
                None => entries.children[0].null(),
            }
            entries.children[1].null();
            entries.nested().unwrap();
        }
        column.nested().unwrap();
        let mut found = unfit(&column.column(&data_type));
        assert!(found.keys().all(|row| *row == 1));
        found.remove(&1)
    }

    #[test]
    fn keys_of_maps_are_there_once() {
        let many: Vec<_> = (0..1000i32).map(|key| Some(key * 7919 % 1000)).collect();
        assert_eq!(map("INTEGER", &many), None);
        let twice: Vec<_> = many.iter().copied().chain([Some(77)]).collect();
        let message = Some("returned a MAP with the key 77 twice".to_owned());
        assert_eq!(map("INTEGER", &twice), message);
        assert_eq!(map("INTEGER", &[Some(77), Some(1), Some(77)]), message);
        let missing = map("INTEGER", &[Some(1), None]).unwrap();
        assert_eq!(missing, "returned a MAP with the key NULL; keys cannot be NULL");
        assert_eq!(map::<i32>("INTEGER", &[]), None);
        assert!(map("DOUBLE", &[Some(0.0), Some(-0.0)]).is_some());
        assert!(map("FLOAT", &[Some(f32::NAN), Some(-f32::NAN)]).is_some());
        assert!(map("INTERVAL", &[Some([1, 0, 0, 0]), Some([0, 30, 0, 0])]).is_some());
        assert!(map("INTERVAL", &[Some([1, 0, 0, 0]), Some([0, 31, 0, 0])]).is_none());
    }

    #[test]
    fn nested_keys_are_compared_as_a_whole() {
        let data_type: DataType = "MAP(STRUCT(a VARCHAR, b INTEGER[]), BIGINT)".parse().unwrap();
        let twice = |pairs: &[(&str, &[i32])]| {
            let mut column = ColumnBuilder::new(&data_type);
            for (text, numbers) in pairs {
                let entries = &mut column.children[0];
                let key = &mut entries.children[0];
                key.children[0].bytes(text.as_bytes()).unwrap();
                key.children[1].children[0].fixed_all(numbers);
                key.children[1].nested().unwrap();
                key.nested().unwrap();
                entries.children[1].null();
                entries.nested().unwrap();
            }
            column.nested().unwrap();
            !unfit(&column.column(&data_type)).is_empty()
        };
        assert!(!twice(&[("a", &[1]), ("a", &[1, 2]), ("b", &[1]), ("a", &[])]));
        assert!(twice(&[("a", &[1]), ("b", &[1, 2]), ("a", &[1])]));
    }
}
