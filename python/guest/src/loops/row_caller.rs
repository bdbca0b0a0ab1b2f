//! Calls from Rust, one for each row: for functions that have no loop in Python, and for another
//! try.
//!
//! Some things are found once for a batch: the place of the values of a column, whether its strings
//! are ASCII, and the vectorcall entry of the function.

use super::argument::Argument;
use crate::values::vectorcall;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::ptr;

/// Calls a function for one row after the other.
pub(crate) struct RowCaller<'a, 'py> {
    function: &'a Bound<'py, PyAny>,
    entry: Option<vectorcall::Entry>,
    arguments: &'a [Argument<'a, 'py>],
    /// Whether the last argument is a list of any number of arguments.
    variadic: bool,
    /// One free place, which CPython may use for `self`, and the arguments.
    stack: Vec<*mut ffi::PyObject>,
}

impl<'a, 'py> RowCaller<'a, 'py> {
    /// Replaces the list at the end of the stack by its elements. Returns how many arguments there
    /// are then.
    fn spread(&mut self, py: Python<'py>, filled: usize) -> usize {
        // SAFETY: the reference is the stack's own, and is taken from it here.
        let list = unsafe { Bound::from_owned_ptr(py, self.stack[filled]) };
        let elements = list.cast::<PyList>().map_or_else(|_| Vec::new(), |list| list.iter().collect());
        let count = filled - 1 + elements.len();
        self.stack.resize((count + 1).max(self.arguments.len() + 1), ptr::null_mut());
        for (place, element) in self.stack[filled..].iter_mut().zip(elements) {
            *place = element.into_ptr();
        }
        count
    }

    /// A caller for one batch.
    pub(crate) fn new(
        function: &'a Bound<'py, PyAny>,
        arguments: &'a [Argument<'a, 'py>],
        variadic: bool,
    ) -> Self {
        Self {
            function,
            // SAFETY: the function is a living object.
            entry: unsafe { vectorcall::entry(function.as_ptr()) },
            variadic,
            stack: vec![ptr::null_mut(); arguments.len() + 1],
            arguments,
        }
    }

    /// Calls the function with a row.
    #[inline(always)]
    pub(crate) fn call(&mut self, row: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.function.py();
        let mut filled = 0;
        let mut outcome = Ok(());
        for argument in self.arguments {
            match argument.get(py, row) {
                Ok(object) => {
                    filled += 1;
                    self.stack[filled] = object;
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if self.variadic && outcome.is_ok() {
            filled = self.spread(py, filled);
        }
        // SAFETY: the stack holds `filled` owned references behind its first place, which the flag
        // allows CPython to overwrite; the result is a new reference or null with an exception set.
        let outcome = outcome.and_then(|()| unsafe {
            let function = self.function.as_ptr();
            let arguments = self.stack.as_ptr().add(1);
            let count = filled | vectorcall::FREE_PLACE;
            let result = match self.entry {
                Some(call) => call(function, arguments, count, ptr::null_mut()),
                None => vectorcall::call(function, arguments, count, ptr::null_mut()),
            };
            Bound::from_owned_ptr_or_err(py, result)
        });
        for object in &self.stack[1..=filled] {
            // SAFETY: these are the references that `get` returned.
            unsafe { ffi::Py_DECREF(*object) };
        }
        outcome
    }
}
