//! The types whose bytes DuckDB encodes in a form of its own: BIT and BIGNUM.
//!
//! A BIT is a byte with the number of padding bits, which are ones, and then the bits, the first
//! one highest. A BIGNUM has three bytes with the length of the magnitude, and then the magnitude,
//! its highest byte first. In a positive BIGNUM the highest bit of the first byte is set; in a
//! negative one all bits are flipped. Each value has only one such form.

use crosslane::{DataType, integer};

/// Whether a type is one of these.
pub(crate) fn is_encoded(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Bit | DataType::BigNum)
}

/// Appends a value of DuckDB's in the form of batches. An invalid value gives an undefined result.
pub(crate) fn decode(data_type: &DataType, bytes: &[u8], out: &mut Vec<u8>) {
    match data_type {
        DataType::Bit => {
            let [skip, bits @ ..] = bytes else { return };
            let digits = bits.iter().flat_map(|byte| (0..8).rev().map(move |at| b'0' + (byte >> at & 1)));
            out.extend(digits.skip(usize::from(*skip)));
        }
        _ => {
            let [first, _, _, magnitude @ ..] = bytes else { return };
            // The flipped bytes of a negative number are the complement of its magnitude. As a
            // two's complement, that is one less than the number, so one is added.
            let negative = first & 0x80 == 0;
            let mut carry = negative;
            out.extend(magnitude.iter().rev().map(|byte| {
                let (sum, over) = byte.overflowing_add(u8::from(carry));
                carry = over;
                sum
            }));
            out.push(if negative && !carry { 0xFF } else { 0 });
        }
    }
}

/// The most bytes of a value after decoding or encoding it.
pub(crate) fn longest(data_type: &DataType, length: usize) -> usize {
    match data_type {
        DataType::Bit => length * 8,
        _ => length + 3,
    }
}

/// Appends a value of a batch in DuckDB's form.
pub(crate) fn encode(data_type: &DataType, bytes: &[u8], out: &mut Vec<u8>) {
    match data_type {
        DataType::Bit => {
            let skip = bytes.len().wrapping_neg() % 8;
            out.push(skip as u8);
            // The padding is ones, and the lowest bit of a digit is its value.
            let mut byte = (1u16 << skip) as u8 - 1;
            for (at, digit) in (skip..).zip(bytes) {
                byte = byte << 1 | digit & 1;
                if at % 8 == 7 {
                    out.push(byte);
                }
            }
        }
        _ => {
            let negative = integer::is_negative(bytes);
            let flip = if negative { 0xFF } else { 0 };
            let mut magnitude = Vec::with_capacity(bytes.len());
            let mut carry = negative;
            magnitude.extend(bytes.iter().map(|byte| {
                let (sum, over) = (byte ^ flip).overflowing_add(u8::from(carry));
                carry = over;
                sum
            }));
            let length = magnitude.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
            magnitude.resize(length, 0);
            let header = (length as u32 | 0x80_0000).to_be_bytes();
            out.extend(header[1..].iter().chain(magnitude.iter().rev()).map(|byte| byte ^ flip));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn both_ways(data_type: &DataType, there: &[u8], here: &[u8]) {
        let (mut decoded, mut encoded) = (Vec::new(), Vec::new());
        decode(data_type, there, &mut decoded);
        assert!(decoded.len() <= longest(data_type, there.len()));
        encode(data_type, here, &mut encoded);
        assert_eq!(encoded, there);
        match data_type {
            DataType::BigNum => assert_eq!(integer::trimmed(&decoded), here),
            _ => assert_eq!(decoded, here),
        }
    }

    #[test]
    fn bits() {
        for (there, here) in [
            (&[3, 0b1111_0110][..], &b"10110"[..]),
            (&[0, 0b1000_0001], b"10000001"),
            (&[7, 0b1111_1110, 0b0000_0001], b"000000001"),
            (&[7, 0xFE], b"0"),
        ] {
            both_ways(&DataType::Bit, there, here);
        }
    }

    #[test]
    fn integers() {
        for (number, magnitude) in [
            (0i64, &[0u8][..]),
            (1, &[1]),
            (127, &[127]),
            (128, &[128]),
            (255, &[255]),
            (256, &[1, 0]),
            (65_280, &[0xFF, 0]),
            (1 << 40, &[1, 0, 0, 0, 0, 0]),
        ] {
            let header = [0x80, 0, magnitude.len() as u8];
            let there = [&header[..], magnitude].concat();
            both_ways(&DataType::BigNum, &there, integer::trimmed(&number.to_le_bytes()));
            if number > 0 {
                let flipped: Vec<u8> = there.iter().map(|byte| !byte).collect();
                both_ways(&DataType::BigNum, &flipped, integer::trimmed(&(-number).to_le_bytes()));
            }
        }
    }
}
