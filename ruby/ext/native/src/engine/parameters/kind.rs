//! The kind of a Ruby object: the set of types that keep the whole value.

use crate::engine::connection::session::failure;
use crate::values::{Fault, columns};
use crosslane::{ColumnBuilder, DataType, Field, MOST_LEVELS};
use crosslane_gvl::{class_name, constant};
use magnus::encoding::EncodingCapable;
use magnus::rb_sys::AsRawValue;
use magnus::value::{Qfalse, Qtrue, ReprValue};
use magnus::{Error, Float, Integer, RArray, RClass, RHash, RString, Ruby, Symbol, Value};
use std::sync::Arc;

/// The digits of the largest DECIMAL.
const MOST_DIGITS: usize = 38;

/// The known properties of values that share a type.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Null,
    Boolean,
    /// All integers are from `low` to `high`. Also, whether each of them is exact as a Float.
    Integer {
        low: i128,
        high: u128,
        floats: bool,
    },
    /// An infinite Float, which can also be a date.
    Infinite,
    Float,
    /// The digits before and after the decimal point.
    Decimal {
        whole: usize,
        scale: usize,
    },
    Varchar,
    Blob,
    Date,
    Time {
        zoned: bool,
        nanoseconds: bool,
    },
    Timestamp {
        zoned: bool,
        nanoseconds: bool,
    },
    Interval,
    List(Box<Kind>),
    /// The fields by name.
    Struct(Vec<(String, Kind)>),
    Map(Box<[Kind; 2]>),
}

pub(super) fn is(object: Value, path: &str) -> Result<bool, Error> {
    Ok(object.is_kind_of(constant::<RClass>(path)?))
}

pub(super) fn is_binary(string: RString) -> bool {
    string.enc_get() == Ruby::get().expect("with the GVL").ascii8bit_encindex()
}

impl Kind {
    pub(super) fn of(object: Value, levels: usize) -> Result<Kind, Error> {
        if object.is_nil() {
            return Ok(Kind::Null);
        }
        if Qtrue::from_value(object).is_some() || Qfalse::from_value(object).is_some() {
            return Ok(Kind::Boolean);
        }
        if let Some(integer) = Integer::from_value(object) {
            return Kind::integer(integer);
        }
        if let Some(float) = Float::from_value(object) {
            return Ok(if float.to_f64().is_infinite() { Kind::Infinite } else { Kind::Float });
        }
        if Symbol::from_value(object).is_some() {
            return Ok(Kind::Varchar);
        }
        if let Some(string) = RString::from_value(object) {
            return Ok(if is_binary(string) { Kind::Blob } else { Kind::Varchar });
        }
        let below = || {
            levels.checked_sub(1).ok_or_else(|| {
                failure(None, &format!("a parameter of more than {MOST_LEVELS} levels; types have no more"))
            })
        };
        if let Some(hash) = RHash::from_value(object) {
            return Kind::of_hash(hash, below()?);
        }
        if let Some(array) = RArray::from_value(object) {
            return Ok(Kind::List(Box::new(Kind::shared(array, below()?, "an Array")?)));
        }
        if is(object, "Time")? || is(object, "DateTime")? {
            return Kind::timestamp(object);
        }
        Ok(match object {
            _ if is(object, "Date")? => Kind::Date,
            _ if is(object, "Crosslane::TimeOfDay")? => {
                let zoned = !object.funcall::<_, _, Value>("utc_offset", ())?.is_nil();
                let nanoseconds = object.funcall::<_, _, i64>("nanosecond", ())? != 0;
                if zoned && nanoseconds {
                    let what =
                        "a parameter is a time of day with both a zone and nanoseconds, which no type keeps";
                    return Err(failure(None, what));
                }
                Kind::Time { zoned, nanoseconds }
            }
            _ if is(object, "Crosslane::Tagged")? => {
                let advice = "pass its value, and say which member it is in SQL: union_value(num := ?)";
                return Err(failure(None, &format!("a Crosslane::Tagged cannot be a parameter; {advice}")));
            }
            _ if is(object, "Crosslane::Interval")? => Kind::Interval,
            _ if is(object, "BigDecimal")? => return Kind::decimal(object),
            _ if is(object, "Struct")? => return Kind::structure(object.funcall("to_h", ())?, below()?),
            _ if is(object, "Rational")? => Kind::Float,
            _ => {
                let class = class_name(object)?;
                let advice = "pass its to_s, or a number, time, Array or Hash";
                return Err(failure(
                    None,
                    &format!("an instance of {class} cannot be a parameter; {advice}"),
                ));
            }
        })
    }

