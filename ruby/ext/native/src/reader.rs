//! Arguments: a row of a column as a Ruby object.

use crate::shapes::{self, Shared};
use crate::values::{EPOCH, UTC, integer, known, send, utf8};
use crosslane::batch::{self, Column};
use crosslane::display::uuid;
use crosslane::{DataType, calendar, code_width, member, timetz};
use rb_sys::{Qfalse, Qnil, Qtrue, VALUE};
use std::ffi::c_int;
use std::io::Write;

/// How a column's values become Ruby objects.
#[derive(Debug)]
pub(crate) enum Reader {
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Int128,
    UInt128,
    Float32,
    Float64,
    Decimal { scale: usize },
    Text,
    Json,
    Bytes,
    BigNum,
    Date,
    Time,
    TimeNs,
    TimeTz,
    Timestamp { units_per_second: i64 },
    Interval,
    Uuid,
    Enum { values: Shared, width: usize },
    List(Box<Reader>),
    Struct { class: Shared, fields: Vec<Reader> },
    Map(Box<[Reader; 2]>),
    Union { names: Shared, members: Vec<Reader> },
}

impl Reader {
    /// A reader, and the objects that its values share (Structs' classes, the Strings of an ENUM).
    pub(crate) fn new(data_type: &DataType) -> Result<Self, magnus::Error> {
        use DataType as T;
        Ok(match data_type {
            T::Boolean => Reader::Boolean,
            T::TinyInt => Reader::Int8,
            T::SmallInt => Reader::Int16,
            T::Integer => Reader::Int32,
            T::BigInt => Reader::Int64,
            T::UTinyInt => Reader::UInt8,
            T::USmallInt => Reader::UInt16,
            T::UInteger => Reader::UInt32,
            T::UBigInt => Reader::UInt64,
            T::HugeInt => Reader::Int128,
            T::UHugeInt => Reader::UInt128,
            T::Float => Reader::Float32,
            T::Double => Reader::Float64,
            T::Decimal { scale, .. } => Reader::Decimal { scale: usize::from(*scale) },
            T::Varchar | T::Bit => Reader::Text,
            T::Json => Reader::Json,
            T::Blob | T::Geometry => Reader::Bytes,
            T::BigNum => Reader::BigNum,
            T::Date => Reader::Date,
            T::Time => Reader::Time,
            T::TimeNs => Reader::TimeNs,
            T::TimeTz => Reader::TimeTz,
            T::TimestampS => Reader::Timestamp { units_per_second: 1 },
            T::TimestampMs => Reader::Timestamp { units_per_second: 1_000 },
            T::Timestamp | T::TimestampTz => Reader::Timestamp { units_per_second: 1_000_000 },
            T::TimestampNs => Reader::Timestamp { units_per_second: 1_000_000_000 },
            T::Interval => Reader::Interval,
            T::Uuid => Reader::Uuid,
            T::Enum(values) => {
                Reader::Enum { values: shapes::strings(values)?, width: code_width(values.len()) }
            }
            T::List(element) | T::Array(element, _) => Reader::List(Box::new(Reader::new(element)?)),
            T::Struct(fields) => Reader::Struct {
                class: shapes::class(fields)?,
                fields: fields.iter().map(|field| Reader::new(&field.data_type)).collect::<Result<_, _>>()?,
            },
            T::Union(fields) => {
                let names: Vec<_> = fields[1..].iter().map(|field| field.name.clone()).collect();
                let members = fields[1..].iter().map(|field| Reader::new(&field.data_type));
                Reader::Union { names: shapes::strings(&names)?, members: members.collect::<Result<_, _>>()? }
            }
            T::Map(entry) => {
                let mut parts = entry.children().map(Reader::new);
                let mut part = || parts.next().expect("a MAP has keys and values");
                Reader::Map(Box::new([part()?, part()?]))
            }
            T::Any => return Err(crate::argument_error("a column has a type, and ANY is none")),
        })
    }

    /// The value of a row, or nil for NULL.
    ///
    /// # Safety
    /// With the GVL, protected; the column must be of the reader's type and have the row.
    #[inline]
    pub(crate) unsafe fn read(&self, column: &Column<'_>, row: usize) -> VALUE {
        // SAFETY: as the caller says.
        if column.is_valid(row) { unsafe { self.value(column, row) } } else { Qnil as VALUE }
    }

