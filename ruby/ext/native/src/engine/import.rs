//! Arrow C streams (the Arrow C stream interface, `ArrowArrayStream`) as chunks.
//!
//! DuckDB makes a chunk of all rows of an array at once, and a chunk has no more rows than a vector. So an array is cut: a
//! cut has the array's columns, which begin later and are shorter. Its chunk points to what the array holds, and ends
//! before it.

use crate::engine::arrow::Stream;
use crate::engine::database::{Link, text};
use crate::engine::rows::Chunk;
use libduckdb_sys as ffi;
use std::ffi::c_int;

/// A stream that is being read. Released at the end, as its last user does.
pub(crate) struct Import<'a> {
    stream: *mut Stream,
    link: &'a Link,
    columns: usize,
    /// Its schema, as DuckDB's types.
    types: ffi::duckdb_arrow_converted_schema,
    /// What it has given last.
    array: ffi::ArrowArray,
    /// Where the next cut of that begins.
    next: i64,
}

impl Drop for Import<'_> {
    fn drop(&mut self) {
        // SAFETY: all are ours, and are released once.
        unsafe {
            self.release_array();
            ffi::duckdb_destroy_arrow_converted_schema(&raw mut self.types);
            if let Some(release) = (*self.stream).release {
                release(self.stream);
            }
        }
    }
}

impl<'a> Import<'a> {
    /// Takes a stream.
    ///
    /// # Safety
    /// It must be one, and be used by nobody else any more.
    pub(crate) unsafe fn new(stream: *mut Stream, link: &'a Link) -> Result<Self, String> {
        // SAFETY: as the caller says; the schema is released.
        unsafe {
            let (types, array) = (std::ptr::null_mut(), ffi::ArrowArray::empty());
            let mut import = Self { stream, link, columns: 0, types, array, next: 0 };
            let Some(get_schema) = (*stream).get_schema else {
                return Err("the stream has no schema".into());
            };
            let mut schema = ffi::ArrowSchema::empty();
            import.check(get_schema(stream, &raw mut schema))?;
            import.columns = schema.n_children as usize;
            let unsound = is_unsound(&schema, false);
            let error = ffi::duckdb_schema_from_arrow(link.raw, &raw mut schema, &raw mut import.types);
            if let Some(release) = schema.release {
                release(&raw mut schema);
            }
            outcome(error)?;
            if unsound {
                return Err(
                    "DuckDB cannot read dictionaries (such as ENUM) and run lengths in lists; cast them \
                            to plain values, such as VARCHAR[]"
                        .into(),
                );
            }
            Ok(import)
        }
    }

    /// Has the next chunk used, of at most so many rows; returns how many it has, 0 at the end.
    pub(crate) fn next(
        &mut self,
        most: usize,
        each: impl FnOnce(&Chunk) -> Result<(), String>,
    ) -> Result<usize, String> {
        while self.next >= self.array.length {
            // SAFETY: the stream lives, and the array is ours.
            unsafe {
                self.release_array();
                let Some(get_next) = (*self.stream).get_next else { return Ok(0) };
                let state = get_next(self.stream, &raw mut self.array);
                self.check(state)?;
            }
            if self.array.release.is_none() {
                return Ok(0);
            }
            if self.array.n_children as usize != self.columns {
                let (given, due) = (self.array.n_children, self.columns);
                return Err(format!("the stream has an array of {given} columns where its schema has {due}"));
            }
            self.next = 0;
        }
        let rows = (self.array.length - self.next).min(most as i64);
        // SAFETY: the array has these rows; the chunk ends before it, and before the cut's columns.
        unsafe {
            let mut columns: Vec<_> = (0..self.columns).map(|index| self.cut(index, rows)).collect();
            let mut children: Vec<_> = columns.iter_mut().map(|column| &raw mut *column).collect();
            let release = Some(leave as unsafe extern "C" fn(*mut ffi::ArrowArray));
            let children = children.as_mut_ptr();
            let mut cut = ffi::ArrowArray { length: rows, offset: 0, children, release, ..self.array };
            let mut chunk = Chunk(std::ptr::null_mut());
            let error =
                ffi::duckdb_data_chunk_from_arrow(self.link.raw, &raw mut cut, self.types, &raw mut chunk.0);
            outcome(error)?;
            each(&chunk)?;
        }
        self.next += rows;
        Ok(rows as usize)
    }

    /// Some rows of a column, from the next on.
    ///
    /// # Safety
    /// The array must have these rows, and the column.
    unsafe fn cut(&self, index: usize, rows: i64) -> ffi::ArrowArray {
        // SAFETY: as the caller says. The copy is only read, while the array lives.
        let column = unsafe { &**self.array.children.add(index) };
        let offset = self.array.offset + column.offset + self.next;
        // DuckDB asks whether there are any, and takes "not known" for "none" where a column has a dictionary.
        let null_count = if column.null_count == 0 { 0 } else { rows };
        ffi::ArrowArray { length: rows, null_count, offset, release: Some(leave), ..*column }
    }

    /// # Safety
    /// No chunk of it may be left.
    unsafe fn release_array(&mut self) {
        if let Some(release) = self.array.release {
            // SAFETY: it was not released yet.
            unsafe { release(&raw mut self.array) };
        }
        self.array = ffi::ArrowArray::empty();
        self.next = 0;
    }

    /// What the stream says of a call that has failed.
    fn check(&self, state: c_int) -> Result<(), String> {
        if state == 0 {
            return Ok(());
        }
        // SAFETY: the stream lives, and its text until the next call.
        let message = unsafe {
            (*self.stream).get_last_error.map(|get| text(get(self.stream))).filter(|said| !said.is_empty())
        };
        Err(message.unwrap_or_else(|| std::io::Error::from_raw_os_error(state).to_string()))
    }
}

/// Whether a list has elements that are encoded: DuckDB reads the wrong ones as NULL, and, where there are more of them than a
/// vector has rows, writes beyond its memory.
///
/// # Safety
/// The schema must be one that was not released.
unsafe fn is_unsound(schema: &ffi::ArrowSchema, in_list: bool) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        let format = text(schema.format);
        if in_list && (!schema.dictionary.is_null() || format.starts_with("+r")) {
            return true;
        }
        let in_list =
            in_list || ["+l", "+L", "+vl", "+vL", "+w", "+m"].iter().any(|list| format.starts_with(list));
        (0..schema.n_children as usize).any(|at| is_unsound(&**schema.children.add(at), in_list))
    }
}

/// The release of what is only lent.
unsafe extern "C" fn leave(array: *mut ffi::ArrowArray) {
    // SAFETY: called with an array.
    unsafe { (*array).release = None };
}

/// What an error of DuckDB's says.
///
/// # Safety
/// The error must be DuckDB's, or null.
pub(crate) unsafe fn outcome(mut error: ffi::duckdb_error_data) -> Result<(), String> {
    // SAFETY: as the caller says; the error is destroyed behind its text.
    unsafe {
        let failed = !error.is_null() && ffi::duckdb_error_data_has_error(error);
        let outcome = if failed { Err(text(ffi::duckdb_error_data_message(error))) } else { Ok(()) };
        ffi::duckdb_destroy_error_data(&raw mut error);
        outcome
    }
}
