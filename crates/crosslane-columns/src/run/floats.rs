//! Operations of floats, with the results of CPython's C code.
//!
//! | operation | rows that leave |
//! |---|---|
//! | `/ // %` | a divisor of 0 |
//! | `**`, `math.pow` | anything but finite results of a number other than 0; a result below the least normal float |
//! | `math.sin` and the like | NaN from a number, or an infinity from a finite number: CPython raises |
//! | `int`, `round`, `math.floor`, `math.ceil` | NaN, infinities, and ints beyond 64 bits |
//! | `round(x, n)` | a number of more than 52 bits with its digits |
//! | `math.atan2`, `math.fmod` | NaN, infinities, a divisor of 0 |
//! | `math.copysign` | the sign of NaN |
//! | `str(x)` | NaN, infinities, numbers that Python writes with an exponent |
//! | `f"{x:.2f}"` | NaN, infinities |

use super::sink::{Sink, pairs};
use crate::program::{FloatFunction, FloatOp, FloatTest, Rounding};
use std::f64::consts::PI;

// Rust has functions of its own for some of them, and CPython has those of the C library.
// SAFETY: the C library's mathematical functions have these types, and take any float.
unsafe extern "C" {
    safe fn asinh(x: f64) -> f64;
    safe fn acosh(x: f64) -> f64;
    safe fn atanh(x: f64) -> f64;
    safe fn exp2(x: f64) -> f64;
    safe fn erf(x: f64) -> f64;
    safe fn erfc(x: f64) -> f64;
}

/// The result, and whether the row leaves.
type Checked<T> = (T, bool);

/// An operation with two operands.
pub(super) fn binary(operation: FloatOp, a: &[f64], b: &[f64], sink: Sink<'_, f64>) {
    let rows = pairs(a, b);
    match operation {
        FloatOp::Add => sink.all(rows.map(|(a, b)| a + b)),
        FloatOp::Subtract => sink.all(rows.map(|(a, b)| a - b)),
        FloatOp::Multiply => sink.all(rows.map(|(a, b)| a * b)),
        FloatOp::Divide => sink.checked(rows.map(|(a, b)| (a / b, b == 0.0))),
        FloatOp::FloorDivide => sink.costly(|row| floor_divide(a[row], b[row])),
        FloatOp::Modulo => sink.costly(|row| (modulo(a[row], b[row]), b[row] == 0.0)),
        FloatOp::Power => sink.costly(|row| power(a[row], b[row])),
        // Python takes the first of equal values, and compares with `<` and `>`.
        FloatOp::Minimum => sink.all(rows.map(|(a, b)| if b < a { b } else { a })),
        FloatOp::Maximum => sink.all(rows.map(|(a, b)| if b > a { b } else { a })),
        FloatOp::Atan2 => sink.costly(|row| {
            let (a, b) = (a[row], b[row]);
            (a.atan2(b), !(a.is_finite() && b.is_finite()))
        }),
        FloatOp::Fmod => sink.costly(|row| {
            let (a, b) = (a[row], b[row]);
            (a % b, !(a.is_finite() && b.is_finite()) || b == 0.0)
        }),
        // The processor and the compiler decide which sign a NaN has.
        FloatOp::CopySign => sink.checked(rows.map(|(a, b)| (a.copysign(b), b.is_nan()))),
    }
}

/// As `float_rem` of CPython: the result has the sign of the divisor.
fn modulo(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        0f64.copysign(b)
    } else if (b < 0.0) != (rest < 0.0) {
        rest + b
    } else {
        rest
    }
}

/// As `_float_div_mod` of CPython.
fn floor_divide(a: f64, b: f64) -> Checked<f64> {
    let rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != 0.0 && (b < 0.0) != (rest < 0.0) {
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0f64.copysign(a / b), b == 0.0);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, b == 0.0)
}

/// A square, if `pow` of the C library is known to give the rounded product.
///
/// The result of glibc's `pow` is at most 0.54 units in the last place from the exact one (since 2.28,
/// the oldest that is supported): half a unit by the last rounding, and 0.04 by the calculation. So it
/// is the rounded product if the exact square is farther than that from the middle of two floats.
fn square(a: f64) -> Option<f64> {
    const EXPONENT: u64 = 0x7ff0_0000_0000_0000;
    let product = a * a;
    let bits = product.to_bits();
    // At a power of two, the distances on both sides differ.
    if cfg!(not(target_env = "gnu")) || !product.is_normal() || bits & !EXPONENT == 0 {
        return None;
    }
    let unit = f64::from_bits(bits & EXPONENT) * f64::EPSILON;
    (a.mul_add(a, -product).abs() < 0.45 * unit).then_some(product)
}

/// As `float_pow` of CPython, without its special cases.
fn power(a: f64, b: f64) -> Checked<f64> {
    if b == 2.0
        && let Some(square) = square(a)
    {
        return (square, false);
    }
    let is_usual = a.is_finite() && b.is_finite() && a != 0.0 && (a > 0.0 || b == b.floor());
    if !is_usual {
        return (0.0, true);
    }
    let power = a.abs().powf(b);
    let negates = a < 0.0 && b.abs() % 2.0 == 1.0;
    (if negates { -power } else { power }, !power.is_normal())
}

