//! Dates, times and intervals: objects of `datetime`, numpy, pandas and `crosslane.types`, and
//! back.

use super::datetime;
use super::vm::{Made, Shape, Source, Vm, is_named};
use crosslane::{DataType, calendar};
use crosslane_guest::{Class, Refusal, Taken, Temporal, Values};
use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDate, PyDateTime, PyDelta, PyDict, PyFloat, PyTime, PyTuple, PyTzInfo};

/// The seconds of a day, and the nanoseconds of a second.
const DAY: i64 = 86_400;
const SECOND: i64 = 1_000_000_000;

impl<'py> Vm<'py> {
    /// The nanoseconds of a value of one of numpy's classes for times.
    pub(super) fn numpy(self, value: &Bound<'py, PyAny>, class: &str) -> Taken<i128, Self> {
        if !is_named(value, class) {
            return Err(Refusal::Mismatch);
        }
        static INSTANT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let instant = INSTANT.import(self.py, "crosslane.types", "instant_of").map_err(Refusal::Failed)?;
        // A month, for example, has no number of seconds.
        let parts = instant.call1((value,)).and_then(|parts| parts.extract());
        let (seconds, nanoseconds): (i64, i64) =
            parts.map_err(|error| self.instead(error, Refusal::Mismatch))?;
        Ok(i128::from(seconds) * i128::from(SECOND) + i128::from(nanoseconds))
    }

    #[inline]
    pub(super) fn date(self, value: &Bound<'py, PyAny>) -> Taken<Temporal, Self> {
        if let Ok(date) = value.cast::<PyDate>() {
            if value.is_instance_of::<PyDateTime>() {
                return Err(Refusal::Type(" where DATE is due; return its .date()".into()));
            }
            return datetime::days(date).map(Temporal::Date).map_err(Refusal::Failed);
        }
        if let Ok(number) = value.cast::<PyFloat>() {
            return Ok(Temporal::Infinite(number.value()));
        }
        let nanoseconds = self.numpy(value, "datetime64")?;
        let day = i128::from(DAY * SECOND);
        if nanoseconds.rem_euclid(day) != 0 {
            return Err(Refusal::Mismatch);
        }
        i64::try_from(nanoseconds / day).map(Temporal::Date).map_err(|_| Refusal::TooLarge)
    }

    #[inline]
    pub(super) fn time(self, value: &Bound<'py, PyAny>, data_type: &DataType) -> Taken<Temporal, Self> {
        let failed = Refusal::Failed;
        let zoned = *data_type == DataType::TimeTz;
        if zoned && let Some(parts) = self.parts(value) {
            let (time, offset) =
                time_and_offset(parts).map_err(|error| self.instead(error, Refusal::Mismatch))?;
            let (micros, _) = datetime::time_parts(&time).map_err(failed)?;
            return Ok(Temporal::Time { nanoseconds: micros * 1000, offset: Some(offset) });
        }
        let time = value.cast::<PyTime>().map_err(|_| Refusal::Mismatch)?;
        let (micros, has_zone) = datetime::time_parts(time).map_err(failed)?;
        if !zoned {
            if has_zone {
                let advice = "declare TIMETZ, or return it without a zone";
                let what = format!("returned a time with a zone where {data_type} is due; {advice}");
                return Err(self.refused(Class::Value, &what));
            }
            let rest = if *data_type == DataType::TimeNs { self.nanosecond(value)? } else { 0 };
            return Ok(Temporal::Time { nanoseconds: (micros * 1000).saturating_add(rest), offset: None });
        }
        let offset = value.call_method0(intern!(self.py, "utcoffset")).map_err(failed)?;
        let Ok(offset) = offset.cast::<PyDelta>() else {
            let advice = "return it with one, such as datetime.timezone.utc";
            let what = format!("returned a time without a zone where {data_type} is due; {advice}");
            return Err(self.refused(Class::Value, &what));
        };
        let (days, seconds, rest) = datetime::delta(offset).map_err(failed)?;
        if rest != 0 {
            return Err(Refusal::TooLarge);
        }
        Ok(Temporal::Time { nanoseconds: micros * 1000, offset: Some(days * DAY as i32 + seconds) })
    }

