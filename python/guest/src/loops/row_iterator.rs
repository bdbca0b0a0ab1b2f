//! An iterator over the rows of a batch, for the loops of [`crosslane/_worker/loops.py`].
//!
//! It is a raw type, because it is in the guest's hottest loop. Its `tp_iternext` takes the result
//! of the last row out of its cell, makes the values of the next row, and tells the engine the
//! number of that row. It returns the first value and puts the others into cells. So the loop has
//! no list of results and no tuples of arguments.
//!
//! The iterator borrows the batch. [`Values::close`] ends the borrow, so an iterator that outlives
//! its batch is empty. Any thread that finds the iterator may ask it for rows. It holds the only
//! pointer to the batch. A thread that uses the pointer takes it out meanwhile, and `close` returns
//! when it has the pointer.

use super::argument::Argument;
use super::reuse::ReusedObjects;
use super::row_results::RowResults;
use super::selection::Selection;
use crate::values::layout::{self, Layout};
use crosslane::lane::COUNT;
use crosslane_ring::ProgressWord;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::c_int;
use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::thread;
use std::time::Duration;

/// How often `close` looks whether another thread is done with the iterator.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The error of a loop that ended before its last row.
const ENDED_EARLY: &str = "the loop over the rows ended early: other code has used its iterator";

/// A function's loop, as `make` of `_loop.py` returns it.
pub(crate) struct Loop {
    each: Py<PyAny>,
    /// The cell of a row's result.
    result: Py<PyAny>,
    /// The cells of all arguments but the first.
    arguments: Vec<Py<PyAny>>,
}

impl Loop {
    pub(crate) fn new(made: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (each, result, arguments): (_, Py<PyAny>, Vec<Py<PyAny>>) = made.extract()?;
        if [&result].into_iter().chain(&arguments).all(|cell| layout::is_cell(cell.bind(made.py()))) {
            Ok(Self { each, result, arguments })
        } else {
            Err(PyTypeError::new_err("a loop's variables are cells"))
        }
    }
}

/// One of a function's arguments.
struct Input<'a, 'py> {
    argument: Argument<'a, 'py>,
    reused: ReusedObjects,
    /// The cell of its values. Null for the first argument.
    cell: *mut ffi::PyObject,
}

/// The columns of a batch, and the position in them.
pub(crate) struct Cursor<'a, 'py> {
    py: Python<'py>,
    layout: Option<Layout>,
    each: &'a Py<PyAny>,
    /// The cell of a row's result.
    result: *mut ffi::PyObject,
    inputs: Vec<Input<'a, 'py>>,
    selection: &'a Selection,
    progress: &'a ProgressWord,
    sequence: u32,
    /// Bits that are added to the number of a row, for the engine.
    mark: u32,
    results: RowResults<'a, 'py>,
    /// The first row that was not begun.
    next: usize,
    /// The row that was begun last.
    row: usize,
    /// Whether the result of that row was not taken yet.
    begun: bool,
    /// Why a row could not be read, or a result not be taken. This ends the iterator as if there
    /// were no more rows, because Python's loops hide some exceptions of iterators.
    broken: Option<PyErr>,
}

impl<'a, 'py> Cursor<'a, 'py> {
    pub(crate) fn new(
        looped: &'a Loop,
        arguments: Vec<Argument<'a, 'py>>,
        progress: &'a ProgressWord,
        sequence: u32,
        results: RowResults<'a, 'py>,
    ) -> Self {
        let layout = results.layout;
        let cells = looped.arguments.iter().map(Py::as_ptr);
        let inputs = arguments.into_iter().zip([ptr::null_mut()].into_iter().chain(cells));
        let inputs =
            inputs.map(|(argument, cell)| Input { argument, reused: ReusedObjects::new(layout), cell });
        Self {
            py: results.py(),
            layout,
            each: &looped.each,
            result: looped.result.as_ptr(),
            inputs: inputs.collect(),
            selection: results.selection,
            progress,
            sequence,
            mark: 0,
            results,
            next: 0,
            row: 0,
            begun: false,
            broken: None,
        }
    }

    /// The engine is told counts of rows instead of numbers, because the rows are not those of the
    /// exchange.
    pub(crate) fn counting(self) -> Self {
        Self { mark: COUNT, ..self }
    }

    /// Calls the function for all rows from `from` on.
    ///
    /// # Errors
    /// The error, and the first row without a result. That is the number of rows if all rows have
    /// one.
    pub(crate) fn run(&mut self, from: usize) -> Result<(), (PyErr, usize)> {
        (self.next, self.row, self.begun) = (from, from, false);
        self.empty();
        let each = self.each.bind(self.py);
        // SAFETY: the cursor stays here, untouched, until the iterator is closed.
        let values = unsafe { Values::open(self.py, self) }.map_err(|error| (error, from))?;
        let outcome = each.call1((values.object(),));
        values.close(self.py);
        let outcome = match self.broken.take() {
            Some(error) => Err((error, self.row)),
            None => self.reached().and_then(|row| match outcome {
                Err(error) => Err((error, row)),
                Ok(_) if row == self.selection.rows() => Ok(()),
                Ok(_) => Err((PyRuntimeError::new_err(ENDED_EARLY), row)),
            }),
        };
        self.empty();
        outcome
    }

