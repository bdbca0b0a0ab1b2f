//! Numbers and UUIDs as text, for languages whose own have 64 bits.

use std::io::Write;

/// A DECIMAL: `unscaled` / 10^`scale`. The text lies in a place of the caller's, which a jump may
/// leave.
pub fn decimal_text(unscaled: i128, scale: u8, place: &mut [u8; 48]) -> &[u8] {
    let size = place.len();
    let mut rest = &mut place[..];
    // 39 digits, a sign and a point always fit.
    let _ = match scale {
        0 => write!(rest, "{unscaled}"),
        _ => {
            let unit = 10u128.pow(scale.into());
            let (whole, fraction) = (unscaled.unsigned_abs() / unit, unscaled.unsigned_abs() % unit);
            let sign = if unscaled < 0 { "-" } else { "" };
            write!(rest, "{sign}{whole}.{fraction:0width$}", width = usize::from(scale))
        }
    };
    let length = size - rest.len();
    &place[..length]
}

/// A decimal text times 10^scale, rounded half away from zero as SQL casts do. `None` if the text
/// is no number, or the number is too large.
pub(crate) fn decimal(text: &[u8], scale: usize) -> Option<i128> {
    let (text, exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&text[..at], std::str::from_utf8(&text[at + 1..]).ok()?.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (negative, text) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let (whole, fraction) = (&text[..point], text.get(point + 1..).unwrap_or(&[]));
    if whole.len() + fraction.len() == 0 || !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    // So many of the digits are before the point where it is rounded.
    let digits_before = exponent.saturating_add(point as i64 + scale as i64);
    let mut unscaled = 0i128;
    let mut digits = whole.iter().chain(fraction).map(|digit| i128::from(digit - b'0'));
    for _ in 0..digits_before {
        let digit = digits.next();
        if digit.is_none() && unscaled == 0 {
            break;
        }
        unscaled = unscaled.checked_mul(10)?.checked_add(digit.unwrap_or(0))?;
    }
    if digits_before >= 0 && digits.next().is_some_and(|digit| digit >= 5) {
        unscaled = unscaled.checked_add(1)?;
    }
    Some(if negative { -unscaled } else { unscaled })
}

/// The conversions below handle so many decimal digits at once.
const STEP: u32 = 9;

/// A BIGNUM as text, from its little-endian two's complement.
pub(crate) fn big_text(bytes: &[u8]) -> String {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut words: Vec<u32> = bytes
        .chunks(4)
        .map(|chunk| {
            let mut word = [if negative { 0xFF } else { 0 }; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_le_bytes(word)
        })
        .collect();
    if negative {
        negate(&mut words);
    }
    let mut steps = Vec::new();
    while let Some(last) = words.last() {
        if *last == 0 {
            words.pop();
            continue;
        }
        let mut rest = 0;
        for word in words.iter_mut().rev() {
            let number = rest << 32 | u64::from(*word);
            *word = (number / 10u64.pow(STEP)) as u32;
            rest = number % 10u64.pow(STEP);
        }
        steps.push(rest);
    }
    let mut text = String::from(if negative { "-" } else { "" });
    text.push_str(&steps.pop().unwrap_or_default().to_string());
    steps.iter().rev().for_each(|step| text.push_str(&format!("{step:0width$}", width = STEP as usize)));
    text
}

/// A BIGNUM's little-endian two's complement, from text. `None` if the text is no integer.
pub(crate) fn big_bytes(text: &[u8]) -> Option<Vec<u8>> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut words: Vec<u32> = Vec::new();
    for chunk in digits.chunks(STEP as usize) {
        let mut carry = chunk.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
        for word in &mut words {
            let number = u64::from(*word) * 10u64.pow(chunk.len() as u32) + carry;
            *word = number as u32;
            carry = number >> 32;
        }
        if carry > 0 {
            words.push(carry as u32);
        }
    }
    // Room for the sign.
    words.push(0);
    if negative {
        negate(&mut words);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Some(crosslane::integer::trimmed(&bytes).to_vec())
}

fn negate(words: &mut [u32]) {
    let mut carry = true;
    for word in words {
        (*word, carry) = (!*word).overflowing_add(u32::from(carry));
    }
}

/// The bytes of a UUID's text.
pub(crate) fn uuid_bytes(text: &[u8]) -> Option<[u8; 16]> {
    let mut uuid = [0; 16];
    let mut digits = 0;
    for byte in text.iter().filter(|byte| **byte != b'-') {
        let digit = char::from(*byte).to_digit(16).filter(|_| digits < 32)?;
        uuid[digits / 2] = uuid[digits / 2] << 4 | digit as u8;
        digits += 1;
    }
    (digits == 32).then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_length_come_back() {
        for (text, bytes) in [
            ("0", &[0u8][..]),
            ("1", &[1]),
            ("-1", &[0xFF]),
            ("127", &[0x7F]),
            ("128", &[0x80, 0]),
            ("-128", &[0x80]),
            ("-129", &[0x7F, 0xFF]),
            ("4294967296", &[0, 0, 0, 0, 1]),
            ("-4294967296", &[0, 0, 0, 0, 0xFF]),
            ("1000000000", &[0, 0xCA, 0x9A, 0x3B]),
        ] {
            assert_eq!(big_bytes(text.as_bytes()).as_deref(), Some(bytes), "{text}");
            assert_eq!(big_text(bytes), text);
        }
        let long = format!("-1{}7", "0".repeat(500));
        assert_eq!(big_text(&big_bytes(long.as_bytes()).unwrap()), long);
        assert_eq!(big_text(&big_bytes(b"-000").unwrap()), "0");
        for none in ["", "-", "1.5", "+1", "1e5"] {
            assert_eq!(big_bytes(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn decimals_have_their_scale() {
        let text = |unscaled, scale| {
            String::from_utf8(decimal_text(unscaled, scale, &mut [0; 48]).to_vec()).unwrap()
        };
        assert_eq!(text(-5, 3), "-0.005");
        assert_eq!(text(1200, 2), "12.00");
        assert_eq!(text(i128::MIN, 0), i128::MIN.to_string());
        assert_eq!(text(i128::MIN, 38), "-1.70141183460469231731687303715884105728");
    }

    #[test]
    fn decimals_are_rounded_half_away_from_zero() {
        for (text, scale, number) in [
            ("1.25", 1, Some(13)),
            ("-1.25", 1, Some(-13)),
            ("1.2499", 1, Some(12)),
            ("0.5", 0, Some(1)),
            ("0.05", 0, Some(0)),
            ("7", 3, Some(7000)),
            ("1e3", 2, Some(100_000)),
            ("12.5e-2", 2, Some(13)),
            ("5e-1", 0, Some(1)),
            ("5e-2", 0, Some(0)),
            ("0e999999999", 2, Some(0)),
            ("1e-3000000000", 2, Some(0)),
            ("1e9223372036854775807", 2, None),
            ("1e-9223372036854775808", 2, Some(0)),
            (".5", 1, Some(5)),
            ("-0", 1, Some(0)),
            ("1e99", 0, None),
            ("", 0, None),
            ("-", 0, None),
            ("1.2.3", 1, None),
            ("1x", 1, None),
            ("e5", 1, None),
        ] {
            assert_eq!(decimal(text.as_bytes(), scale), number, "{text} at scale {scale}");
        }
    }

    #[test]
    fn uuids_have_thirty_two_digits() {
        let bytes: [u8; 16] = std::array::from_fn(|at| at as u8 * 17);
        assert_eq!(uuid_bytes(&crosslane::display::uuid(bytes)), Some(bytes));
        assert_eq!(uuid_bytes(b"00112233-4455-6677-8899-aabbccddeef"), None);
        assert_eq!(uuid_bytes(b"00112233445566778899aabbccddeeff0"), None);
        assert_eq!(uuid_bytes(b"g0112233445566778899aabbccddeeff"), None);
    }
}
