//! Dates and times of day from Ruby objects.

use crate::values::objects::{is_a, part};
use crate::values::primitives::{EPOCH, known, send};
use crate::values::vm::Vm;
use crosslane::DataType;
use crosslane_guest::{Refusal, Taken, Temporal};
use rb_sys::{Qnil, VALUE};

/// # Safety
/// With the GVL, protected.
pub(super) unsafe fn date(value: VALUE) -> Taken<Temporal, Vm> {
    // SAFETY: as the caller says.
    unsafe {
        if is_a(value, rb_sys::rb_cTime) || is_a(value, known().datetime) {
            return Err(Refusal::Due("", "return its to_date"));
        }
        if !is_a(value, known().date) {
            return Err(Refusal::Mismatch);
        }
        let day = send(value, c"jd", &[]);
        if rb_sys::FIXNUM_P(day) {
            Ok(Temporal::Date((day as i64 >> 1) - EPOCH))
        } else {
            Err(Refusal::TooLarge)
        }
    }
}

/// The time of day of a TimeOfDay, or the local time of a Time.
///
/// # Safety
/// With the GVL, protected.
pub(super) unsafe fn time_of_day(value: VALUE, data_type: &DataType) -> Taken<Temporal, Vm> {
    const DAY: i64 = 86_400;
    // SAFETY: as the caller says.
    unsafe {
        let narrow = |offset: i64| i32::try_from(offset).map_err(|_| Refusal::TooLarge);
        if is_a(value, known().time_of_day) {
            let zoned = send(value, c"utc_offset", &[]) != Qnil as VALUE;
            let offset = if zoned { Some(narrow(part(value, c"utc_offset")?)?) } else { None };
            let whole = part(value, c"to_i")?.checked_mul(1000);
            let rest = if *data_type == DataType::TimeNs { part(value, c"nanosecond")? } else { 0 };
            let nanoseconds = whole.and_then(|whole| whole.checked_add(rest)).ok_or(Refusal::TooLarge)?;
            return Ok(Temporal::Time { nanoseconds, offset });
        }
        if !is_a(value, rb_sys::rb_cTime) {
            return Err(Refusal::Mismatch);
        }
        let at = rb_sys::rb_time_timespec(value);
        let offset = part(value, c"utc_offset")?;
        let seconds = at.tv_sec.saturating_add(offset).rem_euclid(DAY);
        let offset = if *data_type == DataType::TimeTz { Some(narrow(offset)?) } else { None };
        Ok(Temporal::Time { nanoseconds: seconds * 1_000_000_000 + at.tv_nsec, offset })
    }
}
