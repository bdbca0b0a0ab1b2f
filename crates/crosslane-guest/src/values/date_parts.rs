//! Dates and times as named numbers, for languages without objects for them.

use super::refusal::Refusal;
use super::temporal::{DAY, SECOND, Temporal};
use crosslane::{DataType, calendar};

impl Temporal {
    /// The numbers by their names: `year`, `month`, `day`; `hour`, `min`, `sec`, `nsec`; `offset`;
    /// `months`, `days`, `microseconds`.
    pub fn date_parts(self) -> Vec<(&'static str, i64)> {
        let clock = |seconds: i64, nanoseconds: i64| {
            [
                ("hour", seconds / 3600),
                ("min", seconds / 60 % 60),
                ("sec", seconds % 60),
                ("nsec", nanoseconds),
            ]
        };
        let date = |days: i64| {
            let (year, month, day) = calendar::civil(days);
            [("year", year), ("month", month.into()), ("day", day.into())]
        };
        match self {
            Temporal::Date(days) => date(days).to_vec(),
            Temporal::Time { nanoseconds, offset } => {
                let mut parts = clock(nanoseconds / SECOND, nanoseconds % SECOND).to_vec();
                parts.extend(offset.map(|offset| ("offset", offset.into())));
                parts
            }
            Temporal::Timestamp { seconds, nanoseconds } => {
                let clock = clock(seconds.rem_euclid(DAY), nanoseconds.into());
                [&date(seconds.div_euclid(DAY))[..], &clock].concat()
            }
            Temporal::Interval { months, days, microseconds } => {
                vec![("months", months), ("days", days), ("microseconds", microseconds)]
            }
            Temporal::Infinite(_) => Vec::new(),
        }
    }

    /// A value of the type from such numbers. A month, day or hour beyond the last counts on.
    /// Missing numbers of a time of day are 0.
    ///
    /// # Errors
    /// As `part`; or if a number is missing or too large.
    pub fn of_date_parts<E>(
        data_type: &DataType,
        part: impl Fn(&str) -> Result<Option<i64>, Refusal<E>>,
    ) -> Result<Self, Refusal<E>> {
        let some = |name: &str| Ok(part(name)?.unwrap_or(0));
        let due = |name: &str| part(name)?.ok_or_else(|| Refusal::Other(format!(", which lacks {name}")));
        let days = || {
            let month = i128::from(due("month")?) - 1;
            let year = i32::try_from(i128::from(due("year")?) + month.div_euclid(12));
            let first =
                calendar::days(year.map_err(|_| Refusal::TooLarge)?, month.rem_euclid(12) as u8 + 1, 1);
            Ok(i128::from(first) + i128::from(due("day")?) - 1)
        };
        let nanoseconds = || {
            let minutes = i128::from(some("hour")?) * 60 + i128::from(some("min")?);
            let seconds = minutes * 60 + i128::from(some("sec")?);
            Ok(seconds * i128::from(SECOND) + i128::from(some("nsec")?))
        };
        let narrow = |number: i128| i64::try_from(number).map_err(|_| Refusal::TooLarge);
        Ok(match data_type {
            DataType::Date => Temporal::Date(narrow(days()?)?),
            DataType::Interval => Temporal::Interval {
                months: some("months")?,
                days: some("days")?,
                microseconds: some("microseconds")?,
            },
            DataType::Time | DataType::TimeNs | DataType::TimeTz => {
                let offset = part("offset")?.map(i32::try_from).transpose().map_err(|_| Refusal::TooLarge)?;
                Temporal::Time { nanoseconds: narrow(nanoseconds()?)?, offset }
            }
            _ => {
                let nanoseconds = nanoseconds()?;
                let seconds = days()? * i128::from(DAY) + nanoseconds.div_euclid(SECOND.into());
                let nanoseconds = nanoseconds.rem_euclid(SECOND.into()) as u32;
                Temporal::Timestamp { seconds: narrow(seconds)?, nanoseconds }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(data_type: &DataType, parts: &[(&str, i64)]) -> Result<Temporal, Refusal<()>> {
        let find = |name: &str| parts.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        Temporal::of_date_parts(data_type, |name| Ok(find(name)))
    }

    #[test]
    fn parts_come_back() {
        let timestamp = |seconds| Temporal::Timestamp { seconds, nanoseconds: 7 };
        let interval = Temporal::Interval { months: -1, days: 2, microseconds: -3 };
        let time = |offset| Temporal::Time { nanoseconds: 86_399_999_999_999, offset };
        for (data_type, temporal) in [
            (DataType::Date, Temporal::Date(-1)),
            (DataType::Date, Temporal::Date(i32::MIN.into())),
            (DataType::Timestamp, timestamp(-1)),
            (DataType::TimestampS, timestamp(-9_223_372_022_400)),
            (DataType::TimeNs, time(None)),
            (DataType::TimeTz, time(Some(-5))),
            (DataType::Interval, interval),
        ] {
            assert_eq!(of(&data_type, &temporal.date_parts()).unwrap(), temporal);
        }
    }

    #[test]
    fn parts_count_on_and_may_be_missing() {
        let day = |parts: &[(&str, i64)]| of(&DataType::Date, parts);
        let new_year = day(&[("year", 2025), ("month", 1), ("day", 1)]).unwrap();
        assert_eq!(day(&[("year", 2024), ("month", 12), ("day", 32)]).unwrap(), new_year);
        assert_eq!(day(&[("year", 2023), ("month", 25), ("day", 1)]).unwrap(), new_year);
        assert!(
            matches!(day(&[("year", 2023), ("day", 1)]), Err(Refusal::Other(what)) if what == ", which lacks month")
        );
        assert!(matches!(day(&[("year", i64::MAX), ("month", 1), ("day", 1)]), Err(Refusal::TooLarge)));
        let noon = Temporal::Time { nanoseconds: 43_200_000_000_000, offset: None };
        assert_eq!(of(&DataType::Time, &[("hour", 11), ("min", 60)]).unwrap(), noon);
    }
}