    /// # Safety
    /// As [`Reader::read`]; the row must not be NULL.
    #[inline]
    pub(crate) unsafe fn value(&self, column: &Column<'_>, row: usize) -> VALUE {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Reader::Int64 => integer(column.value(row)),
                Reader::Float64 => rb_sys::rb_float_new(column.value(row)),
                Reader::Text => {
                    let bytes = column.bytes(row);
                    utf8(bytes, bytes.is_ascii())
                }
                _ => self.other(column, row),
            }
        }
    }

    /// # Safety
    /// As [`Reader::value`].
    unsafe fn other(&self, column: &Column<'_>, row: usize) -> VALUE {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Reader::Int64 | Reader::Float64 | Reader::Text => self.value(column, row),
                Reader::Boolean => (if batch::bit(column.data, row) { Qtrue } else { Qfalse }) as VALUE,
                Reader::Int8 => integer(column.value::<i8>(row).into()),
                Reader::Int16 => integer(column.value::<i16>(row).into()),
                Reader::Int32 => integer(column.value::<i32>(row).into()),
                Reader::UInt8 => integer(column.value::<u8>(row).into()),
                Reader::UInt16 => integer(column.value::<u16>(row).into()),
                Reader::UInt32 => integer(column.value::<u32>(row).into()),
                Reader::UInt64 => rb_sys::rb_ull2inum(column.value(row)),
                Reader::Int128 => wide(column.value::<[u64; 2]>(row), rb_sys::INTEGER_PACK_2COMP as c_int),
                Reader::UInt128 => wide(column.value::<[u64; 2]>(row), 0),
                Reader::Float32 => rb_sys::rb_float_new(f64::from(column.value::<f32>(row))),
                Reader::Decimal { scale } => {
                    let (text, length) = decimal_text(column.value(row), *scale);
                    let text = rb_sys::rb_utf8_str_new(text.as_ptr().cast(), length as i64);
                    send(known().kernel, c"BigDecimal", &[text])
                }
                Reader::Json => {
                    let bytes = column.bytes(row);
                    send(known().json, c"parse", &[utf8(bytes, bytes.is_ascii())])
                }
                Reader::Bytes => {
                    let bytes = column.bytes(row);
                    rb_sys::rb_str_new(bytes.as_ptr().cast(), bytes.len() as i64)
                }
                Reader::Date => {
                    let day = column.value::<i32>(row);
                    if let Some(infinity) = calendar::infinite_day(day) {
                        return rb_sys::rb_float_new(infinity);
                    }
                    let day = integer(i64::from(day) + EPOCH);
                    send(known().date, c"jd", &[day, known().gregorian])
                }
                Reader::BigNum => {
                    let bytes = column.bytes(row);
                    let flags = rb_sys::INTEGER_PACK_LITTLE_ENDIAN | rb_sys::INTEGER_PACK_2COMP;
                    rb_sys::rb_integer_unpack(bytes.as_ptr().cast(), bytes.len() as u64, 1, 0, flags as c_int)
                }
                Reader::Time => {
                    rb_sys::rb_class_new_instance(1, &integer(column.value(row)), known().time_of_day)
                }
                Reader::TimeNs => {
                    let nanos = column.value::<i64>(row);
                    let parts = [integer(nanos / 1000), integer(nanos % 1000)];
                    rb_sys::rb_class_new_instance(2, parts.as_ptr(), known().time_of_day)
                }
                Reader::TimeTz => {
                    let (micros, offset) = timetz::parts(column.value(row));
                    let parts = [integer(micros), integer(0), integer(offset.into())];
                    rb_sys::rb_class_new_instance(3, parts.as_ptr(), known().time_of_day)
                }
                Reader::Timestamp { units_per_second } => {
                    let value = column.value::<i64>(row);
                    if let Some(infinity) = calendar::infinite_moment(value) {
                        return rb_sys::rb_float_new(infinity);
                    }
                    let fraction = value.rem_euclid(*units_per_second);
                    let moment = rb_sys::timespec {
                        tv_sec: value.div_euclid(*units_per_second),
                        tv_nsec: fraction * (1_000_000_000 / units_per_second),
                    };
                    rb_sys::rb_time_timespec_new(&moment, UTC)
                }
                Reader::Interval => {
                    let bytes: [u8; 16] = column.value(row);
                    let parts = [
                        integer(i64::from(bytemuck::pod_read_unaligned::<i32>(&bytes[..4]))),
                        integer(i64::from(bytemuck::pod_read_unaligned::<i32>(&bytes[4..8]))),
                        integer(bytemuck::pod_read_unaligned::<i64>(&bytes[8..])),
                    ];
                    rb_sys::rb_class_new_instance(3, parts.as_ptr(), known().interval)
                }
                Reader::Uuid => utf8(&uuid(column.value(row)), true),
                Reader::Enum { values, width } => {
                    let code = &column.data[row * width..(row + 1) * width];
                    let code = code.iter().rev().fold(0, |code, byte| code << 8 | i64::from(*byte));
                    rb_sys::rb_ary_entry(values.get(), code)
                }
                Reader::List(element) => {
                    let range = column.elements(row);
                    let list = rb_sys::rb_ary_new_capa(range.len() as i64);
                    for at in range {
                        rb_sys::rb_ary_push(list, element.read(&column.children[0], at));
                    }
                    list
                }
                Reader::Struct { class, fields } => {
                    let values = rb_sys::rb_ary_new_capa(fields.len() as i64);
                    for (field, child) in fields.iter().zip(&column.children) {
                        rb_sys::rb_ary_push(values, field.read(child, row));
                    }
                    let object = rb_sys::rb_struct_alloc(class.get(), values);
                    // The call takes what is in the Array, and does not keep the Array itself alive.
                    std::hint::black_box(&values);
                    object
                }
                Reader::Union { names, members } => {
                    // The engine's UNIONs have tags.
                    let at = member(column, row).unwrap_or(1);
                    let value = members[at - 1].read(&column.children[at], row);
                    let parts = [rb_sys::rb_ary_entry(names.get(), at as i64 - 1), value];
                    rb_sys::rb_class_new_instance(2, parts.as_ptr(), known().tagged)
                }
                Reader::Map(parts) => {
                    let [keys, values] = &**parts;
                    let entries = &column.children[0].children;
                    let hash = rb_sys::rb_hash_new();
                    for at in column.elements(row) {
                        let key = keys.read(&entries[0], at);
                        rb_sys::rb_hash_aset(hash, key, values.read(&entries[1], at));
                    }
                    hash
                }
            }
        }
    }
}

