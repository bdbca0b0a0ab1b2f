//! Arguments: a row of a column as a Python object.

use crate::moments;
use crosslane::batch::{self, Column};
use crosslane::calendar;
use crosslane::{DataType, code_width, member, timetz};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDelta, PyDict, PyInt, PyList, PyString, PyTuple, PyTzInfo};
use pyo3::{IntoPyObjectExt, ffi, intern};

const DAY: i64 = 86_400_000_000;

/// How a column's values become Python objects.
///
/// The annotation of a parameter may ask for more than the SQL type tells; such wishes come as a
/// `shape`, a tuple that mirrors the type: `("struct", factory, [shapes])`, `("list", shape)`,
/// `("map", shape, shape)`, `("enum", [members])`, `("timedelta",)`, `("text",)`.
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
    Decimal {
        scale: usize,
        class: Py<PyAny>,
    },
    Text,
    Json {
        loads: Py<PyAny>,
    },
    Bytes,
    BigNum,
    Date,
    Time,
    TimeNs {
        class: Py<PyAny>,
    },
    TimeTz,
    Timestamp {
        units_per_second: i64,
    },
    TimestampNs {
        class: Py<PyAny>,
    },
    TimestampTz {
        utc: Py<PyTzInfo>,
    },
    Interval {
        class: Py<PyAny>,
    },
    Timedelta {
        class: Py<PyAny>,
    },
    Uuid {
        class: Py<PyAny>,
    },
    Enum {
        members: Vec<Py<PyAny>>,
        width: usize,
    },
    List(Box<Reader>),
    Struct {
        factory: Option<Py<PyAny>>,
        names: Vec<Py<PyString>>,
        fields: Vec<Reader>,
    },
    /// A dict, or a list of pairs if the keys are nested and so not hashable.
    Map {
        pairs: bool,
        key: Box<Reader>,
        value: Box<Reader>,
    },
    /// `class` of the member's name and its value.
    Union {
        class: Py<PyAny>,
        names: Vec<Py<PyString>>,
        members: Vec<Reader>,
    },
}

type Shape<'py> = Option<Bound<'py, PyTuple>>;

fn import<'py>(py: Python<'py>, module: &str, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import(module)?.getattr(name)
}

/// The part of a shape at an index, as the shape of a child.
fn part<'py>(shape: &Shape<'py>, index: usize) -> PyResult<Shape<'py>> {
    match shape {
        Some(shape) => Ok(shape.get_item(index)?.extract()?),
        None => Ok(None),
    }
}

