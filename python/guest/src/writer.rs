//! Results: a Python object as a value of a column.

use crate::iterate::Live;
use crate::layout;
use crate::moments;
use crate::plain::{self, Plain};
use crosslane::builder::Overflow;
use crosslane::calendar;
use crosslane::{ColumnBuilder, DataType, Field, code_width, timetz};
use pyo3::exceptions::{
    PyException, PyMemoryError, PyOverflowError, PyTypeError, PyUnicodeEncodeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDate, PyDateTime, PyDelta, PyDict, PyFloat, PyInt, PyList, PyMapping,
    PyString, PyTime, PyTuple,
};
use pyo3::{PyTypeInfo, ffi, intern};
use std::ops::Range;

const DAY: i64 = 86_400_000_000;

/// How Python objects become values of a column.
pub(crate) struct Writer {
    data_type: DataType,
    kind: Kind,
    source: Source,
}

/// What the objects are results of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A row function.
    Row,
    /// A vectorized function: they may also look as they do in Arrow's columns, where that is different.
    Columns,
}

enum Kind {
    Boolean,
    Integer {
        least: i128,
        most: i128,
        width: usize,
    },
    UHugeInt,
    Float,
    Double,
    Decimal {
        precision: u8,
        scale: u8,
        class: Py<PyAny>,
        convert: Py<PyAny>,
    },
    Text,
    Json {
        dumps: Py<PyAny>,
    },
    Bit,
    Blob,
    BigNum,
    Date,
    Time {
        nanos: bool,
    },
    TimeTz,
    /// `per_microsecond` is 0 for units longer than a microsecond, which `micros` then has.
    Timestamp {
        micros: i64,
        nanos: bool,
        zoned: bool,
    },
    Interval,
    Uuid {
        class: Py<PyAny>,
    },
    Enum {
        codes: Py<PyDict>,
        width: usize,
    },
    List(Box<Writer>),
    Array(Box<Writer>, usize),
    Struct(Vec<(Py<PyString>, Writer)>),
    Map(Box<Writer>, Box<Writer>),
    /// The members by name.
    Union(Vec<(Py<PyString>, Writer)>),
}

impl Writer {
    /// A writer for a row function's results. `shape` is what [`crate::reader::Reader`] takes, of the result.
    pub(crate) fn new(
        py: Python<'_>,
        data_type: &DataType,
        shape: &Option<Bound<'_, PyTuple>>,
    ) -> PyResult<Self> {
        Self::of(py, data_type, shape, Source::Row)
    }

    /// A writer for objects in the column that a vectorized function returned.
    pub(crate) fn of_columns(py: Python<'_>, data_type: &DataType) -> PyResult<Self> {
        Self::of(py, data_type, &None, Source::Columns)
    }

