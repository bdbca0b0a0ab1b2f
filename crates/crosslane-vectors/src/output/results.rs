//! Writes results into DuckDB's vectors.
//!
//! A [`Results`] knows the type and the rows of its vector, and checks a column before it writes
//! it, so that nothing is written outside of the vector. DuckDB reads the children of a NULL when
//! it sorts, hashes or copies rows. So they must be NULL too, down to the last child, and must not
//! point anywhere.

use crate::types::{decimal_width, encoding};
use crate::vector::string::{DuckString, INLINE};
use crate::vector::{memory, validity};
use crosslane::batch::{Column, bit};
use crosslane::call::Output;
use crosslane::{Borrowed, DataType, Error, Layout};
use libduckdb_sys as ffi;
use std::ops::Range;

/// The result vector of one callback.
#[derive(Debug)]
pub struct Results<'a> {
    vector: ffi::duckdb_vector,
    data_type: &'a DataType,
    rows: usize,
}

impl<'a> Results<'a> {
    /// # Safety
    /// The vector must outlive the result, be of the type, and have space for the rows.
    pub unsafe fn new(vector: ffi::duckdb_vector, data_type: &'a DataType, rows: usize) -> Self {
        Self { vector, data_type, rows }
    }
}

impl Output for Results<'_> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        let end = first.checked_add(results.rows).filter(|end| *end <= self.rows);
        if end.is_none() || results.data_type != self.data_type || !is_sound(results) {
            let (rows, data_type) = (results.rows, results.data_type);
            return Err(Error::Engine(format!(
                "{rows} rows of {data_type} from row {first} on do not fit {} rows of {}",
                self.rows, self.data_type
            )));
        }
        // SAFETY: the vector is of the column's type and has its rows, and the column holds
        // together.
        unsafe { write(self.vector, first, results) }
    }

    fn accept_borrowed(
        &mut self,
        first: usize,
        results: &Column<'_>,
        values: Borrowed<'_>,
        check: &mut dyn FnMut(&Column<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let fits = first.checked_add(results.rows).is_some_and(|end| end <= self.rows);
        if !fits || results.data_type != self.data_type || !is_direct(results, values.length()) {
            return Ok(false);
        }
        // SAFETY: the vector is of the column's type and has its rows, and column and values hold
        // together.
        unsafe { write_borrowed(self.vector, first, results, values, check)? };
        Ok(true)
    }

    fn null(&mut self, row: usize) {
        if row < self.rows {
            // SAFETY: the vector has the row, and is of the type.
            unsafe { set_null(self.vector, self.data_type, row..row + 1) };
        }
    }
}

/// Whether a column with `values` bytes is consistent, and DuckDB has its values in the same form
/// as the batch.
fn is_direct(column: &Column<'_>, values: usize) -> bool {
    let same = match column.data_type {
        DataType::Decimal { precision, .. } => decimal_width(*precision) == 16,
        data_type => *data_type != DataType::Uuid && !encoding::is_encoded(data_type),
    };
    let lies = match column.data_type.layout() {
        Layout::Fixed(width) => values == column.rows * width,
        // A string holds fewer bytes in itself.
        Layout::Bytes { .. } => values > INLINE && column.rows > 0 && are_offsets(column, values),
        _ => false,
    };
    same && lies && column.validity.is_none_or(|bits| bits.len() >= column.rows.div_ceil(8))
}

/// Whether a column has offsets for its rows, none beyond `end`.
fn are_offsets(column: &Column<'_>, end: usize) -> bool {
    // A fold without early exit, so that the compiler vectorizes it.
    let ascending = column.offsets.windows(2).fold(true, |ascending, pair| ascending & (pair[0] <= pair[1]));
    column.offsets.len() == column.rows + 1
        && column.offsets[0] >= 0
        && ascending
        && column.offsets[column.rows] as usize <= end
}

/// Whether a column and its children have the rows and bytes that they claim.
fn is_sound(column: &Column<'_>) -> bool {
    let rows = column.rows;
    let bits = |bytes: &[u8]| bytes.len() >= rows.div_ceil(8);
    let children = |rows: usize| {
        column.children.len() == column.data_type.children().len()
            && column.children.iter().all(|child| child.rows == rows && is_sound(child))
    };
    column.validity.is_none_or(bits)
        && match column.data_type.layout() {
            Layout::Bits => bits(column.data),
            Layout::Fixed(width) => column.data.len() == rows * width,
            Layout::Bytes { .. } => are_offsets(column, column.data.len()),
            Layout::List => column
                .children
                .first()
                .is_some_and(|child| are_offsets(column, child.rows) && children(child.rows)),
            Layout::FixedList(length) => children(rows * length),
            Layout::Struct => children(rows),
        }
}

