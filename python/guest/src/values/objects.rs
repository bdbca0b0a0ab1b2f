//! What Python's objects are in SQL: `docs/functions.md` has the table. What is the same in all languages is `crosslane-guest`.

use crate::values::datetime;
use crate::values::fast_path::{double_of, integer_of, text_of};
use crate::values::layout;
use crosslane::builder::Overflow;
use crosslane::{DataType, Field, calendar};
use crosslane_guest::{Class, Integer, Moment, Refusal, Taken, Values, decimal_text};
use pyo3::exceptions::{
    PyException, PyKeyError, PyMemoryError, PyOverflowError, PyTypeError, PyUnicodeEncodeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDate, PyDateTime, PyDelta, PyDict, PyFloat, PyInt, PyList, PyMapping,
    PyString, PyTime, PyTuple, PyTzInfo,
};
use pyo3::{IntoPyObjectExt, PyTypeInfo, ffi, intern};

/// How columns become objects, and objects columns.
pub(crate) type Reader<'py> = crosslane_guest::Reader<Vm<'py>>;
pub(crate) type Writer<'py> = crosslane_guest::Writer<Vm<'py>>;
/// What an annotation says of a type beside its name in SQL, as a tuple that mirrors the type:
/// `("struct", factory, [wishes], [whether a dict may lack the field])`, `("list", wish)`, `("map", wish, wish)`, `("enum", [members])`, `("timedelta",)`,
/// `("text",)`.
pub(crate) type Wish<'py> = Option<Bound<'py, PyTuple>>;
type Made<'py> = PyResult<Bound<'py, PyAny>>;
type Written = Result<(), crosslane_guest::Fault<PyErr>>;

/// The seconds of a day, and the nanoseconds of a second.
const DAY: i64 = 86_400;
const SECOND: i64 = 1_000_000_000;

/// Python, for who has its lock.
#[derive(Clone, Copy)]
pub(crate) struct Vm<'py> {
    py: Python<'py>,
    source: Source,
}

/// What the objects are results of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A row function.
    Row,
    /// A vectorized function: they may also look as they do in Arrow's columns, where that is different.
    Columns,
}

/// What a type needs beside itself.
#[derive(Debug)]
pub(crate) enum Shape {
    None,
    /// A JSON that stays text.
    Text,
    /// An INTERVAL that is a timedelta.
    Delta,
    /// A time or timestamp with nanoseconds.
    Nanoseconds,
    /// A timestamp with a zone.
    Zoned,
    /// A MAP whose keys are nested and so cannot be hashed.
    Pairs,
    /// The values of an ENUM, and the codes of those that are no text.
    Values {
        values: Vec<Py<PyAny>>,
        codes: Py<PyDict>,
    },
    /// The fields of a STRUCT, or the members of a UNION; what is made of them, if that is no dict; and which of the fields a dict may
    /// lack, if any: they are NULL then.
    Names {
        names: Vec<Py<PyString>>,
        factory: Option<Py<PyAny>>,
        may_lack: Vec<bool>,
    },
}

/// A reader of a parameter's column.
pub(crate) fn reader<'py>(py: Python<'py>, data_type: &DataType, wish: Wish<'py>) -> PyResult<Reader<'py>> {
    let vm = Vm::new(py);
    Reader::shaped(data_type, wish, &|data_type, wish| vm.prepare(data_type, wish))
}

/// A writer of a result's column.
pub(crate) fn writer<'py>(vm: Vm<'py>, data_type: &DataType, wish: Wish<'py>) -> PyResult<Writer<'py>> {
    Writer::shaped(data_type, wish, &|data_type, wish| vm.prepare(data_type, wish))
}

