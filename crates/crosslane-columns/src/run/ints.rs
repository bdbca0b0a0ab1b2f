//! Operations of ints. Python's ints have no end; a result beyond 64 bits leaves the program.
//!
//! | operation | rows that leave |
//! |---|---|
//! | `+ - *`, `-x`, `abs`, `**`, `<<` | an overflow; a negative shift |
//! | `math.gcd`, `math.lcm`, `math.isqrt` | an overflow; a negative number of `isqrt` |
//! | `//`, `%` | a divisor of 0; the quotient 2^63 |
//! | `/`, a comparison with a float | a divisor of 0; an int beyond 2^53, which may be no float |

use super::sink::{Sink, pairs};
use crate::program::IntOp;

/// The result, and whether the row leaves.
type Checked<T> = (T, bool);

/// An operation with two operands.
pub(super) fn binary(operation: IntOp, a: &[i64], b: &[i64], sink: Sink<'_, i64>) {
    let rows = pairs(a, b);
    match operation {
        IntOp::Add => sink.checked(rows.map(|(a, b)| a.overflowing_add(b))),
        IntOp::Subtract => sink.checked(rows.map(|(a, b)| a.overflowing_sub(b))),
        IntOp::Multiply => sink.checked(rows.map(|(a, b)| a.overflowing_mul(b))),
        IntOp::FloorDivide => sink.checked(rows.map(|(a, b)| floor_divide(a, b))),
        IntOp::Modulo => sink.checked(rows.map(|(a, b)| modulo(a, b))),
        IntOp::And => sink.all(rows.map(|(a, b)| a & b)),
        IntOp::Or => sink.all(rows.map(|(a, b)| a | b)),
        IntOp::Xor => sink.all(rows.map(|(a, b)| a ^ b)),
        IntOp::ShiftLeft => sink.checked(rows.map(|(a, b)| shift_left(a, b))),
        IntOp::ShiftRight => sink.checked(rows.map(|(a, b)| (a >> b.clamp(0, 63), b < 0))),
        IntOp::Minimum => sink.all(rows.map(|(a, b)| a.min(b))),
        IntOp::Maximum => sink.all(rows.map(|(a, b)| a.max(b))),
        IntOp::Gcd => sink.costly(|row| gcd(a[row], b[row])),
        IntOp::Lcm => sink.costly(|row| lcm(a[row], b[row])),
    }
}

/// Rounds down, unlike the processor.
fn floor_divide(a: i64, b: i64) -> Checked<i64> {
    match a.checked_div(b) {
        Some(quotient) => (quotient - i64::from(a % b != 0 && (a < 0) != (b < 0)), false),
        None => (0, true),
    }
}

/// Has the sign of the divisor.
fn modulo(a: i64, b: i64) -> Checked<i64> {
    if b == 0 {
        return (0, true);
    }
    let rest = a.wrapping_rem(b);
    (if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }, false)
}

fn shift_left(a: i64, b: i64) -> Checked<i64> {
    if a == 0 && b >= 0 {
        return (0, false);
    }
    if !(0..63).contains(&b) {
        return (0, true);
    }
    let shifted = a << b;
    (shifted, shifted >> b != a)
}

fn gcd(a: i64, b: i64) -> Checked<i64> {
    let divisor = divisor(a.unsigned_abs(), b.unsigned_abs());
    (divisor as i64, i64::try_from(divisor).is_err())
}

/// The greatest common divisor.
fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn lcm(a: i64, b: i64) -> Checked<i64> {
    let (a, b) = (a.unsigned_abs(), b.unsigned_abs());
    if a == 0 || b == 0 {
        return (0, false);
    }
    let multiple = (a / divisor(a, b)).checked_mul(b).and_then(|multiple| i64::try_from(multiple).ok());
    (multiple.unwrap_or_default(), multiple.is_none())
}
