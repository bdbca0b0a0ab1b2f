//! Python's objects in SQL: `docs/functions.md` has the table. `crosslane-guest` has the rules of
//! all languages.

use super::fast_path::{double_of, integer_of, text_of};
use super::missing::is_missing;
use super::vm::{Made, Shape, Source, Vm, is_named};
use super::{datetime, layout};
use crosslane::{DataType, Field};
use crosslane_guest::{Class, Integer, Refusal, Taken, Temporal, Values, decimal_text};
use pyo3::exceptions::{
    PyException, PyKeyError, PyMemoryError, PyOverflowError, PyTypeError, PyUnicodeEncodeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyInt, PyList, PyString, PyTuple};
use pyo3::{IntoPyObjectExt, ffi, intern};

type Written = Result<(), crosslane_guest::Fault<PyErr>>;

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

    /// The text is cut. Its `__repr__` may fail.
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

    /// The limited API puts more than 64 bits together in steps.
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
        // SAFETY: as in `integer`; the pointer and the length are those of a slice. ASCII is also
        // Latin 1, whose decoder does less than that of UTF-8. Bytes that are not UTF-8 raise an
        // exception.
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

    fn temporal(&self, shape: &Shape, temporal: Temporal) -> Made<'py> {
        self.make_temporal(shape, temporal)
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
        // numpy's booleans are no bool.
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
            // The text of a subclass may be another one.
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
        // The error shows the text.
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
            // SAFETY: the bytes are copied before anything runs Python code, which could change
            // them.
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

    /// The code of a text, or of a member of an Enum.
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
            // The value cannot be hashed.
            Err(error) => match self.instead(error, Refusal::Mismatch) {
                Refusal::Mismatch => Ok(None),
                failed => Err(failed),
            },
        }
    }

    #[inline]
    fn to_temporal(&self, value: &Bound<'py, PyAny>, data_type: &DataType) -> Taken<Temporal, Self> {
        match data_type {
            DataType::Time | DataType::TimeNs | DataType::TimeTz => self.time(value, data_type),
            DataType::Interval => self.interval(value),
            DataType::Date => self.date(value),
            _ => self.timestamp(value, data_type),
        }
    }

    /// The elements of a list, a tuple or another iterable, but not of a text or a dict.
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

    /// The fields by the keys of a mapping, the places of a plain tuple, or the attributes of an
    /// object.
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

    /// The member of a pair, such as a `Tagged`.
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

    /// The entries of a mapping, or of an iterable of pairs.
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

fn decimal_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DECIMAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DECIMAL.import(py, "decimal", "Decimal")
}

fn uuid_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static UUID: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    UUID.import(py, "uuid", "UUID")
}
