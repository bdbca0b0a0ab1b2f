//! Calls without a tuple of arguments (PEP 590).
//!
//! Every CPython since 3.9 exports both functions, and 3.12 made them part of the stable ABI as
//! they were. The limited API of 3.11 does not declare them, and the guest is built for that API.

use pyo3::ffi::PyObject;

/// The entry of a callable. It takes the callable, its arguments, their number and flags, and the
/// names of the last arguments or null.
pub(crate) type Entry =
    unsafe extern "C" fn(*mut PyObject, *const *mut PyObject, usize, *mut PyObject) -> *mut PyObject;

/// A flag in the number of arguments: the place before the first argument is free to use.
pub(crate) const FREE_PLACE: usize = 1 << (usize::BITS - 1);

unsafe extern "C" {
    /// The entry of a callable, if it has one.
    #[link_name = "PyVectorcall_Function"]
    pub(crate) fn entry(callable: *mut PyObject) -> Option<Entry>;

    /// Calls any callable, as its [`Entry`] would.
    #[link_name = "PyObject_Vectorcall"]
    pub(crate) fn call(
        callable: *mut PyObject,
        arguments: *const *mut PyObject,
        count: usize,
        names: *mut PyObject,
    ) -> *mut PyObject;
}
