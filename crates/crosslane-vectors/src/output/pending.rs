//! Batches of results that are longer than DuckDB's chunks.

use super::projection::Projection;
use super::results::Results;
use crate::input::copy;
use crate::types::LogicalType;
use crate::vector::{Scratch, memory};
use crosslane::batch::Column;
use crosslane::call::Output;
use crosslane::{DataType, Error};
use libduckdb_sys as ffi;

/// The rows of a batch that DuckDB has not taken yet.
#[derive(Debug, Default)]
pub struct PendingRows {
    /// For each vector of a chunk, all rows of its column, and its type.
    columns: Vec<(Scratch, DataType)>,
    rows: usize,
    next: usize,
}

impl PendingRows {
    /// Puts rows from `first` on into a chunk, as many as it takes, and keeps the others. Returns
    /// how many it took.
    ///
    /// # Errors
    /// [`Error::Engine`] if there is no memory.
    ///
    /// # Safety
    /// The chunk must be an empty one of the projection's columns, and the batch a STRUCT of all
    /// columns.
    pub unsafe fn begin(
        &mut self,
        batch: &Column<'_>,
        first: usize,
        projection: &Projection,
        output: ffi::duckdb_data_chunk,
    ) -> Result<usize, Error> {
        *self = Self::default();
        // SAFETY: the vectors are of the columns' types, as the caller says, and have space for the
        // rows.
        unsafe {
            let longest = ffi::duckdb_vector_size() as usize;
            let columns = projection.columns().map(|column| &batch.children[column]);
            if first == 0 && batch.rows <= longest {
                for (index, column) in (0..).zip(columns) {
                    let vector = ffi::duckdb_data_chunk_get_vector(output, index);
                    Results::new(vector, column.data_type, longest).accept(0, column)?;
                }
                return Ok(batch.rows);
            }
            for column in columns {
                memory::check_list(column.data_type, column.rows)?;
                let logical = LogicalType::new(column.data_type)?;
                let kept = Scratch::new(logical.raw(), column.rows as ffi::idx_t);
                if kept.vector.is_null() {
                    return Err(Error::memory(column.rows));
                }
                Results::new(kept.vector, column.data_type, column.rows).accept(0, column)?;
                self.columns.push((kept, column.data_type.clone()));
            }
            (self.rows, self.next) = (batch.rows, first);
            self.next(output)
        }
    }

    /// Puts the next rows into a chunk. Returns how many; 0 if there are no more.
    ///
    /// # Errors
    /// As [`PendingRows::begin`].
    ///
    /// # Safety
    /// As [`PendingRows::begin`].
    pub unsafe fn next(&mut self, output: ffi::duckdb_data_chunk) -> Result<usize, Error> {
        // SAFETY: the vectors have the rows, and those of the chunk are of the same types.
        unsafe {
            let end = self.rows.min(self.next + ffi::duckdb_vector_size() as usize);
            for (index, (kept, data_type)) in (0..).zip(&self.columns) {
                let to = ffi::duckdb_data_chunk_get_vector(output, index);
                copy(kept.vector, to, data_type, kept.all, self.next..end, 0)?;
            }
            let count = end - self.next;
            self.next = end;
            if count == 0 {
                *self = Self::default();
            }
            Ok(count)
        }
    }
}
