//! The interpreter, and the shapes of types.

use crosslane::{DataType, Field};
use crosslane_guest::{Class, Refusal, Taken, Values};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};
use pyo3::{IntoPyObjectExt, PyTypeInfo};

/// How columns become objects, and objects columns.
pub(crate) type Reader<'py> = crosslane_guest::Reader<Vm<'py>>;
pub(crate) type Writer<'py> = crosslane_guest::Writer<Vm<'py>>;
/// The hint of an annotation: what it says of a type beside its name in SQL. It is a tuple that
/// mirrors the type: `("struct", factory, [hints], [whether a dict may lack the field])`, `("list",
/// hint)`, `("map", hint, hint)`, `("enum", [members])`, `("timedelta",)`, `("text",)`.
pub(crate) type Hint<'py> = Option<Bound<'py, PyTuple>>;
pub(super) type Made<'py> = PyResult<Bound<'py, PyAny>>;

/// The interpreter, for code that holds its lock.
#[derive(Clone, Copy)]
pub(crate) struct Vm<'py> {
    pub(super) py: Python<'py>,
    pub(super) source: Source,
}

/// The function that the objects are results of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A row function.
    Row,
    /// A vectorized function. Its objects may also look as they do in Arrow's columns.
    Columns,
}

/// What is prepared for a type.
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
    /// The values of an ENUM, and the codes of values that are no text.
    Values {
        values: Vec<Py<PyAny>>,
        codes: Py<PyDict>,
    },
    /// The names of the fields of a STRUCT, or of the members of a UNION. `factory` makes an object
    /// that is no dict. A dict may lack some of the fields, which are NULL then.
    Names {
        names: Vec<Py<PyString>>,
        factory: Option<Py<PyAny>>,
        may_lack: Vec<bool>,
    },
}

/// A reader of a parameter's column.
pub(crate) fn reader<'py>(py: Python<'py>, data_type: &DataType, hint: Hint<'py>) -> PyResult<Reader<'py>> {
    let vm = Vm::new(py);
    Reader::shaped(data_type, hint, &|data_type, hint| vm.prepare(data_type, hint))
}

/// A writer of a result's column.
pub(crate) fn writer<'py>(vm: Vm<'py>, data_type: &DataType, hint: Hint<'py>) -> PyResult<Writer<'py>> {
    Writer::shaped(data_type, hint, &|data_type, hint| vm.prepare(data_type, hint))
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

    /// The shape of a type, and the hints of its parts.
    pub(super) fn prepare(self, data_type: &DataType, hint: Hint<'py>) -> PyResult<(Shape, Vec<Hint<'py>>)> {
        use DataType as T;
        let py = self.py;
        let name: Option<String> = hint.as_ref().map(|hint| hint.get_item(0)?.extract()).transpose()?;
        let part = |index: usize| -> PyResult<Hint<'py>> {
            hint.as_ref().map_or(Ok(None), |hint| Ok(hint.get_item(index)?.extract()?))
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
                let values = match &hint {
                    Some(hint) => {
                        let members: Vec<Py<PyAny>> = hint.get_item(1)?.extract()?;
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
                let (factory, may_lack) = match &hint {
                    Some(hint) => {
                        parts = hint.get_item(2)?.extract()?;
                        (hint.get_item(1)?.extract()?, hint.get_item(3)?.extract()?)
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
    pub(super) fn refused(self, class: Class, message: &str) -> Refusal<PyErr> {
        Refusal::Failed(self.error(class, message))
    }

    /// The refusal that stands for an exception. An exception that ends a program or a lane is no
    /// `Exception`, and stays.
    #[cold]
    pub(super) fn instead(self, error: PyErr, refusal: Refusal<PyErr>) -> Refusal<PyErr> {
        if error.is_instance_of::<PyException>(self.py) { refusal } else { Refusal::Failed(error) }
    }

    /// The value as a mapping, if it is one. PyO3's own cast would hide an exception that ends a
    /// lane.
    pub(super) fn mapping<'a>(
        self,
        value: &'a Bound<'py, PyAny>,
    ) -> Taken<Option<&'a Bound<'py, PyMapping>>, Self> {
        let is_mapping = value.is_instance_of::<PyDict>()
            || match value.is_instance(&PyMapping::type_object(self.py)) {
                Ok(is_mapping) => is_mapping,
                Err(error) => match self.instead(error, Refusal::Mismatch) {
                    Refusal::Mismatch => false,
                    failed => return Err(failed),
                },
            };
        // SAFETY: the object is a mapping; the type has no layout of its own.
        Ok(is_mapping.then(|| unsafe { value.cast_unchecked() }))
    }

    /// The dict that Arrow has for a value of a type that is a struct only in Arrow.
    pub(super) fn parts<'a>(self, value: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyDict>> {
        value.cast().ok().filter(|_| self.source == Source::Columns)
    }
}

/// Whether the class of a value has this name.
pub(super) fn is_named(value: &Bound<'_, PyAny>, class: &str) -> bool {
    value.get_type().name().is_ok_and(|name| name == class)
}