    fn of(
        py: Python<'_>,
        data_type: &DataType,
        shape: &Option<Bound<'_, PyTuple>>,
        source: Source,
    ) -> PyResult<Self> {
        use DataType as T;
        let import = |module: &str, name: &str| -> PyResult<Py<PyAny>> {
            Ok(py.import(module)?.getattr(name)?.unbind())
        };
        let integer = |least: i128, most: i128, width: usize| Kind::Integer { least, most, width };
        let part = |index: usize| -> PyResult<Option<Bound<'_, PyTuple>>> {
            match shape {
                Some(shape) => shape.get_item(index)?.extract().map_err(PyErr::from),
                None => Ok(None),
            }
        };
        let child =
            |child: &DataType, index: usize| Writer::of(py, child, &part(index)?, source).map(Box::new);
        let timestamp = |micros| Kind::Timestamp { micros, nanos: false, zoned: false };
        let kind = match data_type {
            T::Boolean => Kind::Boolean,
            T::TinyInt => integer(i8::MIN.into(), i8::MAX.into(), 1),
            T::SmallInt => integer(i16::MIN.into(), i16::MAX.into(), 2),
            T::Integer => integer(i32::MIN.into(), i32::MAX.into(), 4),
            T::BigInt => integer(i64::MIN.into(), i64::MAX.into(), 8),
            T::UTinyInt => integer(0, u8::MAX.into(), 1),
            T::USmallInt => integer(0, u16::MAX.into(), 2),
            T::UInteger => integer(0, u32::MAX.into(), 4),
            T::UBigInt => integer(0, u64::MAX.into(), 8),
            T::HugeInt => integer(i128::MIN, i128::MAX, 16),
            T::UHugeInt => Kind::UHugeInt,
            T::Float => Kind::Float,
            T::Double => Kind::Double,
            T::Decimal { precision, scale } => Kind::Decimal {
                precision: *precision,
                scale: *scale,
                class: import("decimal", "Decimal")?,
                convert: import("crosslane.types", "decimal_of")?,
            },
            T::Varchar => Kind::Text,
            T::Json if shape.is_some() || source == Source::Columns => Kind::Text,
            T::Json => Kind::Json { dumps: import("crosslane.types", "json_text")? },
            T::Bit => Kind::Bit,
            T::Blob | T::Geometry => Kind::Blob,
            T::BigNum => Kind::BigNum,
            T::Date => Kind::Date,
            T::Time => Kind::Time { nanos: false },
            T::TimeNs => Kind::Time { nanos: true },
            T::TimeTz => Kind::TimeTz,
            T::TimestampS => timestamp(1_000_000),
            T::TimestampMs => timestamp(1_000),
            T::Timestamp => timestamp(1),
            T::TimestampNs => Kind::Timestamp { micros: 1, nanos: true, zoned: false },
            T::TimestampTz => Kind::Timestamp { micros: 1, nanos: false, zoned: true },
            T::Interval => Kind::Interval,
            T::Uuid => Kind::Uuid { class: import("uuid", "UUID")? },
            T::Enum(values) => {
                let codes = PyDict::new(py);
                for (code, value) in values.iter().enumerate() {
                    codes.set_item(value, code)?;
                }
                if let Some(shape) = shape {
                    let members: Vec<Bound<'_, PyAny>> = shape.get_item(1)?.extract()?;
                    for (code, member) in members.into_iter().enumerate() {
                        codes.set_item(member, code)?;
                    }
                }
                Kind::Enum { codes: codes.unbind(), width: code_width(values.len()) }
            }
            T::List(element) => Kind::List(child(element, 1)?),
            T::Array(element, length) => Kind::Array(child(element, 1)?, *length as usize),
            T::Struct(fields) => {
                let shapes: Option<Vec<Option<Bound<'_, PyTuple>>>> =
                    shape.as_ref().map(|shape| shape.get_item(2)?.extract()).transpose()?;
                let writers = fields.iter().enumerate().map(|(index, field)| {
                    let shape = shapes.as_ref().and_then(|shapes| shapes.get(index)?.clone());
                    Ok((
                        PyString::intern(py, &field.name).unbind(),
                        Writer::of(py, &field.data_type, &shape, source)?,
                    ))
                });
                Kind::Struct(writers.collect::<PyResult<_>>()?)
            }
            T::Union(fields) => {
                let member = |field: &Field| {
                    let name = PyString::intern(py, &field.name).unbind();
                    Ok((name, Writer::of(py, &field.data_type, &None, source)?))
                };
                Kind::Union(fields[1..].iter().map(member).collect::<PyResult<_>>()?)
            }
            T::Map(entry) => {
                let parts: Vec<&DataType> = entry.children().collect();
                let [key, value] = parts[..] else {
                    return Err(PyTypeError::new_err("a MAP without a value"));
                };
                Kind::Map(child(key, 1)?, child(value, 2)?)
            }
            T::Any => return Err(PyTypeError::new_err("a column has a type, and ANY is none")),
        };
        Ok(Self { data_type: data_type.clone(), kind, source })
    }

    /// What the values nearly always are.
    pub(crate) fn plain(&self) -> Plain {
        match self.kind {
            Kind::Integer { width: 8, least: ..0, .. } => Plain::Int64,
            Kind::Integer { width: 4, least: ..0, .. } => Plain::Int32,
            Kind::Double => Plain::Double,
            Kind::Boolean => Plain::Boolean,
            Kind::Text => Plain::Text,
            _ => Plain::None,
        }
    }

    /// Adds the values of a list in the places of the rows that were called, and NULLs in the others, behind the rows that
    /// the column has already. The list begins with the row that so many are called before. An error comes with the row that it is about. `at` is told the row whose value is next,
    /// because values may be computed only now.
    pub(crate) fn write_all(
        &self,
        list: &Bound<'_, PyList>,
        before: usize,
        live: &Live,
        out: &mut ColumnBuilder,
        at: impl Fn(usize),
    ) -> Result<(), (PyErr, usize)> {
        let mut item = live.before(out.rows()) - before;
        while out.rows() < live.rows() {
            let row = out.rows();
            if !live.is_live(row) {
                out.null();
                continue;
            }
            let end = item + live.run(row);
            while item < end {
                let row = out.rows();
                at(row);
                let added =
                    self.add_plain(list, item..end, out).map_err(|error| (overflow(error), out.rows()))?;
                item += added;
                if added > 0 {
                    continue;
                }
                // What runs Python code to become a value could take it out of the list.
                let value = list.get_item(item);
                value.and_then(|value| self.write(&value, out)).map_err(|error| (error, row))?;
                item += 1;
            }
        }
        Ok(())
    }

    /// Adds the first of these values in a list, up to one that is not exactly of the type which nearly all values have, or
    /// does not fit. Says how many. Nothing here runs Python code, which could change the list.
    fn add_plain(
        &self,
        list: &Bound<'_, PyList>,
        items: Range<usize>,
        out: &mut ColumnBuilder,
    ) -> Result<usize, Overflow> {
        let count = items.len();
        let mut objects = items.map_while(|item| {
            // SAFETY: a living list gives a borrowed reference, which it keeps until the next value, or null with an
            // exception set.
            let object = unsafe { ffi::PyList_GetItem(list.as_ptr(), item as ffi::Py_ssize_t) };
            if object.is_null() {
                // The list is shorter, which is told for the value that is not there.
                drop(PyErr::take(list.py()));
            }
            (!object.is_null()).then_some(object)
        });
        let layout = layout::known();
        // SAFETY: the objects live while they are in the list, and a `Bound` says that the interpreter's lock is held.
        unsafe {
            Ok(match self.plain() {
                Plain::Int64 => out.fixed_while(|| plain::integer_of(layout, objects.next()?)),
                Plain::Int32 => out.fixed_while(|| plain::narrow_of(layout, objects.next()?)),
                Plain::Double => out.fixed_while(|| plain::double_of(layout, objects.next()?)),
                Plain::Boolean => out.boolean_while(|| plain::boolean_of(objects.next()?)),
                Plain::Text => {
                    let mut added = 0;
                    while added < count {
                        let Some(text) = objects.next().and_then(|object| plain::text_of(layout, object))
                        else {
                            break;
                        };
                        out.bytes(text)?;
                        added += 1;
                    }
                    added
                }
                Plain::None => 0,
            })
        }
    }

    /// Adds a value, or NULL for None. After an error the column must be truncated.
    #[inline]
    pub(crate) fn write(&self, value: &Bound<'_, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        match &self.kind {
            // SAFETY: the checks make sure that the object is an int; the value is only used if no
            // exception was set.
            Kind::Integer { width: 8, least, .. } if *least < 0 && value.is_exact_instance_of::<PyInt>() => unsafe {
                let mut overflow = 0;
                let number = ffi::PyLong_AsLongLongAndOverflow(value.as_ptr(), &raw mut overflow);
                if overflow != 0 {
                    return Err(self.too_large(value));
                }
                out.fixed(number);
                Ok(())
            },
            Kind::Double if value.is_exact_instance_of::<PyFloat>() => {
                // SAFETY: the object is a float.
                out.fixed(unsafe { ffi::PyFloat_AsDouble(value.as_ptr()) });
                Ok(())
            }
            Kind::Text if value.is_exact_instance_of::<PyString>() => {
                // SAFETY: the object is a str.
                out.bytes(self.utf8(unsafe { value.cast_unchecked() })?).map_err(overflow)
            }
            _ => self.write_other(value, out),
        }
    }

    fn write_other(&self, value: &Bound<'_, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        if is_missing(value)? {
            out.null();
            return Ok(());
        }
        match &self.kind {
            Kind::Boolean => out.boolean(self.boolean(value)?),
            Kind::Integer { least, most, width } => {
                let number: i128 = self.integer(value)?;
                if number < *least || number > *most {
                    return Err(self.too_large(value));
                }
                match width {
                    1 => out.fixed(number as u8),
                    2 => out.fixed(number as u16),
                    4 => out.fixed(number as u32),
                    8 => out.fixed(number as u64),
                    _ => out.fixed(number as u128),
                }
            }
            Kind::UHugeInt => out.fixed(self.integer::<u128>(value)?),
            Kind::Float => {
                let number = self.float(value)?;
                let narrow = number as f32;
                if narrow.is_infinite() && number.is_finite() {
                    return Err(self.too_large(value));
                }
                out.fixed(narrow);
            }
            Kind::Double => out.fixed(self.float(value)?),
            Kind::Decimal { precision, scale, class, convert } => {
                let py = value.py();
                let decimal = if value.is_instance(class.bind(py))? {
                    value.clone()
                } else {
                    let decimal = convert.bind(py).call1((value,));
                    decimal.map_err(|error| instead(value, error, || self.mismatch(value)))?
                };
                let plain = decimal.call_method1(intern!(py, "__format__"), ("f",))?;
                let unscaled = parse_decimal(plain.cast::<PyString>()?.to_str()?, usize::from(*scale))
                    .filter(|unscaled| unscaled.unsigned_abs() < 10u128.pow(u32::from(*precision)));
                out.fixed(unscaled.ok_or_else(|| self.too_large(value))?);
            }
            Kind::Text => match value.cast::<PyString>() {
                Ok(text) => out.bytes(self.utf8(text)?).map_err(overflow)?,
                Err(_) => return Err(self.mismatch(value)),
            },
            Kind::Json { dumps } => {
                let text = dumps.bind(value.py()).call1((value,))?;
                out.bytes(self.utf8(text.cast::<PyString>()?)?).map_err(overflow)?;
            }
            Kind::Blob => {
                if let Ok(bytes) = value.cast::<PyBytes>() {
                    out.bytes(bytes.as_bytes()).map_err(overflow)?;
                } else if let Ok(bytes) = value.cast::<PyByteArray>() {
                    // SAFETY: nothing here runs Python code, which could change the bytes, before they are copied.
                    out.bytes(unsafe { bytes.as_bytes() }).map_err(overflow)?;
                } else if value.get_type().name()? == "memoryview" {
                    let bytes = value.call_method0(intern!(value.py(), "tobytes"))?;
                    out.bytes(bytes.cast::<PyBytes>()?.as_bytes()).map_err(overflow)?;
                } else {
                    return Err(self.mismatch(value));
                }
            }
            Kind::Date => out.fixed(self.date(value)?),
            Kind::Time { nanos } => {
                let time = value.cast::<PyTime>().map_err(|_| self.mismatch(value))?;
                let (micros, zoned) = moments::time_parts(time)?;
                if zoned {
                    return Err(PyValueError::new_err(format!(
                        "returned a time with a zone where {} is due; declare TIMETZ, or return it without a zone",
                        self.data_type
                    )));
                }
                out.fixed(if *nanos { micros * 1000 + nanosecond(value)? } else { micros });
            }
            Kind::TimeTz => {
                if let Some(parts) = self.parts(value) {
                    let (time, seconds) =
                        zoned(parts).map_err(|error| instead(value, error, || self.mismatch(value)))?;
                    if seconds.unsigned_abs() > timetz::MOST_SECONDS as u32 {
                        return Err(self.too_large(value));
                    }
                    out.fixed(timetz::bits(moments::time_parts(&time)?.0, seconds));
                    return Ok(());
                }
                let time = value.cast::<PyTime>().map_err(|_| self.mismatch(value))?;
                let offset = value.call_method0(intern!(value.py(), "utcoffset"))?;
                let Ok(offset) = offset.cast::<PyDelta>() else {
                    return Err(PyValueError::new_err(format!(
                        "returned a time without a zone where {} is due; return it with one, such as datetime.timezone.utc",
                        self.data_type
                    )));
                };
                let (days, seconds, micros) = moments::delta(offset)?;
                let seconds = days * 86_400 + seconds;
                if seconds.abs() > timetz::MOST_SECONDS || micros != 0 {
                    return Err(self.too_large(value));
                }
                out.fixed(timetz::bits(moments::time_parts(time)?.0, seconds));
            }
            Kind::Bit => {
                let text = value.cast::<PyString>().map_err(|_| self.mismatch(value))?;
                out.bytes(self.utf8(text)?).map_err(overflow)?;
            }
            Kind::BigNum => {
                let py = value.py();
                let number = self.index(value)?;
                let bits: usize = number.call_method0(intern!(py, "bit_length"))?.extract()?;
                let named = PyDict::new(py);
                named.set_item(intern!(py, "signed"), true)?;
                let bytes =
                    number.call_method(intern!(py, "to_bytes"), (bits / 8 + 1, "little"), Some(&named))?;
                out.bytes(bytes.cast::<PyBytes>()?.as_bytes()).map_err(overflow)?;
            }
            Kind::Timestamp { micros, nanos, zoned } => {
                out.fixed(self.timestamp(value, *micros, *nanos, *zoned)?)
            }
            Kind::Interval => {
                let (months, days, micros) = self.interval(value)?;
                let mut bytes = [0u8; 16];
                bytes[..4].copy_from_slice(&months.to_le_bytes());
                bytes[4..8].copy_from_slice(&days.to_le_bytes());
                bytes[8..].copy_from_slice(&micros.to_le_bytes());
                out.fixed(bytes);
            }
            Kind::Uuid { class } => {
                let bytes = if value.is_instance(class.bind(value.py()))? {
                    value.getattr(intern!(value.py(), "bytes"))?
                } else if self.source == Source::Columns {
                    value.clone()
                } else {
                    return Err(self.mismatch(value));
                };
                let bytes = bytes.cast::<PyBytes>().map_err(|_| self.mismatch(value))?;
                let bytes: [u8; 16] = bytes.as_bytes().try_into().map_err(|_| self.mismatch(value))?;
                out.fixed(bytes);
            }
            Kind::Enum { codes, width } => {
                let none = || {
                    refusal::<PyValueError>(value, |shown| {
                        format!("returned {shown}, which is none of {}", self.data_type)
                    })
                };
                let code = codes.bind(value.py()).get_item(value);
                let code = code.map_err(|error| instead(value, error, none))?.ok_or_else(none)?;
                let code: u32 = code.extract()?;
                match width {
                    1 => out.fixed(code as u8),
                    2 => out.fixed(code as u16),
                    _ => out.fixed(code),
                }
            }
            Kind::List(element) => {
                self.elements(value, element, out)?;
                out.nested().map_err(overflow)?;
            }
            Kind::Array(element, length) => {
                let count = self.elements(value, element, out)?;
                if count != *length {
                    return Err(PyValueError::new_err(format!(
                        "returned {count} elements where {} is due",
                        self.data_type
                    )));
                }
                out.nested().map_err(overflow)?;
            }
            Kind::Struct(fields) => {
                self.fields(value, fields, out)?;
                out.nested().map_err(overflow)?;
            }
            Kind::Union(members) => {
                self.member(value, members, out)?;
                out.nested().map_err(overflow)?;
            }
            Kind::Map(key, entry) => {
                self.entries(value, key, entry, out)?;
                out.nested().map_err(overflow)?;
            }
        }
        Ok(())
    }

    fn utf8<'a>(&self, text: &'a Bound<'_, PyString>) -> PyResult<&'a [u8]> {
        text.to_str().map(str::as_bytes).map_err(|error| {
            if !error.is_instance_of::<PyUnicodeEncodeError>(text.py()) {
                return error;
            }
            refusal::<PyValueError>(text, |shown| {
                format!("returned {shown}, which has half a surrogate pair, where {} is due", self.data_type)
            })
        })
    }

    fn mismatch(&self, value: &Bound<'_, PyAny>) -> PyErr {
        refusal::<PyTypeError>(value, |shown| format!("returned {shown} where {} is due", self.data_type))
    }

    fn too_large(&self, value: &Bound<'_, PyAny>) -> PyErr {
        refusal::<PyOverflowError>(value, |shown| {
            format!("returned {shown}, which does not fit {}", self.data_type)
        })
    }

    fn boolean(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        match value.cast::<PyBool>() {
            Ok(boolean) => Ok(boolean.is_true()),
            // numpy's own booleans are no bool.
            Err(_) if value.get_type().name()?.to_string_lossy().starts_with("bool") => value.is_truthy(),
            Err(_) => Err(self.mismatch(value)),
        }
    }

    /// The value as an int: ints, bools, and numpy's integers, but no float.
    fn index<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        use DataType as T;
        let is_wide = matches!(self.data_type, T::HugeInt | T::UHugeInt | T::BigNum);
        if is_wide && self.source == Source::Columns && value.get_type().name()? == "Decimal" {
            let whole = value.call_method0(intern!(value.py(), "__int__"));
            let whole = whole.map_err(|error| instead(value, error, || self.mismatch(value)))?;
            return if whole.eq(value)? { Ok(whole) } else { Err(self.mismatch(value)) };
        }
        // SAFETY: the function returns a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(value.py(), ffi::PyNumber_Index(value.as_ptr())) }
            .map_err(|error| instead(value, error, || self.mismatch(value)))
    }

    /// A dict that is a value of a type which is a struct in Arrow only.
    fn parts<'a, 'py>(&self, value: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyDict>> {
        value.cast().ok().filter(|_| self.source == Source::Columns)
    }

    /// The value as a number of 128 bits. The limited API takes more than 64 bits in parts, which few numbers have.
    fn integer<'py, T>(&self, value: &Bound<'py, PyAny>) -> PyResult<T>
    where
        T: TryFrom<i64> + for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    {
        let number = self.index(value)?;
        let number = number.cast::<PyInt>().map_err(|_| self.mismatch(value))?;
        let mut overflow = 0;
        // SAFETY: the object is an int, so that no exception is set.
        let small = unsafe { ffi::PyLong_AsLongLongAndOverflow(number.as_ptr(), &raw mut overflow) };
        match T::try_from(small) {
            Ok(small) if overflow == 0 => Ok(small),
            _ => number.extract().map_err(|error| instead(value, error, || self.too_large(value))),
        }
    }

    fn float(&self, value: &Bound<'_, PyAny>) -> PyResult<f64> {
        if value.is_instance_of::<PyString>() {
            return Err(self.mismatch(value));
        }
        value.extract().map_err(|error| instead(value, error, || self.mismatch(value)))
    }

    fn date(&self, value: &Bound<'_, PyAny>) -> PyResult<i32> {
        if let Ok(date) = value.cast::<PyDate>() {
            if value.is_instance_of::<PyDateTime>() {
                return Err(refusal::<PyTypeError>(value, |shown| {
                    format!("returned {shown} where DATE is due; return its .date()")
                }));
            }
            return Ok(moments::days(date)? as i32);
        }
        if let Some(day) = float_of(value).and_then(calendar::day_of_infinity) {
            return Ok(day);
        }
        let nanos = self.numpy(value, "datetime64")?.ok_or_else(|| self.mismatch(value))?;
        if nanos.rem_euclid(i128::from(DAY) * 1000) != 0 {
            return Err(self.mismatch(value));
        }
        (nanos / (i128::from(DAY) * 1000)).try_into().map_err(|_| self.too_large(value))
    }

    fn timestamp(&self, value: &Bound<'_, PyAny>, unit: i64, nanos: bool, zoned: bool) -> PyResult<i64> {
        let py = value.py();
        let Ok(moment) = value.cast::<PyDateTime>() else {
            if let Some(moment) = float_of(value).and_then(calendar::moment_of_infinity) {
                return Ok(moment);
            }
            // numpy knows no zones: in a column, its moments are those of UTC.
            let numpys = !zoned || self.source == Source::Columns;
            let since = if numpys { self.numpy(value, "datetime64")? } else { None };
            let unit = if nanos { 1 } else { i128::from(unit) * 1000 };
            let since = since.ok_or_else(|| self.mismatch(value))?.div_euclid(unit);
            return since.try_into().map_err(|_| self.too_large(value));
        };
        let mut parts = moments::datetime_parts(moment)?;
        let aware = parts.2 && !moment.call_method0(intern!(py, "utcoffset"))?.is_none();
        if aware != zoned {
            let (has, advice) = if aware {
                ("with a zone", "declare TIMESTAMPTZ, or return it without a zone")
            } else {
                ("without a zone", "return it with one, such as datetime.timezone.utc")
            };
            return Err(PyValueError::new_err(format!(
                "returned a datetime {has} where {} is due; {advice}",
                self.data_type
            )));
        }
        if zoned {
            let utc = py.import("datetime")?.getattr("timezone")?.getattr("utc")?;
            let moment = moment.call_method1(intern!(py, "astimezone"), (utc,))?;
            parts = moments::datetime_parts(moment.cast()?)?;
        }
        let ((year, month, day), micros, _) = parts;
        let micros = calendar::days(year, month, day) * DAY + micros;
        if !nanos {
            return Ok(micros.div_euclid(unit));
        }
        let rest = nanosecond(value)?;
        micros
            .checked_mul(1000)
            .and_then(|nanos| nanos.checked_add(rest))
            .ok_or_else(|| self.too_large(value))
    }

    /// The nanoseconds of a value of one of numpy's types for times, if it is one.
    fn numpy(&self, value: &Bound<'_, PyAny>, class: &str) -> PyResult<Option<i128>> {
        if value.get_type().name()? != class {
            return Ok(None);
        }
        let instant = value.py().import("crosslane.types")?.getattr("instant_of")?;
        // A month is no number of seconds, for example.
        let parts = instant.call1((value,)).and_then(|parts| parts.extract());
        let (seconds, nanos): (i64, i64) =
            parts.map_err(|error| instead(value, error, || self.mismatch(value)))?;
        Ok(Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos)))
    }

    fn interval(&self, value: &Bound<'_, PyAny>) -> PyResult<(i32, i32, i64)> {
        if let Ok(delta) = value.cast::<PyDelta>() {
            let (days, seconds, micros) = moments::delta(delta)?;
            return Ok((0, days, i64::from(seconds) * 1_000_000 + i64::from(micros)));
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let (months, days, parts): (i32, i32, i64) =
                tuple.extract().map_err(|error| instead(value, error, || self.too_large(value)))?;
            // pyarrow's own counts nanoseconds.
            let nanos = value.get_type().name()? == "MonthDayNano";
            let parts = if nanos { parts.div_euclid(1000) } else { parts };
            return Ok((months, days, parts));
        }
        let nanos = self.numpy(value, "timedelta64")?.ok_or_else(|| self.mismatch(value))?;
        let (micros, day) = (nanos.div_euclid(1000), i128::from(DAY));
        let days = micros.div_euclid(day).try_into().map_err(|_| self.too_large(value))?;
        Ok((0, days, micros.rem_euclid(day) as i64))
    }

    /// Adds the elements of a list, tuple or other iterable (no string) to the child.
    fn elements(
        &self,
        value: &Bound<'_, PyAny>,
        element: &Writer,
        out: &mut ColumnBuilder,
    ) -> PyResult<usize> {
        let child = &mut out.children[0];
        let before = child.rows();
        if let Ok(list) = value.cast::<PyList>() {
            child.reserve(list.len()).map_err(overflow)?;
            list.iter().try_for_each(|item| element.write(&item, child))?;
        } else if let Ok(tuple) = value.cast::<PyTuple>() {
            child.reserve(tuple.len()).map_err(overflow)?;
            tuple.iter().try_for_each(|item| element.write(&item, child))?;
        } else {
            let text = value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>();
            if text || value.is_instance_of::<PyDict>() {
                return Err(self.mismatch(value));
            }
            let items = value.try_iter();
            for item in items.map_err(|error| instead(value, error, || self.mismatch(value)))? {
                child.reserve(1).map_err(overflow)?;
                element.write(&item?, child)?;
            }
        }
        Ok(child.rows() - before)
    }

    /// Takes a STRUCT's fields from a mapping's keys, a plain tuple's places, or an object's attributes.
    fn fields(
        &self,
        value: &Bound<'_, PyAny>,
        fields: &[(Py<PyString>, Writer)],
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        let py = value.py();
        if value.is_exact_instance_of::<PyTuple>() {
            let tuple = value.cast::<PyTuple>()?;
            if tuple.len() != fields.len() {
                return Err(PyValueError::new_err(format!(
                    "returned a tuple of {} where {} is due",
                    tuple.len(),
                    self.data_type
                )));
            }
            for (index, (_, writer)) in fields.iter().enumerate() {
                writer.write(&tuple.get_item(index)?, &mut out.children[index])?;
            }
            return Ok(());
        }
        let mapping = value.cast::<PyMapping>().ok();
        for (index, (name, writer)) in fields.iter().enumerate() {
            let name = name.bind(py);
            let field = match mapping {
                Some(mapping) => mapping.get_item(name),
                None => value.getattr(name),
            };
            let lacks = || {
                refusal::<PyTypeError>(value, |shown| {
                    format!("returned {shown}, which lacks the field {name} of {}", self.data_type)
                })
            };
            let field = field.map_err(|error| instead(value, error, lacks))?;
            writer.write(&field, &mut out.children[index])?;
        }
        Ok(())
    }

    /// Adds the tag and the member of a pair, such as a `Tagged`, and NULLs for the other members.
    fn member(
        &self,
        value: &Bound<'_, PyAny>,
        members: &[(Py<PyString>, Writer)],
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        if let Some(parts) = self.parts(value) {
            return self.tag_and_members(parts, members, out);
        }
        let pair = value.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
        let Some(pair) = pair else {
            return Err(refusal::<PyTypeError>(value, |shown| {
                format!(
                    "returned {shown} where {} is due; return crosslane.Tagged(member, value)",
                    self.data_type
                )
            }));
        };
        let (tag, content) = (pair.get_item(0)?, pair.get_item(1)?);
        let known = self.tag(&tag, members)?;
        out.children[0].fixed(known as u8);
        for (at, (_, writer)) in members.iter().enumerate() {
            let child = &mut out.children[at + 1];
            if at == known { writer.write(&content, child)? } else { child.null() }
        }
        Ok(())
    }

    /// Adds the tag and all members, as Arrow has a UNION. The engine refuses more than one.
    fn tag_and_members(
        &self,
        parts: &Bound<'_, PyDict>,
        members: &[(Py<PyString>, Writer)],
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        let DataType::Union(fields) = &self.data_type else { return Err(self.mismatch(parts)) };
        let part = |name: &str| parts.get_item(name)?.ok_or_else(|| self.mismatch(parts));
        let known = self.tag(&part(&fields[0].name)?, members)?;
        out.children[0].fixed(known as u8);
        for (at, (_, writer)) in members.iter().enumerate() {
            writer.write(&part(&fields[at + 1].name)?, &mut out.children[at + 1])?;
        }
        Ok(())
    }

    /// Which member a tag is of.
    fn tag(&self, tag: &Bound<'_, PyAny>, members: &[(Py<PyString>, Writer)]) -> PyResult<usize> {
        let is_tag = |name: &Py<PyString>| tag.eq(name.bind(tag.py())).unwrap_or(false);
        members.iter().position(|(name, _)| is_tag(name)).ok_or_else(|| {
            refusal::<PyValueError>(tag, |shown| {
                format!("returned the tag {shown}, which no member of {} has", self.data_type)
            })
        })
    }

    /// Adds the entries of a mapping, or of an iterable of pairs, to the child.
    fn entries(
        &self,
        value: &Bound<'_, PyAny>,
        key: &Writer,
        entry: &Writer,
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        let pairs = match value.cast::<PyMapping>() {
            Ok(mapping) => mapping.items()?.into_any(),
            Err(_) => value.clone(),
        };
        let entries = &mut out.children[0];
        let mismatch = |error| instead(value, error, || self.mismatch(value));
        for pair in pairs.try_iter().map_err(mismatch)? {
            let (name, content): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract().map_err(mismatch)?;
            entries.reserve(1).map_err(overflow)?;
            key.write(&name, &mut entries.children[0])?;
            entry.write(&content, &mut entries.children[1])?;
            entries.nested().map_err(overflow)?;
        }
        Ok(())
    }
}