/// An Integer of 128 bits.
///
/// # Safety
/// With the GVL, protected.
unsafe fn wide(words: [u64; 2], flags: c_int) -> VALUE {
    let order = (rb_sys::INTEGER_PACK_LSWORD_FIRST | rb_sys::INTEGER_PACK_NATIVE_BYTE_ORDER) as c_int;
    // SAFETY: two words of eight bytes are passed.
    unsafe { rb_sys::rb_integer_unpack(words.as_ptr().cast(), 2, 8, 0, order | flags) }
}

/// A decimal as text, without memory of its own that a longjmp would leak.
fn decimal_text(value: i128, scale: usize) -> ([u8; 48], usize) {
    let mut text = [0; 48];
    let mut rest = &mut text[..];
    // 39 digits, a sign and a point always fit.
    let _ = match scale {
        0 => write!(rest, "{value}"),
        _ => {
            let unit = 10u128.pow(scale as u32);
            let (whole, fraction) = (value.unsigned_abs() / unit, value.unsigned_abs() % unit);
            let sign = if value < 0 { "-" } else { "" };
            write!(rest, "{sign}{whole}.{fraction:0scale$}")
        }
    };
    let length = 48 - rest.len();
    (text, length)
}

/// Seconds and nanoseconds as units since 1970, rounded down; `None` if they do not fit.
pub(crate) fn units(seconds: i64, nanoseconds: i64, units_per_second: i64) -> Option<i64> {
    let whole = i128::from(seconds) * i128::from(units_per_second);
    i64::try_from(whole + i128::from(nanoseconds / (1_000_000_000 / units_per_second))).ok()
}
