//! Instances as bytes, by a quick way. It is for instances that hold only plain values by their
//! names, as most states do. A lane sends another lane as many instances as there are groups.
//!
//! The bytes are [`PLAIN`], and then for each item its name (one byte with the length, and the
//! text), a tag, and the value.

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

/// The first byte. `crosslane._worker.aggregates` gives it to no other form.
pub(crate) const PLAIN: u8 = b'd';

const NONE: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INTEGER: u8 = 3;
const FLOAT: u8 = 4;
const TEXT: u8 = 5;

/// Writes the values of an instance into `out`. Returns false if they are not plain.
pub(crate) fn write(instance: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> PyResult<bool> {
    out.clear();
    let attributes = instance.getattr(intern!(instance.py(), "__dict__"))?;
    let Ok(attributes) = attributes.cast_exact::<PyDict>() else { return Ok(false) };
    out.push(PLAIN);
    Ok(attributes.iter().all(|(name, value)| item(&name, &value, out).is_some()))
}

fn item(name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> Option<()> {
    let name = name.cast_exact::<PyString>().ok()?.to_str().ok()?;
    out.push(u8::try_from(name.len()).ok()?);
    out.extend(name.as_bytes());
    if value.is_none() {
        out.push(NONE);
    } else if let Ok(truth) = value.cast_exact::<PyBool>() {
        out.push(if truth.is_true() { TRUE } else { FALSE });
    } else if let Ok(number) = value.cast_exact::<PyInt>() {
        let mut overflow = 0;
        // SAFETY: the object is an int, so that no exception is set.
        let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(number.as_ptr(), &raw mut overflow) };
        if overflow != 0 {
            return None;
        }
        out.push(INTEGER);
        out.extend(number.to_le_bytes());
    } else if let Ok(number) = value.cast_exact::<PyFloat>() {
        out.push(FLOAT);
        out.extend(number.value().to_le_bytes());
    } else {
        let text = value.cast_exact::<PyString>().ok()?.to_str().ok()?;
        out.push(TEXT);
        out.extend(u32::try_from(text.len()).ok()?.to_le_bytes());
        out.extend(text.as_bytes());
    }
    Some(())
}

/// Reads the bytes of [`write()`] into an instance that holds nothing.
pub(crate) fn read(mut saved: &[u8], instance: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = instance.py();
    let attributes = instance.getattr(intern!(py, "__dict__"))?;
    let attributes = attributes.cast::<PyDict>()?;
    let saved = &mut saved;
    take::<1>(saved)?;
    while !saved.is_empty() {
        let [length] = take(saved)?;
        let name = PyString::intern(py, text(saved, length.into())?);
        let value = match take(saved)? {
            [NONE] => py.None().into_bound(py),
            [tag @ (FALSE | TRUE)] => PyBool::new(py, tag == TRUE).to_owned().into_any(),
            [INTEGER] => i64::from_le_bytes(take(saved)?).into_pyobject(py)?.into_any(),
            [FLOAT] => PyFloat::new(py, f64::from_le_bytes(take(saved)?)).into_any(),
            [TEXT] => {
                let length = u32::from_le_bytes(take(saved)?);
                PyString::new(py, text(saved, length as usize)?).into_any()
            }
            [tag] => return Err(PyValueError::new_err(format!("a saved state with the tag {tag}"))),
        };
        attributes.set_item(name, value)?;
    }
    Ok(())
}

fn truncated() -> PyErr {
    PyValueError::new_err("a saved state that ends too early")
}

fn take<const N: usize>(saved: &mut &[u8]) -> PyResult<[u8; N]> {
    let (first, rest) = saved.split_first_chunk().ok_or_else(truncated)?;
    *saved = rest;
    Ok(*first)
}

fn text<'a>(saved: &mut &'a [u8], length: usize) -> PyResult<&'a str> {
    let (text, rest) = saved.split_at_checked(length).ok_or_else(truncated)?;
    *saved = rest;
    std::str::from_utf8(text).map_err(|error| PyValueError::new_err(error.to_string()))
}