/// Makes rows and all their children NULL. The strings and lists of NULLs become empty.
///
/// # Safety
/// The vector must be of this type, and have the rows.
unsafe fn set_null(vector: ffi::duckdb_vector, data_type: &DataType, rows: Range<usize>) {
    // SAFETY: strings and list entries have 16 bytes; children have a row for each of a STRUCT, and
    // as many as elements for each of an ARRAY.
    unsafe {
        validity::mark_all(mask(vector, rows.end), rows.clone());
        match data_type.layout() {
            Layout::Bits | Layout::Fixed(_) => {}
            Layout::Bytes { .. } | Layout::List => {
                data::<[u64; 2]>(vector, rows.start).write_bytes(0, rows.len());
            }
            Layout::FixedList(length) => {
                let child = ffi::duckdb_array_vector_get_child(vector);
                let rows = rows.start * length..rows.end * length;
                data_type.children().for_each(|below| set_null(child, below, rows.clone()));
            }
            Layout::Struct => {
                for (index, below) in data_type.children().enumerate() {
                    let child = ffi::duckdb_struct_vector_get_child(vector, index as ffi::idx_t);
                    set_null(child, below, rows.clone());
                }
            }
        }
    }
}

/// A vector's mask for its first rows.
///
/// # Safety
/// The vector must have the rows, and its mask no other borrower.
unsafe fn mask<'a>(vector: ffi::duckdb_vector, rows: usize) -> &'a mut [u64] {
    // SAFETY: the mask exists after it was made writable, and has a bit for each row of the vector.
    unsafe {
        ffi::duckdb_vector_ensure_validity_writable(vector);
        std::slice::from_raw_parts_mut(ffi::duckdb_vector_get_validity(vector), rows.div_ceil(64))
    }
}

/// Makes the rows from `first` on that are NULL in a bitmap NULL, as [`set_null`] does.
///
/// # Safety
/// As [`set_null`]. The bitmap must have the rows.
unsafe fn set_nulls(
    vector: ffi::duckdb_vector,
    data_type: &DataType,
    first: usize,
    bitmap: &[u8],
    rows: usize,
) {
    // SAFETY: as in `set_null`.
    unsafe {
        validity::mark(mask(vector, first + rows), first, bitmap, rows);
        match data_type.layout() {
            Layout::Bits | Layout::Fixed(_) => {}
            Layout::Bytes { .. } | Layout::List => {
                let data = data::<[u64; 2]>(vector, first);
                validity::each_null(bitmap, rows, |row| data.add(row).write([0; 2]));
            }
            Layout::FixedList(length) => {
                let child = ffi::duckdb_array_vector_get_child(vector);
                validity::each_null(bitmap, rows, |row| {
                    let rows = (first + row) * length..(first + row + 1) * length;
                    data_type.children().for_each(|below| set_null(child, below, rows.clone()));
                });
            }
            Layout::Struct => {
                for (index, below) in data_type.children().enumerate() {
                    let child = ffi::duckdb_struct_vector_get_child(vector, index as ffi::idx_t);
                    set_nulls(child, below, first, bitmap, rows);
                }
            }
        }
    }
}

/// Writes a column into rows `first ..` of a vector.
///
/// # Safety
/// The vector must be of the column's type and have the rows, and the column must be sound.
unsafe fn write(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>) -> Result<(), Error> {
    // SAFETY: as the caller says; each arm writes values of the width that DuckDB has for the type.
    unsafe {
        match column.data_type.layout() {
            Layout::Bits => {
                let data = data::<bool>(vector, first);
                (0..column.rows).for_each(|row| data.add(row).write(bit(column.data, row)));
            }
            Layout::Fixed(_) => write_fixed(vector, first, column),
            Layout::Bytes { .. } if encoding::is_encoded(column.data_type) => {
                write_encoded(vector, first, column)?
            }
            Layout::Bytes { .. } => write_bytes(vector, first, column)?,
            Layout::List => write_list(vector, first, column)?,
            Layout::FixedList(length) => {
                let child = ffi::duckdb_array_vector_get_child(vector);
                write(child, first * length, &column.children[0])?;
            }
            Layout::Struct => {
                for (index, child) in column.children.iter().enumerate() {
                    let below = ffi::duckdb_struct_vector_get_child(vector, index as ffi::idx_t);
                    write(below, first, child)?;
                }
            }
        }
        // Last, because it changes the children that were written.
        if let Some(validity) = column.validity {
            set_nulls(vector, column.data_type, first, validity, column.rows);
        }
    }
    Ok(())
}

