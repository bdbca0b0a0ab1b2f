//! The grammar of signatures: `slug(title VARCHAR) -> VARCHAR`, in SQL's types, for all languages.

pub use crate::types::SignatureError;
use crate::types::{DataType, Field, Identifier, MOST_LEVELS, MOST_MEMBERS, TypeNames};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use winnow::ascii::{Caseless, dec_uint, multispace0};
use winnow::combinator::{
    alt, cut_err, delimited, eof, not, opt, peek, preceded, repeat, separated, terminated,
};
use winnow::error::{ContextError, ErrMode, StrContext, StrContextValue};
use winnow::prelude::*;
use winnow::token::{none_of, one_of, take_while};

/// A function's name, parameters and result in SQL's types.
///
/// The last parameter may stand for any number of arguments of one type: `f(first BIGINT, *rest VARCHAR) -> BIGINT`.
/// A parameter of the type ANY takes an argument of any type; [`Signature::for_arguments`] is what such a signature is for
/// the arguments of a call.
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
    /// The parameters in order. That of any number of arguments has the type of a LIST of them, as which they travel.
    pub parameters: Vec<Field>,
    /// Whether the last parameter stands for any number of arguments.
    pub variadic: bool,
    /// The type of the result. Of a table, a STRUCT of its columns.
    pub returns: DataType,
    /// Whether the result is a table: `numbers(n BIGINT) -> TABLE(i BIGINT, s VARCHAR)`. One whose columns its function
    /// decides has the type ANY.
    pub table: bool,
    /// Whether the only parameter is a table, which comes in batches: `clean(rows TABLE(a BIGINT)) -> TABLE(x BIGINT)`. Its
    /// type is a STRUCT of the columns, or ANY for any columns.
    pub stream: bool,
}

impl Signature {
    /// The parameters that stand for one argument each.
    pub fn fixed(&self) -> &[Field] {
        &self.parameters[..self.parameters.len() - usize::from(self.variadic)]
    }

    /// The type of the arguments behind the fixed ones, if there may be any.
    pub fn rest(&self) -> Option<&DataType> {
        self.parameters.last().filter(|_| self.variadic)?.data_type.children().next()
    }

    /// Whether a parameter takes arguments of any type.
    pub fn takes_any(&self) -> bool {
        let any = |data_type: &DataType| *data_type == DataType::Any;
        self.fixed().iter().any(|field| any(&field.data_type)) || self.rest().is_some_and(any)
    }

    /// Whether a call cannot tell it from another of its name, by the number and the types of the arguments.
    pub fn takes_the_same(&self, other: &Self) -> bool {
        let mut pairs = self.parameters.iter().zip(&other.parameters);
        self.variadic == other.variadic
            && self.parameters.len() == other.parameters.len()
            && pairs.all(|(one, another)| one.data_type.is_alike(&another.data_type))
    }

    /// The signature with a parameter for each argument, of the types that these arguments have.
    ///
    /// # Errors
    /// What is wrong if it takes no arguments of these types.
    pub fn for_arguments(&self, types: Vec<DataType>) -> Result<Self, String> {
        let fixed = self.fixed().len();
        let count = types.len();
        let names = self.parameters.iter().map(|field| field.name.clone()).take(fixed);
        let rest = self.parameters.last().filter(|_| self.variadic).map(|last| last.name.as_str());
        let names = names.chain((0..).map_while(|at| rest.map(|name| format!("{name}[{at}]"))));
        let declared = self.fixed().iter().map(|field| &field.data_type);
        let declared = declared.chain(self.rest().into_iter().cycle());
        let fits =
            |(declared, given): (&DataType, &DataType)| *declared == DataType::Any || declared == given;
        let all_fit = declared.zip(&types).all(fits) && !types.contains(&DataType::Any);
        if count < fixed || count > fixed && !self.variadic || !all_fit {
            return Err(format!("{self} cannot be called with {}", types_text(&types)));
        }
        let parameters = names.zip(types).map(|(name, data_type)| Field { name, data_type }).collect();
        let (name, returns) = (self.name.clone(), self.returns.clone());
        Ok(Self { name, parameters, variadic: false, returns, table: self.table, stream: self.stream })
    }

