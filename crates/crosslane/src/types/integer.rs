//! Integers of any length, as little-endian two's complements. They may have more bytes than
//! necessary.

/// The bytes without those that only repeat the sign.
pub fn trimmed(bytes: &[u8]) -> &[u8] {
    let mut bytes = bytes;
    while let [rest @ .., before, last] = bytes
        && *last == if before & 0x80 == 0 { 0 } else { 0xFF }
    {
        bytes = &bytes[..rest.len() + 1];
    }
    bytes
}

/// Whether the number is negative.
pub fn is_negative(bytes: &[u8]) -> bool {
    bytes.last().is_some_and(|byte| byte & 0x80 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_the_sign_is_left_out() {
        for (bytes, shortest) in [
            (&[0u8, 0, 0][..], &[0u8][..]),
            (&[0x80, 0], &[0x80, 0]),
            (&[0x7F, 0, 0], &[0x7F]),
            (&[0xFF, 0xFF], &[0xFF]),
            (&[0x7F, 0xFF, 0xFF], &[0x7F, 0xFF]),
            (&[], &[]),
        ] {
            assert_eq!(trimmed(bytes), shortest);
        }
        assert!(is_negative(&[0, 0x80]) && !is_negative(&[0x80, 0]) && !is_negative(&[]));
    }
}