    #[inline]
    pub(super) fn timestamp(self, value: &Bound<'py, PyAny>, data_type: &DataType) -> Taken<Temporal, Self> {
        let zoned = *data_type == DataType::TimestampTz;
        let Ok(moment) = value.cast::<PyDateTime>() else {
            if let Ok(number) = value.cast::<PyFloat>() {
                return Ok(Temporal::Infinite(number.value()));
            }
            // numpy knows no zones. In a column its values are in UTC.
            if zoned && self.source == Source::Row {
                return Err(Refusal::Mismatch);
            }
            return instant(self.numpy(value, "datetime64")?);
        };
        let failed = Refusal::Failed;
        let mut parts = datetime::datetime_parts(moment).map_err(failed)?;
        let utcoffset = || moment.call_method0(intern!(self.py, "utcoffset"));
        let aware = parts.2 && !utcoffset().map_err(failed)?.is_none();
        if aware != zoned {
            let (has, advice) = if aware {
                ("with a zone", "declare TIMESTAMPTZ, or return it without a zone")
            } else {
                ("without a zone", "return it with one, such as datetime.timezone.utc")
            };
            let what = format!("returned a datetime {has} where {data_type} is due; {advice}");
            return Err(self.refused(Class::Value, &what));
        }
        if zoned {
            let utc = PyTzInfo::utc(self.py).map_err(failed)?;
            let moment = moment.call_method1(intern!(self.py, "astimezone"), (utc,)).map_err(failed)?;
            let moment = moment.cast().map_err(|error| failed(error.into()))?;
            parts = datetime::datetime_parts(moment).map_err(failed)?;
        }
        let ((year, month, day), micros, _) = parts;
        let (days, seconds) = (calendar::days(year, month, day), micros / 1_000_000);
        if *data_type == DataType::TimestampNs {
            let whole = i128::from(days * DAY) * i128::from(SECOND) + i128::from(micros * 1000);
            return instant(whole + i128::from(self.nanosecond(value)?));
        }
        let nanoseconds = (micros % 1_000_000 * 1000) as u32;
        Ok(Temporal::Timestamp { seconds: days * DAY + seconds, nanoseconds })
    }

    #[inline]
    pub(super) fn interval(self, value: &Bound<'py, PyAny>) -> Taken<Temporal, Self> {
        if let Ok(delta) = value.cast::<PyDelta>() {
            let (days, seconds, micros) = datetime::delta(delta).map_err(Refusal::Failed)?;
            let microseconds = i64::from(seconds) * 1_000_000 + i64::from(micros);
            return Ok(Temporal::Interval { months: 0, days: days.into(), microseconds });
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let (months, days, rest): (i64, i64, i64) =
                tuple.extract().map_err(|error| self.instead(error, Refusal::TooLarge))?;
            // pyarrow's class counts nanoseconds.
            let nanoseconds = is_named(value, "MonthDayNano");
            let microseconds = if nanoseconds { rest.div_euclid(1000) } else { rest };
            return Ok(Temporal::Interval { months, days, microseconds });
        }
        let (micros, day) = (self.numpy(value, "timedelta64")?.div_euclid(1000), i128::from(DAY * 1_000_000));
        let days = micros.div_euclid(day).try_into().map_err(|_| Refusal::TooLarge)?;
        Ok(Temporal::Interval { months: 0, days, microseconds: micros.rem_euclid(day) as i64 })
    }

    /// The nanoseconds that TimestampNs, TimeNs and pandas.Timestamp have beside microseconds.
    pub(super) fn nanosecond(self, value: &Bound<'py, PyAny>) -> Taken<i64, Self> {
        match value.getattr(intern!(self.py, "nanosecond")) {
            Ok(rest) => rest.extract().map_err(Refusal::Failed),
            Err(error) => match self.instead(error, Refusal::Mismatch) {
                Refusal::Mismatch => Ok(0),
                failed => Err(failed),
            },
        }
    }