    /// [`Signature::for_arguments`] for the types of [`types_text`].
    ///
    /// # Errors
    /// What is wrong with the text, or if it takes no arguments of these types.
    pub fn for_types(&self, text: &str) -> Result<Self, String> {
        let types = parse_all(text, types).map_err(|error| error.to_string())?;
        self.for_arguments(types)
    }

    /// The parameters with the types of an argument each.
    fn arguments(&self) -> impl Iterator<Item = Field> {
        let rest = self.parameters.last().zip(self.rest());
        let rest =
            rest.map(|(last, data_type)| Field { name: last.name.clone(), data_type: data_type.clone() });
        self.fixed().iter().cloned().chain(rest)
    }

    /// The names of the parameters, and the types of an argument each, as text.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let text = |data_type: &DataType| match self.stream {
            true => table_text(data_type),
            false => data_type.to_string(),
        };
        self.arguments().map(|field| (field.name, text(&field.data_type))).collect()
    }

    /// The parameters as a signature has them.
    pub fn declared(&self) -> String {
        let rest = self.parameters.len() - usize::from(self.variadic);
        let star = |at: usize| if at == rest { "*" } else { "" };
        let texts = self.pairs().into_iter().enumerate();
        let texts = texts.map(|(at, (name, text))| format!("{}{} {text}", star(at), Identifier(&name)));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// The result as a signature has it.
    pub fn result(&self) -> String {
        if self.table { table_text(&self.returns) } else { self.returns.to_string() }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}) -> {}", self.name, self.declared(), self.result())
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

/// The types of a call's arguments as text: `(BIGINT, VARCHAR[])`.
pub fn types_text(types: &[DataType]) -> String {
    let texts: Vec<_> = types.iter().map(DataType::to_string).collect();
    format!("({})", texts.join(", "))
}

/// A table of these columns as a signature has it.
fn table_text(columns: &DataType) -> String {
    match columns {
        DataType::Struct(columns) => {
            let columns: Vec<_> = columns.iter().map(Field::to_string).collect();
            format!("TABLE({})", columns.join(", "))
        }
        _ => "TABLE".to_owned(),
    }
}

type Parsed<T> = Result<T, ErrMode<ContextError>>;

/// What is wrong with a type that has more levels than [`MOST_LEVELS`].
const TOO_DEEP: &str = "a type of at most 64 levels";

/// What is missing where nothing is that stands for a type.
const A_TYPE: &str = "a SQL type";

/// Where a text opens a parenthesis too many for any type: the parser, which calls itself for each, never sees it.
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
        // That of the parameters, and that of a DECIMAL or an ENUM.
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

/// The only parameter of a function whose input is a table.
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

/// The parameters behind the parenthesis, and whether the last one stands for any number of arguments.
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

