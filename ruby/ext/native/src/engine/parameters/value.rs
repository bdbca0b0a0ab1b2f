//! A Ruby object as a DuckDB value. First it finds the type that keeps the whole object. Then it
//! makes the value of that type.
//!
//! The elements of an Array or a MAP have one type in SQL. It is found from all elements, so that
//! no element is rounded or cut to fit the first one. If no type keeps all elements, that is an
//! error.

use crate::engine::connection::session::failure;
use crate::engine::parameters::kind::{Kind, fixed, is, is_binary};
use crosslane::{DataType, MOST_LEVELS};
use crosslane_vectors::LogicalType;
use libduckdb_sys as ffi;
use magnus::value::ReprValue;
use magnus::{Error, RArray, RHash, RString, Symbol, TryConvert, Value};

const DAY: i64 = 86_400;

/// A value that is destroyed when dropped.
pub(crate) struct Owned(ffi::duckdb_value);

impl Owned {
    /// Takes a value that DuckDB made. If DuckDB made none, this is an error.
    ///
    /// # Safety
    /// The value must have no other owner, or be null.
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

    /// The value, valid while this object lives. Never null.
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

/// An object as a value. It has the type that the statement wants, if that type keeps the whole
/// object.
pub(crate) fn value(object: Value, wanted: Option<&DataType>) -> Result<Owned, Error> {
    if object.is_nil() {
        return null();
    }
    let data_type = Kind::of(object, MOST_LEVELS)?.data_type(wanted)?;
    make(object, &data_type)
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

fn null() -> Result<Owned, Error> {
    // SAFETY: a new value.
    unsafe { Owned::new(ffi::duckdb_create_null_value(), &DataType::Integer) }
}

/// An object as a value of a type that can keep it.
fn make(object: Value, data_type: &DataType) -> Result<Owned, Error> {
    use DataType as T;
    if object.is_nil() {
        return null();
    }
    // SAFETY: plain values, and bytes that live across the calls, which copy them; the results are
    // new.
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
                seconds: temporal(object, data_type, 1)?,
            }),
            T::TimestampMs => ffi::duckdb_create_timestamp_ms(ffi::duckdb_timestamp_ms {
                millis: temporal(object, data_type, 1_000)?,
            }),
            T::Timestamp => ffi::duckdb_create_timestamp(ffi::duckdb_timestamp {
                micros: temporal(object, data_type, 1_000_000)?,
            }),
            T::TimestampNs => ffi::duckdb_create_timestamp_ns(ffi::duckdb_timestamp_ns {
                nanos: temporal(object, data_type, 1_000_000_000)?,
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
                // The objects stay in a Ruby Array: the collector does not scan a Vec.
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
            // No kind has these types.
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

/// The units since 1970 of a Time, or of the first midnight of a Date.
fn temporal(object: Value, data_type: &DataType, units_per_second: i64) -> Result<i64, Error> {
    if !is(object, "Date")? || is(object, "DateTime")? {
        return fixed(object, data_type);
    }
    let days: i32 = fixed(object, &DataType::Date)?;
    let units = i64::from(days).checked_mul(DAY * units_per_second);
    units.ok_or_else(|| {
        failure(None, &format!("a parameter is Date {object}, which does not fit {data_type}"))
    })
}