impl<'py> Vm<'py> {
    pub(crate) fn py(self) -> Python<'py> {
        self.py
    }

    /// For the arguments and results of row functions.
    #[inline(always)]
    pub(crate) fn new(py: Python<'py>) -> Self {
        Self { py, source: Source::Row }
    }

    /// For objects in the columns that vectorized functions return.
    pub(crate) fn of_columns(py: Python<'py>) -> Self {
        Self { py, source: Source::Columns }
    }

    /// The shape of a type, and what is wished of its parts.
    fn prepare(self, data_type: &DataType, wish: Wish<'py>) -> PyResult<(Shape, Vec<Wish<'py>>)> {
        use DataType as T;
        let py = self.py;
        let name: Option<String> = wish.as_ref().map(|wish| wish.get_item(0)?.extract()).transpose()?;
        let part = |index: usize| -> PyResult<Wish<'py>> {
            wish.as_ref().map_or(Ok(None), |wish| Ok(wish.get_item(index)?.extract()?))
        };
        let names = |fields: &[Field]| {
            fields.iter().map(|field| PyString::intern(py, &field.name).unbind()).collect()
        };
        let mut parts = Vec::new();
        let shape = match data_type {
            T::Json if name.as_deref() == Some("text") => Shape::Text,
            T::Interval if name.as_deref() == Some("timedelta") => Shape::Delta,
            T::TimeNs | T::TimestampNs => Shape::Nanoseconds,
            T::TimestampTz => Shape::Zoned,
            T::Enum(values) => {
                let codes = PyDict::new(py);
                let values = match &wish {
                    Some(wish) => {
                        let members: Vec<Py<PyAny>> = wish.get_item(1)?.extract()?;
                        for (code, member) in members.iter().enumerate() {
                            codes.set_item(member, code)?;
                        }
                        members
                    }
                    None => values.iter().map(|value| value.into_py_any(py)).collect::<PyResult<_>>()?,
                };
                Shape::Values { values, codes: codes.unbind() }
            }
            T::List(_) | T::Array(..) => {
                parts.push(part(1)?);
                Shape::None
            }
            T::Struct(fields) => {
                let (factory, may_lack) = match &wish {
                    Some(wish) => {
                        parts = wish.get_item(2)?.extract()?;
                        (wish.get_item(1)?.extract()?, wish.get_item(3)?.extract()?)
                    }
                    None => (None, Vec::new()),
                };
                Shape::Names { names: names(fields), factory, may_lack }
            }
            T::Union(fields) => {
                Shape::Names { names: names(&fields[1..]), factory: None, may_lack: Vec::new() }
            }
            T::Map(entry) => {
                parts.extend([part(1)?, part(2)?]);
                let nested = entry.children().next().is_some_and(|key| key.children().len() > 0);
                if nested { Shape::Pairs } else { Shape::None }
            }
            T::Any => return Err(PyTypeError::new_err("a column has a type, and ANY is none")),
            _ => Shape::None,
        };
        Ok((shape, parts))
    }

    #[cold]
    fn refused(self, class: Class, message: &str) -> Refusal<PyErr> {
        Refusal::Failed(self.error(class, message))
    }

    /// What is refused where Python raised an error. What ends a program or a lane is no Exception, and stays.
    #[cold]
    fn instead(self, error: PyErr, refusal: Refusal<PyErr>) -> Refusal<PyErr> {
        if error.is_instance_of::<PyException>(self.py) { refusal } else { Refusal::Failed(error) }
    }

    /// The value as a mapping, if it is one. PyO3's own cast would swallow what ends a lane.
    fn mapping<'a>(self, value: &'a Bound<'py, PyAny>) -> Taken<Option<&'a Bound<'py, PyMapping>>, Self> {
        let is_mapping = value.is_instance_of::<PyDict>()
            || match value.is_instance(&PyMapping::type_object(self.py)) {
                Ok(is_mapping) => is_mapping,
                Err(error) => match self.instead(error, Refusal::Mismatch) {
                    Refusal::Mismatch => false,
                    failed => return Err(failed),
                },
            };
        // SAFETY: the object was asked for this; the type has no layout of its own.
        Ok(is_mapping.then(|| unsafe { value.cast_unchecked() }))
    }

    /// The value as an int: ints, bools, and numpy's integers, but no float.
    fn index(self, value: &Bound<'py, PyAny>) -> Taken<Bound<'py, PyInt>, Self> {
        // SAFETY: the function returns a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(self.py, ffi::PyNumber_Index(value.as_ptr())) }
            .map_err(|error| self.instead(error, Refusal::Mismatch))?
            .cast_into()
            .map_err(|_| Refusal::Mismatch)
    }

    /// As [`Vm::index`], for types that Arrow has as decimals.
    fn wide_index(self, value: &Bound<'py, PyAny>) -> Taken<Bound<'py, PyInt>, Self> {
        if self.source == Source::Row || !is_named(value, "Decimal") {
            return self.index(value);
        }
        let whole = value.call_method0(intern!(self.py, "__int__"));
        let whole = whole.map_err(|error| self.instead(error, Refusal::Mismatch))?;
        if !whole.eq(value).map_err(Refusal::Failed)? {
            return Err(Refusal::Mismatch);
        }
        whole.cast_into().map_err(|_| Refusal::Mismatch)
    }

    /// The number of an int, if it has up to 128 bits. The limited API takes more than 64 bits in parts, which few have.
    fn number(self, int: &Bound<'py, PyInt>) -> Taken<Integer, Self> {
        if let Some(number) = self.quick_integer(int) {
            return Ok(i128::from(number).into());
        }
        if let Ok(number) = int.extract::<i128>() {
            return Ok(number.into());
        }
        let number = int.extract::<u128>();
        number.map(Integer::from).map_err(|error| self.instead(error, Refusal::TooLarge))
    }

    /// A dict that is a value of a type which is a struct in Arrow only.
    fn parts<'a>(self, value: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyDict>> {
        value.cast().ok().filter(|_| self.source == Source::Columns)
    }

    /// The nanoseconds of a value of one of numpy's types for times.
    fn numpy(self, value: &Bound<'py, PyAny>, class: &str) -> Taken<i128, Self> {
        if !is_named(value, class) {
            return Err(Refusal::Mismatch);
        }
        static INSTANT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let instant = INSTANT.import(self.py, "crosslane.types", "instant_of").map_err(Refusal::Failed)?;
        // A month is no number of seconds, for example.
        let parts = instant.call1((value,)).and_then(|parts| parts.extract());
        let (seconds, nanoseconds): (i64, i64) =
            parts.map_err(|error| self.instead(error, Refusal::Mismatch))?;
        Ok(i128::from(seconds) * i128::from(SECOND) + i128::from(nanoseconds))
    }

    #[inline]
    fn date(self, value: &Bound<'py, PyAny>) -> Taken<Moment, Self> {
        if let Ok(date) = value.cast::<PyDate>() {
            if value.is_instance_of::<PyDateTime>() {
                return Err(Refusal::Type(" where DATE is due; return its .date()".into()));
            }
            return datetime::days(date).map(Moment::Date).map_err(Refusal::Failed);
        }
        if let Ok(number) = value.cast::<PyFloat>() {
            return Ok(Moment::Infinite(number.value()));
        }
        let nanoseconds = self.numpy(value, "datetime64")?;
        let day = i128::from(DAY * SECOND);
        if nanoseconds.rem_euclid(day) != 0 {
            return Err(Refusal::Mismatch);
        }
        i64::try_from(nanoseconds / day).map(Moment::Date).map_err(|_| Refusal::TooLarge)
    }

    #[inline]
    fn time(self, value: &Bound<'py, PyAny>, data_type: &DataType) -> Taken<Moment, Self> {
        let failed = Refusal::Failed;
        let zoned = *data_type == DataType::TimeTz;
        if zoned && let Some(parts) = self.parts(value) {
            let (time, offset) =
                time_and_offset(parts).map_err(|error| self.instead(error, Refusal::Mismatch))?;
            let (micros, _) = datetime::time_parts(&time).map_err(failed)?;
            return Ok(Moment::Time { nanoseconds: micros * 1000, offset: Some(offset) });
        }
        let time = value.cast::<PyTime>().map_err(|_| Refusal::Mismatch)?;
        let (micros, has_zone) = datetime::time_parts(time).map_err(failed)?;
        if !zoned {
            if has_zone {
                let advice = "declare TIMETZ, or return it without a zone";
                let what = format!("returned a time with a zone where {data_type} is due; {advice}");
                return Err(self.refused(Class::Value, &what));
            }
            let rest = if *data_type == DataType::TimeNs { self.nanosecond(value)? } else { 0 };
            return Ok(Moment::Time { nanoseconds: (micros * 1000).saturating_add(rest), offset: None });
        }
        let offset = value.call_method0(intern!(self.py, "utcoffset")).map_err(failed)?;
        let Ok(offset) = offset.cast::<PyDelta>() else {
            let advice = "return it with one, such as datetime.timezone.utc";
            let what = format!("returned a time without a zone where {data_type} is due; {advice}");
            return Err(self.refused(Class::Value, &what));
        };
        let (days, seconds, rest) = datetime::delta(offset).map_err(failed)?;
        if rest != 0 {
            return Err(Refusal::TooLarge);
        }
        Ok(Moment::Time { nanoseconds: micros * 1000, offset: Some(days * DAY as i32 + seconds) })
    }

    #[inline]
    fn timestamp(self, value: &Bound<'py, PyAny>, data_type: &DataType) -> Taken<Moment, Self> {
        let zoned = *data_type == DataType::TimestampTz;
        let Ok(moment) = value.cast::<PyDateTime>() else {
            if let Ok(number) = value.cast::<PyFloat>() {
                return Ok(Moment::Infinite(number.value()));
            }
            // numpy knows no zones: in a column, its moments are those of UTC.
            if zoned && self.source == Source::Row {
                return Err(Refusal::Mismatch);
            }
            return instant(self.numpy(value, "datetime64")?);
        };
        let failed = Refusal::Failed;
        let mut parts = datetime::datetime_parts(moment).map_err(failed)?;
        let utcoffset = || moment.call_method0(intern!(self.py, "utcoffset"));
        let aware = parts.2 && !utcoffset().map_err(failed)?.is_none();
        if aware != zoned {
            let (has, advice) = if aware {
                ("with a zone", "declare TIMESTAMPTZ, or return it without a zone")
            } else {
                ("without a zone", "return it with one, such as datetime.timezone.utc")
            };
            let what = format!("returned a datetime {has} where {data_type} is due; {advice}");
            return Err(self.refused(Class::Value, &what));
        }
        if zoned {
            let utc = PyTzInfo::utc(self.py).map_err(failed)?;
            let moment = moment.call_method1(intern!(self.py, "astimezone"), (utc,)).map_err(failed)?;
            let moment = moment.cast().map_err(|error| failed(error.into()))?;
            parts = datetime::datetime_parts(moment).map_err(failed)?;
        }
        let ((year, month, day), micros, _) = parts;
        let (days, seconds) = (calendar::days(year, month, day), micros / 1_000_000);
        if *data_type == DataType::TimestampNs {
            let whole = i128::from(days * DAY) * i128::from(SECOND) + i128::from(micros * 1000);
            return instant(whole + i128::from(self.nanosecond(value)?));
        }
        let nanoseconds = (micros % 1_000_000 * 1000) as u32;
        Ok(Moment::Timestamp { seconds: days * DAY + seconds, nanoseconds })
    }

    #[inline]
    fn interval(self, value: &Bound<'py, PyAny>) -> Taken<Moment, Self> {
        if let Ok(delta) = value.cast::<PyDelta>() {
            let (days, seconds, micros) = datetime::delta(delta).map_err(Refusal::Failed)?;
            let microseconds = i64::from(seconds) * 1_000_000 + i64::from(micros);
            return Ok(Moment::Interval { months: 0, days: days.into(), microseconds });
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let (months, days, rest): (i64, i64, i64) =
                tuple.extract().map_err(|error| self.instead(error, Refusal::TooLarge))?;
            // pyarrow's own counts nanoseconds.
            let nanoseconds = is_named(value, "MonthDayNano");
            let microseconds = if nanoseconds { rest.div_euclid(1000) } else { rest };
            return Ok(Moment::Interval { months, days, microseconds });
        }
        let (micros, day) = (self.numpy(value, "timedelta64")?.div_euclid(1000), i128::from(DAY * 1_000_000));
        let days = micros.div_euclid(day).try_into().map_err(|_| Refusal::TooLarge)?;
        Ok(Moment::Interval { months: 0, days, microseconds: micros.rem_euclid(day) as i64 })
    }

    /// What TimestampNs, TimeNs and pandas.Timestamp have beside microseconds.
    fn nanosecond(self, value: &Bound<'py, PyAny>) -> Taken<i64, Self> {
        match value.getattr(intern!(self.py, "nanosecond")) {
            Ok(rest) => rest.extract().map_err(Refusal::Failed),
            Err(error) => match self.instead(error, Refusal::Mismatch) {
                Refusal::Mismatch => Ok(0),
                failed => Err(failed),
            },
        }
    }

    /// Which member of a UNION a tag is of.
    fn tag(self, names: &[Py<PyString>], fields: &[Field], tag: &Bound<'py, PyAny>) -> Taken<usize, Self> {
        for (known, name) in names.iter().enumerate() {
            match tag.eq(name.bind(self.py)).map_err(|error| self.instead(error, Refusal::Mismatch)) {
                Ok(true) => return Ok(known),
                Ok(false) | Err(Refusal::Mismatch) => {}
                Err(failed) => return Err(failed),
            }
        }
        let (shown, due) = (self.shown(tag).map_err(Refusal::Failed)?, DataType::Union(fields.into()));
        Err(self.refused(Class::Value, &format!("returned the tag {shown}, which no member of {due} has")))
    }

    /// The one member of a UNION as Arrow has it: a dict of the tag and all members.
    fn member_of(
        self,
        names: &[Py<PyString>],
        fields: &[Field],
        parts: &Bound<'py, PyDict>,
    ) -> Taken<(usize, Bound<'py, PyAny>), Self> {
        let part =
            |field: &Field| parts.get_item(&field.name).map_err(Refusal::Failed)?.ok_or(Refusal::Mismatch);
        let known = self.tag(names, fields, &part(&fields[0])?)?;
        let member = part(&fields[known + 1])?;
        for (at, field) in fields[1..].iter().enumerate() {
            let other = part(field)?;
            if at != known && !self.is_null(&other) {
                let text = member.repr().map_err(Refusal::Failed)?;
                let name = &fields[known + 1].name;
                return Err(Refusal::Other(format!(", a UNION that has more than {name} := {text}")));
            }
        }
        Ok((known, member))
    }
}

