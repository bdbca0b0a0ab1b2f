//! A result as an Arrow C stream (the Arrow C stream interface, `ArrowArrayStream`).

use crate::engine::connection::session::failure;
use crate::engine::data::rows::Rows;
use crate::engine::library::text::text;
use crosslane_vectors::Chunk;
use libduckdb_sys as ffi;
use magnus::Error;
use magnus::typed_data::Obj;
use std::ffi::{CString, c_char, c_int, c_void};

/// The structure `ArrowArrayStream` of the C interface.
#[repr(C)]
pub(crate) struct Stream {
    pub(crate) get_schema: Option<unsafe extern "C" fn(*mut Stream, *mut ffi::ArrowSchema) -> c_int>,
    pub(crate) get_next: Option<unsafe extern "C" fn(*mut Stream, *mut ffi::ArrowArray) -> c_int>,
    pub(crate) get_last_error: Option<unsafe extern "C" fn(*mut Stream) -> *const c_char>,
    pub(crate) release: Option<unsafe extern "C" fn(*mut Stream)>,
    pub(crate) private: *mut c_void,
}

/// The rows that a stream has not returned yet.
struct Remaining {
    result: ffi::duckdb_result,
    options: ffi::duckdb_arrow_options,
    error: CString,
    /// Keeps the connection open, because the options belong to it.
    _link: Option<std::sync::Arc<crate::engine::connection::link::Link>>,
}

impl Drop for Remaining {
    fn drop(&mut self) {
        // SAFETY: both are ours, destroyed once.
        unsafe {
            ffi::duckdb_destroy_arrow_options(&raw mut self.options);
            ffi::duckdb_destroy_result(&raw mut self.result);
        }
    }
}

/// Makes a stream of the unread rows, and returns its address. The stream owns the rows from then
/// on. The importer releases the stream, as the interface requires. `free_stream` frees the
/// structure itself.
pub(crate) fn stream(rows: Obj<Rows>) -> Result<usize, Error> {
    let mut inner = rows.inner()?;
    let Some(link) = inner.link.take() else {
        return Err(failure(None, "the rows were given away, or their database is closed"));
    };
    // SAFETY: an all-zero result is an empty one. It replaces the moved result.
    let mut result = std::mem::replace(&mut inner.raw, unsafe { std::mem::zeroed() });
    // SAFETY: the result is complete.
    let options = unsafe { ffi::duckdb_result_get_arrow_options(&raw mut result) };
    let remaining = Remaining { result, options, error: CString::default(), _link: Some(link) };
    let stream = Stream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release),
        private: Box::into_raw(Box::new(remaining)).cast(),
    };
    Ok(Box::into_raw(Box::new(stream)) as usize)
}

/// Frees a stream's structure. If the stream is not released, releases it first.
pub(crate) fn free_stream(address: usize) {
    // SAFETY: the address is what `stream` returned, freed once.
    unsafe {
        let mut stream = Box::from_raw(address as *mut Stream);
        if let Some(release) = stream.release {
            release(&raw mut *stream);
        }
    }
}

/// # Safety
/// The stream must be ours, and not released.
unsafe fn remaining<'a>(stream: *mut Stream) -> &'a mut Remaining {
    // SAFETY: as the caller says.
    unsafe { &mut *(*stream).private.cast::<Remaining>() }
}

/// # Safety
/// The error must be DuckDB's, or null.
unsafe fn outcome(remaining: &mut Remaining, mut error: ffi::duckdb_error_data) -> c_int {
    // SAFETY: as the caller says; the error is destroyed.
    unsafe {
        if error.is_null() || !ffi::duckdb_error_data_has_error(error) {
            ffi::duckdb_destroy_error_data(&raw mut error);
            return 0;
        }
        remaining.error = CString::new(text(ffi::duckdb_error_data_message(error))).unwrap_or_default();
        ffi::duckdb_destroy_error_data(&raw mut error);
        libc::EIO
    }
}

unsafe extern "C" fn get_schema(stream: *mut Stream, out: *mut ffi::ArrowSchema) -> c_int {
    // SAFETY: the importer passes the stream and room for a schema; handles are destroyed.
    unsafe {
        let remaining = remaining(stream);
        let count = ffi::duckdb_column_count(&raw mut remaining.result);
        let mut types: Vec<_> =
            (0..count).map(|at| ffi::duckdb_column_logical_type(&raw mut remaining.result, at)).collect();
        let mut names: Vec<_> =
            (0..count).map(|at| ffi::duckdb_column_name(&raw mut remaining.result, at)).collect();
        let error = ffi::duckdb_to_arrow_schema(
            remaining.options,
            types.as_mut_ptr(),
            names.as_mut_ptr(),
            count,
            out,
        );
        types.iter_mut().for_each(|logical| ffi::duckdb_destroy_logical_type(logical));
        outcome(remaining, error)
    }
}

unsafe extern "C" fn get_next(stream: *mut Stream, out: *mut ffi::ArrowArray) -> c_int {
    // SAFETY: the importer passes the stream and room for an array.
    unsafe {
        let remaining = remaining(stream);
        let chunk = Chunk(ffi::duckdb_fetch_chunk(remaining.result));
        if chunk.0.is_null() {
            // A released array marks the end of the stream.
            out.write(std::mem::zeroed());
            return 0;
        }
        let error = ffi::duckdb_data_chunk_to_arrow(remaining.options, chunk.0, out);
        outcome(remaining, error)
    }
}

unsafe extern "C" fn get_last_error(stream: *mut Stream) -> *const c_char {
    // SAFETY: the importer passes the stream.
    unsafe { remaining(stream).error.as_ptr() }
}

unsafe extern "C" fn release(stream: *mut Stream) {
    // SAFETY: the importer passes the stream, once.
    unsafe {
        drop(Box::from_raw((*stream).private.cast::<Remaining>()));
        (*stream).release = None;
    }
}
