//! Days and dates of the proleptic Gregorian calendar (H. Hinnant, "chrono-Compatible Low-Level
//! Date Algorithms", `civil_from_days` and `days_from_civil`).

/// The (year, month, day) of a number of days since 1970-01-01.
pub fn civil(days: i64) -> (i64, u8, u8) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month as u8, day as u8)
}

/// The number of days from 1970-01-01 to a date.
pub fn days(year: i32, month: u8, day: u8) -> i64 {
    let year = i64::from(year) - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = (i64::from(month) + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + i64::from(day) - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// An infinite DATE as an infinite floating-point number, as guests see it. `None` if the DATE is
/// finite.
pub fn infinite_day(days: i32) -> Option<f64> {
    (days.unsigned_abs() == i32::MAX.unsigned_abs()).then_some(f64::from(days) * f64::INFINITY)
}

/// As [`infinite_day`], for a TIMESTAMP of any unit.
pub fn infinite_timestamp(units: i64) -> Option<f64> {
    (units.unsigned_abs() == i64::MAX.unsigned_abs()).then_some(units as f64 * f64::INFINITY)
}

/// The infinite DATE for an infinite number of a guest. `None` if the number is finite.
pub fn day_of_infinity(number: f64) -> Option<i32> {
    number.is_infinite().then_some(if number > 0.0 { i32::MAX } else { -i32::MAX })
}

/// As [`day_of_infinity`], for a TIMESTAMP of any unit.
pub fn timestamp_of_infinity(number: f64) -> Option<i64> {
    number.is_infinite().then_some(if number > 0.0 { i64::MAX } else { -i64::MAX })
}
