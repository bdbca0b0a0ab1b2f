//! Results into DuckDB's vectors.
//!
//! The columns were checked when they were read from the lane's frame (`Trust::Nothing`), so lengths and
//! offsets can be relied on here.

use crate::types::decimal_width;
use crosslane::batch::{Column, bit};
use crosslane::call::Output;
use crosslane::{DataType, Error, Layout};
use libduckdb_sys as ffi;

/// The result vector of one callback.
#[derive(Debug)]
pub struct Results(ffi::duckdb_vector);

impl Results {
    /// # Safety
    /// The vector must outlive the result and be of the type of the columns that it accepts.
    pub unsafe fn new(vector: ffi::duckdb_vector) -> Self {
        Self(vector)
    }
}

impl Output for Results {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        // SAFETY: the vector is of the column's type and has room for the chunk's rows.
        unsafe { write(self.0, first, results) }
    }

    fn null(&mut self, row: usize) {
        // SAFETY: the row belongs to the chunk.
        unsafe { set_null(self.0, row) };
    }
}

/// # Safety
/// The vector must have the row.
unsafe fn set_null(vector: ffi::duckdb_vector, row: usize) {
    // SAFETY: the mask exists after it was made writable.
    unsafe {
        ffi::duckdb_vector_ensure_validity_writable(vector);
        ffi::duckdb_validity_set_row_invalid(ffi::duckdb_vector_get_validity(vector), row as ffi::idx_t);
    }
}

/// Writes a column into rows `first ..` of a vector.
///
/// # Safety
/// The vector must be of the column's type and have the rows.
unsafe fn write(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>) -> Result<(), Error> {
    // SAFETY: as the caller says; each arm writes values of the width that DuckDB has for the type.
    unsafe {
        if let Some(validity) = column.validity {
            for row in (0..column.rows).filter(|row| !bit(validity, *row)) {
                set_null(vector, first + row);
            }
        }
        match column.data_type.layout() {
            Layout::Bits => {
                let data = data::<bool>(vector, first);
                (0..column.rows).for_each(|row| data.add(row).write(bit(column.data, row)));
            }
            Layout::Fixed(_) => write_fixed(vector, first, column),
            Layout::Bytes { .. } => write_bytes(vector, first, column),
            Layout::List => write_list(vector, first, column)?,
            Layout::FixedList(length) => {
                let child = ffi::duckdb_array_vector_get_child(vector);
                write(child, first * length, &column.children[0])?;
                null_below(child, column, |row| (first + row) * length..(first + row + 1) * length);
            }
            Layout::Struct => {
                for (index, child) in column.children.iter().enumerate() {
                    let below = ffi::duckdb_struct_vector_get_child(vector, index as ffi::idx_t);
                    write(below, first, child)?;
                    null_below(below, column, |row| first + row..first + row + 1);
                }
            }
        }
    }
    Ok(())
}

/// What lies below a NULL is NULL, as DuckDB expects.
///
/// # Safety
/// The vector must have the rows.
unsafe fn null_below(
    vector: ffi::duckdb_vector,
    column: &Column<'_>,
    rows: impl Fn(usize) -> std::ops::Range<usize>,
) {
    let Some(validity) = column.validity else { return };
    for row in (0..column.rows).filter(|row| !bit(validity, *row)) {
        // SAFETY: as the caller says.
        rows(row).for_each(|row| unsafe { set_null(vector, row) });
    }
}

/// # Safety
/// The vector must hold values of type `T`.
unsafe fn data<T>(vector: ffi::duckdb_vector, first: usize) -> *mut T {
    // SAFETY: as the caller says.
    unsafe { ffi::duckdb_vector_get_data(vector).cast::<T>().add(first) }
}