/// A parameter, whose type may be ANY.
fn parameter(input: &mut &str) -> Parsed<Field> {
    // What follows shows that it is the whole type.
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

/// What [`types_text`] writes.
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

/// A word that is this one in any case.
fn a_word<'a>(expected: &'static str) -> impl Parser<&'a str, &'a str, ErrMode<ContextError>> {
    word.verify(move |word: &str| word.eq_ignore_ascii_case(expected))
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
    let mut data_type = alt((nested, decimal, own, known)).context(expected(A_TYPE)).parse_next(input)?;
    let brackets = |input: &mut &str| -> Parsed<Option<u32>> {
        delimited(token("["), opt(dec_uint), cut_err(preceded(multispace0, "]")).context(expected("]")))
            .parse_next(input)
    };
    // `INTEGER ARRAY` is `INTEGER[]`.
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
        // As SQL, whatever the case.
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

/// One of DuckDB's own types, unless the word is the name of a schema.
fn own(input: &mut &str) -> Parsed<DataType> {
    terminated(plain, not('.')).parse_next(input)
}

/// The name of a type that the database has, in its schema or in that of statements: `mood`, `shop.mood`.
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
    let data_type = match name.as_str() {
        "BOOLEAN" | "BOOL" | "LOGICAL" => T::Boolean,
        "TINYINT" | "INT1" => T::TinyInt,
        "SMALLINT" | "INT2" | "INT16" | "SHORT" => T::SmallInt,
        "INTEGER" | "INT" | "INT4" | "INT32" | "SIGNED" | "INTEGRAL" => T::Integer,
        "BIGINT" | "INT8" | "INT64" | "LONG" | "OID" => T::BigInt,
        "UTINYINT" | "UINT8" => T::UTinyInt,
        "USMALLINT" | "UINT16" => T::USmallInt,
        "UINTEGER" | "UINT32" => T::UInteger,
        "UBIGINT" | "UINT64" => T::UBigInt,
        "HUGEINT" | "INT128" => T::HugeInt,
        "UHUGEINT" | "UINT128" => T::UHugeInt,
        "FLOAT" => match number_behind(input)? {
            None | Some(1..=24) => T::Float,
            Some(25..=53) => T::Double,
            Some(_) => return Err(cut("a FLOAT of 1 to 53 bits")),
        },
        "REAL" | "FLOAT4" => T::Float,
        "DOUBLE" | "FLOAT8" => {
            let _: Option<_> = opt((multispace0, Caseless("PRECISION"))).parse_next(input)?;
            T::Double
        }
        // DuckDB's default precision and scale.
        "DECIMAL" | "NUMERIC" | "DEC" => T::Decimal { precision: 18, scale: 3 },
        "VARCHAR" | "TEXT" | "STRING" | "CHAR" | "BPCHAR" | "NVARCHAR" | "NCHAR" | "CHARACTER" => {
            opt((multispace0, a_word("VARYING"))).parse_next(input)?;
            // DuckDB does not mind the length either.
            number_behind(input)?;
            T::Varchar
        }
        "BLOB" | "BYTEA" | "BINARY" | "VARBINARY" => T::Blob,
        "JSON" => T::Json,
        "DATE" => T::Date,
        "BIT" | "BITSTRING" => T::Bit,
        "BIGNUM" | "VARINT" => T::BigNum,
        "GEOMETRY" => T::Geometry,
        "TIME" if zone(input)? == Some(true) => T::TimeTz,
        "TIME" => T::Time,
        "TIMETZ" => T::TimeTz,
        "TIME_NS" => T::TimeNs,
        "TIMESTAMP_S" => T::TimestampS,
        "TIMESTAMP_MS" => T::TimestampMs,
        "TIMESTAMP_NS" => T::TimestampNs,
        "TIMESTAMPTZ" => T::TimestampTz,
        "TIMESTAMP" | "DATETIME" | "TIMESTAMP_US" => match number_behind(input)? {
            Some(0) => T::TimestampS,
            Some(1..=3) => T::TimestampMs,
            Some(7..=9) => T::TimestampNs,
            Some(10..) => return Err(cut("a TIMESTAMP of at most 9 digits")),
            _ if zone(input)? == Some(true) => T::TimestampTz,
            _ => T::Timestamp,
        },
        "INTERVAL" => T::Interval,
        "UUID" | "GUID" => T::Uuid,
        "ANY" => {
            *input = start;
            return Err(cut(
                "a type known beforehand, such as VARCHAR: ANY is for parameters, as their whole type",
            ));
        }
        _ => {
            *input = start;
            return Err(match MISSING.iter().find(|(missing, _)| *missing == name) {
                Some((_, advice)) => cut(advice),
                None => ErrMode::Backtrack(ContextError::new()),
            });
        }
    };
    Ok(data_type)
}

/// What functions cannot have as a type, and what to do instead.
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

