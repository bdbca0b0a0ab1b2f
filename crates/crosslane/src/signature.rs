//! The grammar of signatures: `slug(title VARCHAR) -> VARCHAR`, in SQL's types, for all languages.

use crate::types::{DataType, Field, comma_separated};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use winnow::ascii::{Caseless, dec_uint, multispace0};
use winnow::combinator::{alt, cut_err, delimited, eof, opt, preceded, repeat, separated, terminated};
use winnow::error::{ContextError, ErrMode, StrContext, StrContextValue};
use winnow::prelude::*;
use winnow::token::{none_of, one_of, take_while};

/// A function's name, parameters and result in SQL's types.
///
/// ```
/// use crosslane::Signature;
/// let slug: Signature = "slug(title varchar, parts int[]) -> text".parse()?;
/// assert_eq!(slug.to_string(), "slug(title VARCHAR, parts INTEGER[]) -> VARCHAR");
/// # Ok::<(), crosslane::signature::SignatureError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Signature {
    /// The name, as SQL calls it.
    pub name: String,
    /// The parameters in order.
    pub parameters: Vec<Field>,
    /// The type of the result.
    pub returns: DataType,
}

/// A text that is not a signature (or not a type).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at column {}:\n  {text}\n  {:>column$}", column, '^')]
pub struct SignatureError {
    /// What was wrong.
    pub what: String,
    /// The whole text.
    pub text: String,
    /// Where, counted in characters from 1.
    pub column: usize,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
        comma_separated(f, &self.parameters)?;
        write!(f, ") -> {}", self.returns)
    }
}

impl FromStr for Signature {
    type Err = SignatureError;

    fn from_str(text: &str) -> Result<Self, SignatureError> {
        parse_all(text, signature)
    }
}

impl FromStr for DataType {
    type Err = SignatureError;

    fn from_str(text: &str) -> Result<Self, SignatureError> {
        parse_all(text, data_type)
    }
}

type Parsed<T> = Result<T, ErrMode<ContextError>>;

fn parse_all<T>(text: &str, parser: fn(&mut &str) -> Parsed<T>) -> Result<T, SignatureError> {
    delimited(multispace0, parser, (multispace0, eof.context(expected("the end")))).parse(text).map_err(
        |error| {
            let details = error.inner().to_string();
            let what = if details.is_empty() {
                "cannot be understood".to_owned()
            } else {
                details.replace('\n', ", ")
            };
            let column = text[..error.offset()].chars().count() + 1;
            SignatureError { what, text: text.to_owned(), column }
        },
    )
}

fn expected(what: &'static str) -> StrContext {
    StrContext::Expected(StrContextValue::Description(what))
}

fn token<'a>(symbol: &'static str) -> impl Parser<&'a str, &'a str, ErrMode<ContextError>> {
    delimited(multispace0, symbol, multispace0).context(StrContext::Expected(symbol.into()))
}

fn signature(input: &mut &str) -> Parsed<Signature> {
    let name = identifier.context(expected("a function name")).parse_next(input)?;
    let parameters = parameters.parse_next(input)?;
    cut_err(token("->")).parse_next(input)?;
    let returns = cut_err(data_type).parse_next(input)?;
    Ok(Signature { name, parameters, returns })
}

fn parameters(input: &mut &str) -> Parsed<Vec<Field>> {
    delimited(cut_err(token("(")), separated(0.., field, token(",")), cut_err(token(")"))).parse_next(input)
}

fn field(input: &mut &str) -> Parsed<Field> {
    let name = terminated(identifier, multispace0).context(expected("a name")).parse_next(input)?;
    let data_type = cut_err(data_type).parse_next(input)?;
    Ok(Field { name, data_type })
}

fn word<'a>(input: &mut &'a str) -> Parsed<&'a str> {
    (
        one_of(|c: char| c.is_alphabetic() || c == '_'),
        take_while(0.., |c: char| c.is_alphanumeric() || c == '_'),
    )
        .take()
        .parse_next(input)
}

