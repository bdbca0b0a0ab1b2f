//! DuckDB's strings, as they lie in its vectors.

use std::ops::Range;

/// The most bytes that a string holds in place.
pub(crate) const INLINE: usize = 12;

/// DuckDB's string: its length, then up to 12 bytes, or the first four of more and their address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct DuckString([u8; 16]);

impl DuckString {
    /// The string of these bytes of `all`: up to 12 in place, more as their first ones and their address.
    ///
    /// # Panics
    /// If `all` has not got them.
    #[inline]
    pub(crate) fn new(all: &[u8], bytes: Range<usize>, address: *const u8) -> Self {
        assert!(bytes.end <= all.len());
        let length = bytes.len();
        // Two words, put together in registers: a word that was just written in parts is slow to read.
        let (low, high) = match all[bytes.start..].first_chunk::<INLINE>() {
            Some([a, b, c, d, rest @ ..]) => {
                let (first, rest) = (u32::from_le_bytes([*a, *b, *c, *d]), u64::from_le_bytes(*rest));
                match length {
                    0..4 => (first & ((1 << (8 * length)) - 1), 0),
                    // What lies behind the string is cut off.
                    4..=INLINE => (first, rest & ((1u128 << (8 * (length - 4))) - 1) as u64),
                    _ => (first, address as u64),
                }
            }
            None => {
                let short = all[bytes].iter().rev().fold(0, |rest, byte| rest << 8 | u128::from(*byte));
                (short as u32, (short >> 32) as u64)
            }
        };
        Self((length as u128 | u128::from(low) << 32 | u128::from(high) << 64).to_le_bytes())
    }

    #[inline]
    pub(crate) fn length(&self) -> usize {
        u128::from_le_bytes(self.0) as u32 as usize
    }

    /// Where the bytes of a string are that does not hold them in place.
    #[inline]
    pub(crate) fn address(&self) -> *const u8 {
        (u128::from_le_bytes(self.0) >> 64) as u64 as *const u8
    }

    /// # Safety
    /// The string must be DuckDB's own, and alive.
    #[inline]
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        let length = self.length();
        let start = if length <= INLINE { self.0[4..].as_ptr() } else { self.address() };
        // SAFETY: a string of up to 12 bytes lies behind its length, a longer one at its address.
        unsafe { std::slice::from_raw_parts(start, length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_lie_in_place_or_at_their_address() {
        let all: Vec<u8> = (1..=40).collect();
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let string = DuckString::new(&all, start..end, all[start..].as_ptr());
                assert_eq!(string.length(), end - start);
                // SAFETY: the string points into the bytes, which are alive.
                assert_eq!(unsafe { string.bytes() }, &all[start..end]);
                let (place, length) = (&string.0[4..], end - start);
                if length > INLINE {
                    assert_eq!(place[..4], all[start..start + 4]);
                } else {
                    assert!(place[length..].iter().all(|byte| *byte == 0), "what lies behind {length} bytes");
                }
            }
        }
    }
}
