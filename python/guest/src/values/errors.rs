//! Python's exceptions for errors of columns.

use crosslane::builder::Overflow;
use pyo3::exceptions::{PyMemoryError, PyOverflowError};
use pyo3::prelude::*;

pub(crate) fn overflow(error: Overflow) -> PyErr {
    match error {
        Overflow::TooLarge => PyOverflowError::new_err(error.to_string()),
        Overflow::NoMemory => PyMemoryError::new_err(error.to_string()),
    }
}
