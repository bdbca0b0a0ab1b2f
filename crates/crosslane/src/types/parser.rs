//! The parser of signatures and types.

use super::data_type::NAMES;
use crate::types::{DataType, Field, MOST_LEVELS, MOST_MEMBERS, Signature, SignatureError, TypeNames};
use std::str::FromStr;
use std::sync::Arc;
use winnow::ascii::{Caseless, dec_uint, multispace0};
use winnow::combinator::{
    alt, cut_err, delimited, eof, not, opt, peek, preceded, repeat, separated, terminated,
};
use winnow::error::{ContextError, ErrMode, StrContext, StrContextValue};
use winnow::prelude::*;
use winnow::token::{none_of, one_of, take_while};

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

impl Signature {
    /// As [`Signature::for_arguments`], for types in the text of [`types_text`].
    ///
    /// # Errors
    /// The error in the text, or the reason why the function takes no arguments of these types.
    pub fn for_types(&self, text: &str) -> Result<Self, String> {
        let types = parse_all(text, types).map_err(|error| error.to_string())?;
        self.for_arguments(types)
    }
}

type Parsed<T> = Result<T, ErrMode<ContextError>>;

/// The error of a type with more levels than [`MOST_LEVELS`].
const TOO_DEEP: &str = "a type of at most 64 levels";

/// The expected text where a type is missing.
const A_TYPE: &str = "a SQL type";

/// The place of the first parenthesis that is nested too deep for any type. The parser is recursive
/// and must not get such a text.
fn too_deep(text: &str) -> Option<usize> {
    let mut open = 0;
    let mut quote = None;
    text.char_indices().find_map(|(at, character)| {
        match (quote, character) {
            (Some(begun), _) if begun == character => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '(') => open += 1,
            (None, ')') => open -= 1,
            _ => {}
        }
        // Two more are valid: the one of the parameters, and the one of a DECIMAL or an ENUM.
        (open > MOST_LEVELS as i64 + 2).then_some(at)
    })
}

fn parse_all<T>(text: &str, parser: fn(&mut &str) -> Parsed<T>) -> Result<T, SignatureError> {
    if let Some(at) = too_deep(text) {
        let column = text[..at].chars().count() + 1;
        return Err(SignatureError { what: format!("expected {TOO_DEEP}"), text: text.to_owned(), column });
    }
    delimited(multispace0, parser, (multispace0, eof.context(expected("the end")))).parse(text).map_err(
        |error| {
            let details = error.inner().to_string();
            let mut what = if details.is_empty() {
                "cannot be understood".to_owned()
            } else {
                details.replace('\n', ", ")
            };
            if what == format!("expected {A_TYPE}") {
                what += &TypeNames::hint();
            }
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
    cut_err(token("(")).parse_next(input)?;
    let first = opt(rows).parse_next(input)?;
    let stream = first.is_some();
    let (parameters, variadic) = match first {
        Some(_) if token(",").parse_next(input).is_ok() => return Err(cut("no parameter beside a TABLE")),
        Some(rows) => cut_err(token(")")).map(|_| (vec![rows.clone()], false)).parse_next(input)?,
        None => parameters.parse_next(input)?,
    };
    cut_err(token("->")).parse_next(input)?;
    let (table, returns) = if stream {
        let any = a_word("TABLE").context(expected("TABLE")).value(DataType::Any);
        cut_err(alt((table, any)).map(|table| (true, table))).parse_next(input)?
    } else {
        let table = table.map(|table| (true, table));
        cut_err(alt((table, data_type.map(|returns| (false, returns))))).parse_next(input)?
    };
    Ok(Signature { name, parameters, variadic, returns, table, stream })
}

/// The only parameter of a function that takes a table.
fn rows(input: &mut &str) -> Parsed<Field> {
    let any = terminated(a_word("TABLE"), (multispace0, peek(one_of([',', ')'])))).value(DataType::Any);
    let name = terminated(identifier, multispace0).parse_next(input)?;
    let data_type = alt((table, any)).parse_next(input)?;
    Ok(Field { name, data_type })
}

/// `TABLE(...)`: the columns of a table.
fn table(input: &mut &str) -> Parsed<DataType> {
    fields(keyword("TABLE"), usize::MAX).map(|columns| DataType::Struct(columns.into())).parse_next(input)
}

/// The parameters after the opening parenthesis. Also returns whether the last one takes any number
/// of arguments.
fn parameters(input: &mut &str) -> Parsed<(Vec<Field>, bool)> {
    let parameter = (opt(terminated('*', multispace0)).map(|star| star.is_some()), parameter);
    let all = separated(0.., parameter, token(","));
    let all: Vec<(bool, Field)> = terminated(all, cut_err(token(")"))).parse_next(input)?;
    let variadic = all.last().is_some_and(|(star, _)| *star);
    if all.iter().filter(|(star, _)| *star).count() > usize::from(variadic) {
        return Err(cut("no parameter behind the one with a star"));
    }
    let mut parameters: Vec<_> = all.into_iter().map(|(_, parameter)| parameter).collect();
    if let Some(last) = parameters.last_mut().filter(|_| variadic) {
        if last.data_type.levels() >= MOST_LEVELS {
            return Err(cut(TOO_DEEP));
        }
        last.data_type = DataType::List(Arc::new(last.data_type.clone()));
    }
    Ok((parameters, variadic))
}

/// A parameter. Its type may be ANY.
fn parameter(input: &mut &str) -> Parsed<Field> {
    // The next character shows that ANY is the whole type.
    let any = terminated(a_word("ANY"), (multispace0, peek(one_of([',', ')'])))).value(DataType::Any);
    named(alt((any, data_type)), input)
}

fn field(input: &mut &str) -> Parsed<Field> {
    named(data_type, input)
}

fn named<'a>(
    data_type: impl Parser<&'a str, DataType, ErrMode<ContextError>>,
    input: &mut &'a str,
) -> Parsed<Field> {
    let name = terminated(identifier, multispace0).context(expected("a name")).parse_next(input)?;
    let data_type = cut_err(data_type).parse_next(input)?;
    Ok(Field { name, data_type })
}

/// The text of [`types_text`].
fn types(input: &mut &str) -> Parsed<Vec<DataType>> {
    delimited(token("("), separated(0.., data_type, token(",")), token(")")).parse_next(input)
}

fn word<'a>(input: &mut &'a str) -> Parsed<&'a str> {
    (
        one_of(|c: char| c.is_alphabetic() || c == '_'),
        take_while(0.., |c: char| c.is_alphanumeric() || c == '_'),
    )
        .take()
        .parse_next(input)
}

