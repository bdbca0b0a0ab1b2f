//! Reads values out of the buffers of an array, and converts them.

use super::refusal::Refusal;

/// # Safety
/// The buffer must have such a value there.
pub(super) unsafe fn value<T: bytemuck::Pod>(buffer: *const u8, at: usize) -> T {
    // SAFETY: as the caller says. Buffers need not be aligned.
    unsafe { buffer.cast::<T>().add(at).read_unaligned() }
}

/// # Safety
/// The bitmap must have the bit.
pub(super) unsafe fn bit(bitmap: *const u8, at: usize) -> bool {
    // SAFETY: as the caller says.
    unsafe { *bitmap.add(at / 8) >> (at % 8) & 1 == 1 }
}

/// # Safety
/// The buffer must have the bytes.
pub(super) unsafe fn slice<'a>(buffer: *const u8, start: usize, length: usize) -> Result<&'a [u8], Refusal> {
    if length == 0 {
        return Ok(&[]);
    }
    if buffer.is_null() {
        return Err(Refusal::Wrong("an array without one of its buffers".into()));
    }
    // SAFETY: as the caller says.
    Ok(unsafe { std::slice::from_raw_parts(buffer.add(start), length) })
}

/// Converts a number to another unit.
pub(super) fn scaled(number: i64, times: i64, per: i64) -> Result<i64, String> {
    if number % per != 0 {
        return Err(format!(
            "{number}, which is no multiple of {per}: the unit is finer than SQL's; cast it"
        ));
    }
    (number / per)
        .checked_mul(times)
        .ok_or_else(|| format!("{number} times {times}, which does not fit 64 bits"))
}

pub(super) fn interval(months: i32, days: i32, micros: i64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&months.to_le_bytes());
    bytes[4..8].copy_from_slice(&days.to_le_bytes());
    bytes[8..].copy_from_slice(&micros.to_le_bytes());
    bytes
}

/// A 16-bit float: a sign, 5 bits of exponent, 10 bits of fraction.
pub(super) fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f32::from(bits & 0x3FF));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}
