//! How a language makes and reads its values.

use super::integer::Integer;
use super::numbers::{big_bytes, big_text, decimal_text, uuid_bytes};
use super::refusal::{Class, Fault, Refusal};
use super::temporal::Temporal;
use crosslane::{DataType, Field};

/// How a language makes values from columns, and reads values for columns.
///
/// Methods that make or take several values get functions for the single values. So no list of
/// values lies outside of the language, where its collector would not see it.
///
/// A language whose errors are jumps may jump out of any method that makes or takes a value:
/// readers, writers and the loop hold nothing then that must be dropped. [`Values::shape`],
/// [`Values::error`] and [`Values::shown`] must return.
///
/// The default methods are for a language whose numbers have 64 bits, and which has texts for the
/// other types.
pub trait Values: Sized {
    /// The advice for a text that is not UTF-8.
    const NOT_UTF8: &'static str = "declare BLOB for bytes";

    /// A value of the language.
    type Value;
    /// An error of the language: its exception.
    type Error;
    /// What the language prepares for a type: a class for a STRUCT, the names of the values of an
    /// ENUM.
    type Shape: std::fmt::Debug;

    /// Prepares a type.
    ///
    /// # Errors
    /// If the language cannot have the type.
    fn shape(&self, data_type: &DataType) -> Result<Self::Shape, Self::Error>;

    /// The error for a value that is no result.
    fn error(&self, class: Class, message: &str) -> Self::Error;

    /// A value as text for a message: its type, and the beginning of its text.
    ///
    /// # Errors
    /// An error that replaces the message, such as one that ends the program.
    fn shown(&self, value: &Self::Value) -> Result<String, Self::Error>;

    /// NULL.
    fn null(&self) -> Self::Value;
    /// A BOOLEAN.
    fn boolean(&self, value: bool) -> Made<Self>;
    /// An integer of up to 64 bits, but for UBIGINT.
    fn integer(&self, value: i64) -> Made<Self>;
    /// A wider integer: a UBIGINT, a HUGEINT or a UHUGEINT.
    fn wide(&self, value: Integer) -> Made<Self> {
        self.text(value.to_string().as_bytes(), Some(true))
    }
    /// A BIGNUM: a little-endian two's complement of any length.
    fn big(&self, bytes: &[u8]) -> Made<Self> {
        self.text(big_text(bytes).as_bytes(), Some(true))
    }
    /// A FLOAT or DOUBLE, or an infinite DATE or TIMESTAMP.
    fn float(&self, value: f64) -> Made<Self>;
    /// A DECIMAL: `unscaled` / 10^`scale`.
    fn decimal(&self, unscaled: i128, scale: u8) -> Made<Self> {
        self.text(decimal_text(unscaled, scale, &mut [0; 48]), Some(true))
    }
    /// A VARCHAR or BIT. `ascii` says whether it is ASCII, if that is known.
    fn text(&self, utf8: &[u8], ascii: Option<bool>) -> Made<Self>;
    /// A JSON.
    fn json(&self, _shape: &Self::Shape, utf8: &[u8]) -> Made<Self> {
        self.text(utf8, None)
    }
    /// A BLOB or GEOMETRY.
    fn bytes(&self, bytes: &[u8]) -> Made<Self>;
    /// A UUID in network order.
    fn uuid(&self, bytes: [u8; 16]) -> Made<Self> {
        self.text(&crosslane::display::uuid(bytes), Some(true))
    }
    /// A date, time or interval.
    fn temporal(&self, shape: &Self::Shape, temporal: Temporal) -> Made<Self>;
    /// A value of an ENUM by its code.
    fn code(&self, shape: &Self::Shape, code: usize) -> Made<Self>;
    /// A LIST or ARRAY of so many elements.
    ///
    /// # Errors
    /// As `element`.
    fn list(&self, count: usize, element: impl FnMut(usize) -> Made<Self>) -> Made<Self>;
    /// A STRUCT of so many fields.
    ///
    /// # Errors
    /// As `field`.
    fn structure(
        &self,
        shape: &Self::Shape,
        count: usize,
        field: impl FnMut(usize) -> Made<Self>,
    ) -> Made<Self>;
    /// A UNION: the number of its member, from 0, and the value of the member.
    fn member(&self, shape: &Self::Shape, member: usize, value: Self::Value) -> Made<Self>;
    /// A MAP of so many entries.
    ///
    /// # Errors
    /// As `entry`.
    fn map(
        &self,
        shape: &Self::Shape,
        count: usize,
        entry: impl FnMut(usize) -> Result<(Self::Value, Self::Value), Self::Error>,
    ) -> Made<Self>;