    fn integer(integer: Integer) -> Result<Kind, Error> {
        let object = integer.as_value();
        let floats = object.equal(object.funcall::<_, _, Value>("to_f", ())?)?;
        if let Ok(number) = fixed::<i128>(object, &DataType::HugeInt) {
            return Ok(Kind::Integer { low: number.min(0), high: number.max(0) as u128, floats });
        }
        let high = fixed::<u128>(object, &DataType::UHugeInt)?;
        Ok(Kind::Integer { low: 0, high, floats })
    }

    fn decimal(object: Value) -> Result<Kind, Error> {
        if object.funcall("nan?", ())? {
            return Ok(Kind::Float);
        }
        if !object.funcall::<_, _, bool>("finite?", ())? {
            return Ok(Kind::Infinite);
        }
        let text: String = object.funcall("to_s", ("F",))?;
        let (whole, fraction) = text.trim_start_matches('-').split_once('.').unwrap_or((&text, ""));
        let (whole, scale) = (whole.trim_start_matches('0').len(), fraction.trim_end_matches('0').len());
        Ok(Kind::Decimal { whole, scale })
    }

    fn timestamp(object: Value) -> Result<Kind, Error> {
        let (zoned, fraction): (bool, i64) = if is(object, "Time")? {
            (!object.funcall::<_, _, bool>("utc?", ())?, object.funcall("nsec", ())?)
        } else {
            let time: Value = object.funcall("to_time", ())?;
            (time.funcall::<_, _, i64>("utc_offset", ())? != 0, time.funcall("nsec", ())?)
        };
        Ok(Kind::Timestamp { zoned, nanoseconds: fraction % 1000 != 0 })
    }

    /// A Hash with Symbols as keys is a STRUCT, any other a MAP.
    fn of_hash(hash: RHash, levels: usize) -> Result<Kind, Error> {
        let keys: RArray = hash.funcall("keys", ())?;
        if !keys.is_empty() && keys.into_iter().all(|key| Symbol::from_value(key).is_some()) {
            return Kind::structure(hash, levels);
        }
        let values: RArray = hash.funcall("values", ())?;
        let key = Kind::shared(keys, levels, "a Hash's keys")?;
        let advice = "a Hash (with Symbols as keys it is a STRUCT)";
        Ok(Kind::Map(Box::new([key, Kind::shared(values, levels, advice)?])))
    }

    fn structure(hash: RHash, levels: usize) -> Result<Kind, Error> {
        let mut fields = Vec::new();
        for key in hash.funcall::<_, _, RArray>("keys", ())? {
            fields.push((key.to_string(), Kind::of(hash.aref(key)?, levels)?));
        }
        Ok(Kind::Struct(fields))
    }

    /// The common kind of all elements.
    fn shared(elements: RArray, levels: usize, place: &str) -> Result<Kind, Error> {
        let mut shared = Kind::Null;
        for element in elements {
            let next = Kind::of(element, levels)?;
            if next == shared {
                continue;
            }
            let (before, after) = (shared.name(), next.name());
            shared = shared.and(next).ok_or_else(|| {
                failure(
                    None,
                    &format!("no type keeps both {before} and {after} in {place}; convert them before"),
                )
            })?;
        }
        Ok(shared)
    }