    /// An object of a date, time or interval.
    #[inline]
    pub(super) fn make_temporal(self, shape: &Shape, moment: Temporal) -> Made<'py> {
        static TIME_NS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static TIMESTAMP_NS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static INTERVAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static TIMEDELTA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = self.py;
        let nanosecond = |nanoseconds: i64| {
            let named = PyDict::new(py);
            named.set_item(intern!(py, "nanosecond"), nanoseconds % 1000).map(|()| named)
        };
        match moment {
            Temporal::Date(days) => {
                day(days, "DATE")?;
                datetime::date(py, days)
            }
            Temporal::Time { nanoseconds, .. } if nanoseconds >= DAY * SECOND => {
                Err(PyOverflowError::new_err("24:00:00 has no datetime.time"))
            }
            Temporal::Time { nanoseconds, offset } => {
                let clock = clock(nanoseconds / SECOND, nanoseconds % SECOND);
                if let Shape::Nanoseconds = shape {
                    let class = TIME_NS.import(py, "crosslane.types", "TimeNs")?;
                    return class.call(clock, Some(&nanosecond(nanoseconds)?));
                }
                let zone = |offset: i32| PyTzInfo::fixed_offset(py, PyDelta::new(py, 0, offset, 0, true)?);
                datetime::time(py, clock, offset.map(zone).transpose()?.as_ref())
            }
            Temporal::Timestamp { seconds, nanoseconds } => {
                let date = day(seconds.div_euclid(DAY), "TIMESTAMP")?;
                let clock = clock(seconds.rem_euclid(DAY), nanoseconds.into());
                match shape {
                    Shape::Nanoseconds => {
                        let class = TIMESTAMP_NS.import(py, "crosslane.types", "TimestampNs")?;
                        let ((year, month, day), (hour, minute, second, micro)) = (date, clock);
                        let parts = (year, month, day, hour, minute, second, micro);
                        class.call(parts, Some(&nanosecond(nanoseconds.into())?))
                    }
                    Shape::Zoned => datetime::datetime(py, date, clock, Some(&*PyTzInfo::utc(py)?)),
                    _ => datetime::datetime(py, date, clock, None),
                }
            }
            Temporal::Interval { months, days, microseconds } => match shape {
                // A month counts 30 days, as in DuckDB's comparison of intervals.
                Shape::Delta => TIMEDELTA.import(py, "datetime", "timedelta")?.call1((
                    months * 30 + days,
                    0,
                    microseconds,
                )),
                _ => INTERVAL.import(py, "crosslane.types", "Interval")?.call1((months, days, microseconds)),
            },
            Temporal::Infinite(number) => self.float(number),
        }
    }
}

/// The time, and the zone's seconds east of UTC, of a TIMETZ as Arrow has it.
fn time_and_offset<'py>(parts: &Bound<'py, PyDict>) -> PyResult<(Bound<'py, PyTime>, i32)> {
    let time = parts.as_any().get_item(intern!(parts.py(), "time"))?.cast_into()?;
    Ok((time, parts.as_any().get_item(intern!(parts.py(), "offset"))?.extract()?))
}

/// A timestamp of nanoseconds since 1970.
fn instant<'py>(nanoseconds: i128) -> Taken<Temporal, Vm<'py>> {
    let seconds = nanoseconds.div_euclid(SECOND.into()).try_into().map_err(|_| Refusal::TooLarge)?;
    Ok(Temporal::Timestamp { seconds, nanoseconds: nanoseconds.rem_euclid(SECOND.into()) as u32 })
}

/// The date of days since 1970. Raises OverflowError if Python does not have it.
fn day(days: i64, what: &str) -> PyResult<datetime::Day> {
    let (year, month, day) = calendar::civil(days);
    if !(1..=9999).contains(&year) {
        return Err(PyOverflowError::new_err(format!(
            "this {what} lies outside of the years 1 to 9999 of Python's datetime; a vectorized function can take it"
        )));
    }
    Ok((year as i32, month, day))
}

/// The time of day of seconds since midnight.
fn clock(seconds: i64, nanoseconds: i64) -> datetime::Clock {
    ((seconds / 3600) as u8, (seconds / 60 % 60) as u8, (seconds % 60) as u8, (nanoseconds / 1000) as u32)
}
