//! Copying rows from one vector to another.

use super::rows::Rows;
use super::vector_rows::VectorRows;
use crate::vector::memory::check;
use crosslane::{DataType, Error};
use libduckdb_sys as ffi;
use std::ops::Range;

/// Appends rows of a vector to another that has `before` rows, if there is memory for their strings
/// and lists.
///
/// # Errors
/// [`Error::Engine`] if there is not.
///
/// # Safety
/// Both vectors must be of the type. The first must have the rows, and so must the selection; the
/// second must have space for them.
pub(crate) unsafe fn copy(
    from: ffi::duckdb_vector,
    to: ffi::duckdb_vector,
    data_type: &DataType,
    selection: ffi::duckdb_selection_vector,
    rows: Range<usize>,
    before: usize,
) -> Result<(), Error> {
    // SAFETY: as the caller says.
    unsafe {
        check(VectorRows::new(from, data_type, Rows::Range(rows.clone()))?.bytes_added_to(to))?;
        let (start, end) = (rows.start as ffi::idx_t, rows.end as ffi::idx_t);
        ffi::duckdb_vector_copy_sel(from, to, selection, end, start, before as ffi::idx_t);
    }
    Ok(())
}
