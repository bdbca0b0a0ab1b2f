//! Dicts, sets and lists that do not change while functions look things up in them.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet};

/// A dict, set or list, and the objects in it.
#[pyclass(frozen, module = "crosslane._guest")]
pub(crate) struct Elements {
    of: Py<PyAny>,
    objects: Vec<Py<PyAny>>,
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
        Ok(Self { of: of.unbind(), objects })
    }

    /// Whether it still has the same objects in the same order.
    fn are_unchanged(&self, py: Python<'_>) -> PyResult<bool> {
        let mut expected = self.objects.iter();
        let same = all(self.of.bind(py), |object| expected.next().is_some_and(|one| object.is(one)))?;
        Ok(same && expected.next().is_none())
    }
}
