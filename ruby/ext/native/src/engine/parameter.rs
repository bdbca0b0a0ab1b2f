//! A Ruby object as a value of DuckDB's: first the one type that keeps all of it, then the value of that type.
//!
//! What an Array or a MAP holds has one type in SQL. It is found from all elements, so that none is rounded or cut for
//! the sake of the first; where no type keeps them all, that is an error.

use crate::engine::session::failure;
use crate::objects::{self, Fault};
use crosslane::{ColumnBuilder, DataType, Field, MOST_LEVELS};
use crosslane_gvl::class_name;
use crosslane_vectors::LogicalType;
use libduckdb_sys as ffi;
use magnus::encoding::EncodingCapable;
use magnus::rb_sys::AsRawValue;
use magnus::value::{Qfalse, Qtrue, ReprValue};
use magnus::{
    Error, Float, Integer, Module, RArray, RClass, RHash, RModule, RString, Ruby, Symbol, TryConvert, Value,
};
use std::sync::Arc;

/// The digits of the largest DECIMAL.
const MOST_DIGITS: usize = 38;
const DAY: i64 = 86_400;

/// A value that is destroyed when dropped.
pub(crate) struct Owned(ffi::duckdb_value);

impl Owned {
    /// Takes a value that DuckDB made; an error if it made none.
    ///
    /// # Safety
    /// The value must be nobody's, or null.
    unsafe fn new(raw: ffi::duckdb_value, data_type: &DataType) -> Result<Self, Error> {
        if !raw.is_null() {
            return Ok(Self(raw));
        }
        let what = match data_type {
            DataType::Map(entry) => {
                let key = entry.children().next().expect("a MAP has keys");
                format!(
                    "a Hash has nil, or the same {key} twice, among its keys; those of a MAP are not NULL, and all differ"
                )
            }
            other => format!("DuckDB makes no {other} of a parameter"),
        };
        Err(failure(None, &what))
    }

    /// For DuckDB to read, while this lives. Never null.
    pub(crate) fn raw(&self) -> ffi::duckdb_value {
        self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_value(&raw mut self.0) };
    }
}

/// An object as a value; of the type that the statement wants if that keeps as much.
pub(crate) fn value(object: Value, wanted: Option<&DataType>) -> Result<Owned, Error> {
    if object.is_nil() {
        return null();
    }
    let data_type = Kind::of(object, MOST_LEVELS)?.data_type(wanted)?;
    make(object, &data_type)
}

/// What is known of values that share a type.
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Null,
    Boolean,
    /// All integers from `low` to `high`; whether each of the given is a Float too.
    Integer {
        low: i128,
        high: u128,
        floats: bool,
    },
    /// A Float that is also a date.
    Infinite,
    Float,
    /// So many digits before and after the point.
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
    /// The fields, by name.
    Struct(Vec<(String, Kind)>),
    Map(Box<[Kind; 2]>),
}

fn class(path: &str) -> Result<RClass, Error> {
    let ruby = Ruby::get().expect("with the GVL");
    match path.split_once("::") {
        Some((module, name)) => ruby.class_object().const_get::<_, RModule>(module)?.const_get(name),
        None => ruby.class_object().const_get(path),
    }
}

fn is(object: Value, path: &str) -> Result<bool, Error> {
    Ok(object.is_kind_of(class(path)?))
}

fn is_binary(string: RString) -> bool {
    string.enc_get() == Ruby::get().expect("with the GVL").ascii8bit_encindex()
}

/// A String as UTF-8.
fn text(string: RString) -> Result<String, Error> {
    if !is_binary(string) {
        return string.to_string();
    }
    // SAFETY: copied before anything else happens.
    let bytes = unsafe { string.as_slice() }.to_vec();
    String::from_utf8(bytes).map_err(|_| {
        let advice = "encode it, or give it to a BLOB";
        failure(
            None,
            &format!("a parameter is a binary String that is no UTF-8, which VARCHAR must be; {advice}"),
        )
    })
}