/// # Safety
/// As [`write`], for a fixed-width column.
unsafe fn write_fixed(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>) {
    // SAFETY: DuckDB stores each type in the width that is written for it.
    unsafe {
        match column.data_type {
            DataType::Decimal { precision, .. } => match decimal_width(*precision) {
                2 => convert(vector, first, column, |value| i128::from_le_bytes(value) as i16),
                4 => convert(vector, first, column, |value| i128::from_le_bytes(value) as i32),
                8 => convert(vector, first, column, |value| i128::from_le_bytes(value) as i64),
                _ => convert(vector, first, column, |value| value),
            },
            DataType::Uuid => convert(vector, first, column, |value| u128::from_be_bytes(value) ^ 1 << 127),
            data_type => {
                let Layout::Fixed(width) = data_type.layout() else { return };
                let to = data::<u8>(vector, first * width);
                to.copy_from_nonoverlapping(column.data.as_ptr(), column.data.len());
            }
        }
    }
}

/// # Safety
/// The vector must hold values of type `T`.
unsafe fn convert<T>(
    vector: ffi::duckdb_vector,
    first: usize,
    column: &Column<'_>,
    convert: impl Fn([u8; 16]) -> T,
) {
    // SAFETY: as the caller says.
    unsafe {
        let to = data::<T>(vector, first);
        (0..column.rows).for_each(|row| to.add(row).write_unaligned(convert(column.value(row))));
    }
}

/// The most bytes that a DuckDB string holds in place.
const INLINE: usize = 12;

/// DuckDB's string: its length, then up to 12 bytes, or the first four of more and their address.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct DuckString([u8; 16]);

impl DuckString {
    /// A string of up to 12 bytes in place, a longer one as its first bytes and a pointer.
    fn new(bytes: &[u8], address: *const u8) -> Self {
        let length = bytes.len() as u32;
        let rest = match bytes.first_chunk::<4>() {
            Some(prefix) if bytes.len() > INLINE => {
                u128::from(u32::from_le_bytes(*prefix)) | u128::from(address as u64) << 32
            }
            _ => bytes.iter().rev().fold(0, |rest, byte| rest << 8 | u128::from(*byte)),
        };
        Self((u128::from(length) | rest << 32).to_le_bytes())
    }
}

/// Copies all bytes into the vector's heap at once, and lets the strings point into them.
///
/// # Safety
/// As [`write`], for a column of strings.
unsafe fn write_bytes(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>) {
    if column.rows == 0 {
        return;
    }
    // SAFETY: the first row's string is assigned to get memory of the vector's own, whose address is
    // then read back from it; the strings written over it are as DuckDB makes them.
    unsafe {
        let to = data::<DuckString>(vector, first);
        let mut heap = std::ptr::null();
        if column.data.len() > INLINE {
            ffi::duckdb_unsafe_vector_assign_string_element_len(
                vector,
                first as ffi::idx_t,
                column.data.as_ptr().cast(),
                column.data.len() as ffi::idx_t,
            );
            let DuckString(assigned) = to.read();
            heap = (u128::from_le_bytes(assigned) >> 64) as u64 as *const u8;
        }
        for row in 0..column.rows {
            let address = heap.wrapping_add(column.offsets[row] as usize);
            to.add(row).write(DuckString::new(column.bytes(row), address));
        }
    }
}

/// # Safety
/// As [`write`], for a LIST or MAP.
unsafe fn write_list(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>) -> Result<(), Error> {
    // SAFETY: the child is given room before it is written, and its vector fetched after that.
    unsafe {
        let before = ffi::duckdb_list_vector_get_size(vector) as usize;
        let elements = &column.children[0];
        let size = (before + elements.rows) as ffi::idx_t;
        let reserved = ffi::duckdb_list_vector_reserve(vector, size) == ffi::duckdb_state_DuckDBSuccess;
        if !reserved || ffi::duckdb_list_vector_set_size(vector, size) != ffi::duckdb_state_DuckDBSuccess {
            return Err(Error::Engine(format!("DuckDB has no room for {size} list elements")));
        }
        let entries = data::<ffi::duckdb_list_entry>(vector, first);
        for row in 0..column.rows {
            let range = column.elements(row);
            entries.add(row).write(ffi::duckdb_list_entry {
                offset: (before + range.start) as u64,
                length: range.len() as u64,
            });
        }
        write(ffi::duckdb_list_vector_get_child(vector), before, elements)
    }
}
