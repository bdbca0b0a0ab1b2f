//! The objects of an argument: two objects that take turns, as long as no other code has them.
//!
//! Most functions only read an int, a float or a str. CPython would free it and make one of the
//! same size for the next row. Here the object gets the value of the next row instead. That is
//! safe, because no code can tell such an object from a new one:
//!
//! - Code that can reach an object holds a reference, and [`ReusedObjects`] holds one, too. So
//!   while the count is one, no variable, container, frame, traceback or other thread has the
//!   object. The interpreter's lock is held from the look at the count to the new reference.
//! - The loop's variable holds the object of a row until it gets the next one. So the next one is
//!   the other of the two objects.
//! - Ints, floats and strs have no weak references and no cycles, and `id` tells objects apart only
//!   while they live. Ints and floats keep their value nowhere else. A str keeps its hash, which is
//!   reset. It can be interned or have copies of its text: then it is not used again.
//! - The ints that CPython has one object for, empty texts and texts of one character are never
//!   used again.
//! - Only objects that were made here are changed. Such an int has room for two digits, and such a
//!   str for its [`Layout::capacity`].
//!
//! Without the interpreter's lock this would not be safe. Builds without it have no known layout.

use super::argument::Argument;
use crate::values::layout::{self, Layout};
use pyo3::ffi;
use pyo3::prelude::*;
use std::{mem, ptr};

/// Longer texts get new objects: their bytes cost more than their objects, and a text that other
/// code keeps would hold the memory of the longest text before it.
const MOST_TEXT: usize = 256;

pub(crate) struct ReusedObjects {
    layout: Option<Layout>,
    objects: [*mut ffi::PyObject; 2],
    /// The longest text that fits into each object.
    room: [usize; 2],
    /// Which object was given last.
    last: usize,
}

impl ReusedObjects {
    pub(crate) fn new(layout: Option<Layout>) -> Self {
        Self { layout, objects: [ptr::null_mut(); 2], room: [0; 2], last: 0 }
    }

    /// A new reference to the value of a row, or null with an exception set.
    #[inline(always)]
    pub(crate) fn get<'py>(
        &mut self,
        py: Python<'py>,
        argument: &Argument<'_, 'py>,
        row: usize,
    ) -> *mut ffi::PyObject {
        let Some(layout) = self.layout else { return other(py, argument, row) };
        // SAFETY: `free` returns an object of the type that its function makes. All objects of an
        // argument are of this type, and no other code has the object.
        unsafe {
            let integer = match argument {
                Argument::Int64(values) => values[row],
                Argument::Int32(values) => values[row].into(),
                Argument::Float64(values) => {
                    let float = self.free(|_| ffi::PyFloat_FromDouble(0.0));
                    if !float.is_null() {
                        *layout::float_in(float) = values[row];
                    }
                    return self.give(float);
                }
                Argument::Ascii { offsets, text } => {
                    let text = &text[offsets[row] as usize..offsets[row + 1] as usize];
                    if !(2..=MOST_TEXT).contains(&text.len()) {
                        return other(py, argument, row);
                    }
                    let next = self.last ^ 1;
                    let object = self.objects[next];
                    if !object.is_null() && (self.room[next] < text.len() || !layout.is_bare(object)) {
                        self.forget(next);
                    }
                    let made = self.free(|room| {
                        *room = layout.capacity(text.len());
                        layout::new_text(*room)
                    });
                    if !made.is_null() {
                        layout.set_text(made, text);
                    }
                    return self.give(made);
                }
                Argument::Object { objects } => {
                    ffi::Py_INCREF(objects[row]);
                    return objects[row];
                }
                Argument::Other { .. } => return other(py, argument, row),
            };
            if !Layout::is_settable(integer) {
                return other(py, argument, row);
            }
            let int = self.free(|_| layout::new_integer());
            if !int.is_null() {
                layout.set_integer(int, integer);
            }
            self.give(int)
        }
    }

    /// The object whose turn it is, if no other code has it. Otherwise a new object, or null with
    /// an exception set. `make` may note the room of the object that it makes.
    #[inline(always)]
    fn free(&mut self, make: impl FnOnce(&mut usize) -> *mut ffi::PyObject) -> *mut ffi::PyObject {
        let next = self.last ^ 1;
        let object = self.objects[next];
        // SAFETY: an object that is stored here lives.
        if !object.is_null() && unsafe { ffi::Py_REFCNT(object) } == 1 {
            return object;
        }
        self.forget(next);
        self.objects[next] = make(&mut self.room[next]);
        self.objects[next]
    }

    /// A new reference to an object that was free. Null if there is no object.
    #[inline(always)]
    fn give(&mut self, object: *mut ffi::PyObject) -> *mut ffi::PyObject {
        if !object.is_null() {
            self.last ^= 1;
            // SAFETY: it is kept here, with the only reference to it.
            unsafe { layout::share(object) };
        }
        object
    }

    #[inline(never)]
    fn forget(&mut self, which: usize) {
        let object = mem::replace(&mut self.objects[which], ptr::null_mut());
        // SAFETY: the reference was owned here; the interpreter's lock is held.
        unsafe { ffi::Py_XDECREF(object) };
    }
}

/// A new reference to a new object, or null with an exception set.
#[inline(never)]
fn other<'py>(py: Python<'py>, argument: &Argument<'_, 'py>, row: usize) -> *mut ffi::PyObject {
    argument.get(py, row).unwrap_or_else(|error| {
        error.restore(py);
        ptr::null_mut()
    })
}

impl Drop for ReusedObjects {
    fn drop(&mut self) {
        self.forget(0);
        self.forget(1);
    }
}
