//! Results: a Python object as a value of a column.

use crosslane::calendar;
use crosslane::{ColumnBuilder, DataType, code_width};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDate, PyDateAccess, PyDateTime, PyDelta, PyDeltaAccess, PyDict, PyFloat,
    PyInt, PyList, PyMapping, PyString, PyTime, PyTimeAccess, PyTuple, PyTzInfoAccess,
};
use pyo3::{ffi, intern};

const DAY: i64 = 86_400_000_000;

/// How Python objects become values of a column.
pub(crate) struct Writer {
    data_type: DataType,
    kind: Kind,
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
    },
    Text,
    Json {
        dumps: Py<PyAny>,
    },
    Blob,
    Date,
    Time,
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
}

impl Writer {
    /// `shape` is what [`crate::reader::Reader`] takes, of the result.
    pub(crate) fn new(
        py: Python<'_>,
        data_type: &DataType,
        shape: &Option<Bound<'_, PyTuple>>,
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
        let child = |child: &DataType, index: usize| Writer::new(py, child, &part(index)?).map(Box::new);
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
            T::Decimal { precision, scale } => {
                Kind::Decimal { precision: *precision, scale: *scale, class: import("decimal", "Decimal")? }
            }
            T::Varchar => Kind::Text,
            T::Json if shape.is_some() => Kind::Text,
            T::Json => Kind::Json { dumps: import("crosslane.types", "json_text")? },
            T::Blob => Kind::Blob,
            T::Date => Kind::Date,
            T::Time => Kind::Time,
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
                        Writer::new(py, &field.data_type, &shape)?,
                    ))
                });
                Kind::Struct(writers.collect::<PyResult<_>>()?)
            }
            T::Map(entry) => {
                let parts: Vec<&DataType> = entry.children().collect();
                let [key, value] = parts[..] else {
                    return Err(PyTypeError::new_err("a MAP without a value"));
                };
                Kind::Map(child(key, 1)?, child(value, 2)?)
            }
        };
        Ok(Self { data_type: data_type.clone(), kind })
    }

    /// Adds all values of a list. An error comes with the row that it is about.
    pub(crate) fn write_all(
        &self,
        list: &Bound<'_, PyList>,
        out: &mut ColumnBuilder,
    ) -> Result<(), (PyErr, usize)> {
        let mut done = 0;
        if let Kind::Integer { width: 8, least: ..0, .. } = self.kind {
            let numbers = leading_integers(list);
            out.fixed_all(&numbers);
            done = numbers.len();
        }
        for row in done..list.len() {
            list.get_item(row).and_then(|value| self.write(&value, out)).map_err(|error| (error, row))?;
        }
        Ok(())
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
            Kind::Text => match value.cast::<PyString>() {
                Ok(text) => out.bytes(text.to_str()?.as_bytes()).map_err(overflow),
                Err(_) => self.write_other(value, out),
            },
            _ => self.write_other(value, out),
        }
    }

    fn write_other(&self, value: &Bound<'_, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        if value.is_none() {
            out.null();
            return Ok(());
        }
        match &self.kind {
            Kind::Boolean => out.boolean(self.boolean(value)?),
            Kind::Integer { least, most, width } => {
                let number = self.index(value)?;
                let number: i128 = number.extract().map_err(|_| self.too_large(value))?;
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
            Kind::UHugeInt => {
                let number = self.index(value)?;
                out.fixed(number.extract::<u128>().map_err(|_| self.too_large(value))?);
            }
            Kind::Float => out.fixed(self.float(value)? as f32),
            Kind::Double => out.fixed(self.float(value)?),
            Kind::Decimal { precision, scale, class } => {
                out.fixed(self.decimal(value, *precision, *scale, class)?);
            }
            Kind::Text => return Err(self.mismatch(value)),
            Kind::Json { dumps } => {
                let text = dumps.bind(value.py()).call1((value,))?;
                out.bytes(text.cast::<PyString>()?.to_str()?.as_bytes()).map_err(overflow)?;
            }
            Kind::Blob => {
                if let Ok(bytes) = value.cast::<PyBytes>() {
                    out.bytes(bytes.as_bytes()).map_err(overflow)?;
                } else if let Ok(bytes) = value.cast::<PyByteArray>() {
                    out.bytes(&bytes.to_vec()).map_err(overflow)?;
                } else if value.get_type().name()? == "memoryview" {
                    let bytes = value.call_method0(intern!(value.py(), "tobytes"))?;
                    out.bytes(bytes.cast::<PyBytes>()?.as_bytes()).map_err(overflow)?;
                } else {
                    return Err(self.mismatch(value));
                }
            }
            Kind::Date => out.fixed(self.date(value)?),
            Kind::Time => {
                let time = value.cast::<PyTime>().map_err(|_| self.mismatch(value))?;
                if time.get_tzinfo().is_some() {
                    return Err(PyValueError::new_err("returned a time with a zone where TIME is due"));
                }
                out.fixed(micros(
                    time.get_hour(),
                    time.get_minute(),
                    time.get_second(),
                    time.get_microsecond(),
                ));
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
                if !value.is_instance(class.bind(value.py()))? {
                    return Err(self.mismatch(value));
                }
                let bytes = value.getattr(intern!(value.py(), "bytes"))?;
                let bytes: [u8; 16] = bytes.cast::<PyBytes>()?.as_bytes().try_into()?;
                out.fixed(bytes);
            }
            Kind::Enum { codes, width } => {
                let code = codes.bind(value.py()).get_item(value).ok().flatten();
                let Some(code) = code else {
                    return Err(PyValueError::new_err(format!(
                        "returned {}, which is none of {}",
                        repr(value),
                        self.data_type
                    )));
                };
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
            Kind::Map(key, entry) => {
                self.entries(value, key, entry, out)?;
                out.nested().map_err(overflow)?;
            }
        }
        Ok(())
    }

    fn mismatch(&self, value: &Bound<'_, PyAny>) -> PyErr {
        PyTypeError::new_err(format!("returned {} where {} is due", repr(value), self.data_type))
    }

    fn too_large(&self, value: &Bound<'_, PyAny>) -> PyErr {
        PyOverflowError::new_err(format!("returned {}, which does not fit {}", repr(value), self.data_type))
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
        // SAFETY: the function returns a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(value.py(), ffi::PyNumber_Index(value.as_ptr())) }
            .map_err(|_| self.mismatch(value))
    }

    fn float(&self, value: &Bound<'_, PyAny>) -> PyResult<f64> {
        if value.is_instance_of::<PyString>() {
            return Err(self.mismatch(value));
        }
        value.extract().map_err(|_| self.mismatch(value))
    }

    fn decimal(
        &self,
        value: &Bound<'_, PyAny>,
        precision: u8,
        scale: u8,
        class: &Py<PyAny>,
    ) -> PyResult<i128> {
        let py = value.py();
        let class = class.bind(py);
        let decimal = if value.is_instance(class)? {
            value.clone()
        } else if value.is_instance_of::<PyFloat>() {
            class.call1((value.repr()?,))?
        } else {
            class.call1((self.index(value)?,))?
        };
        let plain = decimal.call_method1(intern!(py, "__format__"), ("f",))?;
        let plain = plain.cast::<PyString>()?.to_str()?;
        let unscaled = parse_decimal(plain, usize::from(scale)).ok_or_else(|| self.too_large(value))?;
        if unscaled.unsigned_abs() >= 10u128.pow(u32::from(precision)) {
            return Err(self.too_large(value));
        }
        Ok(unscaled)
    }

    fn date(&self, value: &Bound<'_, PyAny>) -> PyResult<i32> {
        let date = value.cast::<PyDate>().map_err(|_| self.mismatch(value))?;
        if value.is_instance_of::<PyDateTime>() {
            return Err(PyTypeError::new_err(format!(
                "returned {} where DATE is due; return its .date()",
                repr(value)
            )));
        }
        Ok(calendar::days(date.get_year(), date.get_month(), date.get_day()) as i32)
    }

    fn timestamp(&self, value: &Bound<'_, PyAny>, unit: i64, nanos: bool, zoned: bool) -> PyResult<i64> {
        let py = value.py();
        let mut moment = value.cast::<PyDateTime>().map_err(|_| self.mismatch(value))?.clone();
        let aware = !moment.call_method0(intern!(py, "utcoffset"))?.is_none();
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
            moment = moment.call_method1(intern!(py, "astimezone"), (utc,))?.cast_into()?;
        }
        let days = calendar::days(moment.get_year(), moment.get_month(), moment.get_day());
        let time =
            micros(moment.get_hour(), moment.get_minute(), moment.get_second(), moment.get_microsecond());
        let micros = days * DAY + time;
        if !nanos {
            return Ok(micros.div_euclid(unit));
        }
        // TimestampNs and pandas.Timestamp have the rest.
        let rest: i64 = match value.getattr(intern!(py, "nanosecond")) {
            Ok(rest) => rest.extract()?,
            Err(_) => 0,
        };
        micros
            .checked_mul(1000)
            .and_then(|nanos| nanos.checked_add(rest))
            .ok_or_else(|| self.too_large(value))
    }

    fn interval(&self, value: &Bound<'_, PyAny>) -> PyResult<(i32, i32, i64)> {
        if let Ok(delta) = value.cast::<PyDelta>() {
            let seconds = i64::from(delta.get_seconds());
            return Ok((0, delta.get_days(), seconds * 1_000_000 + i64::from(delta.get_microseconds())));
        }
        let tuple = value.cast::<PyTuple>().map_err(|_| self.mismatch(value))?;
        tuple.extract().map_err(|_| self.too_large(value))
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
            list.iter().try_for_each(|item| element.write(&item, child))?;
        } else if let Ok(tuple) = value.cast::<PyTuple>() {
            tuple.iter().try_for_each(|item| element.write(&item, child))?;
        } else {
            let text = value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>();
            if text || value.is_instance_of::<PyDict>() {
                return Err(self.mismatch(value));
            }
            for item in value.try_iter().map_err(|_| self.mismatch(value))? {
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
            let field = field.map_err(|_| {
                PyTypeError::new_err(format!(
                    "returned {}, which lacks the field {name} of {}",
                    repr(value),
                    self.data_type
                ))
            })?;
            writer.write(&field, &mut out.children[index])?;
        }
        Ok(())
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
        for pair in pairs.try_iter().map_err(|_| self.mismatch(value))? {
            let (name, content): (Bound<'_, PyAny>, Bound<'_, PyAny>) =
                pair?.extract().map_err(|_| self.mismatch(value))?;
            if name.is_none() {
                return Err(PyValueError::new_err("returned a MAP with the key None; keys cannot be NULL"));
            }
            key.write(&name, &mut entries.children[0])?;
            entry.write(&content, &mut entries.children[1])?;
            entries.nested().map_err(overflow)?;
        }
        Ok(())
    }
}

