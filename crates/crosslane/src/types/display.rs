//! Values as text, for error messages: short, and in SQL's notation for simple values.

use crate::batch::Column;
use crate::types::{DataType, Field, Layout, timetz};
use std::fmt::Write;

const LONGEST_TEXT: usize = 80;
const MOST_ELEMENTS: usize = 8;

/// `name = value` for each column of a row.
pub fn arguments<'a>(
    names: impl IntoIterator<Item = &'a Field>,
    columns: &[Column<'_>],
    row: usize,
) -> String {
    if columns.is_empty() {
        return "no arguments".into();
    }
    let pairs: Vec<_> = names
        .into_iter()
        .zip(columns)
        .map(|(field, column)| format!("{} = {}", field.name, value(column, row)))
        .collect();
    pairs.join(", ")
}

/// The value of a row, as text.
pub fn value(column: &Column<'_>, row: usize) -> String {
    use DataType as T;
    if !column.is_valid(row) {
        return "NULL".into();
    }
    match column.data_type {
        T::Boolean => crate::batch::bit(column.data, row).to_string(),
        T::TinyInt => column.value::<i8>(row).to_string(),
        T::SmallInt => column.value::<i16>(row).to_string(),
        T::Integer => column.value::<i32>(row).to_string(),
        T::BigInt => column.value::<i64>(row).to_string(),
        T::UTinyInt => column.value::<u8>(row).to_string(),
        T::USmallInt => column.value::<u16>(row).to_string(),
        T::UInteger => column.value::<u32>(row).to_string(),
        T::UBigInt => column.value::<u64>(row).to_string(),
        T::HugeInt => column.value::<i128>(row).to_string(),
        T::UHugeInt => column.value::<u128>(row).to_string(),
        T::Float => format!("{:?}", column.value::<f32>(row)),
        T::Double => format!("{:?}", column.value::<f64>(row)),
        T::Decimal { scale, .. } => decimal(column.value(row), usize::from(*scale)),
        T::Varchar | T::Json | T::Bit => quoted(&String::from_utf8_lossy(column.bytes(row))),
        T::Blob | T::BigNum | T::Geometry => blob(column.bytes(row)),
        T::Date => format!("DATE {}", date(i64::from(column.value::<i32>(row)))),
        T::Time => format!("TIME {}", time(column.value::<i64>(row).unsigned_abs(), 1_000_000)),
        T::TimeNs => format!("TIME_NS {}", time(column.value::<i64>(row).unsigned_abs(), 1_000_000_000)),
        T::TimeTz => {
            let (micros, offset) = timetz::parts(column.value(row));
            let sign = if offset < 0 { '-' } else { '+' };
            let zone = time(offset.unsigned_abs().into(), 1);
            format!("TIMETZ {}{sign}{zone}", time(micros.unsigned_abs(), 1_000_000))
        }
        T::TimestampS => timestamp(column.value(row), 1),
        T::TimestampMs => timestamp(column.value(row), 1_000),
        T::Timestamp | T::TimestampTz => timestamp(column.value(row), 1_000_000),
        T::TimestampNs => timestamp(column.value(row), 1_000_000_000),
        T::Interval => interval(column, row),
        T::Uuid => format!("'{}'", String::from_utf8_lossy(&uuid(column.value(row)))),
        T::Enum(values) => {
            let bytes = &column.data[row * crate::types::code_width(values.len())..];
            let code = bytes[..crate::types::code_width(values.len())]
                .iter()
                .rev()
                .fold(0, |code, byte| code << 8 | usize::from(*byte));
            values.get(code).map_or_else(|| format!("code {code}"), |value| quoted(value))
        }
        T::List(_) | T::Array(..) => {
            let range = column.elements(row);
            let more = if range.len() > MOST_ELEMENTS {
                format!(", ... {} elements", range.len())
            } else {
                "".into()
            };
            let elements: Vec<_> =
                range.take(MOST_ELEMENTS).map(|at| value(&column.children[0], at)).collect();
            format!("[{}{more}]", elements.join(", "))
        }
        T::Struct(fields) => format!("{{{}}}", arguments(&**fields, &column.children, row)),
        T::Any => "?".into(),
        T::Union(fields) => match crate::batch::member(column, row) {
            Some(at) => format!("{} := {}", fields[at].name, value(&column.children[at], row)),
            None => "a UNION without a tag".into(),
        },
        T::Map(_) => {
            debug_assert_eq!(column.data_type.layout(), Layout::List);
            let range = column.elements(row);
            let parts = &column.children[0].children;
            let entries: Vec<_> = range
                .take(MOST_ELEMENTS)
                .map(|at| format!("{}: {}", value(&parts[0], at), value(&parts[1], at)))
                .collect();
            format!("MAP {{{}}}", entries.join(", "))
        }
    }
}

fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(LONGEST_TEXT).collect::<String>().replace('\'', "''");
    shown = shown.replace('\n', "\\n");
    // A text may be very long, so this does not count all of its characters.
    if text.chars().nth(LONGEST_TEXT).is_some() {
        format!("'{shown}...' ({} bytes)", text.len())
    } else {
        format!("'{shown}'")
    }
}

fn blob(bytes: &[u8]) -> String {
    let mut text = String::from("BLOB '");
    for byte in bytes.iter().take(LONGEST_TEXT / 4) {
        let _ = write!(text, "\\x{byte:02X}");
    }
    text.push('\'');
    if bytes.len() > LONGEST_TEXT / 4 {
        let _ = write!(text, "... ({} bytes)", bytes.len());
    }
    text
}

fn decimal(value: i128, scale: usize) -> String {
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if value < 0 { "-" } else { "" };
    if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

/// A number of days since 1970-01-01 as a date of the proleptic Gregorian calendar.
fn date(days: i64) -> String {
    let (year, month, day) = crate::types::calendar::civil(days);
    format!("{year:04}-{month:02}-{day:02}")
}

fn time(units: u64, per_second: u64) -> String {
    let seconds = units / per_second;
    let text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let digits = per_second.ilog10() as usize;
    if digits == 0 { text } else { format!("{text}.{:0digits$}", units % per_second) }
}

fn timestamp(units: i64, per_second: i64) -> String {
    match units {
        i64::MAX => "TIMESTAMP infinity".into(),
        _ if units == -i64::MAX => "TIMESTAMP -infinity".into(),
        _ => {
            let day = 86_400 * per_second;
            let rest = time(units.rem_euclid(day) as u64, per_second as u64);
            format!("TIMESTAMP {} {rest}", date(units.div_euclid(day)))
        }
    }
}

fn interval(column: &Column<'_>, row: usize) -> String {
    let bytes: [u8; 16] = column.value(row);
    let months: i32 = bytemuck::pod_read_unaligned(&bytes[..4]);
    let days: i32 = bytemuck::pod_read_unaligned(&bytes[4..8]);
    let microseconds: i64 = bytemuck::pod_read_unaligned(&bytes[8..]);
    format!("INTERVAL '{months} months {days} days {microseconds} microseconds'")
}

/// A UUID in network order, as ASCII text.
pub fn uuid(bytes: [u8; 16]) -> [u8; 36] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at] = HEX[usize::from(byte >> 4)];
        text[at + 1] = HEX[usize::from(byte & 15)];
        at += 2;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_decimals() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(-719_528), "0000-01-01");
        assert_eq!(date(2_932_896), "9999-12-31");
        assert_eq!(timestamp(-1, 1_000_000), "TIMESTAMP 1969-12-31 23:59:59.999999");
        assert_eq!(decimal(-5, 2), "-0.05");
        assert_eq!(decimal(12345, 0), "12345");
    }

    #[test]
    fn long_texts_are_cut() {
        let text = quoted(&"x'".repeat(100));
        assert!(text.ends_with("...' (200 bytes)"), "{text}");
    }
}
