//! Integers of up to 128 bits and a sign.

/// An integer of up to 128 bits and a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integer {
    /// Whether it is below zero.
    pub negative: bool,
    /// Without the sign.
    pub magnitude: u128,
}

impl Integer {
    /// The integer of a decimal text. `None` if the text is no integer, or has more bits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let unsigned = digits.first().is_some_and(u8::is_ascii_digit);
        let magnitude = std::str::from_utf8(digits).ok().filter(|_| unsigned)?.parse().ok()?;
        Some(Self { negative, magnitude })
    }

    /// The number in a narrower type, if it fits.
    pub fn narrow<T: TryFrom<i128>>(self) -> Option<T> {
        let positive =
            if self.negative { 0u128.wrapping_sub(self.magnitude) } else { self.magnitude } as i128;
        let fits = self.magnitude == 0 || (positive < 0) == self.negative;
        T::try_from(positive).ok().filter(|_| fits)
    }
}

impl From<i128> for Integer {
    fn from(value: i128) -> Self {
        Self { negative: value < 0, magnitude: value.unsigned_abs() }
    }
}

impl From<u128> for Integer {
    fn from(magnitude: u128) -> Self {
        Self { negative: false, magnitude }
    }
}

impl std::fmt::Display for Integer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.magnitude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_fit_or_do_not() {
        let parsed = |text: &str| Integer::parse(text.as_bytes());
        let of = |text: &str| parsed(text).unwrap();
        assert_eq!(of("-128").narrow::<i8>(), Some(-128));
        assert_eq!(of("128").narrow::<i8>(), None);
        assert_eq!(of("-1").narrow::<u8>(), None);
        assert_eq!(of("-0").narrow::<u8>(), Some(0));
        assert_eq!(of("-170141183460469231731687303715884105728").narrow::<i128>(), Some(i128::MIN));
        assert_eq!(of("170141183460469231731687303715884105728").narrow::<i128>(), None);
        assert_eq!(of("-170141183460469231731687303715884105729").narrow::<i128>(), None);
        for none in ["", "-", "+1", "--1", "1.0", "340282366920938463463374607431768211456"] {
            assert_eq!(parsed(none), None, "{none}");
        }
        assert_eq!(Integer::from(-5i128).to_string(), "-5");
    }
}
