//! Tests of the guest without an engine.

mod lane;
mod loops;
mod values;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::CString;

fn python<T>(run: impl FnOnce(Python<'_>, &Bound<'_, PyDict>) -> T) -> T {
    Python::initialize();
    Python::attach(|py| {
        // The guest calls on the package's own modules, which this interpreter need not have
        // installed.
        let package = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        py.import("sys")
            .and_then(|sys| sys.getattr("path")?.call_method1("append", (package,)))
            .expect("sys.path");
        let names = PyDict::new(py);
        let imports = c"import datetime, decimal, uuid";
        py.run(imports, Some(&names), None).expect("Python's own modules");
        run(py, &names)
    })
}

fn evaluate<'py>(py: Python<'py>, names: &Bound<'py, PyDict>, text: &str) -> Bound<'py, PyAny> {
    let text = CString::new(text).expect("no zero bytes");
    py.eval(&text, Some(names), None).expect("an expression")
}