fn float_of(value: &Bound<'_, PyAny>) -> Option<f64> {
    Some(value.cast::<PyFloat>().ok()?.value())
}

/// Whether a value stands for NULL: None, and those of numpy and pandas, which are known by the names of their types,
/// so that nothing is imported for this.
#[pyfunction]
pub(crate) fn is_missing(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.is_none() {
        return Ok(true);
    }
    let plain = [
        &raw mut ffi::PyLong_Type,
        &raw mut ffi::PyFloat_Type,
        &raw mut ffi::PyBool_Type,
        &raw mut ffi::PyUnicode_Type,
        &raw mut ffi::PyList_Type,
        &raw mut ffi::PyDict_Type,
        &raw mut ffi::PyTuple_Type,
    ];
    if plain.contains(&value.get_type_ptr()) || moments::is_one(value) {
        return Ok(false);
    }
    Ok(match &*value.get_type().name()?.to_string_lossy() {
        "NAType" | "NaTType" | "MaskedConstant" => true,
        // NaT does not equal itself.
        "datetime64" | "timedelta64" => value.ne(value)?,
        _ => false,
    })
}

pub(crate) fn overflow(error: Overflow) -> PyErr {
    match error {
        Overflow::TooLarge => PyOverflowError::new_err(error.to_string()),
        Overflow::NoMemory => PyMemoryError::new_err(error.to_string()),
    }
}