/// The ints at the start of a list, up to the first value that is something else or does not fit.
fn leading_integers(list: &Bound<'_, PyList>) -> Vec<i64> {
    let mut numbers = Vec::with_capacity(list.len());
    for row in 0..list.len() {
        // SAFETY: the row exists, and nothing here runs Python code that could change the list.
        unsafe {
            let item = ffi::PyList_GET_ITEM(list.as_ptr(), row as ffi::Py_ssize_t);
            let mut overflow = 0;
            if ffi::PyLong_CheckExact(item) == 0 {
                break;
            }
            let number = ffi::PyLong_AsLongLongAndOverflow(item, &raw mut overflow);
            if overflow != 0 {
                break;
            }
            numbers.push(number);
        }
    }
    numbers
}

fn overflow(error: crosslane::builder::Overflow) -> PyErr {
    PyOverflowError::new_err(error.to_string())
}

fn micros(hour: u8, minute: u8, second: u8, microsecond: u32) -> i64 {
    let seconds = (i64::from(hour) * 60 + i64::from(minute)) * 60 + i64::from(second);
    seconds * 1_000_000 + i64::from(microsecond)
}

/// An object as text for a message: cut, and without trusting its `__repr__`.
fn repr(value: &Bound<'_, PyAny>) -> String {
    let class = value.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
    match value.repr() {
        Ok(text) => {
            let text = text.to_string_lossy();
            let cut: String = text.chars().take(80).collect();
            let more = if cut.len() < text.len() { "..." } else { "" };
            format!("{class} {cut}{more}")
        }
        Err(_) => class,
    }
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
