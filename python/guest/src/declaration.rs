//! The options that all declared functions have.

use crate::values::{Hint, Reader, reader};
use crosslane::{ErrorPolicy, Field, Signature};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The signature and the options that all kinds of functions have.
pub(crate) struct Declaration<'py> {
    pub(crate) signature: Signature,
    /// The hints of the parameters, from their annotations.
    pub(crate) hints: Vec<Hint<'py>>,
    /// For each parameter, whether rows with a NULL in it are called.
    pub(crate) admits_null: Vec<bool>,
    pub(crate) error_policy: ErrorPolicy,
    pub(crate) memory_limit: Option<u64>,
}

impl<'py> Declaration<'py> {
    /// Reads the options of an object such as `crosslane._declare.signature.declared.Function`.
    pub(crate) fn read(declared: &Bound<'py, PyAny>) -> PyResult<Self> {
        let signature: String = declared.getattr("signature")?.extract()?;
        let on_error: String = declared.getattr("on_error")?.extract()?;
        Ok(Self {
            signature: signature.parse().map_err(crate::signatures::value_error)?,
            hints: declared.getattr("shapes")?.extract()?,
            admits_null: declared.getattr("admits_null")?.extract()?,
            error_policy: ErrorPolicy {
                retries: declared.getattr("retries")?.extract()?,
                on_error: on_error.parse().map_err(PyValueError::new_err)?,
            },
            memory_limit: declared.getattr("memory_limit")?.extract()?,
        })
    }

    /// Readers of the parameters.
    pub(crate) fn readers(&self, py: Python<'py>) -> PyResult<Vec<Reader<'py>>> {
        self.readers_of(py, &self.signature.parameters)
    }

    /// Readers of fields that have the parameters' hints.
    pub(crate) fn readers_of(&self, py: Python<'py>, fields: &[Field]) -> PyResult<Vec<Reader<'py>>> {
        let fields = fields.iter().zip(&self.hints);
        fields.map(|(field, hint)| reader(py, &field.data_type, hint.clone())).collect()
    }
}