impl<'py> Values for Vm<'py> {
    type Value = Bound<'py, PyAny>;
    type Error = PyErr;
    type Shape = Shape;

    fn shape(&self, data_type: &DataType) -> PyResult<Shape> {
        self.prepare(data_type, None).map(|(shape, _)| shape)
    }

    fn error(&self, class: Class, message: &str) -> PyErr {
        let message = message.to_owned();
        match class {
            Class::Type => PyTypeError::new_err(message),
            Class::Range => PyOverflowError::new_err(message),
            Class::Value => PyValueError::new_err(message),
            Class::NoMemory => PyMemoryError::new_err(message),
        }
    }

    /// Cut, and without trusting its `__repr__`.
    fn shown(&self, value: &Bound<'py, PyAny>) -> PyResult<String> {
        let class = value.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
        match value.repr() {
            Ok(text) => {
                let text = text.to_string_lossy();
                let cut: String = text.chars().take(80).collect();
                let more = if cut.len() < text.len() { "..." } else { "" };
                Ok(format!("{class} {cut}{more}"))
            }
            Err(error) if error.is_instance_of::<PyException>(self.py) => Ok(class),
            Err(error) => Err(error),
        }
    }

    #[inline]
    fn null(&self) -> Bound<'py, PyAny> {
        self.py.None().into_bound(self.py)
    }

    fn boolean(&self, value: bool) -> Made<'py> {
        Ok(PyBool::new(self.py, value).to_owned().into_any())
    }

    #[inline]
    fn integer(&self, value: i64) -> Made<'py> {
        // SAFETY: the function returns a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(self.py, ffi::PyLong_FromLongLong(value)) }
    }

    /// The limited API puts more than 64 bits together from parts.
    fn wide(&self, value: Integer) -> Made<'py> {
        if let Some(small) = value.narrow::<i64>() {
            return self.integer(small);
        }
        match (u64::try_from(value.magnitude), value.narrow::<i128>()) {
            (Ok(number), _) if !value.negative => number.into_bound_py_any(self.py),
            (_, Some(number)) => number.into_bound_py_any(self.py),
            (_, None) => value.magnitude.into_bound_py_any(self.py),
        }
    }

    fn big(&self, bytes: &[u8]) -> Made<'py> {
        let named = PyDict::new(self.py);
        named.set_item(intern!(self.py, "signed"), true)?;
        let bytes = PyBytes::new(self.py, bytes);
        self.py.get_type::<PyInt>().call_method(
            intern!(self.py, "from_bytes"),
            (bytes, "little"),
            Some(&named),
        )
    }

    #[inline]
    fn float(&self, value: f64) -> Made<'py> {
        // SAFETY: as in `integer`.
        unsafe { Bound::from_owned_ptr_or_err(self.py, ffi::PyFloat_FromDouble(value)) }
    }

    fn decimal(&self, unscaled: i128, scale: u8) -> Made<'py> {
        let mut place = [0; 48];
        datetime::call(
            decimal_class(self.py)?,
            &self.text(decimal_text(unscaled, scale, &mut place), Some(true))?,
        )
    }

    #[inline]
    fn text(&self, utf8: &[u8], ascii: Option<bool>) -> Made<'py> {
        let (start, length) = (utf8.as_ptr().cast(), utf8.len() as ffi::Py_ssize_t);
        // SAFETY: as in `integer`; the pointer and the length are those of a slice. ASCII is Latin 1 too, whose decoder has
        // less to do than that of UTF-8; bytes that are not UTF-8 raise an exception.
        unsafe {
            let text = match ascii {
                Some(true) => ffi::PyUnicode_DecodeLatin1(start, length, std::ptr::null()),
                _ => ffi::PyUnicode_FromStringAndSize(start, length),
            };
            Bound::from_owned_ptr_or_err(self.py, text)
        }
    }

    fn json(&self, shape: &Shape, utf8: &[u8]) -> Made<'py> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        match shape {
            Shape::Text => self.text(utf8, None),
            _ => LOADS.import(self.py, "json", "loads")?.call1((PyBytes::new(self.py, utf8),)),
        }
    }

    fn bytes(&self, bytes: &[u8]) -> Made<'py> {
        Ok(PyBytes::new(self.py, bytes).into_any())
    }

    fn uuid(&self, bytes: [u8; 16]) -> Made<'py> {
        uuid_class(self.py)?.call1((self.py.None(), PyBytes::new(self.py, &bytes)))
    }

    fn moment(&self, shape: &Shape, moment: Moment) -> Made<'py> {
        static TIME_NS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static TIMESTAMP_NS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static INTERVAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static TIMEDELTA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = self.py;
        let nanosecond = |nanoseconds: i64| {
            let named = PyDict::new(py);
            named.set_item(intern!(py, "nanosecond"), nanoseconds % 1000).map(|()| named)
        };
        match moment {
            Moment::Date(days) => {
                day(days, "DATE")?;
                datetime::date(py, days)
            }
            Moment::Time { nanoseconds, .. } if nanoseconds >= DAY * SECOND => {
                Err(PyOverflowError::new_err("24:00:00 has no datetime.time"))
            }
            Moment::Time { nanoseconds, offset } => {
                let clock = clock(nanoseconds / SECOND, nanoseconds % SECOND);
                if let Shape::Nanoseconds = shape {
                    let class = TIME_NS.import(py, "crosslane.types", "TimeNs")?;
                    return class.call(clock, Some(&nanosecond(nanoseconds)?));
                }
                let zone = |offset: i32| PyTzInfo::fixed_offset(py, PyDelta::new(py, 0, offset, 0, true)?);
                datetime::time(py, clock, offset.map(zone).transpose()?.as_ref())
            }
            Moment::Timestamp { seconds, nanoseconds } => {
                let date = day(seconds.div_euclid(DAY), "TIMESTAMP")?;
                let clock = clock(seconds.rem_euclid(DAY), nanoseconds.into());
                match shape {
                    Shape::Nanoseconds => {
                        let class = TIMESTAMP_NS.import(py, "crosslane.types", "TimestampNs")?;
                        let ((year, month, day), (hour, minute, second, micro)) = (date, clock);
                        let parts = (year, month, day, hour, minute, second, micro);
                        class.call(parts, Some(&nanosecond(nanoseconds.into())?))
                    }
                    Shape::Zoned => datetime::datetime(py, date, clock, Some(&*PyTzInfo::utc(py)?)),
                    _ => datetime::datetime(py, date, clock, None),
                }
            }
            Moment::Interval { months, days, microseconds } => match shape {
                // A month counts 30 days, as in DuckDB's comparison of intervals.
                Shape::Delta => TIMEDELTA.import(py, "datetime", "timedelta")?.call1((
                    months * 30 + days,
                    0,
                    microseconds,
                )),
                _ => INTERVAL.import(py, "crosslane.types", "Interval")?.call1((months, days, microseconds)),
            },
            Moment::Infinite(number) => self.float(number),
        }
    }

    fn code(&self, shape: &Shape, code: usize) -> Made<'py> {
        let Shape::Values { values, .. } = shape else { return Ok(self.null()) };
        Ok(values.get(code).map_or_else(|| self.null(), |value| value.bind(self.py).clone()))
    }

    fn list(&self, count: usize, mut element: impl FnMut(usize) -> Made<'py>) -> Made<'py> {
        let list = PyList::empty(self.py);
        for at in 0..count {
            list.append(element(at)?)?;
        }
        Ok(list.into_any())
    }

    fn structure(&self, shape: &Shape, _: usize, mut field: impl FnMut(usize) -> Made<'py>) -> Made<'py> {
        let values = PyDict::new(self.py);
        let Shape::Names { names, factory, .. } = shape else { return Ok(values.into_any()) };
        for (at, name) in names.iter().enumerate() {
            values.set_item(name.bind(self.py), field(at)?)?;
        }
        match factory {
            Some(factory) => factory.bind(self.py).call((), Some(&values)),
            None => Ok(values.into_any()),
        }
    }

    fn member(&self, shape: &Shape, member: usize, value: Bound<'py, PyAny>) -> Made<'py> {
        static TAGGED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Shape::Names { names, .. } = shape else { return Ok(self.null()) };
        TAGGED.import(self.py, "crosslane.types", "Tagged")?.call1((names[member].bind(self.py), value))
    }

    fn map(
        &self,
        shape: &Shape,
        count: usize,
        mut entry: impl FnMut(usize) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    ) -> Made<'py> {
        if let Shape::Pairs = shape {
            return self.list(count, |at| entry(at)?.into_bound_py_any(self.py));
        }
        let dict = PyDict::new(self.py);
        for at in 0..count {
            let (key, value) = entry(at)?;
            dict.set_item(key, value)?;
        }
        Ok(dict.into_any())
    }

    #[inline]
    fn is_null(&self, value: &Bound<'py, PyAny>) -> bool {
        // SAFETY: the object lives.
        let text = unsafe { ffi::PyUnicode_CheckExact(value.as_ptr()) != 0 };
        !text && is_missing(value)
    }

    fn to_boolean(&self, value: &Bound<'py, PyAny>) -> Taken<bool, Self> {
        if let Ok(boolean) = value.cast::<PyBool>() {
            return Ok(boolean.is_true());
        }
        // numpy's own booleans are no bool.
        let class = value.get_type().name().map_err(Refusal::Failed)?;
        if !class.to_string_lossy().starts_with("bool") {
            return Err(Refusal::Mismatch);
        }
        value.is_truthy().map_err(Refusal::Failed)
    }

    #[inline]
    fn quick_integer(&self, value: &Bound<'py, PyAny>) -> Option<i64> {
        // SAFETY: the object lives, and the token says that the interpreter's lock is held.
        unsafe { integer_of(layout::known(), value.as_ptr()) }
    }

    #[inline]
    fn quick_float(&self, value: &Bound<'py, PyAny>) -> Option<f64> {
        // SAFETY: as above.
        unsafe { double_of(layout::known(), value.as_ptr()) }
    }

    fn to_integer(&self, value: &Bound<'py, PyAny>) -> Taken<Integer, Self> {
        self.number(&self.index(value)?)
    }

    fn to_wide(&self, value: &Bound<'py, PyAny>) -> Taken<Integer, Self> {
        self.number(&self.wide_index(value)?)
    }

    fn with_big<R>(&self, value: &Bound<'py, PyAny>, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        let number = self.wide_index(value)?;
        let bytes = || -> PyResult<Bound<'py, PyAny>> {
            let bits: usize = number.call_method0(intern!(self.py, "bit_length"))?.extract()?;
            let named = PyDict::new(self.py);
            named.set_item(intern!(self.py, "signed"), true)?;
            number.call_method(intern!(self.py, "to_bytes"), (bits / 8 + 1, "little"), Some(&named))
        };
        let bytes = bytes().map_err(Refusal::Failed)?;
        Ok(take(bytes.cast::<PyBytes>().map_err(|_| Refusal::Mismatch)?.as_bytes()))
    }

    fn to_float(&self, value: &Bound<'py, PyAny>) -> Taken<f64, Self> {
        if value.is_instance_of::<PyString>() {
            return Err(Refusal::Mismatch);
        }
        value.extract().map_err(|error| self.instead(error, Refusal::Mismatch))
    }

    fn with_decimal<R>(&self, value: &Bound<'py, PyAny>, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        static DECIMAL_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let failed = Refusal::Failed;
        let class = decimal_class(self.py).map_err(failed)?;
        let text = if value.get_type().is(class) {
            value.str()
        } else if value.is_instance(class).map_err(failed)? {
            // A subclass may have another text of its own.
            let text = class.call_method1(intern!(self.py, "__str__"), (value,)).map_err(failed)?;
            text.cast_into().map_err(PyErr::from)
        } else {
            let convert = DECIMAL_OF.import(self.py, "crosslane.types", "decimal_of").map_err(failed)?;
            let decimal = convert.call1((value,));
            decimal.map_err(|error| self.instead(error, Refusal::Mismatch))?.str()
        };
        Ok(take(text.map_err(failed)?.to_str().map_err(failed)?.as_bytes()))
    }

    #[inline]
    fn with_text<R>(&self, value: &Bound<'py, PyAny>, take: impl FnOnce(&[u8], bool) -> R) -> Taken<R, Self> {
        // SAFETY: as above; the object lives until the text was taken.
        if let Some(text) = unsafe { text_of(layout::known(), value.as_ptr()) } {
            return Ok(take(text, true));
        }
        let text = value.cast::<PyString>().map_err(|_| Refusal::Mismatch)?;
        match text.to_str() {
            Ok(text) => Ok(take(text.as_bytes(), true)),
            Err(error) if error.is_instance_of::<PyUnicodeEncodeError>(self.py) => Err(Refusal::Due(
                ", which has half a surrogate pair,",
                "replace it, or declare BLOB for bytes",
            )),
            Err(error) => Err(Refusal::Failed(error)),
        }
    }

    fn with_json<R>(
        &self,
        shape: &Shape,
        value: &Bound<'py, PyAny>,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Taken<R, Self> {
        static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        if self.source == Source::Columns || matches!(shape, Shape::Text) {
            return self.with_text(value, |text, _| take(text));
        }
        let dumps = DUMPS.import(self.py, "crosslane.types", "json_text").map_err(Refusal::Failed)?;
        let json = dumps.call1((value,)).map_err(Refusal::Failed)?;
        let taken = self.with_text(&json, |text, _| take(text));
        // The text has what is wrong, and shows it.
        taken.map_err(|refusal| {
            let fault = refusal.told(|| self.shown(&json), &DataType::Json);
            Refusal::Failed(fault.into_error(self))
        })
    }

    fn with_bytes<R>(&self, value: &Bound<'py, PyAny>, take: impl FnOnce(&[u8]) -> R) -> Taken<R, Self> {
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(take(bytes.as_bytes()));
        }
        if let Ok(bytes) = value.cast::<PyByteArray>() {
            // SAFETY: the bytes are copied before anything runs Python code, which could change them.
            return Ok(take(unsafe { bytes.as_bytes() }));
        }
        if !is_named(value, "memoryview") {
            return Err(Refusal::Mismatch);
        }
        let bytes = value.call_method0(intern!(self.py, "tobytes")).map_err(Refusal::Failed)?;
        Ok(take(bytes.cast::<PyBytes>().map_err(|_| Refusal::Mismatch)?.as_bytes()))
    }

    fn to_uuid(&self, value: &Bound<'py, PyAny>) -> Taken<[u8; 16], Self> {
        let failed = Refusal::Failed;
        let bytes = if value.is_instance(uuid_class(self.py).map_err(failed)?).map_err(failed)? {
            value.getattr(intern!(self.py, "bytes")).map_err(failed)?
        } else if self.source == Source::Columns {
            value.clone()
        } else {
            return Err(Refusal::Mismatch);
        };
        let bytes = bytes.cast::<PyBytes>().map_err(|_| Refusal::Mismatch)?;
        bytes.as_bytes().try_into().map_err(|_| Refusal::Mismatch)
    }

    /// Of a text, or of an Enum's member.
    fn to_code(
        &self,
        shape: &Shape,
        value: &Bound<'py, PyAny>,
        known: impl Fn(&[u8]) -> Option<usize>,
    ) -> Taken<Option<usize>, Self> {
        let text = value.cast::<PyString>().ok().and_then(|text| known(text.to_str().ok()?.as_bytes()));
        let Shape::Values { codes, .. } = shape else { return Ok(text) };
        if text.is_some() {
            return Ok(text);
        }
        match codes.bind(self.py).get_item(value) {
            Ok(code) => code.map(|code| code.extract()).transpose().map_err(Refusal::Failed),
            // It cannot be hashed.
            Err(error) => match self.instead(error, Refusal::Mismatch) {
                Refusal::Mismatch => Ok(None),
                failed => Err(failed),
            },
        }
    }

    #[inline]
    fn to_moment(&self, value: &Bound<'py, PyAny>, data_type: &DataType) -> Taken<Moment, Self> {
        match data_type {
            DataType::Time | DataType::TimeNs | DataType::TimeTz => self.time(value, data_type),
            DataType::Interval => self.interval(value),
            DataType::Date => self.date(value),
            _ => self.timestamp(value, data_type),
        }
    }

    /// Of a list, a tuple or another iterable, but of no text or dict.
    fn with_elements(
        &self,
        value: &Bound<'py, PyAny>,
        mut element: impl FnMut(usize, &Bound<'py, PyAny>) -> Written,
    ) -> Taken<Written, Self> {
        if let Ok(list) = value.cast::<PyList>() {
            let count = list.len();
            return Ok(list.iter().try_for_each(|item| element(count, &item)));
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let count = tuple.len();
            return Ok(tuple.iter().try_for_each(|item| element(count, &item)));
        }
        let text = value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>();
        if text || value.is_instance_of::<PyDict>() {
            return Err(Refusal::Mismatch);
        }
        let items = value.try_iter().map_err(|error| self.instead(error, Refusal::Mismatch))?;
        for (before, item) in items.enumerate() {
            if let Err(fault) = element(before + 1, &item.map_err(Refusal::Failed)?) {
                return Ok(Err(fault));
            }
        }
        Ok(Ok(()))
    }

    /// From a mapping's keys, a plain tuple's places, or an object's attributes.
    fn with_fields(
        &self,
        shape: &Shape,
        fields: &[Field],
        value: &Bound<'py, PyAny>,
        mut field: impl FnMut(usize, &Bound<'py, PyAny>) -> Written,
    ) -> Taken<Written, Self> {
        let Shape::Names { names, may_lack, .. } = shape else { return Err(Refusal::Mismatch) };
        let due = || DataType::Struct(fields.into());
        if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            if tuple.len() != names.len() {
                let what = format!("returned a tuple of {} where {} is due", tuple.len(), due());
                return Err(self.refused(Class::Value, &what));
            }
            return Ok(tuple.iter().enumerate().try_for_each(|(at, item)| field(at, &item)));
        }
        let mapping = self.mapping(value)?;
        for (at, name) in names.iter().enumerate() {
            let name = name.bind(self.py);
            let found = match mapping {
                Some(mapping) => match mapping.get_item(name) {
                    Err(error)
                        if may_lack.get(at) == Some(&true) && error.is_instance_of::<PyKeyError>(self.py) =>
                    {
                        Ok(self.py.None().into_bound(self.py))
                    }
                    found => found,
                },
                None => value.getattr(name),
            };
            let found = found.map_err(|error| {
                let lacks = format!(", which lacks the field {name} of {}", due());
                self.instead(error, Refusal::Type(lacks))
            })?;
            if let Err(fault) = field(at, &found) {
                return Ok(Err(fault));
            }
        }
        Ok(Ok(()))
    }

    /// Of a pair, such as a `Tagged`.
    fn with_member(
        &self,
        shape: &Shape,
        fields: &[Field],
        value: &Bound<'py, PyAny>,
        member: impl FnOnce(&[u8], &Bound<'py, PyAny>) -> Written,
    ) -> Taken<Written, Self> {
        let Shape::Names { names, .. } = shape else { return Err(Refusal::Mismatch) };
        let (known, content) = match (self.parts(value), value.cast::<PyTuple>()) {
            (Some(parts), _) => self.member_of(names, fields, parts)?,
            (None, Ok(pair)) if pair.len() == 2 => {
                let part = |index| pair.get_item(index).map_err(Refusal::Failed);
                (self.tag(names, fields, &part(0)?)?, part(1)?)
            }
            _ => {
                let due = DataType::Union(fields.into());
                let advice = "return crosslane.Tagged(member, value)";
                return Err(Refusal::Type(format!(" where {due} is due; {advice}")));
            }
        };
        Ok(member(fields[known + 1].name.as_bytes(), &content))
    }

    /// Of a mapping, or of an iterable of pairs.
    fn with_entries(
        &self,
        value: &Bound<'py, PyAny>,
        mut entry: impl FnMut(usize, &Bound<'py, PyAny>, &Bound<'py, PyAny>) -> Written,
    ) -> Taken<Written, Self> {
        let pairs = match self.mapping(value)? {
            Some(mapping) => mapping.items().map_err(Refusal::Failed)?.into_any(),
            None => value.clone(),
        };
        let count = pairs.cast::<PyList>().map_or(0, |list| list.len());
        let mismatch = |error| self.instead(error, Refusal::Mismatch);
        for (before, pair) in pairs.try_iter().map_err(mismatch)?.enumerate() {
            let pair = pair.map_err(Refusal::Failed)?;
            let (key, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair.extract().map_err(mismatch)?;
            if let Err(fault) = entry(count.max(before + 1), &key, &value) {
                return Ok(Err(fault));
            }
        }
        Ok(Ok(()))
    }
}

/// Whether a value stands for NULL: None, and those of numpy and pandas, which are known by the names of their types,
/// so that nothing is imported for this.
#[pyfunction]
pub(crate) fn is_missing(value: &Bound<'_, PyAny>) -> bool {
    if value.is_none() {
        return true;
    }
    let class = value.get_type_ptr();
    let plain = class == &raw mut ffi::PyUnicode_Type
        || class == &raw mut ffi::PyLong_Type
        || class == &raw mut ffi::PyFloat_Type
        || class == &raw mut ffi::PyBool_Type
        || class == &raw mut ffi::PyBytes_Type
        || class == &raw mut ffi::PyList_Type
        || class == &raw mut ffi::PyDict_Type
        || class == &raw mut ffi::PyTuple_Type;
    if plain || datetime::is_one(value) {
        return false;
    }
    let class = value.get_type();
    let Ok(name) = class.name() else { return false };
    match &*name.to_string_lossy() {
        "NAType" | "NaTType" | "MaskedConstant" => true,
        // NaT does not equal itself. What numpy's own classes say of that is no exception.
        "datetime64" | "timedelta64" => {
            class.module().is_ok_and(|module| module == "numpy") && value.ne(value).unwrap_or(false)
        }
        _ => false,
    }
}

pub(crate) fn overflow(error: Overflow) -> PyErr {
    match error {
        Overflow::TooLarge => PyOverflowError::new_err(error.to_string()),
        Overflow::NoMemory => PyMemoryError::new_err(error.to_string()),
    }
}

fn decimal_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DECIMAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECIMAL.import(py, "decimal", "Decimal")
}

fn uuid_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static UUID: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    UUID.import(py, "uuid", "UUID")
}

