//! The function that one call in a query calls.

use crate::types::{LogicalType, data_type};
use crosslane::{DataType, Error, Function, Signature};
use libduckdb_sys as ffi;
use std::cell::OnceCell;
use std::sync::Arc;

/// The function of one call in a query, on one worker.
#[derive(Debug)]
pub struct Callee {
    declared: Arc<Function>,
    /// The function for the types of this call's arguments, if it takes arguments of any type. The
    /// first chunk tells them.
    concrete: Option<OnceCell<Function>>,
}

impl Callee {
    /// The callee of a call of a function.
    pub fn new(declared: Arc<Function>) -> Self {
        let concrete = declared.signature.takes_any().then(OnceCell::new);
        Self { declared, concrete }
    }

    /// The function for the types of a chunk of arguments.
    ///
    /// # Errors
    /// [`Error::Engine`] if an argument has a type that functions cannot have.
    ///
    /// # Safety
    /// The chunk must have the columns that the function was registered with.
    pub unsafe fn of_chunk(&self, chunk: ffi::duckdb_data_chunk) -> Result<&Function, Error> {
        let Some(concrete) = &self.concrete else { return Ok(&self.declared) };
        if let Some(known) = concrete.get() {
            return Ok(known);
        }
        // SAFETY: as the caller says.
        let types = unsafe { argument_types(&self.declared.signature, chunk)? };
        let made = self.declared.for_arguments(types)?;
        Ok(concrete.get_or_init(|| made))
    }
}

/// The types of a call's arguments: the declared types, and the argument's own type in the place of
/// ANY.
///
/// # Safety
/// As [`Callee::of_chunk`].
unsafe fn argument_types(
    signature: &Signature,
    chunk: ffi::duckdb_data_chunk,
) -> Result<Vec<DataType>, Error> {
    // SAFETY: as the caller says.
    let count = unsafe { ffi::duckdb_data_chunk_get_column_count(chunk) } as usize;
    let declared = signature.fixed().iter().map(|field| &field.data_type);
    let declared = declared.chain(signature.rest().into_iter().cycle()).take(count);
    let type_of = |(index, declared): (usize, &DataType)| {
        if *declared != DataType::Any {
            return Ok(declared.clone());
        }
        let refused = |what: String| Error::Engine(format!("{signature}: argument {}: {what}", index + 1));
        // SAFETY: the chunk has this column, and the handle is alive.
        let own = unsafe {
            let vector = ffi::duckdb_data_chunk_get_vector(chunk, index as ffi::idx_t);
            data_type(LogicalType::of(vector).raw())
        };
        let own = own.map_err(|error| refused(error.to_string()))?;
        // Guests read the type as text.
        if own.to_string().parse().as_ref() != Ok(&own) {
            return Err(refused(format!(
                "a function cannot have the type {own}; cast it to one whose fields have names"
            )));
        }
        Ok(own)
    };
    declared.enumerate().map(type_of).collect()
}