    /// Whether a value is NULL.
    fn is_null(&self, value: &Self::Value) -> bool;
    /// A boolean.
    fn to_boolean(&self, value: &Self::Value) -> Taken<bool, Self>;
    /// The number of an integer of up to 64 bits, if that can be found quickly.
    fn quick_integer(&self, value: &Self::Value) -> Option<i64>;
    /// The number of a floating-point number, if that can be found quickly.
    fn quick_float(&self, value: &Self::Value) -> Option<f64>;
    /// An integer. By default also a floating-point number without a fraction, and the text of an
    /// integer.
    fn to_integer(&self, value: &Self::Value) -> Taken<Integer, Self> {
        if let Some(number) = self.quick_integer(value) {
            return Ok(i128::from(number).into());
        }
        match self.quick_float(value) {
            Some(number) if number.abs() >= TOO_LARGE => Err(Refusal::TooLarge),
            Some(number) if number.fract() == 0.0 => Ok((number as i128).into()),
            Some(_) => Err(Refusal::Mismatch),
            None => self.with_text(value, |text, _| Integer::parse(text))?.ok_or(Refusal::Mismatch),
        }
    }
    /// An integer that may have more than 64 bits: a HUGEINT, a UHUGEINT.
    fn to_wide(&self, value: &Self::Value) -> Taken<Integer, Self> {
        self.to_integer(value)
    }
    /// Gives an integer of any length to `take`, as a little-endian two's complement.
    fn with_big<R>(&self, value: &Self::Value, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        let bytes = match self.with_text(value, |text, _| big_bytes(text)) {
            Ok(bytes) => bytes,
            Err(_) => big_bytes(self.to_integer(value)?.to_string().as_bytes()),
        };
        Ok(take(&bytes.ok_or(Refusal::Mismatch)?))
    }
    /// Any number as a floating-point number.
    fn to_float(&self, value: &Self::Value) -> Taken<f64, Self> {
        let number =
            self.quick_float(value).or_else(|| self.quick_integer(value).map(|number| number as f64));
        number.ok_or(Refusal::Mismatch)
    }
    /// Gives a number that is not a quick one to `take`, as decimal text such as `-12.50` or `1e3`.
    fn with_decimal<R>(&self, value: &Self::Value, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        self.with_text(value, |text, _| take(text))
    }
    /// Gives a text to `take`, and whether it is known to be UTF-8.
    fn with_text<R>(&self, value: &Self::Value, take: impl FnOnce(&[u8], bool) -> R) -> Taken<R, Self>;
    /// Gives a value to `take`, as JSON.
    fn with_json<R>(
        &self,
        _shape: &Self::Shape,
        value: &Self::Value,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Taken<R, Self> {
        self.with_text(value, |text, _| {
            let wrong = |error| Refusal::Other(format!(", which is not JSON: {error}"));
            serde_json::from_slice::<serde::de::IgnoredAny>(text).map_err(wrong)?;
            Ok(take(text))
        })
        .flatten()
    }
    /// Gives bytes to `take`.
    fn with_bytes<R>(&self, value: &Self::Value, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        self.with_text(value, |bytes, _| take(bytes))
    }
    /// A UUID in network order.
    fn to_uuid(&self, value: &Self::Value) -> Taken<[u8; 16], Self> {
        self.with_bytes(value, uuid_bytes)?.ok_or(Refusal::Mismatch)
    }
    /// The code of a value of an ENUM, if it is such a value. `known` gives the codes of texts.
    fn to_code(
        &self,
        _shape: &Self::Shape,
        value: &Self::Value,
        known: impl Fn(&[u8]) -> Option<usize>,
    ) -> Taken<Option<usize>, Self> {
        self.with_text(value, |text, _| known(text))
    }
    /// A value in the form that the type needs: [`Temporal::Date`] for a DATE, and so on, in any
    /// range; or [`Temporal::Infinite`].
    fn to_temporal(&self, value: &Self::Value, data_type: &DataType) -> Taken<Temporal, Self>;
    /// Gives the elements of a list to `element`, each with how many there are.
    ///
    /// # Errors
    /// As `element`; a [`Fault`] if it is no list.
    fn with_elements(
        &self,
        value: &Self::Value,
        element: impl FnMut(usize, &Self::Value) -> Result<(), Fault<Self::Error>>,
    ) -> Taken<Result<(), Fault<Self::Error>>, Self>;
    /// Gives the fields of a structure to `field`, in their order, or the fields that the
    /// structure's shape names ([`crate::Writer::of_fields`]).
    ///
    /// # Errors
    /// As `field`; a [`Fault`] if it is no structure or lacks a field.
    fn with_fields(
        &self,
        shape: &Self::Shape,
        fields: &[Field],
        value: &Self::Value,
        field: impl FnMut(usize, &Self::Value) -> Result<(), Fault<Self::Error>>,
    ) -> Taken<Result<(), Fault<Self::Error>>, Self>;
    /// Gives the name and the value of a UNION's member to `member`. The fields are the tag and the
    /// members.
    ///
    /// # Errors
    /// As `member`; a [`Fault`] if it is no value with a tag.
    fn with_member(
        &self,
        shape: &Self::Shape,
        fields: &[Field],
        value: &Self::Value,
        member: impl FnOnce(&[u8], &Self::Value) -> Result<(), Fault<Self::Error>>,
    ) -> Taken<Result<(), Fault<Self::Error>>, Self>;
    /// Gives the entries of a map to `entry`, each with how many there are.
    ///
    /// # Errors
    /// As `entry`; a [`Fault`] if it is no map.
    fn with_entries(
        &self,
        value: &Self::Value,
        entry: impl FnMut(usize, &Self::Value, &Self::Value) -> Result<(), Fault<Self::Error>>,
    ) -> Taken<Result<(), Fault<Self::Error>>, Self>;
}

/// Two to the power of 127. No column has room for an integer of this size.
const TOO_LARGE: f64 = 1.701_411_834_604_692_3e38;

/// A value that was made, or the error of the language.
type Made<V> = Result<<V as Values>::Value, <V as Values>::Error>;

/// What was read from a value, or why it could not be read.
pub type Taken<T, V> = Result<T, Refusal<<V as Values>::Error>>;

impl<E> Fault<E> {
    /// The language's error for it.
    pub fn into_error(self, values: &impl Values<Error = E>) -> E {
        match self {
            Fault::Refused(refused) => values.error(refused.0, &refused.1),
            Fault::Failed(error) => error,
        }
    }
}