    /// The kind that keeps the values of both kinds.
    fn and(self, other: Kind) -> Option<Kind> {
        use Kind as K;
        Some(match (self, other) {
            (a, b) if a == b => a,
            (K::Null, kind) | (kind, K::Null) => kind,
            (K::Integer { low, high, floats }, K::Integer { low: l, high: h, floats: f }) => {
                K::Integer { low: low.min(l), high: high.max(h), floats: floats && f }
            }
            (K::Integer { floats, .. }, K::Float | K::Infinite)
            | (K::Float | K::Infinite, K::Integer { floats, .. }) => floats.then_some(K::Float)?,
            (K::Infinite, K::Float) | (K::Float, K::Infinite) => K::Float,
            (K::Infinite, moment @ (K::Date | K::Timestamp { .. }))
            | (moment @ (K::Date | K::Timestamp { .. }), K::Infinite)
            | (K::Date, moment @ K::Timestamp { .. })
            | (moment @ K::Timestamp { .. }, K::Date) => moment,
            (K::Integer { low, high, .. }, K::Decimal { whole, scale })
            | (K::Decimal { whole, scale }, K::Integer { low, high, .. }) => {
                let digits = high.max(low.unsigned_abs()).checked_ilog10().map_or(0, |log| log as usize + 1);
                K::Decimal { whole: whole.max(digits), scale }
            }
            (K::Decimal { whole, scale }, K::Decimal { whole: w, scale: s }) => {
                K::Decimal { whole: whole.max(w), scale: scale.max(s) }
            }
            (K::Time { zoned: false, .. }, K::Time { zoned: false, .. }) => {
                K::Time { zoned: false, nanoseconds: true }
            }
            (K::Timestamp { zoned, nanoseconds }, K::Timestamp { zoned: z, nanoseconds: n }) => {
                K::Timestamp { zoned: zoned || z, nanoseconds: nanoseconds || n }
            }
            (K::List(a), K::List(b)) => K::List(Box::new(a.and(*b)?)),
            (K::Map(a), K::Map(b)) => {
                let ([key, value], [k, v]) = (*a, *b);
                K::Map(Box::new([key.and(k)?, value.and(v)?]))
            }
            (K::Struct(a), K::Struct(mut b)) if a.len() == b.len() => {
                let mut fields = Vec::with_capacity(a.len());
                for (name, kind) in a {
                    let at = b.iter().position(|(other, _)| *other == name)?;
                    fields.push((name, kind.and(b.swap_remove(at).1)?));
                }
                K::Struct(fields)
            }
            _ => return None,
        })
    }

    /// The name for messages.
    fn name(&self) -> String {
        match self {
            Kind::Null => "NULL".into(),
            Kind::Integer { .. } => "Integers".into(),
            Kind::Infinite | Kind::Float => "Floats".into(),
            Kind::Decimal { .. } => "BigDecimals".into(),
            kind => kind.data_type(None).map_or_else(|_| "values".into(), |data_type| data_type.to_string()),
        }
    }