/// Text between quotes, in which a doubled quote stands for one.
fn quoted(quote: char) -> impl FnMut(&mut &str) -> Parsed<String> {
    move |input: &mut &str| {
        let escaped: &str = if quote == '"' { "\"\"" } else { "''" };
        delimited(quote, repeat(0.., alt((escaped.value(quote), none_of(quote)))), cut_err(quote))
            .parse_next(input)
    }
}

fn identifier(input: &mut &str) -> Parsed<String> {
    alt((quoted('"'), word.map(str::to_owned))).parse_next(input)
}

/// A type, with any number of `[]` and `[n]` behind it.
fn data_type(input: &mut &str) -> Parsed<DataType> {
    let mut data_type = alt((nested, decimal, plain)).context(expected("a SQL type")).parse_next(input)?;
    let suffix = |input: &mut &str| -> Parsed<Option<u32>> {
        delimited(token("["), opt(dec_uint), cut_err(preceded(multispace0, "]")).context(expected("]")))
            .parse_next(input)
    };
    let suffixes: Vec<Option<u32>> = repeat(0.., suffix).parse_next(input)?;
    for length in suffixes {
        data_type = match length {
            None => DataType::List(Arc::new(data_type)),
            Some(0) => return Err(cut("an array length of at least 1")),
            Some(length) => DataType::Array(Arc::new(data_type), length),
        };
    }
    Ok(data_type)
}

fn cut(what: &'static str) -> ErrMode<ContextError> {
    let mut error = ContextError::new();
    error.push(expected(what));
    ErrMode::Cut(error)
}

/// `KEYWORD (`, where the parenthesis belongs to the type.
fn keyword<'a>(name: &'static str) -> impl Parser<&'a str, &'a str, ErrMode<ContextError>> {
    terminated(Caseless(name), token("("))
}

fn nested(input: &mut &str) -> Parsed<DataType> {
    let close = || cut_err(token_before(")"));
    let structure = delimited(keyword("STRUCT"), cut_err(separated(1.., field, token(","))), close())
        .map(|fields: Vec<Field>| DataType::Struct(fields.into()));
    let map = delimited(keyword("MAP"), cut_err((terminated(data_type, token(",")), data_type)), close())
        .map(|(key, value)| DataType::map(key, value));
    let values = separated(1.., quoted('\'').context(expected("a quoted value")), token(","));
    let enumeration = delimited(keyword("ENUM"), cut_err(values), close())
        .map(|values: Vec<String>| DataType::Enum(values.into()));
    alt((structure, map, enumeration)).parse_next(input)
}

fn token_before<'a>(symbol: &'static str) -> impl Parser<&'a str, &'a str, ErrMode<ContextError>> {
    preceded(multispace0, symbol).context(StrContext::Expected(symbol.into()))
}

fn decimal(input: &mut &str) -> Parsed<DataType> {
    alt((keyword("DECIMAL"), keyword("NUMERIC"))).parse_next(input)?;
    let precision: u8 = cut_err(dec_uint).context(expected("a precision")).parse_next(input)?;
    let scale: Option<u8> = opt(preceded(token(","), dec_uint)).parse_next(input)?;
    cut_err(token_before(")")).parse_next(input)?;
    let scale = scale.unwrap_or(0);
    if !(1..=38).contains(&precision) || scale > precision {
        return Err(cut("a precision of 1 to 38 and a scale up to the precision"));
    }
    Ok(DataType::Decimal { precision, scale })
}

