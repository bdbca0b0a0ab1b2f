//! An iterator over the rows of a batch, for the loops of [`crosslane/_loop.py`].
//!
//! A raw type, because it stands in the guest's hottest loop: its `tp_iternext` makes one row's value, or a tuple of its
//! values, and tells the engine which row it is. It borrows the batch: [`Values::close`] ends that, so that an iterator
//! which outlives its batch is empty.

use crate::row::Argument;
use crosslane::batch::{Column, bit};
use crosslane_ring::ProgressWord;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::c_int;
use std::ptr;

/// Which rows of a batch are called.
pub(crate) struct Live {
    rows: usize,
    /// One bit a row; none if all rows are called.
    bits: Option<Vec<u8>>,
}

impl Live {
    /// The rows without a NULL in any of these columns.
    pub(crate) fn new(rows: usize, skipping: &[&Column<'_>]) -> Self {
        let mut masks = skipping.iter().filter_map(|column| column.validity);
        let bits = masks.next().map(|first| {
            let mut bits = first[..rows.div_ceil(8)].to_vec();
            for mask in masks {
                bits.iter_mut().zip(mask).for_each(|(bits, more)| *bits &= more);
            }
            bits
        });
        Self { rows, bits }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    #[inline]
    pub(crate) fn is_live(&self, row: usize) -> bool {
        self.bits.as_ref().is_none_or(|bits| bit(bits, row))
    }

    /// The first row from `row` on that is called, or the number of rows.
    #[inline]
    pub(crate) fn next(&self, mut row: usize) -> usize {
        while row < self.rows && !self.is_live(row) {
            row += 1;
        }
        row
    }

    /// How many rows from `row` on are called, until one is not.
    #[inline]
    pub(crate) fn run(&self, row: usize) -> usize {
        match &self.bits {
            None => self.rows - row,
            Some(bits) => (row..self.rows).take_while(|row| bit(bits, *row)).count(),
        }
    }

    /// How many of the rows before `row` are called.
    pub(crate) fn before(&self, row: usize) -> usize {
        match &self.bits {
            None => row,
            Some(bits) => {
                let rest = (row / 8 * 8..row).filter(|row| bit(bits, *row)).count();
                bits[..row / 8].iter().map(|byte| byte.count_ones() as usize).sum::<usize>() + rest
            }
        }
    }
}

/// The columns of a batch, and how far they were read.
pub(crate) struct Cursor<'a> {
    pub(crate) arguments: &'a [Argument<'a>],
    pub(crate) live: &'a Live,
    pub(crate) progress: &'a ProgressWord,
    pub(crate) sequence: u32,
    /// The first row that was not looked at.
    pub(crate) next: usize,
    /// The row that was begun last.
    pub(crate) row: usize,
    /// Why a row could not be read, which ends the iterator as if there were no more: Python's loops hide some exceptions
    /// of iterators.
    pub(crate) unread: Option<PyErr>,
}

#[repr(C)]
struct Object {
    base: ffi::PyObject,
    /// A [`Cursor`] that lives until `close`, then null.
    cursor: *mut Cursor<'static>,
    /// The tuple of the last row, or null: while nobody else has it, it becomes that of the next.
    tuple: *mut ffi::PyObject,
}

/// A Python iterator over a [`Cursor`].
pub(crate) struct Values<'py>(Bound<'py, PyAny>);

impl<'py> Values<'py> {
    /// # Safety
    /// The cursor must stay where it is, and be used by nobody else, until `close`.
    pub(crate) unsafe fn open(py: Python<'py>, cursor: &mut Cursor<'_>) -> PyResult<Self> {
        let class = class(py)?;
        // SAFETY: the type's instances have room for `Object`, whose memory is zero; the lifetime is the caller's promise.
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
        // SAFETY: the object is ours, of our type, and the interpreter's lock is held. The tuple is its own.
        unsafe {
            let object = self.0.as_ptr().cast::<Object>();
            (*object).cursor = ptr::null_mut();
            let tuple = std::mem::replace(&mut (*object).tuple, ptr::null_mut());
            ffi::Py_XDECREF(tuple);
        }
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

/// `tp_iternext`: the next row's value or tuple, or null at the end.
unsafe extern "C" fn next(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this with an instance and with its lock held; the cursor lives until `close`.
    unsafe {
        let object = object.cast::<Object>();
        let Some(cursor) = (*object).cursor.as_mut() else { return ptr::null_mut() };
        let row = cursor.live.next(cursor.next);
        if row == cursor.live.rows() {
            return ptr::null_mut();
        }
        cursor.next = row + 1;
        cursor.row = row;
        cursor.progress.set(cursor.sequence, row as u32);
        let py = Python::assume_attached();
        let value = match cursor.arguments {
            [argument] => argument.get(py, row),
            arguments => tuple(py, arguments, row, &mut (*object).tuple),
        };
        value.unwrap_or_else(|error| {
            cursor.unread = Some(error);
            cursor.next = cursor.live.rows();
            ptr::null_mut()
        })
    }
}

/// A new reference to the tuple of a row's values: to `kept`, if it has no other.
///
/// # Safety
/// `kept` is null, or a tuple of as many values that has one reference here.
unsafe fn tuple(
    py: Python<'_>,
    arguments: &[Argument<'_>],
    row: usize,
    kept: &mut *mut ffi::PyObject,
) -> PyResult<*mut ffi::PyObject> {
    // SAFETY: the tuple is ours alone while it is filled. It takes over the values, and lets go of what it had, also if a
    // value is not made; what that runs cannot reach it.
    unsafe {
        if kept.is_null() || ffi::Py_REFCNT(*kept) != 1 {
            ffi::Py_XDECREF(std::mem::replace(kept, ptr::null_mut()));
            *kept = Bound::from_owned_ptr_or_err(py, ffi::PyTuple_New(arguments.len() as ffi::Py_ssize_t))?
                .into_ptr();
        }
        for (place, argument) in arguments.iter().enumerate() {
            let value = argument.get(py, row)?;
            if ffi::PyTuple_SetItem(*kept, place as ffi::Py_ssize_t, value) != 0 {
                return Err(PyErr::fetch(py));
            }
        }
        ffi::Py_INCREF(*kept);
        Ok(*kept)
    }
}
