//! Appending rows to a table: in columns, a chunk at a time.

use crate::engine::database::{Link, OK, briefly, c_string, text};
use crate::engine::rows::Chunk;
use crate::engine::session::failure;
use crate::writer::{Fault, Writer};
use crosslane::call::Output;
use crosslane::{ColumnBuilder, DataType};
use crosslane_gvl::protect;
use crosslane_vectors::{LogicalType, Results, data_type};
use libduckdb_sys as ffi;
use magnus::rb_sys::AsRawValue;
use magnus::{Error, RArray, Value};
use std::cell::RefCell;
use std::sync::Arc;

/// `Crosslane::Native::Appender`.
#[magnus::wrap(class = "Crosslane::Native::Appender", free_immediately)]
pub(crate) struct Appender(RefCell<Option<Inner>>);

struct Inner {
    raw: ffi::duckdb_appender,
    columns: Vec<(DataType, Writer, ColumnBuilder)>,
    rows: usize,
    process: u32,
    _link: Arc<Link>,
}

// SAFETY: only used with the GVL, by one thread at a time.
unsafe impl Send for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: ours, destroyed once. What was not flushed is given up.
            unsafe {
                ffi::duckdb_appender_clear(self.raw);
                ffi::duckdb_appender_destroy(&raw mut self.raw);
            }
        }
    }
}

impl Appender {
    pub(crate) fn new(link: Arc<Link>, schema: Option<String>, table: &str) -> Result<Self, Error> {
        let schema = schema.map(|schema| c_string(&schema)).transpose()?;
        let name = c_string(table)?;
        let mut raw = std::ptr::null_mut();
        let schema = schema.as_ref().map_or(std::ptr::null(), |schema| schema.as_ptr());
        // SAFETY: the connection is open, and the texts live across the call.
        let state = unsafe { ffi::duckdb_appender_create(link.raw, schema, name.as_ptr(), &raw mut raw) };
        let mut inner = Inner { raw, columns: Vec::new(), rows: 0, process: std::process::id(), _link: link };
        if state != OK {
            return Err(inner.error());
        }
        // SAFETY: the appender lives; the types are destroyed.
        unsafe {
            for index in 0..ffi::duckdb_appender_column_count(raw) {
                let mut logical = ffi::duckdb_appender_column_type(raw, index);
                let known = data_type(logical);
                ffi::duckdb_destroy_logical_type(&raw mut logical);
                let known =
                    known.map_err(|error| failure(None, &format!("column {}: {error}", index + 1)))?;
                inner.columns.push((known.clone(), Writer::new(&known)?, ColumnBuilder::new(&known)));
            }
        }
        Ok(Self(RefCell::new(Some(inner))))
    }

    /// Adds a row, an Array.
    pub(crate) fn row(&self, row: RArray) -> Result<(), Error> {
        let mut inner = self.0.borrow_mut();
        let Some(inner) = &mut *inner else { return Err(failure(None, "the appender is closed")) };
        if row.len() != inner.columns.len() {
            let (given, due) = (row.len(), inner.columns.len());
            return Err(failure(None, &format!("a row of {given} values for a table of {due} columns")));
        }
        for (index, (_, writer, column)) in inner.columns.iter_mut().enumerate() {
            let value: Value = row.entry(index as isize)?;
            let value = value.as_raw();
            let mut fault: Option<Fault> = None;
            // SAFETY: protected, and nothing in the closure is to be dropped.
            let written = protect(|| unsafe { fault = writer.write(value, column).err() });
            if let (Ok(()), None) = (&written, &fault) {
                continue;
            }
            let message = fault.map(|fault| writer.explain(&fault).1);
            let before = inner.rows;
            inner.columns.iter_mut().for_each(|(_, _, column)| column.truncate(before));
            written?;
            let what = message.unwrap_or_default().replacen("returned", "got", 1);
            return Err(failure(None, &format!("row {}, column {}: {what}", before + 1, index + 1)));
        }
        inner.rows += 1;
        // SAFETY: a constant of DuckDB's.
        if inner.rows == unsafe { ffi::duckdb_vector_size() } as usize { inner.send() } else { Ok(()) }
    }

    /// Writes what was added.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let Some(mut inner) = self.0.borrow_mut().take() else { return Ok(()) };
        inner.send()?;
        let raw = inner.raw;
        // SAFETY: the appender lives.
        let state = briefly(|| unsafe { ffi::duckdb_appender_close(raw) });
        if state == OK { Ok(()) } else { Err(inner.error()) }
    }

    /// Gives up what was added and not yet written.
    pub(crate) fn give_up(&self) {
        self.0.borrow_mut().take();
    }
}

impl Inner {
    fn error(&self) -> Error {
        // SAFETY: the error is destroyed; its text is copied before.
        let message = unsafe {
            let mut error = ffi::duckdb_appender_error_data(self.raw);
            let message = text(ffi::duckdb_error_data_message(error));
            ffi::duckdb_destroy_error_data(&raw mut error);
            message
        };
        failure(None, &message)
    }

    fn send(&mut self) -> Result<(), Error> {
        if self.rows == 0 {
            return Ok(());
        }
        let outcome = self.append();
        self.rows = 0;
        self.columns.iter_mut().for_each(|(_, _, column)| column.clear());
        outcome
    }

    fn append(&mut self) -> Result<(), Error> {
        let engine = |error: crosslane::Error| failure(None, &error.to_string());
        let types = self.columns.iter().map(|(known, ..)| LogicalType::new(known));
        let types = types.collect::<Result<Vec<_>, _>>().map_err(engine)?;
        let mut raw: Vec<_> = types.iter().map(LogicalType::raw).collect();
        // SAFETY: the types live; the chunk has vectors of these types with room for a vector's rows.
        unsafe {
            let chunk = Chunk(ffi::duckdb_create_data_chunk(raw.as_mut_ptr(), raw.len() as ffi::idx_t));
            for (index, (known, _, column)) in self.columns.iter().enumerate() {
                let vector = ffi::duckdb_data_chunk_get_vector(chunk.0, index as ffi::idx_t);
                Results::new(vector).accept(0, &column.column(known)).map_err(engine)?;
            }
            ffi::duckdb_data_chunk_set_size(chunk.0, self.rows as ffi::idx_t);
            if ffi::duckdb_append_data_chunk(self.raw, chunk.0) != OK {
                return Err(self.error());
            }
        }
        Ok(())
    }
}