impl Kind {
    fn of(object: Value, levels: usize) -> Result<Kind, Error> {
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

    /// With Symbols as keys a STRUCT, else a MAP.
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

    /// The kind of all elements.
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

    /// The kind that keeps the values of both.
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

    /// For messages.
    fn name(&self) -> String {
        match self {
            Kind::Null => "NULL".into(),
            Kind::Integer { .. } => "Integers".into(),
            Kind::Infinite | Kind::Float => "Floats".into(),
            Kind::Decimal { .. } => "BigDecimals".into(),
            kind => kind.data_type(None).map_or_else(|_| "values".into(), |data_type| data_type.to_string()),
        }
    }

    /// The narrowest type of this kind; the wanted one if that keeps as much.
    fn data_type(&self, wanted: Option<&DataType>) -> Result<DataType, Error> {
        use DataType as T;
        Ok(match (self, wanted) {
            (Kind::Null, Some(wanted)) => wanted.clone(),
            // As DuckDB does.
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
            // A cast would write a BLOB's bytes as codes.
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
            // What its own clock shows; DuckDB casts that, or compares with it.
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

/// Where those integer types begin that a number in SQL has.
const NATURAL: usize = 6;

/// The integer types and what they hold.
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

fn null() -> Result<Owned, Error> {
    // SAFETY: a new value.
    unsafe { Owned::new(ffi::duckdb_create_null_value(), &DataType::Integer) }
}

/// An object as a value of a type that keeps it.
fn make(object: Value, data_type: &DataType) -> Result<Owned, Error> {
    use DataType as T;
    if object.is_nil() {
        return null();
    }
    // SAFETY: plain values, and bytes that live across the calls, which copy them; the results are new.
    unsafe {
        let made = match data_type {
            T::Boolean => ffi::duckdb_create_bool(object.to_bool()),
            T::TinyInt => ffi::duckdb_create_int8(fixed(object, data_type)?),
            T::SmallInt => ffi::duckdb_create_int16(fixed(object, data_type)?),
            T::Integer => ffi::duckdb_create_int32(fixed(object, data_type)?),
            T::BigInt => ffi::duckdb_create_int64(fixed(object, data_type)?),
            T::UTinyInt => ffi::duckdb_create_uint8(fixed(object, data_type)?),
            T::USmallInt => ffi::duckdb_create_uint16(fixed(object, data_type)?),
            T::UInteger => ffi::duckdb_create_uint32(fixed(object, data_type)?),
            T::UBigInt => ffi::duckdb_create_uint64(fixed(object, data_type)?),
            T::HugeInt => ffi::duckdb_create_hugeint(hugeint(fixed(object, data_type)?)),
            T::UHugeInt => {
                let wide: u128 = fixed(object, data_type)?;
                let wide = ffi::duckdb_uhugeint { lower: wide as u64, upper: (wide >> 64) as u64 };
                ffi::duckdb_create_uhugeint(wide)
            }
            T::Double => ffi::duckdb_create_double(fixed(object, data_type)?),
            T::Decimal { precision, scale } => ffi::duckdb_create_decimal(ffi::duckdb_decimal {
                width: *precision,
                scale: *scale,
                value: hugeint(fixed(object, data_type)?),
            }),
            T::Varchar => {
                let text = match Symbol::from_value(object) {
                    Some(symbol) => symbol.name()?.into_owned(),
                    None => text(RString::try_convert(object)?)?,
                };
                ffi::duckdb_create_varchar_length(text.as_ptr().cast(), text.len() as ffi::idx_t)
            }
            T::Blob => {
                let string = RString::try_convert(object)?;
                let bytes = string.as_slice();
                ffi::duckdb_create_blob(bytes.as_ptr(), bytes.len() as ffi::idx_t)
            }
            T::Date => ffi::duckdb_create_date(ffi::duckdb_date { days: fixed(object, data_type)? }),
            T::Time => ffi::duckdb_create_time(ffi::duckdb_time { micros: fixed(object, data_type)? }),
            T::TimeNs => ffi::duckdb_create_time_ns(ffi::duckdb_time_ns { nanos: fixed(object, data_type)? }),
            T::TimeTz => {
                ffi::duckdb_create_time_tz_value(ffi::duckdb_time_tz { bits: fixed(object, data_type)? })
            }
            T::TimestampS => ffi::duckdb_create_timestamp_s(ffi::duckdb_timestamp_s {
                seconds: moment(object, data_type, 1)?,
            }),
            T::TimestampMs => ffi::duckdb_create_timestamp_ms(ffi::duckdb_timestamp_ms {
                millis: moment(object, data_type, 1_000)?,
            }),
            T::Timestamp => ffi::duckdb_create_timestamp(ffi::duckdb_timestamp {
                micros: moment(object, data_type, 1_000_000)?,
            }),
            T::TimestampNs => ffi::duckdb_create_timestamp_ns(ffi::duckdb_timestamp_ns {
                nanos: moment(object, data_type, 1_000_000_000)?,
            }),
            T::TimestampTz => {
                ffi::duckdb_create_timestamp_tz(ffi::duckdb_timestamp { micros: fixed(object, data_type)? })
            }
            T::Interval => {
                let bytes: [u8; 16] = fixed(object, data_type)?;
                ffi::duckdb_create_interval(ffi::duckdb_interval {
                    months: bytemuck::pod_read_unaligned(&bytes[..4]),
                    days: bytemuck::pod_read_unaligned(&bytes[4..8]),
                    micros: bytemuck::pod_read_unaligned(&bytes[8..]),
                })
            }
            T::List(element) => {
                let values = all(RArray::try_convert(object)?, element)?;
                let (logical, mut raw) = (logical(element)?, raw(&values));
                ffi::duckdb_create_list_value(logical.raw(), raw.as_mut_ptr(), raw.len() as ffi::idx_t)
            }
            T::Struct(fields) => {
                let hash: RHash = object.funcall("to_h", ())?;
                // The objects stay in an Array of Ruby's: what lies in a Vec, the collector does not see.
                let given: RArray = hash.funcall("values", ())?;
                let keys: RArray = hash.funcall("keys", ())?;
                let names: Vec<String> = keys.into_iter().map(|key| key.to_string()).collect();
                let mut values = Vec::with_capacity(fields.len());
                for field in &**fields {
                    let place = names.iter().position(|name| *name == field.name);
                    values.push(match place {
                        Some(place) => make(given.entry(place as isize)?, &field.data_type)?,
                        None => null()?,
                    });
                }
                ffi::duckdb_create_struct_value(logical(data_type)?.raw(), raw(&values).as_mut_ptr())
            }
            T::Map(entry) => {
                let mut parts = entry.children();
                let mut part = || parts.next().expect("a MAP has keys and values");
                let keys = all(object.funcall("keys", ())?, part())?;
                let values = all(object.funcall("values", ())?, part())?;
                let (count, logical) = (keys.len() as ffi::idx_t, logical(data_type)?);
                let (mut keys, mut values) = (raw(&keys), raw(&values));
                ffi::duckdb_create_map_value(logical.raw(), keys.as_mut_ptr(), values.as_mut_ptr(), count)
            }
            // No kind has these.
            T::Float
            | T::Json
            | T::Uuid
            | T::Bit
            | T::BigNum
            | T::Geometry
            | T::Enum(_)
            | T::Any
            | T::Array(..)
            | T::Union(_) => {
                return Err(failure(None, &format!("a parameter cannot be of the type {data_type}")));
            }
        };
        Owned::new(made, data_type)
    }
}

fn hugeint(number: i128) -> ffi::duckdb_hugeint {
    ffi::duckdb_hugeint { lower: number as u64, upper: (number >> 64) as i64 }
}

fn logical(data_type: &DataType) -> Result<LogicalType, Error> {
    LogicalType::new(data_type).map_err(|error| failure(None, &error.to_string()))
}

fn all(elements: RArray, data_type: &DataType) -> Result<Vec<Owned>, Error> {
    elements.into_iter().map(|element| make(element, data_type)).collect()
}

fn raw(values: &[Owned]) -> Vec<ffi::duckdb_value> {
    values.iter().map(Owned::raw).collect()
}

/// Units since 1970 of a Time, or of the midnight that a Date begins with.
fn moment(object: Value, data_type: &DataType, units_per_second: i64) -> Result<i64, Error> {
    if !is(object, "Date")? || is(object, "DateTime")? {
        return fixed(object, data_type);
    }
    let days: i32 = fixed(object, &DataType::Date)?;
    let units = i64::from(days).checked_mul(DAY * units_per_second);
    units.ok_or_else(|| {
        failure(None, &format!("a parameter is Date {object}, which does not fit {data_type}"))
    })
}

/// A fixed-width value, by the same rules as a function's result.
fn fixed<T: bytemuck::Pod>(object: Value, data_type: &DataType) -> Result<T, Error> {
    let writer = objects::writer(data_type)?;
    let mut column = ColumnBuilder::new(data_type);
    match objects::write_row(&writer, object.as_raw(), &mut column) {
        Ok(()) => Ok(column.column(data_type).value(0)),
        Err(Fault::Refused(refused)) => {
            Err(failure(None, &refused.1.replacen("returned", "a parameter is", 1)))
        }
        Err(Fault::Failed(unwind)) => Err(unwind.into()),
    }
}
