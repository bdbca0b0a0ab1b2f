//! Dicts, sets and lists that do not change while functions look things up in them.
//!
//! If dicts have versions, one number says that a dict is unchanged. In other versions of CPython, all
//! objects are compared.

use crate::values::layout;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A dict, set or list, and the objects in it.
#[pyclass(frozen, module = "crosslane._guest")]
pub(crate) struct Elements {
    of: Py<PyAny>,
    objects: Vec<Py<PyAny>>,
    /// The version of a dict with these objects, or 0.
    version: AtomicU64,
}

fn version(of: &Bound<'_, PyAny>) -> Option<u64> {
    of.cast_exact::<PyDict>().ok().and_then(layout::dict_version)
}

/// Calls a function with each object in a dict, set or list, until it returns false. Returns whether
/// it did not. An error says that another thread changed it meanwhile.
fn all(of: &Bound<'_, PyAny>, mut each: impl FnMut(&Bound<'_, PyAny>) -> bool) -> PyResult<bool> {
    if let Ok(dict) = of.cast_exact::<PyDict>() {
        return Ok(dict.iter().all(|(key, value)| each(&key) && each(&value)));
    }
    if let Ok(list) = of.cast_exact::<PyList>() {
        return Ok(list.iter().all(|object| each(&object)));
    }
    for object in of.cast_exact::<PySet>()? {
        if !each(&object) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[pymethods]
impl Elements {
    #[new]
    fn new(of: Bound<'_, PyAny>) -> PyResult<Self> {
        let mut objects = Vec::new();
        all(&of, |object| {
            objects.push(object.clone().unbind());
            true
        })?;
        let version = AtomicU64::new(version(&of).unwrap_or(0));
        Ok(Self { of: of.unbind(), objects, version })
    }

    /// Whether a look at a dict takes the same time, however large it is.
    #[staticmethod]
    fn are_fast(py: Python<'_>) -> bool {
        layout::dict_version(&PyDict::new(py)).is_some()
    }

    /// Whether it still has the same objects in the same order.
    fn are_unchanged(&self, py: Python<'_>) -> PyResult<bool> {
        let now = version(self.of.bind(py));
        if now.is_some_and(|now| now == self.version.load(Relaxed)) {
            return Ok(true);
        }
        let mut expected = self.objects.iter();
        let same = all(self.of.bind(py), |object| expected.next().is_some_and(|one| object.is(one)))?;
        let same = same && expected.next().is_none();
        if let (true, Some(now)) = (same, now) {
            self.version.store(now, Relaxed);
        }
        Ok(same)
    }
}
