//! Chunks of rows.

use crate::types::LogicalType;
use crosslane::Error;
use libduckdb_sys as ffi;

/// A chunk of rows, destroyed when dropped.
#[derive(Debug)]
pub struct Chunk(pub ffi::duckdb_data_chunk);

impl Chunk {
    /// An empty one with columns of these types.
    ///
    /// # Errors
    /// [`Error::Engine`] if there is no memory for it.
    pub fn new(types: &[LogicalType]) -> Result<Self, Error> {
        let mut raw: Vec<_> = types.iter().map(LogicalType::raw).collect();
        // SAFETY: the types live across the call.
        let chunk = unsafe { ffi::duckdb_create_data_chunk(raw.as_mut_ptr(), raw.len() as ffi::idx_t) };
        if chunk.is_null() {
            return Err(Error::Engine("out of memory: no room for a chunk".into()));
        }
        Ok(Self(chunk))
    }

    /// How many rows it has.
    pub(crate) fn rows(&self) -> usize {
        // SAFETY: the chunk lives.
        unsafe { ffi::duckdb_data_chunk_get_size(self.0) as usize }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_data_chunk(&raw mut self.0) };
    }
}