/// Copies values that a guest can still change into the vector, has the copy checked, and finishes
/// the column.
///
/// # Safety
/// As [`write`]; column and values must be as [`is_direct`] says.
unsafe fn write_borrowed(
    vector: ffi::duckdb_vector,
    first: usize,
    column: &Column<'_>,
    values: Borrowed<'_>,
    check: &mut dyn FnMut(&Column<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let length = values.length();
    // SAFETY: as the caller says. The slices are of the copy in DuckDB's memory, which no code writes
    // while they live.
    unsafe {
        match column.data_type.layout() {
            Layout::Fixed(width) => {
                let to = data::<u8>(vector, first * width);
                values.copy_to(to);
                check(&Column { data: std::slice::from_raw_parts(to, length), ..column.clone() })?;
            }
            _ => {
                let heap = assign(vector, first, values.address(), length)?;
                let copied = Column { data: std::slice::from_raw_parts(heap, length), ..column.clone() };
                check(&copied)?;
                point(vector, first, &copied, heap);
            }
        }
        if let Some(validity) = column.validity {
            set_nulls(vector, column.data_type, first, validity, column.rows);
        }
    }
    Ok(())
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

/// Copies all bytes into the vector's heap at once, and points the strings to them.
///
/// # Safety
/// As [`write`], for a column of strings.
unsafe fn write_bytes(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>) -> Result<(), Error> {
    if column.rows == 0 {
        return Ok(());
    }
    // SAFETY: as the caller says.
    unsafe {
        let mut heap = std::ptr::null();
        if column.data.len() > INLINE {
            heap = assign(vector, first, column.data.as_ptr(), column.data.len())?;
        }
        point(vector, first, column, heap);
    }
    Ok(())
}

/// Lets DuckDB copy bytes into the vector's heap, more than a string holds in itself. Returns their
/// address there.
///
/// # Safety
/// The vector must have strings, and this row. The bytes must be mapped; DuckDB copies them once.
unsafe fn assign(
    vector: ffi::duckdb_vector,
    row: usize,
    bytes: *const u8,
    length: usize,
) -> Result<*const u8, Error> {
    memory::check_strings(length)?;
    // SAFETY: assigning the row's string allocates memory of the vector; its address is then read
    // from the string.
    unsafe {
        let index = row as ffi::idx_t;
        ffi::duckdb_unsafe_vector_assign_string_element_len(
            vector,
            index,
            bytes.cast(),
            length as ffi::idx_t,
        );
        Ok(data::<DuckString>(vector, row).read().address())
    }
}

/// Writes the strings of a column whose bytes begin at `heap`.
///
/// # Safety
/// As [`write_bytes`]; `heap` must live as long as the vector.
unsafe fn point(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>, heap: *const u8) {
    // SAFETY: the strings are as DuckDB makes them.
    unsafe {
        let to = data::<DuckString>(vector, first);
        for (row, ends) in column.offsets.windows(2).enumerate() {
            let bytes = ends[0] as usize..ends[1] as usize;
            let address = heap.wrapping_add(bytes.start);
            to.add(row).write(DuckString::new(column.data, bytes, address));
        }
    }
}

/// # Safety
/// As [`write`], for a column of bytes that DuckDB encodes in another form.
unsafe fn write_encoded(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>) -> Result<(), Error> {
    let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
    for row in 0..column.rows {
        let value = column.bytes(row);
        let most = encoding::longest(column.data_type, value.len());
        bytes.try_reserve(most).map_err(|_| Error::memory(bytes.len() + most))?;
        if column.is_valid(row) {
            encoding::encode(column.data_type, value, &mut bytes);
        }
        let end = i32::try_from(bytes.len()).map_err(|_| Error::memory(bytes.len()))?;
        offsets.push(end);
    }
    // SAFETY: as the caller says; the column has the rows of the other.
    unsafe { write_bytes(vector, first, &Column { offsets: &offsets, data: &bytes, ..column.clone() }) }
}

/// # Safety
/// As [`write`], for a LIST or MAP.
unsafe fn write_list(vector: ffi::duckdb_vector, first: usize, column: &Column<'_>) -> Result<(), Error> {
    // SAFETY: space of the child is reserved before it is written, and its vector fetched after
    // that.
    unsafe {
        let before = ffi::duckdb_list_vector_get_size(vector) as usize;
        let elements = &column.children[0];
        memory::check_list(elements.data_type, before + elements.rows)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_elements_of_arrays_are_counted_beyond_32_bits() {
        // STRUCTs without fields take no memory.
        let empty = DataType::Struct(Arc::new([]));
        let array = DataType::Array(Arc::new(empty.clone()), 100_000);
        let column = |data_type, rows, children| Column {
            data_type,
            rows,
            validity: None,
            offsets: &[],
            data: &[],
            children,
        };
        let arrays = |elements| column(&array, 50_000, vec![column(&empty, elements, Vec::new())]);
        assert!(is_sound(&arrays(5_000_000_000)));
        assert!(!is_sound(&arrays(5_000_000_000 & 0xFFFF_FFFF)));
    }
}
