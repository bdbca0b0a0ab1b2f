//! Vectors that the extension makes itself.

use libduckdb_sys as ffi;

/// A vector, and a selection of all its rows in order.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) vector: ffi::duckdb_vector,
    pub(crate) all: ffi::duckdb_selection_vector,
    pub(crate) capacity: ffi::idx_t,
}

// SAFETY: no other code uses the vector, and DuckDB lets any thread use it.
unsafe impl Send for Scratch {}

impl Scratch {
    /// # Safety
    /// The type must be one.
    pub(crate) unsafe fn new(logical: ffi::duckdb_logical_type, capacity: ffi::idx_t) -> Self {
        // SAFETY: as the caller says; both are destroyed once.
        unsafe {
            let vector = ffi::duckdb_create_vector(logical, capacity);
            let all = ffi::duckdb_create_selection_vector(capacity);
            let scratch = Self { vector, all, capacity };
            (0..).zip(scratch.selection()).for_each(|(row, place)| *place = row);
            scratch
        }
    }

    /// A vector of states, which are addresses.
    pub(crate) fn of_states(capacity: ffi::idx_t) -> Self {
        // SAFETY: the type's handle lives across the call. A pointer is as wide as the type.
        unsafe {
            let mut pointer = ffi::duckdb_create_logical_type(ffi::DUCKDB_TYPE_DUCKDB_TYPE_UBIGINT);
            let scratch = Self::new(pointer, capacity);
            ffi::duckdb_destroy_logical_type(&raw mut pointer);
            scratch
        }
    }

    #[expect(clippy::mut_from_ref, reason = "the places are not in this structure")]
    pub(crate) fn selection(&self) -> &mut [ffi::sel_t] {
        // SAFETY: the selection has `capacity` entries, and no other code uses it.
        unsafe {
            let places = ffi::duckdb_selection_vector_get_data_ptr(self.all);
            std::slice::from_raw_parts_mut(places, self.capacity as usize)
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe {
            ffi::duckdb_destroy_vector(&raw mut self.vector);
            ffi::duckdb_destroy_selection_vector(self.all);
        }
    }
}