    /// The narrowest type of this kind; or the wanted type, if it keeps the value too.
    pub(super) fn data_type(&self, wanted: Option<&DataType>) -> Result<DataType, Error> {
        use DataType as T;
        Ok(match (self, wanted) {
            (Kind::Null, Some(wanted)) => wanted.clone(),
            // DuckDB does the same.
            (Kind::Null, None) => T::Integer,
            (Kind::Boolean, _) => T::Boolean,
            (Kind::Integer { low, high, .. }, _) => {
                let holds =
                    |range: &(T, i128, u128)| (range.1 <= *low && *high <= range.2).then(|| range.0.clone());
                let by_wish = RANGES.iter().find(|range| Some(&range.0) == wanted).and_then(holds);
                by_wish.or_else(|| RANGES[NATURAL..].iter().find_map(holds)).ok_or_else(|| {
                    failure(None, "no type keeps both Integers beyond HUGEINT and those below zero")
                })?
            }
            (
                Kind::Infinite | Kind::Date,
                Some(
                    wanted @ (T::Date
                    | T::Timestamp
                    | T::TimestampS
                    | T::TimestampMs
                    | T::TimestampNs
                    | T::TimestampTz),
                ),
            ) if *self == Kind::Infinite || *wanted == T::Date => wanted.clone(),
            (Kind::Infinite | Kind::Float, _) => T::Double,
            (Kind::Decimal { whole, scale }, Some(T::Decimal { precision, scale: s }))
                if *scale <= usize::from(*s)
                    && whole + scale.max(&usize::from(*s)) <= usize::from(*precision) =>
            {
                T::Decimal { precision: *precision, scale: *s }
            }
            (Kind::Decimal { whole, scale }, _) => {
                let digits = (whole + scale).max(1);
                if digits > MOST_DIGITS {
                    let advice = "pass to_f or to_s";
                    let what =
                        format!("a DECIMAL has {MOST_DIGITS} digits, and {digits} are needed; {advice}");
                    return Err(failure(None, &what));
                }
                T::Decimal { precision: digits as u8, scale: *scale as u8 }
            }
            // A cast would write the BLOB's bytes as escape codes.
            (Kind::Blob, Some(T::Varchar | T::Json | T::Uuid | T::Enum(_))) => T::Varchar,
            (Kind::Varchar, Some(T::Blob)) | (Kind::Blob, _) => T::Blob,
            (Kind::Varchar, _) => T::Varchar,
            (Kind::Date, _) => T::Date,
            (Kind::Time { zoned: true, .. }, _) => T::TimeTz,
            (Kind::Time { nanoseconds: true, .. }, _) => T::TimeNs,
            (Kind::Time { .. }, _) => T::Time,
            (
                Kind::Timestamp { .. },
                Some(
                    wanted
                    @ (T::Timestamp | T::TimestampS | T::TimestampMs | T::TimestampNs | T::TimestampTz),
                ),
            ) => wanted.clone(),
            // The object's local time. DuckDB casts it, or compares with it.
            (Kind::Timestamp { .. }, Some(T::Date | T::Time)) => T::Timestamp,
            (Kind::Timestamp { zoned: true, .. }, _) => T::TimestampTz,
            (Kind::Timestamp { nanoseconds: true, .. }, _) => T::TimestampNs,
            (Kind::Timestamp { .. }, _) => T::Timestamp,
            (Kind::Interval, _) => T::Interval,
            (Kind::List(kind), wanted) => {
                let wanted = match wanted {
                    Some(T::List(element) | T::Array(element, _)) => Some(&**element),
                    _ => None,
                };
                T::List(Arc::new(kind.data_type(wanted)?))
            }
            (Kind::Struct(kinds), wanted) => {
                let wanted = match wanted {
                    Some(T::Struct(fields)) => &fields[..],
                    _ => &[],
                };
                let field = |(name, kind): &(String, Kind)| {
                    let wanted = wanted.iter().find(|field| field.name.eq_ignore_ascii_case(name));
                    let data_type = kind.data_type(wanted.map(|field| &field.data_type))?;
                    Ok(Field { name: name.clone(), data_type })
                };
                T::Struct(kinds.iter().map(field).collect::<Result<_, Error>>()?)
            }
            (Kind::Map(kinds), wanted) => {
                let mut wanted = match wanted {
                    Some(T::Map(entry)) => entry.children().collect(),
                    _ => Vec::new(),
                }
                .into_iter();
                T::map(kinds[0].data_type(wanted.next())?, kinds[1].data_type(wanted.next())?)
            }
        })
    }
}

/// The first index in `RANGES` of the types that a number literal in SQL can have.
const NATURAL: usize = 6;

/// The integer types and their ranges.
static RANGES: [(DataType, i128, u128); 10] = [
    (DataType::TinyInt, i8::MIN as i128, i8::MAX as u128),
    (DataType::SmallInt, i16::MIN as i128, i16::MAX as u128),
    (DataType::UTinyInt, 0, u8::MAX as u128),
    (DataType::USmallInt, 0, u16::MAX as u128),
    (DataType::UInteger, 0, u32::MAX as u128),
    (DataType::UBigInt, 0, u64::MAX as u128),
    (DataType::Integer, i32::MIN as i128, i32::MAX as u128),
    (DataType::BigInt, i64::MIN as i128, i64::MAX as u128),
    (DataType::HugeInt, i128::MIN, i128::MAX as u128),
    (DataType::UHugeInt, 0, u128::MAX),
];

/// A value of fixed width, converted by the rules for a function's result.
pub(super) fn fixed<T: bytemuck::Pod>(object: Value, data_type: &DataType) -> Result<T, Error> {
    let writer = columns::writer(data_type)?;
    let mut column = ColumnBuilder::new(data_type);
    match columns::write_row(&writer, object.as_raw(), &mut column) {
        Ok(()) => Ok(column.column(data_type).value(0)),
        Err(Fault::Refused(refused)) => {
            Err(failure(None, &refused.1.replacen("returned", "a parameter is", 1)))
        }
        Err(Fault::Failed(unwind)) => Err(unwind.into()),
    }
}