impl Reader {
    pub(crate) fn new(py: Python<'_>, data_type: &DataType, shape: &Shape<'_>) -> PyResult<Self> {
        use DataType as T;
        let wish: Option<String> = shape.as_ref().map(|shape| shape.get_item(0)?.extract()).transpose()?;
        let child =
            |child: &DataType, index: usize| Reader::new(py, child, &part(shape, index)?).map(Box::new);
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
            T::Decimal { scale, .. } => Reader::Decimal {
                scale: usize::from(*scale),
                class: import(py, "decimal", "Decimal")?.unbind(),
            },
            T::Varchar | T::Bit => Reader::Text,
            T::Json if wish.as_deref() == Some("text") => Reader::Text,
            T::Json => Reader::Json { loads: import(py, "json", "loads")?.unbind() },
            T::Blob | T::Geometry => Reader::Bytes,
            T::BigNum => Reader::BigNum,
            T::Date => Reader::Date,
            T::Time => Reader::Time,
            T::TimeNs => Reader::TimeNs { class: import(py, "crosslane.types", "TimeNs")?.unbind() },
            T::TimeTz => Reader::TimeTz,
            T::TimestampS => Reader::Timestamp { units_per_second: 1 },
            T::TimestampMs => Reader::Timestamp { units_per_second: 1_000 },
            T::Timestamp => Reader::Timestamp { units_per_second: 1_000_000 },
            T::TimestampNs => {
                Reader::TimestampNs { class: import(py, "crosslane.types", "TimestampNs")?.unbind() }
            }
            T::TimestampTz => Reader::TimestampTz { utc: PyTzInfo::utc(py)?.to_owned().unbind() },
            T::Interval if wish.as_deref() == Some("timedelta") => {
                Reader::Timedelta { class: import(py, "datetime", "timedelta")?.unbind() }
            }
            T::Interval => Reader::Interval { class: import(py, "crosslane.types", "Interval")?.unbind() },
            T::Uuid => Reader::Uuid { class: import(py, "uuid", "UUID")?.unbind() },
            T::Enum(values) => {
                let members = match shape {
                    Some(shape) => shape.get_item(1)?.extract()?,
                    None => values.iter().map(|value| value.into_py_any(py)).collect::<PyResult<_>>()?,
                };
                Reader::Enum { members, width: code_width(values.len()) }
            }
            T::List(element) | T::Array(element, _) => Reader::List(child(element, 1)?),
            T::Struct(fields) => {
                let shapes: Option<Vec<Shape<'_>>> =
                    shape.as_ref().map(|shape| shape.get_item(2)?.extract()).transpose()?;
                let field_shape =
                    |index: usize| shapes.as_ref().and_then(|shapes| shapes.get(index)?.clone());
                Reader::Struct {
                    factory: match shape {
                        Some(shape) => shape.get_item(1)?.extract()?,
                        None => None,
                    },
                    names: fields.iter().map(|field| PyString::intern(py, &field.name).unbind()).collect(),
                    fields: fields
                        .iter()
                        .enumerate()
                        .map(|(index, field)| Reader::new(py, &field.data_type, &field_shape(index)))
                        .collect::<PyResult<_>>()?,
                }
            }
            T::Union(fields) => Reader::Union {
                class: import(py, "crosslane.types", "Tagged")?.unbind(),
                names: fields[1..].iter().map(|field| PyString::intern(py, &field.name).unbind()).collect(),
                members: fields[1..]
                    .iter()
                    .map(|field| Reader::new(py, &field.data_type, &None))
                    .collect::<PyResult<_>>()?,
            },
            T::Map(entry) => {
                let parts: Vec<&DataType> = entry.children().collect();
                let [key, value] = parts[..] else {
                    return Err(PyTypeError::new_err("a MAP without a value"));
                };
                Reader::Map { pairs: key.children().len() > 0, key: child(key, 1)?, value: child(value, 2)? }
            }
            T::Any => return Err(PyTypeError::new_err("a column has a type, and ANY is none")),
        })
    }

    /// The value of a row, or None for NULL.
    #[inline]
    pub(crate) fn read<'py>(
        &self,
        py: Python<'py>,
        column: &Column<'_>,
        row: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        if column.is_valid(row) { self.value(py, column, row) } else { Ok(py.None().into_bound(py)) }
    }

    #[inline]
    fn value<'py>(&self, py: Python<'py>, column: &Column<'_>, row: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            // SAFETY: the function returns a new reference or null with an exception set.
            Reader::Int64 => unsafe {
                Bound::from_owned_ptr_or_err(py, ffi::PyLong_FromLongLong(column.value::<i64>(row)))
            },
            // SAFETY: as above.
            Reader::Float64 => unsafe {
                Bound::from_owned_ptr_or_err(py, ffi::PyFloat_FromDouble(column.value::<f64>(row)))
            },
            Reader::Text => {
                let bytes = column.bytes(row);
                // SAFETY: as above; the pointer and the length are a valid slice, and bytes that are
                // not UTF-8 raise an exception.
                unsafe {
                    let text = ffi::PyUnicode_FromStringAndSize(
                        bytes.as_ptr().cast(),
                        bytes.len() as ffi::Py_ssize_t,
                    );
                    Bound::from_owned_ptr_or_err(py, text)
                }
            }
            _ => self.other(py, column, row),
        }
    }

    fn other<'py>(&self, py: Python<'py>, column: &Column<'_>, row: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Reader::Int64 | Reader::Float64 | Reader::Text => self.value(py, column, row),
            Reader::Boolean => batch::bit(column.data, row).into_bound_py_any(py),
            Reader::Int8 => column.value::<i8>(row).into_bound_py_any(py),
            Reader::Int16 => column.value::<i16>(row).into_bound_py_any(py),
            Reader::Int32 => column.value::<i32>(row).into_bound_py_any(py),
            Reader::UInt8 => column.value::<u8>(row).into_bound_py_any(py),
            Reader::UInt16 => column.value::<u16>(row).into_bound_py_any(py),
            Reader::UInt32 => column.value::<u32>(row).into_bound_py_any(py),
            Reader::UInt64 => column.value::<u64>(row).into_bound_py_any(py),
            Reader::Int128 => {
                let number = column.value::<i128>(row);
                // The limited API puts more than 64 bits together from parts.
                match i64::try_from(number) {
                    Ok(small) => small.into_bound_py_any(py),
                    Err(_) => number.into_bound_py_any(py),
                }
            }
            Reader::UInt128 => {
                let number = column.value::<u128>(row);
                match u64::try_from(number) {
                    Ok(small) => small.into_bound_py_any(py),
                    Err(_) => number.into_bound_py_any(py),
                }
            }
            Reader::Float32 => column.value::<f32>(row).into_bound_py_any(py),
            Reader::Decimal { scale, class } => {
                class.bind(py).call1((decimal_text(column.value(row), *scale),))
            }
            Reader::Json { loads } => loads.bind(py).call1((PyBytes::new(py, column.bytes(row)),)),
            Reader::Bytes => Ok(PyBytes::new(py, column.bytes(row)).into_any()),
            Reader::BigNum => {
                let named = PyDict::new(py);
                named.set_item(intern!(py, "signed"), true)?;
                let bytes = PyBytes::new(py, column.bytes(row));
                py.get_type::<PyInt>().call_method("from_bytes", (bytes, "little"), Some(&named))
            }
            Reader::Date => {
                let day = column.value::<i32>(row);
                if let Some(infinity) = calendar::infinite_day(day) {
                    return infinity.into_bound_py_any(py);
                }
                date(i64::from(day), "DATE")?;
                moments::date(py, i64::from(day))
            }
            Reader::Time => moments::time(py, clock(within_a_day(column.value(row))?), None),
            Reader::TimeNs { class } => {
                let value = column.value::<i64>(row);
                let (hour, minute, second, micro) = clock(within_a_day(value / 1000)?);
                let named = PyDict::new(py);
                named.set_item(intern!(py, "nanosecond"), value % 1000)?;
                class.bind(py).call((hour, minute, second, micro), Some(&named))
            }
            Reader::TimeTz => {
                let (micros, offset) = timetz::parts(column.value(row));
                let zone = PyTzInfo::fixed_offset(py, PyDelta::new(py, 0, offset, 0, true)?)?;
                moments::time(py, clock(within_a_day(micros)?), Some(&zone))
            }
            Reader::Timestamp { units_per_second } => {
                let value = column.value::<i64>(row);
                if let Some(infinity) = calendar::infinite_moment(value) {
                    return infinity.into_bound_py_any(py);
                }
                let micros = value
                    .checked_mul(1_000_000 / units_per_second)
                    .ok_or_else(|| out_of_range("TIMESTAMP"))?;
                datetime(py, micros, None)
            }
            Reader::TimestampTz { utc } => match calendar::infinite_moment(column.value(row)) {
                Some(infinity) => infinity.into_bound_py_any(py),
                None => datetime(py, column.value(row), Some(utc.bind(py))),
            },
            Reader::TimestampNs { class } => {
                let value = column.value::<i64>(row);
                if let Some(infinity) = calendar::infinite_moment(value) {
                    return infinity.into_bound_py_any(py);
                }
                let (year, month, day) = date(value.div_euclid(1000 * DAY), "TIMESTAMP_NS")?;
                let (hour, minute, second, micro) = clock(value.rem_euclid(1000 * DAY) / 1000);
                let named = PyDict::new(py);
                named.set_item(intern!(py, "nanosecond"), value.rem_euclid(1000))?;
                class.bind(py).call((year, month, day, hour, minute, second, micro), Some(&named))
            }
            Reader::Interval { class } => class.bind(py).call1(interval(column, row)),
            Reader::Timedelta { class } => {
                let (months, days, micros) = interval(column, row);
                // A month counts 30 days, as in DuckDB's comparison of intervals.
                class.bind(py).call1((i64::from(months) * 30 + i64::from(days), 0, micros))
            }
            Reader::Uuid { class } => {
                let bytes: [u8; 16] = column.value(row);
                class.bind(py).call1((py.None(), PyBytes::new(py, &bytes)))
            }
            Reader::Enum { members, width } => {
                let code = column.data[row * width..(row + 1) * width]
                    .iter()
                    .rev()
                    .fold(0, |code, byte| code << 8 | usize::from(*byte));
                Ok(members[code].bind(py).clone())
            }
            Reader::List(element) => {
                let range = column.elements(row);
                let list = PyList::empty(py);
                for at in range {
                    list.append(element.read(py, &column.children[0], at)?)?;
                }
                Ok(list.into_any())
            }
            Reader::Struct { factory, names, fields } => {
                let values = PyDict::new(py);
                for ((name, field), child) in names.iter().zip(fields).zip(&column.children) {
                    values.set_item(name.bind(py), field.read(py, child, row)?)?;
                }
                match factory {
                    Some(factory) => factory.bind(py).call((), Some(&values)),
                    None => Ok(values.into_any()),
                }
            }
            Reader::Union { class, names, members } => {
                let Some(at) = member(column, row) else {
                    return Err(PyValueError::new_err("a UNION without a tag"));
                };
                let value = members[at - 1].read(py, &column.children[at], row)?;
                class.bind(py).call1((names[at - 1].bind(py), value))
            }
            Reader::Map { pairs, key, value } => {
                let entries = &column.children[0];
                let read = |at| -> PyResult<_> {
                    Ok((key.read(py, &entries.children[0], at)?, value.read(py, &entries.children[1], at)?))
                };
                if *pairs {
                    let list = PyList::empty(py);
                    for at in column.elements(row) {
                        list.append(read(at)?)?;
                    }
                    return Ok(list.into_any());
                }
                let dict = PyDict::new(py);
                for at in column.elements(row) {
                    let (key, value) = read(at)?;
                    dict.set_item(key, value)?;
                }
                Ok(dict.into_any())
            }
        }
    }
}

