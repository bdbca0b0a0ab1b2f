//! The values of one argument of a batch.

use crate::values::{Reader, Vm};
use crosslane::DataType;
use crosslane::batch::Column;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ptr;

/// A column, and the quickest way to its values.
pub(crate) enum Argument<'a, 'py> {
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    Float64(&'a [f64]),
    Ascii {
        offsets: &'a [i32],
        text: &'a [u8],
    },
    Other {
        reader: &'a Reader<'py>,
        column: &'a Column<'a>,
    },
    /// Objects that live longer than the batch. They are not null in rows that are called.
    Object {
        objects: &'a [*mut ffi::PyObject],
    },
}

impl<'a, 'py> Argument<'a, 'py> {
    /// `sees_null` says whether rows with NULL in this column are called.
    pub(crate) fn new(reader: &'a Reader<'py>, column: &'a Column<'a>, sees_null: bool) -> Self {
        let other = Argument::Other { reader, column };
        if sees_null && column.validity.is_some() {
            return other;
        }
        match reader.data_type() {
            DataType::Integer => column.values().map_or(other, Argument::Int32),
            DataType::BigInt => column.values().map_or(other, Argument::Int64),
            DataType::Double => column.values().map_or(other, Argument::Float64),
            DataType::Varchar | DataType::Bit if column.data.is_ascii() => {
                Argument::Ascii { offsets: column.offsets, text: column.data }
            }
            _ => other,
        }
    }

    /// The arguments of a batch: one for each column.
    pub(crate) fn all(
        readers: &'a [Reader<'py>],
        columns: &'a [Column<'a>],
        sees_null: &'a [bool],
    ) -> impl Iterator<Item = Self> {
        let columns = readers.iter().zip(columns).zip(sees_null);
        columns.map(|((reader, column), sees_null)| Self::new(reader, column, *sees_null))
    }

    /// A new reference to the value of a row.
    #[inline(always)]
    pub(crate) fn get(&self, py: Python<'py>, row: usize) -> PyResult<*mut ffi::PyObject> {
        let object = match self {
            // SAFETY: the functions return a new reference or null with an exception set.
            Argument::Int32(values) => unsafe { ffi::PyLong_FromLongLong(values[row].into()) },
            // SAFETY: as above.
            Argument::Int64(values) => unsafe { ffi::PyLong_FromLongLong(values[row]) },
            // SAFETY: as above.
            Argument::Float64(values) => unsafe { ffi::PyFloat_FromDouble(values[row]) },
            Argument::Ascii { offsets, text } => {
                let text = &text[offsets[row] as usize..offsets[row + 1] as usize];
                // SAFETY: as above; the pointer and the length are a valid slice. ASCII is also
                // Latin 1, whose decoder does less than that of UTF-8.
                unsafe {
                    let length = text.len() as ffi::Py_ssize_t;
                    ffi::PyUnicode_DecodeLatin1(text.as_ptr().cast(), length, ptr::null())
                }
            }
            Argument::Object { objects } => {
                // SAFETY: it lives.
                unsafe { ffi::Py_INCREF(objects[row]) };
                objects[row]
            }
            Argument::Other { reader, column } => {
                return Ok(reader.read(&Vm::new(py), column, row)?.into_ptr());
            }
        };
        if object.is_null() { Err(PyErr::fetch(py)) } else { Ok(object) }
    }
}
