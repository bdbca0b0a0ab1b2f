//! The fast path for results of the usual types: their values go into a column, and no Python code
//! runs.

use crate::values::layout::{self, Layout};
use crosslane::ColumnBuilder;
use pyo3::ffi;
use std::slice;

/// The class that nearly all values of a column have.
#[derive(Clone, Copy)]
pub(crate) enum FastPath {
    Int64,
    Int32,
    Double,
    Boolean,
    Text,
    /// There is no fast path. The writer takes all values.
    None,
}

impl FastPath {
    /// Adds the value of an object that is exactly of the usual class and fits, or NULL for None.
    /// Returns whether it did.
    ///
    /// # Safety
    /// The interpreter's lock is held.
    #[inline(always)]
    pub(crate) unsafe fn add(
        self,
        layout: Option<Layout>,
        object: *mut ffi::PyObject,
        out: &mut ColumnBuilder,
    ) -> bool {
        // SAFETY: as the caller says; the text is copied.
        let added = unsafe {
            match self {
                FastPath::Int64 => integer_of(layout, object).map(|number| out.fixed(number)),
                FastPath::Int32 => narrow_of(layout, object).map(|number| out.fixed(number)),
                // An int of up to 64 bits is rounded as Python rounds it.
                FastPath::Double => double_of(layout, object)
                    .or_else(|| integer_of(layout, object).map(|number| number as f64))
                    .map(|number| out.fixed(number)),
                FastPath::Boolean => boolean_of(object).map(|truth| out.boolean(truth)),
                // The writer raises the error for a text that does not fit.
                FastPath::Text => text_of(layout, object).and_then(|text| out.bytes(text).ok()),
                FastPath::None => return false,
            }
        };
        // SAFETY: None always lives.
        if added.is_none() && object == unsafe { ffi::Py_None() } {
            out.null();
            return true;
        }
        added.is_some()
    }
}

/// The number of an object that is exactly an int, if it has up to 64 bits.
///
/// # Safety
/// The object lives, and the interpreter's lock is held.
#[inline(always)]
pub(crate) unsafe fn integer_of(layout: Option<Layout>, object: *mut ffi::PyObject) -> Option<i64> {
    // SAFETY: as the caller says; the object is an int, so that no exception is set.
    unsafe {
        if ffi::PyLong_CheckExact(object) == 0 {
            return None;
        }
        if let Some(number) = layout.and_then(|layout| layout.integer(object)) {
            return Some(number);
        }
        let mut overflow = 0;
        let number = ffi::PyLong_AsLongLongAndOverflow(object, &raw mut overflow);
        (overflow == 0).then_some(number)
    }
}

/// As [`integer_of`], for 32 bits.
#[inline(always)]
pub(crate) unsafe fn narrow_of(layout: Option<Layout>, object: *mut ffi::PyObject) -> Option<i32> {
    // SAFETY: as the caller says.
    unsafe { integer_of(layout, object) }.and_then(|number| number.try_into().ok())
}

/// The number of an object that is exactly a float.
///
/// # Safety
/// As of [`integer_of`].
#[inline(always)]
pub(crate) unsafe fn double_of(layout: Option<Layout>, object: *mut ffi::PyObject) -> Option<f64> {
    // SAFETY: as the caller says.
    unsafe {
        if ffi::PyFloat_CheckExact(object) == 0 {
            return None;
        }
        Some(if layout.is_some() { *layout::float_in(object) } else { ffi::PyFloat_AsDouble(object) })
    }
}

/// The value of an object that is True or False.
#[inline(always)]
pub(crate) fn boolean_of(object: *mut ffi::PyObject) -> Option<bool> {
    // SAFETY: both always live.
    let (yes, no) = unsafe { (ffi::Py_True(), ffi::Py_False()) };
    (object == yes || object == no).then_some(object == yes)
}

/// The UTF-8 of an object that is exactly a str. None if it has no UTF-8.
///
/// # Safety
/// As of [`integer_of`]; the object must live as long as the returned text.
#[inline(always)]
pub(crate) unsafe fn text_of<'a>(layout: Option<Layout>, object: *mut ffi::PyObject) -> Option<&'a [u8]> {
    // SAFETY: as the caller says. A str keeps its UTF-8. The call gives its place and length, or
    // null with an exception set.
    unsafe {
        if ffi::PyUnicode_CheckExact(object) == 0 {
            return None;
        }
        if let Some(text) = layout.and_then(|layout| layout.text(object)) {
            return Some(text);
        }
        let mut length = 0;
        let bytes = ffi::PyUnicode_AsUTF8AndSize(object, &raw mut length);
        if bytes.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(slice::from_raw_parts(bytes.cast(), length as usize))
    }
}