fn plain(input: &mut &str) -> Parsed<DataType> {
    use DataType as T;
    let start = *input;
    let name = word.parse_next(input)?.to_ascii_uppercase();
    let data_type = match name.as_str() {
        "BOOLEAN" | "BOOL" | "LOGICAL" => T::Boolean,
        "TINYINT" | "INT1" => T::TinyInt,
        "SMALLINT" | "INT2" | "SHORT" => T::SmallInt,
        "INTEGER" | "INT" | "INT4" | "SIGNED" => T::Integer,
        "BIGINT" | "INT8" | "LONG" => T::BigInt,
        "UTINYINT" => T::UTinyInt,
        "USMALLINT" => T::USmallInt,
        "UINTEGER" => T::UInteger,
        "UBIGINT" => T::UBigInt,
        "HUGEINT" | "INT128" => T::HugeInt,
        "UHUGEINT" => T::UHugeInt,
        "FLOAT" | "REAL" | "FLOAT4" => T::Float,
        "DOUBLE" | "FLOAT8" => {
            let _: Option<_> = opt((multispace0, Caseless("PRECISION"))).parse_next(input)?;
            T::Double
        }
        // DuckDB's default precision and scale.
        "DECIMAL" | "NUMERIC" => T::Decimal { precision: 18, scale: 3 },
        "VARCHAR" | "TEXT" | "STRING" | "CHAR" | "BPCHAR" => T::Varchar,
        "BLOB" | "BYTEA" | "BINARY" | "VARBINARY" => T::Blob,
        "JSON" => T::Json,
        "DATE" => T::Date,
        "TIME" => T::Time,
        "TIMESTAMP_S" => T::TimestampS,
        "TIMESTAMP_MS" => T::TimestampMs,
        "TIMESTAMP_NS" => T::TimestampNs,
        "TIMESTAMPTZ" => T::TimestampTz,
        "TIMESTAMP" | "DATETIME" | "TIMESTAMP_US" => {
            let zone =
                (multispace0, Caseless("WITH"), multispace0, Caseless("TIME"), multispace0, Caseless("ZONE"));
            if opt(zone).parse_next(input)?.is_some() { T::TimestampTz } else { T::Timestamp }
        }
        "INTERVAL" => T::Interval,
        "UUID" | "GUID" => T::Uuid,
        _ => {
            *input = start;
            return Err(ErrMode::Backtrack(ContextError::new()));
        }
    };
    Ok(data_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_its_own_text() {
        for text in [
            "BOOLEAN",
            "TINYINT",
            "SMALLINT",
            "INTEGER",
            "BIGINT",
            "UTINYINT",
            "USMALLINT",
            "UINTEGER",
            "UBIGINT",
            "HUGEINT",
            "UHUGEINT",
            "FLOAT",
            "DOUBLE",
            "DECIMAL(38,10)",
            "VARCHAR",
            "BLOB",
            "JSON",
            "DATE",
            "TIME",
            "TIMESTAMP_S",
            "TIMESTAMP_MS",
            "TIMESTAMP",
            "TIMESTAMP_NS",
            "TIMESTAMPTZ",
            "INTERVAL",
            "UUID",
            "ENUM('a', 'it''s')",
            "INTEGER[]",
            "INTEGER[3]",
            "INTEGER[][2][]",
            "MAP(VARCHAR, INTEGER[])",
            "STRUCT(a INTEGER, \"b c\" STRUCT(\"d\"\"e\" MAP(INTEGER, BLOB)[2]))",
        ] {
            assert_eq!(text.parse::<DataType>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn aliases_and_spacing() {
        let text = " f( a int ,b  timestamp with time zone , c numeric ( 5 , 2 ) [ ] )->double precision ";
        let parsed: Signature = text.parse().unwrap();
        assert_eq!(parsed.to_string(), "f(a INTEGER, b TIMESTAMPTZ, c DECIMAL(5,2)[]) -> DOUBLE");
        assert_eq!("f() -> INT".parse::<Signature>().unwrap().parameters, []);
    }

    #[test]
    fn errors_point_at_the_place() {
        for (text, column, what) in [
            ("f(x BIGNIT) -> INT", 5, "SQL type"),
            ("f(x INT) INT", 10, "->"),
            ("f(x INT -> INT", 9, ")"),
            ("(x INT) -> INT", 1, "function name"),
            ("f(x DECIMAL(39,1)) -> INT", 18, "precision"),
            ("f(x INT[0]) -> INT", 11, "at least 1"),
            ("f(x INT) -> INT extra", 17, "the end"),
        ] {
            let error = text.parse::<Signature>().unwrap_err();
            assert!(error.what.contains(what) && error.column == column, "{text}: {error:?}");
        }
    }
}