/// `WITH TIME ZONE`, or `WITHOUT`.
fn zone(input: &mut &str) -> Parsed<Option<bool>> {
    let with = alt((a_word("WITH").value(true), a_word("WITHOUT").value(false)));
    let zone = (multispace0, a_word("TIME"), multispace0, a_word("ZONE"));
    opt(delimited(multispace0, with, zone)).parse_next(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_has_types_of_its_own() {
        let mood: DataType = "ENUM('sad', 'ok')".parse().unwrap();
        let price: DataType = "DECIMAL(10,2)".parse().unwrap();
        let names = [
            ("mood", &mood),
            ("shop.price", &price),
            ("Shop.MOOD", &price),
            ("my type", &mood),
            ("date", &mood),
        ];
        let names: TypeNames = names.map(|(name, of)| (name.to_owned(), of.clone())).into_iter().collect();
        names.within(|| {
            for (text, of) in [
                ("Mood", "ENUM('sad', 'ok')"),
                ("mood[3]", "ENUM('sad', 'ok')[3]"),
                ("MAP(mood, shop.price)", "MAP(ENUM('sad', 'ok'), DECIMAL(10,2))"),
                ("SHOP.mood ARRAY", "DECIMAL(10,2)[]"),
                ("\"shop\".\"Price\"", "DECIMAL(10,2)"),
                ("\"my type\"", "ENUM('sad', 'ok')"),
                // DuckDB's own types stay what they are.
                ("DATE", "DATE"),
                ("\"date\"", "ENUM('sad', 'ok')"),
            ] {
                assert_eq!(text.parse::<DataType>().unwrap().to_string(), of, "{text}");
            }
            let rows = "f(rows TABLE(a mood)) -> TABLE(b shop.price)".parse::<Signature>().unwrap();
            assert_eq!(rows.to_string(), "f(rows TABLE(a ENUM('sad', 'ok'))) -> TABLE(b DECIMAL(10,2))");
            let wrong = "f(x shop.mod) -> INT".parse::<Signature>().unwrap_err();
            assert_eq!(wrong.column, 5);
            assert!(
                wrong.what.ends_with("types of this database are date, mood, my type, shop.mood, shop.price")
            );
        });
        let unknown = "f(x mood) -> INT".parse::<Signature>().unwrap_err();
        assert_eq!(unknown.what, "expected a SQL type");
        let text = serde_json::to_string(&names).unwrap();
        assert_eq!(serde_json::from_str::<TypeNames>(&text).unwrap(), names);
    }

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
            "BIT",
            "BIGNUM",
            "GEOMETRY",
            "DATE",
            "TIME",
            "TIME_NS",
            "TIMETZ",
            "UNION(num INTEGER, \"a tag\" VARCHAR[])",
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
    fn the_last_parameter_may_stand_for_any_number_of_arguments() {
        let parsed: Signature = "f( a int , * rest text [] ) -> int".parse().unwrap();
        assert_eq!(parsed.to_string(), "f(a INTEGER, *rest VARCHAR[]) -> INTEGER");
        assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
        assert_eq!(parsed.fixed(), &parsed.parameters[..1]);
        assert_eq!(parsed.rest(), Some(&"VARCHAR[]".parse().unwrap()));
        assert_eq!(parsed.parameters[1].data_type, "VARCHAR[][]".parse().unwrap());
        let pairs = [("a", "INTEGER"), ("rest", "VARCHAR[]")];
        assert_eq!(parsed.pairs(), pairs.map(|(name, data_type)| (name.to_owned(), data_type.to_owned())));
        let fixed: Signature = "f(a INT[]) -> INT".parse().unwrap();
        assert_eq!((fixed.rest(), fixed.fixed().len()), (None, 1));
        let most = "[]".repeat(MOST_LEVELS - 1);
        assert!(format!("f(*rest INT{most}) -> INT").parse::<Signature>().is_ok());
        for (text, what) in [
            ("f(*a INT, b INT) -> INT".to_owned(), "no parameter behind the one with a star"),
            ("f(*a INT, *b INT) -> INT".to_owned(), "no parameter behind the one with a star"),
            (format!("f(*rest INT{most}[]) -> INT"), "at most 64 levels"),
        ] {
            assert!(text.parse::<Signature>().unwrap_err().what.contains(what), "{text}");
        }
    }

    #[test]
    fn a_result_may_be_a_table() {
        let parsed: Signature = "f( n int ) -> table ( i int , \"a b\" text [] )".parse().unwrap();
        assert_eq!(parsed.to_string(), "f(n INTEGER) -> TABLE(i INTEGER, \"a b\" VARCHAR[])");
        assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
        assert!(parsed.table);
        assert_eq!(parsed.returns.to_string(), "STRUCT(i INTEGER, \"a b\" VARCHAR[])");
        assert!(!"f() -> STRUCT(i INTEGER)".parse::<Signature>().unwrap().table);
        for (text, what) in [
            ("f() -> TABLE()", "a name"),
            ("f() -> TABLE(i INT, I INT)", "different names"),
            ("f() -> TABLE(i INT)[]", "the end"),
            ("f(x TABLE(i INT)) -> INT", "TABLE"),
        ] {
            let error = text.parse::<Signature>().unwrap_err();
            assert!(error.what.contains(what), "{text}: {error:?}");
        }
    }

    #[test]
    fn a_parameter_may_take_any_type() {
        let parsed: Signature = "f( any any , x int, * rest Any ) -> int".parse().unwrap();
        assert_eq!(parsed.to_string(), "f(any ANY, x INTEGER, *rest ANY) -> INTEGER");
        assert_eq!(parsed.to_string().parse(), Ok(parsed.clone()));
        assert!(parsed.takes_any());
        for (text, takes_any) in [
            ("f(x ANY) -> INT", true),
            ("f(x INT, *rest ANY) -> INT", true),
            ("f(x INT[], *rest INT) -> INT", false),
            ("f() -> INT", false),
        ] {
            assert_eq!(text.parse::<Signature>().unwrap().takes_any(), takes_any, "{text}");
        }
        for (types, called) in [
            ("(DATE, INTEGER)", "f(any DATE, x INTEGER) -> INTEGER"),
            (
                "(INTEGER[], INTEGER, BIGINT, ENUM('a)', 'b'))",
                r#"f(any INTEGER[], x INTEGER, "rest[0]" BIGINT, "rest[1]" ENUM('a)', 'b')) -> INTEGER"#,
            ),
        ] {
            let concrete = parsed.for_types(types).unwrap();
            assert_eq!((concrete.to_string().as_str(), concrete.takes_any()), (called, false));
            let types: Vec<_> = concrete.parameters.iter().map(|field| field.data_type.clone()).collect();
            assert_eq!(parsed.for_types(&types_text(&types)), Ok(concrete));
        }
        let any_number: Signature = "f(*rest ANY) -> INT".parse().unwrap();
        assert_eq!(any_number.for_types("()").unwrap().to_string(), "f() -> INTEGER");
        for types in ["()", "(DATE)", "(DATE, BIGINT)", "(DATE, ANY)", "DATE, INTEGER", "(DATE, INTEGER) ->"]
        {
            assert!(parsed.for_types(types).is_err(), "{types}");
        }
        assert!("f(x ANY) -> INT".parse::<Signature>().unwrap().for_types("(INT, INT)").is_err());
    }

    #[test]
    fn other_names_of_types() {
        for (text, name) in [
            ("ROW(a INT32, b DEC(5, 1))", "STRUCT(a INTEGER, b DECIMAL(5,1))"),
            ("int array", "INTEGER[]"),
            ("INT4 ARRAY [2]", "INTEGER[2]"),
            ("INT[] ARRAY[]", "INTEGER[][]"),
            ("character varying (10)", "VARCHAR"),
            ("TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP"),
            ("TIME WITHOUT TIME ZONE[]", "TIME[]"),
            ("time with time zone[]", "TIMETZ[]"),
            ("union ( a bitstring, b varint )", "UNION(a BIT, b BIGNUM)"),
            ("TIMESTAMP(3)", "TIMESTAMP_MS"),
            ("FLOAT(53)", "DOUBLE"),
        ] {
            assert_eq!(text.parse::<DataType>().unwrap().to_string(), name);
        }
        for (text, advice) in [
            ("f(x VARIANT[]) -> INT", "declare JSON"),
            ("f(x TIMESTAMPTZ_NS) -> INT", "declare TIMESTAMPTZ"),
            ("f(x UNION(a INT, A TEXT)) -> INT", "of different names"),
            ("f(x INT) -> MAP(INT, union(a VARIANT))", "than VARIANT, which functions cannot have"),
        ] {
            let error = text.parse::<Signature>().unwrap_err();
            assert!(error.what.contains(advice), "{text}: {error:?}");
        }
        assert!("f(x INT ARRAYS) -> INT".parse::<Signature>().is_err());
    }

    #[test]
    fn a_stream_takes_a_table() {
        for (text, rows, returns) in [
            ("f(rows TABLE) -> TABLE", "ANY", "ANY"),
            ("f(rows TABLE(a BIGINT, \"b c\" VARCHAR)) -> TABLE(x DATE)", "STRUCT", "STRUCT"),
            ("f(\"all rows\" TABLE) -> TABLE", "ANY", "ANY"),
        ] {
            let signature: Signature = text.parse().unwrap();
            assert!(signature.stream && signature.table);
            assert!(signature.parameters[0].data_type.to_string().starts_with(rows), "{text}");
            assert!(signature.returns.to_string().starts_with(returns), "{text}");
            assert_eq!(signature.to_string(), text);
        }
        assert!(!"f(n BIGINT) -> TABLE(x DATE)".parse::<Signature>().unwrap().stream);
        for (text, what) in [
            ("f(n BIGINT) -> TABLE", "TABLE(column TYPE, ...) as "),
            ("f(rows TABLE(a INT)) -> INT", "TABLE"),
            ("f(rows TABLE, n BIGINT) -> TABLE", "no parameter beside a TABLE"),
            ("f(rows TABLE(a INT), n BIGINT) -> TABLE(a INT)", "no parameter beside a TABLE"),
            ("f(n INT, rows TABLE) -> TABLE", "as a function's only parameter"),
            ("f(n INT, rows TABLE(a INT)) -> TABLE(a INT)", "as a function's only parameter"),
            ("f(*rows TABLE(a INT)) -> TABLE(a INT)", "as a function's only parameter"),
            ("f(x TABLE[]) -> TABLE", "as a function's only parameter"),
            ("f(x STRUCT(a TABLE(b INT))) -> INT", "as a function's only parameter"),
            ("f(x TABLE()) -> TABLE(a INT)", "a name"),
        ] {
            let error = text.parse::<Signature>().unwrap_err();
            assert!(error.what.contains(what), "{text}: {error:?}");
        }
    }

    #[test]
    fn types_nest_to_a_limit_in_no_time() {
        let nested = |levels: usize, open: &str, close: &str| {
            format!("f(x {}INTEGER{}) -> INTEGER", open.repeat(levels), close.repeat(levels))
        };
        for (open, close) in [
            ("", "[]"),
            ("", "[2]"),
            ("STRUCT(a ", ")"),
            ("MAP(INTEGER, ", ")"),
            ("STRUCT(a MAP(INTEGER, ", "[]))"),
        ] {
            let each = (open.matches('(').count() + close.matches('[').count()).max(1);
            let most = MOST_LEVELS / each;
            let deepest: Signature = nested(most, open, close).parse().unwrap();
            assert_eq!(deepest.parameters[0].data_type.levels(), most * each);
            assert_eq!(deepest.to_string().parse(), Ok(deepest));
            for levels in [most + 1, 8_000, 200_000] {
                let error = nested(levels, open, close).parse::<Signature>().unwrap_err();
                assert!(error.what.contains("at most 64 levels"), "{}", error.what);
            }
        }
        let error = nested(200_000, "", "[]").parse::<Signature>().unwrap_err().to_string();
        assert!(error.len() < 300, "{error}");
        let error = "f(x INT[0]) -> INT".parse::<Signature>().unwrap_err().to_string();
        assert!(error.ends_with("at column 11:\n  f(x INT[0]) -> INT\n            ^"), "{error}");
        assert!("f(x VARCHAR) -> ENUM('((((')".parse::<Signature>().is_ok());
    }

    #[test]
    fn errors_point_at_the_place() {
        for (text, column, what) in [
            ("f(x BIGNIT) -> INT", 5, "SQL type"),
            ("f(x ANY) -> ANY", 13, "ANY is for parameters"),
            ("f(x ANY[]) -> INT", 5, "ANY is for parameters"),
            ("f(x ANY array) -> INT", 5, "ANY is for parameters"),
            ("f(x STRUCT(a ANY)) -> INT", 14, "ANY is for parameters"),
            ("f(x INT) INT", 10, "->"),
            ("f(x INT -> INT", 9, ")"),
            ("(x INT) -> INT", 1, "function name"),
            ("f(x DECIMAL(39,1)) -> INT", 18, "precision"),
            ("f(x INT[0]) -> INT", 11, "at least 1"),
            ("f(x STRUCT(a INT, A INT)) -> INT", 25, "fields (or columns) of different names"),
            ("f(x INT) -> INT extra", 17, "the end"),
        ] {
            let error = text.parse::<Signature>().unwrap_err();
            assert!(error.what.contains(what) && error.column == column, "{text}: {error:?}");
        }
    }
}