/// Whether a value's class has a name.
fn is_named(value: &Bound<'_, PyAny>, class: &str) -> bool {
    value.get_type().name().is_ok_and(|name| name == class)
}

/// The time, and the zone's seconds east of UTC, of a TIMETZ as Arrow has it.
fn time_and_offset<'py>(parts: &Bound<'py, PyDict>) -> PyResult<(Bound<'py, PyTime>, i32)> {
    let time = parts.as_any().get_item(intern!(parts.py(), "time"))?.cast_into()?;
    Ok((time, parts.as_any().get_item(intern!(parts.py(), "offset"))?.extract()?))
}

/// A timestamp of nanoseconds since 1970.
fn instant<'py>(nanoseconds: i128) -> Taken<Moment, Vm<'py>> {
    let seconds = nanoseconds.div_euclid(SECOND.into()).try_into().map_err(|_| Refusal::TooLarge)?;
    Ok(Moment::Timestamp { seconds, nanoseconds: nanoseconds.rem_euclid(SECOND.into()) as u32 })
}

/// The date of days since 1970, if Python has it.
fn day(days: i64, what: &str) -> PyResult<datetime::Day> {
    let (year, month, day) = calendar::civil(days);
    if !(1..=9999).contains(&year) {
        return Err(PyOverflowError::new_err(format!(
            "this {what} lies outside of the years 1 to 9999 of Python's datetime; a vectorized function can take it"
        )));
    }
    Ok((year as i32, month, day))
}

/// The time of seconds since midnight.
fn clock(seconds: i64, nanoseconds: i64) -> datetime::Clock {
    ((seconds / 3600) as u8, (seconds / 60 % 60) as u8, (seconds % 60) as u8, (nanoseconds / 1000) as u32)
}
