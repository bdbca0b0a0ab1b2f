//! Formats of f-strings and of `format`: Python's format specification mini-language.
//!
//! `[[fill]align][sign][0][width][,][.precision][type]`, with the types that are the default, `d` of
//! ints, `f` and `%` of floats, and `s` of texts. Other formats, and what CPython refuses, are not
//! known here.

use std::fmt::Write as _;

/// How a value is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
    Center,
    /// Behind the sign of a number.
    BehindSign,
}

/// A format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Format {
    fill: u8,
    align: Option<Align>,
    /// Whether it has a sign, which only numbers may have.
    signed: bool,
    /// What stands before a number that is not negative.
    plus: Option<u8>,
    width: usize,
    /// Whether commas stand between thousands.
    grouped: bool,
    precision: Option<usize>,
    kind: Option<u8>,
}

/// The greatest width and precision that are known here.
const MOST: usize = 100;

impl Format {
    /// A format that aligns texts.
    pub(crate) fn aligned(align: Align, fill: u8, width: usize) -> Option<Self> {
        let plain = Self {
            fill,
            align: Some(align),
            signed: false,
            plus: None,
            width,
            grouped: false,
            precision: None,
            kind: None,
        };
        (width <= MOST).then_some(plain)
    }

    /// None for a format that is not known here.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let align = |byte: &u8| match byte {
            b'<' => Some(Align::Left),
            b'>' => Some(Align::Right),
            b'^' => Some(Align::Center),
            b'=' => Some(Align::BehindSign),
            _ => None,
        };
        let bytes = text.as_bytes();
        let (fill, aligned, rest) = match bytes {
            [fill, second, rest @ ..] if align(second).is_some() => (*fill, align(second), rest),
            [first, rest @ ..] if align(first).is_some() => (b' ', align(first), rest),
            rest => (b' ', None, rest),
        };
        let (signed, plus, rest) = match rest {
            [sign @ (b'+' | b' '), rest @ ..] => (true, Some(*sign), rest),
            [b'-', rest @ ..] => (true, None, rest),
            rest => (false, None, rest),
        };
        let (fill, aligned, rest) = match rest {
            // An explicit alignment has another meaning together with the 0.
            [b'0', ..] if aligned.is_some() => return None,
            [b'0', rest @ ..] => (b'0', Some(Align::BehindSign), rest),
            rest => (fill, aligned, rest),
        };
        let (width, rest) = number(rest)?;
        let (grouped, rest) = match rest {
            [b',', rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (precision, rest) = match rest {
            [b'.', rest @ ..] if rest.first().is_some_and(u8::is_ascii_digit) => {
                let (precision, rest) = number(rest)?;
                (Some(precision), rest)
            }
            rest => (None, rest),
        };
        let kind = match rest {
            [] => None,
            [kind @ (b'd' | b'f' | b'%' | b's')] => Some(*kind),
            _ => return None,
        };
        // CPython would also put commas between the zeros.
        let is_known = fill.is_ascii() && !(grouped && aligned == Some(Align::BehindSign));
        is_known.then_some(Self { fill, align: aligned, signed, plus, width, grouped, precision, kind })
    }

    /// Whether ints are formatted so without an error.
    pub(crate) fn is_for_ints(&self) -> bool {
        matches!(self.kind, None | Some(b'd')) && self.precision.is_none()
    }

    /// Whether floats are formatted so without an error.
    pub(crate) fn is_for_floats(&self) -> bool {
        matches!(self.kind, Some(b'f' | b'%'))
    }

    /// Whether texts are formatted so without an error.
    pub(crate) fn is_for_texts(&self) -> bool {
        let plain = !self.signed && !self.grouped && self.align != Some(Align::BehindSign);
        plain && matches!(self.kind, None | Some(b's'))
    }

    /// The most bytes that the format adds to a text.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn int(&self, value: i64, out: &mut Vec<u8>) {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(value.unsigned_abs());
        self.number(value < 0, digits.as_bytes(), b"", out);
    }

    /// Writes a float. `scratch` is a buffer for its digits. False if it has none.
    pub(crate) fn float(&self, value: f64, scratch: &mut String, out: &mut Vec<u8>) -> bool {
        scratch.clear();
        let percent = self.kind == Some(b'%');
        let value = if percent { value * 100.0 } else { value };
        if !value.is_finite() {
            return false;
        }
        // Both Python and Rust round the exact value of a float, half to even.
        let written = write!(scratch, "{:.*}", self.precision.unwrap_or(6), value.abs());
        debug_assert!(written.is_ok(), "a String has no end");
        let (whole, rest) = scratch.split_at(scratch.find('.').unwrap_or(scratch.len()));
        let mut tail = [0; MOST + 2];
        tail[..rest.len()].copy_from_slice(rest.as_bytes());
        tail[rest.len()] = b'%';
        self.number(
            value.is_sign_negative(),
            whole.as_bytes(),
            &tail[..rest.len() + usize::from(percent)],
            out,
        );
        true
    }

    /// Writes a text that is ASCII.
    pub(crate) fn text(&self, text: &[u8], out: &mut Vec<u8>) {
        let text = &text[..text.len().min(self.precision.unwrap_or(usize::MAX))];
        self.pad(self.align.unwrap_or(Align::Left), text.len(), out, |out| out.extend_from_slice(text));
    }

    /// Writes a number: its digits before the point, and the rest.
    fn number(&self, negative: bool, whole: &[u8], rest: &[u8], out: &mut Vec<u8>) {
        let sign = if negative { Some(b'-') } else { self.plus };
        let commas = if self.grouped { whole.len().saturating_sub(1) / 3 } else { 0 };
        let length = usize::from(sign.is_some()) + whole.len() + commas + rest.len();
        let align = self.align.unwrap_or(Align::Right);
        if align == Align::BehindSign {
            out.extend(sign);
        }
        self.pad(align, length, out, |out| {
            if align != Align::BehindSign {
                out.extend(sign);
            }
            for (place, digit) in whole.iter().enumerate() {
                if self.grouped && place > 0 && (whole.len() - place).is_multiple_of(3) {
                    out.push(b',');
                }
                out.push(*digit);
            }
            out.extend_from_slice(rest);
        });
    }

    /// Writes a text of this length, with what fills the width.
    fn pad(&self, align: Align, length: usize, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let missing = self.width.saturating_sub(length);
        let before = match align {
            Align::Left => 0,
            Align::Right | Align::BehindSign => missing,
            Align::Center => missing / 2,
        };
        out.resize(out.len() + before, self.fill);
        write(out);
        out.resize(out.len() + missing - before, self.fill);
    }
}

/// The number at the beginning, and what is behind it. None if it is too large.
fn number(text: &[u8]) -> Option<(usize, &[u8])> {
    let length = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(length);
    let digits = std::str::from_utf8(digits).ok()?;
    let value = if digits.is_empty() { 0 } else { digits.parse().ok().filter(|value| *value <= MOST)? };
    Some((value, rest))
}
