//! Dates, times and intervals in their plainest form.

use crosslane::DataType;

/// The seconds of a day. As a time of day they are 24:00.
pub const DAY: i64 = 86_400;
/// The nanoseconds of a second.
pub(crate) const SECOND: i64 = 1_000_000_000;

/// How many units of a TIME or TIMESTAMP make a second. `None` for other types.
#[inline]
pub fn units_per_second(data_type: &DataType) -> Option<i64> {
    match data_type {
        DataType::TimestampS => Some(1),
        DataType::TimestampMs => Some(1_000),
        DataType::Timestamp | DataType::TimestampTz | DataType::Time | DataType::TimeTz => Some(1_000_000),
        DataType::TimestampNs | DataType::TimeNs => Some(SECOND),
        _ => None,
    }
}

/// A date, time or interval in its plainest form.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Temporal {
    /// A DATE: days since 1970.
    Date(i64),
    /// A TIME, TIME_NS or TIMETZ: nanoseconds since midnight, and the zone's seconds east of UTC if
    /// it has one.
    Time {
        /// From 0 to the nanoseconds of a day, which are 24:00.
        nanoseconds: i64,
        /// Of a TIMETZ.
        offset: Option<i32>,
    },
    /// A TIMESTAMP of any unit: seconds since 1970, and nanoseconds beside them. A TIMESTAMPTZ is
    /// in UTC.
    Timestamp {
        /// Rounded down.
        seconds: i64,
        /// 0 to 999,999,999.
        nanoseconds: u32,
    },
    /// An INTERVAL.
    Interval {
        /// Of unknown length.
        months: i64,
        /// Of unknown length, too.
        days: i64,
        /// The rest.
        microseconds: i64,
    },
    /// A time before or after all others. Only writers take it: readers give a floating-point
    /// number.
    Infinite(f64),
}
