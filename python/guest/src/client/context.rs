//! The span that calls of a thread belong to.

use crosslane_remote::context::{Calling, TraceContext, set};
use pyo3::prelude::*;
use std::sync::Arc;

/// Sets the context of the calls that this thread makes from now on, from the content of the headers
/// `traceparent` and `tracestate`. Without a valid one it is that of the environment.
#[pyfunction]
pub(crate) fn set_trace_context(parent: Option<&str>, state: &str) {
    let context = parent.and_then(|parent| TraceContext::new(parent, state));
    set(context.map_or(Calling::Environment, |context| Calling::Within(Some(Arc::new(context)))));
}
