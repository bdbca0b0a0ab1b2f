//! Ints, and the objects that can be used as ints.

use super::vm::{Source, Vm, is_named};
use crosslane_guest::{Integer, Refusal, Taken, Values};
use pyo3::prelude::*;
use pyo3::types::PyInt;
use pyo3::{ffi, intern};

impl<'py> Vm<'py> {
    /// The value as an int: of an int, a bool, or an integer of numpy, but not of a float.
    pub(super) fn index(self, value: &Bound<'py, PyAny>) -> Taken<Bound<'py, PyInt>, Self> {
        // SAFETY: the function returns a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(self.py, ffi::PyNumber_Index(value.as_ptr())) }
            .map_err(|error| self.instead(error, Refusal::Mismatch))?
            .cast_into()
            .map_err(|_| Refusal::Mismatch)
    }

    /// As [`Vm::index`], for types that Arrow has as decimals.
    pub(super) fn wide_index(self, value: &Bound<'py, PyAny>) -> Taken<Bound<'py, PyInt>, Self> {
        if self.source == Source::Row || !is_named(value, "Decimal") {
            return self.index(value);
        }
        let whole = value.call_method0(intern!(self.py, "__int__"));
        let whole = whole.map_err(|error| self.instead(error, Refusal::Mismatch))?;
        if !whole.eq(value).map_err(Refusal::Failed)? {
            return Err(Refusal::Mismatch);
        }
        whole.cast_into().map_err(|_| Refusal::Mismatch)
    }

    /// The number of an int, if it has up to 128 bits. The limited API takes more than 64 bits in
    /// steps, but few ints have them.
    pub(super) fn number(self, int: &Bound<'py, PyInt>) -> Taken<Integer, Self> {
        if let Some(number) = self.quick_integer(int) {
            return Ok(i128::from(number).into());
        }
        if let Ok(number) = int.extract::<i128>() {
            return Ok(number.into());
        }
        let number = int.extract::<u128>();
        number.map(Integer::from).map_err(|error| self.instead(error, Refusal::TooLarge))
    }
}