/// This word, in upper or lower case.
fn a_word<'a>(expected: &'static str) -> impl Parser<&'a str, &'a str, ErrMode<ContextError>> {
    word.verify(move |word: &str| word.eq_ignore_ascii_case(expected))
}

/// Text between quotes. A doubled quote in it means one quote.
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

/// A type, with any number of `[]` and `[n]` after it.
fn data_type(input: &mut &str) -> Parsed<DataType> {
    let mut data_type = alt((nested, decimal, own, known)).context(expected(A_TYPE)).parse_next(input)?;
    let brackets = |input: &mut &str| -> Parsed<Option<u32>> {
        delimited(token("["), opt(dec_uint), cut_err(preceded(multispace0, "]")).context(expected("]")))
            .parse_next(input)
    };
    // `INTEGER ARRAY` means `INTEGER[]`.
    let array = preceded((multispace0, a_word("ARRAY")), opt(brackets)).map(Option::flatten);
    let suffixes: Vec<Option<u32>> = repeat(0.., alt((brackets, array))).parse_next(input)?;
    if data_type.levels() + suffixes.len() > MOST_LEVELS {
        return Err(cut(TOO_DEEP));
    }
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

/// The fields of a STRUCT, or the members of a UNION.
fn fields<'a>(
    mut open: impl Parser<&'a str, &'a str, ErrMode<ContextError>>,
    most: usize,
) -> impl FnMut(&mut &'a str) -> Parsed<Vec<Field>> {
    move |input| {
        open.parse_next(input)?;
        let fields: Vec<Field> = cut_err(separated(1..=most, field, token(","))).parse_next(input)?;
        cut_err(token_before(")")).parse_next(input)?;
        // SQL ignores the case of names.
        let mut names: Vec<_> = fields.iter().map(|field| field.name.to_lowercase()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(cut("fields (or columns) of different names"));
        }
        Ok(fields)
    }
}

