//! An iterator over the values of a column, for [`crosslane/_loop.py`]'s comprehension.
//!
//! A raw type, because it stands in the guest's hottest loop: its `tp_iternext` makes one value, and
//! tells the engine which row it is. It borrows the batch: [`Values::close`] ends that, so that an iterator
//! which outlives its batch is empty.

use crate::row::Argument;
use crosslane_ring::ProgressWord;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::c_int;
use std::ptr;

/// A batch's only column, and how far it was read.
pub(crate) struct Cursor<'a> {
    pub(crate) argument: Argument<'a>,
    pub(crate) rows: usize,
    pub(crate) progress: &'a ProgressWord,
    pub(crate) sequence: u32,
    /// The rows that were begun.
    pub(crate) begun: usize,
}

#[repr(C)]
struct Object {
    base: ffi::PyObject,
    /// A [`Cursor`] that lives until `close`, then null.
    cursor: *mut Cursor<'static>,
}

/// A Python iterator over a [`Cursor`].
pub(crate) struct Values<'py>(Bound<'py, PyAny>);

impl<'py> Values<'py> {
    /// # Safety
    /// The cursor must stay where it is, and be used by nobody else, until `close`.
    pub(crate) unsafe fn open(py: Python<'py>, cursor: &mut Cursor<'_>) -> PyResult<Self> {
        let class = class(py)?;
        // SAFETY: the type's instances have room for `Object`; the lifetime is the caller's promise.
        unsafe {
            let object = ffi::PyType_GenericAlloc(class.cast(), 0);
            let object = Bound::from_owned_ptr_or_err(py, object)?;
            (*object.as_ptr().cast::<Object>()).cursor = ptr::from_mut(cursor).cast();
            Ok(Self(object))
        }
    }

    pub(crate) fn object(&self) -> &Bound<'py, PyAny> {
        &self.0
    }

    pub(crate) fn close(self) {
        // SAFETY: the object is ours, of our type, and the interpreter's lock is held.
        unsafe { (*self.0.as_ptr().cast::<Object>()).cursor = ptr::null_mut() };
    }
}

fn class(py: Python<'_>) -> PyResult<*mut ffi::PyObject> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.get_or_try_init(py, || {
        let mut slots = [
            ffi::PyType_Slot { slot: ffi::Py_tp_iter, pfunc: ffi::PyObject_SelfIter as *mut _ },
            ffi::PyType_Slot { slot: ffi::Py_tp_iternext, pfunc: next as *mut _ },
            ffi::PyType_Slot { slot: 0, pfunc: ptr::null_mut() },
        ];
        let mut spec = ffi::PyType_Spec {
            name: c"crosslane._guest.Values".as_ptr(),
            basicsize: size_of::<Object>() as c_int,
            itemsize: 0,
            flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION) as u32,
            slots: slots.as_mut_ptr(),
        };
        // SAFETY: the specification is complete, and copied by the call.
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec)).map(Bound::unbind) }
    })?;
    Ok(class.as_ptr())
}

/// `tp_iternext`: the next value, or null at the end (or with an exception set).
unsafe extern "C" fn next(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this with an instance and with its lock held; the cursor lives until `close`.
    unsafe {
        let Some(cursor) = (*object.cast::<Object>()).cursor.as_mut() else { return ptr::null_mut() };
        let row = cursor.begun;
        if row == cursor.rows {
            return ptr::null_mut();
        }
        cursor.begun += 1;
        cursor.progress.set(cursor.sequence, row as u32);
        let py = Python::assume_attached();
        match cursor.argument.get(py, row) {
            Ok(value) => value,
            Err(error) => {
                error.restore(py);
                ptr::null_mut()
            }
        }
    }
}