    /// The first row without a result, after the loop has ended. A signal may have come between two
    /// rows.
    ///
    /// # Errors
    /// If the last result cannot be taken.
    fn reached(&mut self) -> Result<usize, (PyErr, usize)> {
        if mem::take(&mut self.begun) {
            match self.take() {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err((error, self.row)),
                None => return Ok(self.row),
            }
        }
        Ok(self.selection.next(self.next))
    }

    pub(crate) fn results(&mut self) -> &mut RowResults<'a, 'py> {
        &mut self.results
    }

    pub(crate) fn into_results(self) -> RowResults<'a, 'py> {
        self.results
    }

    /// Empties the cells.
    fn empty(&self) {
        let arguments = self.inputs.iter().map(|input| input.cell).skip(1);
        for cell in arguments.chain([self.result]) {
            // SAFETY: a loop's cells are cells.
            unsafe { layout::put(self.layout, cell, ptr::null_mut()) };
        }
    }

    /// Takes the result of the row that was begun last, if it is there.
    #[inline(always)]
    fn take(&mut self) -> Option<PyResult<()>> {
        // SAFETY: as in `empty`; the reference is let go once.
        unsafe {
            let result = layout::take(self.layout, self.result);
            let result = ManuallyDrop::new(Bound::from_owned_ptr_or_opt(self.py, result)?);
            let taken = self.results.push(self.row, &result);
            layout::release(self.layout, result.as_ptr());
            Some(taken)
        }
    }

    /// The first value of the next row, or null at the end.
    #[inline(always)]
    fn begin(&mut self) -> *mut ffi::PyObject {
        if mem::take(&mut self.begun) {
            match self.take() {
                Some(Ok(())) => {}
                Some(Err(error)) => return self.fail(error),
                None => return self.fail(PyRuntimeError::new_err("the loop over the rows left no result")),
            }
        }
        let row = self.selection.next(self.next);
        let [first, others @ ..] = &mut self.inputs[..] else { return ptr::null_mut() };
        if row == self.selection.rows() {
            return ptr::null_mut();
        }
        self.next = row + 1;
        self.row = row;
        self.progress.set(self.sequence, row as u32 | self.mark);
        let value = first.reused.get(self.py, &first.argument, row);
        if value.is_null() {
            return self.fail(PyErr::fetch(self.py));
        }
        for Input { argument, reused, cell } in others {
            let other = reused.get(self.py, argument, row);
            // SAFETY: as in `empty`; the references are taken over, or let go once.
            unsafe {
                if other.is_null() {
                    let error = PyErr::fetch(self.py);
                    ffi::Py_DECREF(value);
                    return self.fail(error);
                }
                layout::put(self.layout, *cell, other);
            }
        }
        self.begun = true;
        value
    }

    /// Ends the iterator as if there were no more rows.
    #[cold]
    fn fail(&mut self, error: PyErr) -> *mut ffi::PyObject {
        self.broken = Some(error);
        self.next = self.selection.rows();
        ptr::null_mut()
    }
}

#[repr(C)]
struct Object {
    base: ffi::PyObject,
    /// The only pointer to a [`Cursor`]. The cursor lives until `close` has taken the pointer. Code
    /// that uses the cursor takes the pointer out meanwhile: a destructor that runs then could ask
    /// for another row, and so could another thread that gets the interpreter's lock.
    cursor: *mut Cursor<'static, 'static>,
}

/// A Python iterator over a [`Cursor`].
struct Values<'py>(Bound<'py, PyAny>);

impl<'py> Values<'py> {
    /// # Safety
    /// The cursor must not be moved, and no other code may use it, until `close`.
    unsafe fn open(py: Python<'py>, cursor: *mut Cursor<'_, '_>) -> PyResult<Self> {
        let class = class(py)?;
        // SAFETY: the type's instances have room for `Object`, whose memory is zero; the lifetime
        // is the caller's promise.
        unsafe {
            let object = ffi::PyType_GenericAlloc(class.cast(), 0);
            let object = Bound::from_owned_ptr_or_err(py, object)?;
            (*object.as_ptr().cast::<Object>()).cursor = cursor.cast();
            Ok(Self(object))
        }
    }

    fn object(&self) -> &Bound<'py, PyAny> {
        &self.0
    }

    /// Ends the iterator. Waits until no other thread uses the cursor.
    fn close(self, py: Python<'py>) {
        // SAFETY: the object is ours, of our type, and the interpreter's lock is held.
        while unsafe { take(self.0.as_ptr().cast()) }.is_null() {
            py.detach(|| thread::sleep(POLL_INTERVAL));
        }
    }
}

/// Takes the cursor out of an iterator. Null if other code has it.
///
/// # Safety
/// The object must be such an iterator, and the interpreter's lock must be held.
#[inline(always)]
unsafe fn take(object: *mut Object) -> *mut Cursor<'static, 'static> {
    // SAFETY: as the caller says.
    unsafe { mem::replace(&mut (*object).cursor, ptr::null_mut()) }
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

/// `tp_iternext`: the first value of the next row, or null at the end.
unsafe extern "C" fn next(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: CPython calls this with an instance and with its lock held; the cursor lives until
    // `close` has taken it, which is not before it is put back.
    unsafe {
        let object = object.cast::<Object>();
        let place = take(object);
        let Some(cursor) = place.as_mut() else { return ptr::null_mut() };
        let value = cursor.begin();
        (*object).cursor = place;
        value
    }
}