fn nested(input: &mut &str) -> Parsed<DataType> {
    let close = || cut_err(token_before(")"));
    let structure = fields(alt((keyword("STRUCT"), keyword("ROW"))), usize::MAX)
        .map(|fields| DataType::Struct(fields.into()));
    let union = fields(keyword("UNION"), MOST_MEMBERS).map(DataType::union);
    let map = delimited(keyword("MAP"), cut_err((terminated(data_type, token(",")), data_type)), close())
        .map(|(key, value)| DataType::map(key, value));
    let values = separated(1.., quoted('\'').context(expected("a quoted value")), token(","));
    let enumeration = delimited(keyword("ENUM"), cut_err(values), close())
        .map(|values: Vec<String>| DataType::Enum(values.into()));
    alt((structure, union, map, enumeration)).parse_next(input)
}

/// A built-in type of DuckDB, unless the word is the name of a schema.
fn own(input: &mut &str) -> Parsed<DataType> {
    terminated(plain, not('.')).parse_next(input)
}

/// The name of a type that the database defines, with or without a schema: `mood`, `shop.mood`.
fn known(input: &mut &str) -> Parsed<DataType> {
    let start = *input;
    let parts: Vec<String> = separated(1.., identifier, ".").parse_next(input)?;
    TypeNames::find(&parts.join(".")).ok_or_else(|| {
        *input = start;
        ErrMode::Backtrack(ContextError::new())
    })
}

fn token_before<'a>(symbol: &'static str) -> impl Parser<&'a str, &'a str, ErrMode<ContextError>> {
    preceded(multispace0, symbol).context(StrContext::Expected(symbol.into()))
}

fn decimal(input: &mut &str) -> Parsed<DataType> {
    alt((keyword("DECIMAL"), keyword("NUMERIC"), keyword("DEC"))).parse_next(input)?;
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
    let known = NAMES.iter().find(|(_, names)| names.contains(&&name[..])).map(|(known, _)| known);
    Ok(match known {
        Some(T::Float) if name == "FLOAT" => match number_behind(input)? {
            None | Some(1..=24) => T::Float,
            Some(25..=53) => T::Double,
            Some(_) => return Err(cut("a FLOAT of 1 to 53 bits")),
        },
        Some(T::Double) => {
            let _: Option<_> = opt((multispace0, Caseless("PRECISION"))).parse_next(input)?;
            T::Double
        }
        Some(T::Varchar) => {
            opt((multispace0, a_word("VARYING"))).parse_next(input)?;
            // DuckDB ignores the length too.
            number_behind(input)?;
            T::Varchar
        }
        Some(T::Time) if zone(input)? == Some(true) => T::TimeTz,
        Some(T::Timestamp) => match number_behind(input)? {
            Some(0) => T::TimestampS,
            Some(1..=3) => T::TimestampMs,
            Some(7..=9) => T::TimestampNs,
            Some(10..) => return Err(cut("a TIMESTAMP of at most 9 digits")),
            _ if zone(input)? == Some(true) => T::TimestampTz,
            _ => T::Timestamp,
        },
        Some(T::Any) => {
            *input = start;
            return Err(cut(
                "a type known beforehand, such as VARCHAR: ANY is for parameters, as their whole type",
            ));
        }
        Some(known) => known.clone(),
        // DuckDB's default precision and scale.
        None if ["DECIMAL", "NUMERIC", "DEC"].contains(&&name[..]) => T::Decimal { precision: 18, scale: 3 },
        None => {
            *input = start;
            return Err(match MISSING.iter().find(|(missing, _)| *missing == name) {
                Some((_, advice)) => cut(advice),
                None => ErrMode::Backtrack(ContextError::new()),
            });
        }
    })
}

/// Types that functions cannot have, and advice for the user.
const MISSING: [(&str, &str); 3] = [
    ("TABLE", "TABLE(column TYPE, ...) as a function's only parameter, or its result"),
    (
        "TIMESTAMPTZ_NS",
        "another type than TIMESTAMPTZ_NS, which functions cannot have: declare TIMESTAMPTZ, and cast to it",
    ),
    ("VARIANT", "another type than VARIANT, which functions cannot have: declare JSON, and cast to it"),
];

/// A number in parentheses, as in `VARCHAR(10)`.
fn number_behind(input: &mut &str) -> Parsed<Option<u32>> {
    opt(delimited(token("("), dec_uint, token_before(")"))).parse_next(input)
}

/// `WITH TIME ZONE` or `WITHOUT TIME ZONE`.
fn zone(input: &mut &str) -> Parsed<Option<bool>> {
    let with = alt((a_word("WITH").value(true), a_word("WITHOUT").value(false)));
    let zone = (multispace0, a_word("TIME"), multispace0, a_word("ZONE"));
    opt(delimited(multispace0, with, zone)).parse_next(input)
}
