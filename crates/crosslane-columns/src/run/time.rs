//! Operations of dates, datetimes and timedeltas: fields, and reading.
//!
//! | operation | rows that leave |
//! |---|---|
//! | a parameter, `+`, `-` | beyond the years 1 to 9999, or 64 bits of microseconds |
//! | `date(y, m, d)`, `replace` | what is no date |
//! | `fromisoformat`, `strptime` | what is not written in full |
//! | `strftime` with `%Y` | years before 1000 |

use super::sink::Sink;
use crate::program::{Time, TimeField};
use crate::strftime::{self, DAY, Directive, FIRST_DAY, LAST_DAY};
use crosslane::calendar;

const SECOND: i64 = 1_000_000;

/// A field of days, or of microseconds.
pub(super) fn field(field: TimeField, values: &[i64], sink: Sink<'_, i64>) {
    let values = values.iter().copied();
    match field {
        TimeField::Year => sink.all(values.map(|days| civil(days).0)),
        TimeField::Month => sink.all(values.map(|days| civil(days).1)),
        TimeField::Day => sink.all(values.map(|days| civil(days).2)),
        // 1970-01-01 was a Thursday.
        TimeField::Weekday => sink.all(values.map(|days| days.wrapping_add(3).rem_euclid(7))),
        TimeField::Days => sink.all(values.map(|micros| micros.div_euclid(DAY))),
        TimeField::Hour => sink.all(values.map(|micros| micros.rem_euclid(DAY) / (3600 * SECOND))),
        TimeField::Minute => sink.all(values.map(|micros| micros.rem_euclid(3600 * SECOND) / (60 * SECOND))),
        TimeField::Second => sink.all(values.map(|micros| micros.rem_euclid(60 * SECOND) / SECOND)),
        TimeField::Microsecond => sink.all(values.map(|micros| micros.rem_euclid(SECOND))),
        TimeField::SecondOfDay => sink.all(values.map(|micros| micros.rem_euclid(DAY) / SECOND)),
    }
}

/// Year, month and day.
fn civil(days: i64) -> (i64, i64, i64) {
    let (year, month, day) = calendar::civil(days.clamp(FIRST_DAY, LAST_DAY));
    (year, month.into(), day.into())
}

/// The days since 1970-01-01, and the microseconds of the day. What is beyond Python's years belongs
/// to a row that has left.
pub(super) fn split(time: Time, value: i64) -> (i64, i64) {
    let (days, micros) = match time {
        Time::Date => (value, 0),
        Time::Datetime | Time::Timedelta => (value.div_euclid(DAY), value.rem_euclid(DAY)),
    };
    (days.clamp(FIRST_DAY, LAST_DAY), micros)
}

/// Reads a text that one of the formats fits. None if the row leaves.
pub(super) fn read(time: Time, formats: &[Vec<Directive>], text: &[u8]) -> Option<i64> {
    let (days, micros) = formats.iter().find_map(|format| strftime::read(format, text))?;
    Some(if time == Time::Date { days } else { days * DAY + micros })
}
