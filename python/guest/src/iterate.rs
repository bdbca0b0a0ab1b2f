//! An iterator over the values of a column, for [`crosslane/_loop.py`]'s comprehension.
//!
//! A raw type, because it stands in the guest's hottest loop: its `tp_iternext` makes one value, and
//! tells the engine which row it is. It borrows the batch: [`Values::close`] ends that, so that an iterator
//! which outlives its batch is empty.

use crate::row::Argument;
use crosslane_ring::Control;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::c_int;
use std::ptr;

/// A batch's only column, and how far it was read.
pub(crate) struct Source<'a> {
    pub(crate) argument: Argument<'a>,
    pub(crate) rows: usize,
    pub(crate) control: &'a Control,
    pub(crate) sequence: u32,
    /// The rows that were begun.
    pub(crate) begun: usize,
}

#[repr(C)]
struct Object {
    base: ffi::PyObject,
    /// A [`Source`] that lives until `close`, then null.
    source: *mut Source<'static>,
}

/// A Python iterator over a [`Source`].
pub(crate) struct Values<'py>(Bound<'py, PyAny>);

impl<'py> Values<'py> {
    /// # Safety
    /// The source must stay where it is, and be used by nobody else, until `close`.
    pub(crate) unsafe fn open(py: Python<'py>, source: &mut Source<'_>) -> PyResult<Self> {
        let class = class(py)?;
        // SAFETY: the type's instances have room for `Object`; the lifetime is the caller's promise.
        unsafe {
            let object = ffi::PyType_GenericAlloc(class.cast(), 0);
            let object = Bound::from_owned_ptr_or_err(py, object)?;
            (*object.as_ptr().cast::<Object>()).source = ptr::from_mut(source).cast();
            Ok(Self(object))
        }
    }

    pub(crate) fn object(&self) -> &Bound<'py, PyAny> {
        &self.0
    }

    pub(crate) fn close(self) {
        // SAFETY: the object is ours, of our type, and the interpreter's lock is held.
        unsafe { (*self.0.as_ptr().cast::<Object>()).source = ptr::null_mut() };
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
    // SAFETY: CPython calls this with an instance and with its lock held; the source lives until `close`.
    unsafe {
        let Some(source) = (*object.cast::<Object>()).source.as_mut() else { return ptr::null_mut() };
        let row = source.begun;
        if row == source.rows {
            return ptr::null_mut();
        }
        source.begun += 1;
        source.control.set_progress(source.sequence, row as u32);
        let py = Python::assume_attached();
        match source.argument.get(py, row) {
            Ok(value) => value,
            Err(error) => {
                error.restore(py);
                ptr::null_mut()
            }
        }
    }
}