/// The time, and the zone's seconds east of UTC, of a TIMETZ as Arrow has it.
fn zoned<'py>(parts: &Bound<'py, PyDict>) -> PyResult<(Bound<'py, PyTime>, i32)> {
    let time = parts.as_any().get_item(intern!(parts.py(), "time"))?.cast_into()?;
    Ok((time, parts.as_any().get_item(intern!(parts.py(), "offset"))?.extract()?))
}

/// What TimestampNs, TimeNs and pandas.Timestamp have beside microseconds.
fn nanosecond(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    match value.getattr(intern!(value.py(), "nanosecond")) {
        Ok(rest) => rest.extract(),
        Err(error) if is_exception(value.py(), &error) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Whether an error is about a value. What ends a program or a lane is no Exception, and must not be replaced.
fn is_exception(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyException>(py)
}

/// What is raised where Python raised `error` about a value.
fn instead(value: &Bound<'_, PyAny>, error: PyErr, own: impl FnOnce() -> PyErr) -> PyErr {
    if is_exception(value.py(), &error) { own() } else { error }
}

/// An error that shows a value: cut, and without trusting its `__repr__`.
fn refusal<E: PyTypeInfo>(value: &Bound<'_, PyAny>, message: impl FnOnce(&str) -> String) -> PyErr {
    let class = value.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
    let shown = match value.repr() {
        Ok(text) => {
            let text = text.to_string_lossy();
            let cut: String = text.chars().take(80).collect();
            let more = if cut.len() < text.len() { "..." } else { "" };
            format!("{class} {cut}{more}")
        }
        Err(error) if is_exception(value.py(), &error) => class,
        Err(error) => return error,
    };
    PyErr::new::<E, _>(message(&shown))
}

/// A plain decimal text times 10^scale, rounded half away from zero as SQL casts do.
fn parse_decimal(text: &str, scale: usize) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let kept = &fraction[..fraction.len().min(scale)];
    let all = format!("{whole}{kept}{}", "0".repeat(scale - kept.len()));
    let mut unscaled: i128 = all.parse().ok()?;
    if fraction.as_bytes().get(scale).is_some_and(|digit| *digit >= b'5') {
        unscaled = unscaled.checked_add(1)?;
    }
    Some(if negative { -unscaled } else { unscaled })
}