fn interval(column: &Column<'_>, row: usize) -> (i32, i32, i64) {
    let bytes: [u8; 16] = column.value(row);
    let micros = bytemuck::pod_read_unaligned(&bytes[8..]);
    (bytemuck::pod_read_unaligned(&bytes[..4]), bytemuck::pod_read_unaligned(&bytes[4..8]), micros)
}

fn decimal_text(value: i128, scale: usize) -> String {
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if value < 0 { "-" } else { "" };
    if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

fn out_of_range(what: &str) -> PyErr {
    PyOverflowError::new_err(format!(
        "this {what} lies outside of the years 1 to 9999 of Python's datetime; a vectorized function can take it"
    ))
}

fn date(days: i64, what: &str) -> PyResult<moments::Day> {
    let (year, month, day) = calendar::civil(days);
    if (1..=9999).contains(&year) { Ok((year as i32, month, day)) } else { Err(out_of_range(what)) }
}

/// Microseconds since midnight that Python's time can be.
fn within_a_day(micros: i64) -> PyResult<i64> {
    if micros < DAY { Ok(micros) } else { Err(PyOverflowError::new_err("24:00:00 has no datetime.time")) }
}

/// The time of microseconds since midnight.
fn clock(micros: i64) -> moments::Clock {
    let seconds = micros / 1_000_000;
    ((seconds / 3600) as u8, (seconds / 60 % 60) as u8, (seconds % 60) as u8, (micros % 1_000_000) as u32)
}

fn datetime<'py>(
    py: Python<'py>,
    micros: i64,
    zone: Option<&Bound<'py, PyTzInfo>>,
) -> PyResult<Bound<'py, PyAny>> {
    moments::datetime(py, date(micros.div_euclid(DAY), "TIMESTAMP")?, clock(micros.rem_euclid(DAY)), zone)
}
