//! Formats of dates and times: those directives of `strftime` that depend on no locale.
//!
//! A format is a list of [`Directive`]s, which writes a time and reads one. It reads only what is
//! written in full, as `%m` as two digits. A text that Python reads in another way leaves the
//! program.

use crosslane::calendar;

/// A part of a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Directive {
    /// These characters.
    Text(Vec<u8>),
    /// The year with four digits.
    Year,
    /// `%Y`. The C library writes years before 1000 with fewer digits on some systems.
    FourDigitYear,
    /// `%y`
    YearOfCentury,
    Month,
    Day,
    /// `%j`
    DayOfYear,
    Hour,
    Minute,
    Second,
    /// `%f`: six digits.
    Microsecond,
    /// A point and six digits, or nothing if they are all 0.
    Fraction,
}

/// The first and the last day of Python's dates, as days since 1970-01-01.
pub(crate) const FIRST_DAY: i64 = -719_162;
pub(crate) const LAST_DAY: i64 = 2_932_896;
/// The microseconds of a day.
pub(crate) const DAY: i64 = 86_400_000_000;

/// `str(date)`, and `date.isoformat()`.
pub(crate) fn iso_date() -> Vec<Directive> {
    let dash = || Directive::Text(b"-".to_vec());
    vec![Directive::Year, dash(), Directive::Month, dash(), Directive::Day]
}

/// `datetime.isoformat(separator)`.
pub(crate) fn iso_datetime(separator: u8) -> Vec<Directive> {
    let mut format = iso_date();
    let colon = || Directive::Text(b":".to_vec());
    format.push(Directive::Text(vec![separator]));
    format.extend([Directive::Hour, colon(), Directive::Minute, colon(), Directive::Second]);
    format.push(Directive::Fraction);
    format
}

/// The directives of a format. None if there are others.
pub(crate) fn parse(format: &str) -> Option<Vec<Directive>> {
    let mut parts = Vec::new();
    let mut bytes = format.bytes();
    while let Some(byte) = bytes.next() {
        let directive = match byte {
            b'%' => match bytes.next()? {
                b'Y' => Directive::FourDigitYear,
                b'y' => Directive::YearOfCentury,
                b'm' => Directive::Month,
                b'd' => Directive::Day,
                b'j' => Directive::DayOfYear,
                b'H' => Directive::Hour,
                b'M' => Directive::Minute,
                b'S' => Directive::Second,
                b'f' => Directive::Microsecond,
                b'%' => Directive::Text(b"%".to_vec()),
                _ => return None,
            },
            0x01..=0x7f => Directive::Text(vec![byte]),
            _ => return None,
        };
        parts.push(directive);
    }
    Some(parts)
}

/// Whether `strptime` reads a day with a format, and no field twice.
pub(crate) fn has_day(format: &[Directive]) -> bool {
    let mut fields = format.iter().filter(|part| !matches!(part, Directive::Text(_)));
    let is_single = |part: &Directive| format.iter().filter(|other| *other == part).count() == 1;
    let day = [Directive::FourDigitYear, Directive::Month, Directive::Day];
    let is_read = |part: &Directive| !matches!(part, Directive::YearOfCentury | Directive::DayOfYear);
    fields.all(|part| is_single(part) && is_read(part)) && day.iter().all(|part| format.contains(part))
}

/// Writes a time: days since 1970, and the microseconds of the day. False if the row leaves.
pub(crate) fn write(format: &[Directive], days: i64, micros: i64, out: &mut Vec<u8>) -> bool {
    let (year, month, day) = calendar::civil(days);
    let second = micros / 1_000_000;
    for part in format {
        match part {
            Directive::Text(text) => out.extend_from_slice(text),
            Directive::FourDigitYear if year < 1000 => return false,
            Directive::Year | Directive::FourDigitYear => digits::<4>(year, out),
            Directive::YearOfCentury => digits::<2>(year % 100, out),
            Directive::Month => digits::<2>(month.into(), out),
            Directive::Day => digits::<2>(day.into(), out),
            Directive::DayOfYear => digits::<3>(days - calendar::days(year as i32, 1, 1) + 1, out),
            Directive::Hour => digits::<2>(second / 3600, out),
            Directive::Minute => digits::<2>(second / 60 % 60, out),
            Directive::Second => digits::<2>(second % 60, out),
            Directive::Microsecond => digits::<6>(micros % 1_000_000, out),
            Directive::Fraction if micros % 1_000_000 == 0 => {}
            Directive::Fraction => {
                out.push(b'.');
                digits::<6>(micros % 1_000_000, out);
            }
        }
    }
    true
}

/// The most bytes that a format writes.
pub(crate) fn longest(format: &[Directive]) -> usize {
    format.iter().map(|part| if let Directive::Text(text) = part { text.len() } else { 7 }).sum()
}

fn digits<const COUNT: usize>(mut value: i64, out: &mut Vec<u8>) {
    let mut text = [b'0'; COUNT];
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
    out.extend_from_slice(&text);
}

/// Reads a time: days since 1970, and the microseconds of the day. None if the row leaves.
pub(crate) fn read(format: &[Directive], mut text: &[u8]) -> Option<(i64, i64)> {
    let (mut year, mut month, mut day) = (0, 0, 0);
    let (mut hour, mut minute, mut second, mut micros) = (0, 0, 0, 0);
    let text = &mut text;
    for part in format {
        match part {
            Directive::Text(expected) => *text = text.strip_prefix(&expected[..])?,
            Directive::Year | Directive::FourDigitYear => year = number(text, 4)?,
            Directive::Month => month = number(text, 2)?,
            Directive::Day => day = number(text, 2)?,
            Directive::Hour => hour = number(text, 2)?,
            Directive::Minute => minute = number(text, 2)?,
            Directive::Second => second = number(text, 2)?,
            Directive::Microsecond => micros = number(text, 6)?,
            Directive::Fraction if text.is_empty() => {}
            Directive::Fraction => {
                *text = text.strip_prefix(b".")?;
                micros = number(text, 6)?;
            }
            Directive::YearOfCentury | Directive::DayOfYear => return None,
        }
    }
    let days = date(year, month, day)?;
    let is_clock = text.is_empty() && hour < 24 && minute < 60 && second < 60;
    is_clock.then_some((days, ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros))
}

/// Takes a number of so many digits from the text.
fn number(text: &mut &[u8], digits: usize) -> Option<i64> {
    let (number, rest) = text.split_at_checked(digits)?;
    *text = rest;
    number
        .iter()
        .try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + i64::from(digit - b'0')))
}

/// The days since 1970 of a date. None if there is no such date in the years 1 to 9999.
pub(crate) fn date(year: i64, month: i64, day: i64) -> Option<i64> {
    let length = match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => return None,
    };
    let exists = (1..=9999).contains(&year) && (1..=length).contains(&day);
    exists.then(|| calendar::days(year as i32, month as u8, day as u8))
}