/// A function of one float.
pub(super) fn function(function: FloatFunction, x: &[f64], sink: Sink<'_, f64>) {
    let rows = x.iter().copied();
    match function {
        FloatFunction::Negate => sink.all(rows.map(|x| -x)),
        FloatFunction::Absolute => sink.all(rows.map(f64::abs)),
        FloatFunction::Radians => sink.all(rows.map(|x| x * (PI / 180.0))),
        FloatFunction::Degrees => sink.all(rows.map(|x| x * (180.0 / PI))),
        FloatFunction::Sqrt => sink.checked(rows.map(|x| checked(x, x.sqrt()))),
        FloatFunction::Sin => sink.costly(|row| checked(x[row], x[row].sin())),
        FloatFunction::Cos => sink.costly(|row| checked(x[row], x[row].cos())),
        FloatFunction::Tan => sink.costly(|row| checked(x[row], x[row].tan())),
        FloatFunction::Asin => sink.costly(|row| checked(x[row], x[row].asin())),
        FloatFunction::Acos => sink.costly(|row| checked(x[row], x[row].acos())),
        FloatFunction::Atan => sink.costly(|row| checked(x[row], x[row].atan())),
        FloatFunction::Sinh => sink.costly(|row| checked(x[row], x[row].sinh())),
        FloatFunction::Cosh => sink.costly(|row| checked(x[row], x[row].cosh())),
        FloatFunction::Tanh => sink.costly(|row| checked(x[row], x[row].tanh())),
        FloatFunction::Exp => sink.costly(|row| checked(x[row], x[row].exp())),
        FloatFunction::Expm1 => sink.costly(|row| checked(x[row], x[row].exp_m1())),
        FloatFunction::Log => sink.costly(|row| checked(x[row], x[row].ln())),
        FloatFunction::Log2 => sink.costly(|row| checked(x[row], x[row].log2())),
        FloatFunction::Log10 => sink.costly(|row| checked(x[row], x[row].log10())),
        FloatFunction::Log1p => sink.costly(|row| checked(x[row], x[row].ln_1p())),
        FloatFunction::Asinh => sink.costly(|row| checked(x[row], asinh(x[row]))),
        FloatFunction::Acosh => sink.costly(|row| checked(x[row], acosh(x[row]))),
        FloatFunction::Atanh => sink.costly(|row| checked(x[row], atanh(x[row]))),
        FloatFunction::Exp2 => sink.costly(|row| checked(x[row], exp2(x[row]))),
        FloatFunction::Erf => sink.costly(|row| checked(x[row], erf(x[row]))),
        FloatFunction::Erfc => sink.costly(|row| checked(x[row], erfc(x[row]))),
    }
}

/// A result of the C library, and whether CPython raises an exception for it.
fn checked(x: f64, result: f64) -> Checked<f64> {
    (result, result.is_nan() && !x.is_nan() || result.is_infinite() && x.is_finite())
}

pub(super) fn test(test: FloatTest, x: &[f64], sink: Sink<'_, u8>) {
    let rows = x.iter();
    match test {
        FloatTest::Nan => sink.all(rows.map(|x| u8::from(x.is_nan()))),
        FloatTest::Infinite => sink.all(rows.map(|x| u8::from(x.is_infinite()))),
        FloatTest::Finite => sink.all(rows.map(|x| u8::from(x.is_finite()))),
    }
}

/// A float as an int.
pub(super) fn round(rounding: Rounding, x: &[f64], sink: Sink<'_, i64>) {
    let rows = x.iter();
    match rounding {
        Rounding::Truncate => sink.checked(rows.map(|x| int(x.trunc()))),
        Rounding::Floor => sink.checked(rows.map(|x| int(x.floor()))),
        Rounding::Ceiling => sink.checked(rows.map(|x| int(x.ceil()))),
        Rounding::HalfEven => sink.checked(rows.map(|x| int(x.round_ties_even()))),
    }
}

fn int(x: f64) -> Checked<i64> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    // NaN is not in the range.
    (x as i64, !(-END..END).contains(&x))
}

/// `round(x, digits)`. CPython rounds the exact decimal value of `x`, half to even, and reads the
/// digits as a float again.
///
/// With m = 10^digits, the product p = x m is at most |p| 2^-53 from the exact one, and a fused
/// multiplication gives this error without another one. So the nearest int r of the exact product
/// is known. Both r and m are exact floats, so r / m is the float that is nearest to the decimal
/// number.
pub(super) fn round_digits(x: f64, scale: f64) -> Checked<f64> {
    const INTEGERS: f64 = (1u64 << 52) as f64;
    if !x.is_finite() || x.abs() >= INTEGERS {
        return (x, false);
    }
    let product = x * scale;
    if product.abs() >= INTEGERS {
        return (x, true);
    }
    let mut nearest = product.round_ties_even();
    let from_tie = product - product.floor() - 0.5;
    if from_tie.abs() <= product.abs() * f64::EPSILON {
        let error = x.mul_add(scale, -product);
        // The sign of a sum of two floats is exact. An exact tie is rounded already.
        if from_tie + error > 0.0 {
            nearest = product.ceil();
        } else if from_tie + error < 0.0 {
            nearest = product.floor();
        }
    }
    ((nearest / scale).copysign(x), false)
}

/// `str(x)`: the shortest text that means this float, and of two the one with an even digit. None if
/// the row leaves.
pub(super) fn text(x: f64, buffer: &mut ryu::Buffer) -> Option<&str> {
    // Python writes other exponents.
    let has_exponent = x != 0.0 && !(1e-4..1e16).contains(&x.abs());
    (x.is_finite() && !has_exponent).then(|| buffer.format_finite(x))
}
