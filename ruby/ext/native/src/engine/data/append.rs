//! Appends rows to a table, or gives them to a query: in columns, one chunk at a time.
//!
//! The connection may be used between two rows. If the rows come from a block of a query that uses
//! the connection, full chunks wait until the query has ended.

use crate::engine::connection::link::Link;
use crate::engine::connection::session::failure;
use crate::engine::data::import::ArrowStream;
use crate::engine::library::text::{OK, c_string, text};
use crate::values::{Fault, Writer, columns};
use crosslane::call::Output;
use crosslane::{ColumnBuilder, DataType, values};
use crosslane_gvl::constant;
use crosslane_vectors::{Chunk, LogicalType, Results, data_type};
use libduckdb_sys as ffi;
use magnus::rb_sys::AsRawValue;
use magnus::typed_data::Obj;
use magnus::{Error, RArray, Value};
use rb_sys::{Qnil, VALUE};
use std::cell::{RefCell, RefMut};
use std::ffi::CString;
use std::sync::Arc;

/// `Crosslane::Native::Appender`.
#[magnus::wrap(class = "Crosslane::Native::Appender", free_immediately)]
pub(crate) struct Appender(RefCell<Option<Inner>>);

struct Inner {
    raw: ffi::duckdb_appender,
    columns: Vec<(DataType, Writer, ColumnBuilder)>,
    /// The row and the column of each default value in the columns.
    defaults: Vec<(usize, usize)>,
    /// The number of rows in the columns.
    rows: usize,
    /// The number of all rows.
    count: usize,
    /// Full chunks, in order.
    full: Vec<Chunk>,
    process: u32,
    link: Arc<Link>,
}

// SAFETY: only used with the GVL, by one thread at a time.
unsafe impl Send for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: ours, destroyed once. Rows that were not flushed are discarded.
            unsafe {
                ffi::duckdb_appender_clear(self.raw);
                ffi::duckdb_appender_destroy(&raw mut self.raw);
            }
        }
    }
}

/// The place of a table: its catalog, schema and name.
pub(crate) type Place = (Option<String>, Option<String>, String);

impl Appender {
    /// For a table, or some of its columns. Other columns get their default values.
    pub(crate) fn of_table(link: Arc<Link>, place: Place, columns: &[String]) -> Result<Self, Error> {
        let (catalog, schema, name) = place;
        let [catalog, schema] = [catalog, schema].map(|part| part.map(|part| c_string(&part)).transpose());
        let (catalog, schema, name) = (catalog?, schema?, c_string(&name)?);
        let columns = columns.iter().map(|column| c_string(column)).collect::<Result<Vec<_>, _>>()?;
        let pointer = |part: &Option<CString>| part.as_ref().map_or(std::ptr::null(), |part| part.as_ptr());
        let mut raw = std::ptr::null_mut();
        // SAFETY: the connection is open, and the texts live across the call.
        let state = unsafe {
            let (catalog, schema) = (pointer(&catalog), pointer(&schema));
            ffi::duckdb_appender_create_ext(link.raw, catalog, schema, name.as_ptr(), &raw mut raw)
        };
        let inner = Inner::new(link, raw, state)?;
        for column in &columns {
            // SAFETY: the appender lives, and so does the text.
            if unsafe { ffi::duckdb_appender_add_column(raw, column.as_ptr()) } != OK {
                return Err(failure(None, &format!("column {column:?}: {}", inner.message())));
            }
        }
        inner.appender()
    }

    /// For a query, which reads the rows as `appended_data`. The columns have these names and
    /// types.
    pub(crate) fn of_query(link: Arc<Link>, sql: &str, columns: &[(String, String)]) -> Result<Self, Error> {
        let sql = c_string(sql)?;
        let names =
            columns.iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<CString>, Error>>()?;
        let mut names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let types = columns.iter().map(|(_, name)| {
            let known: DataType = name.parse().map_err(crate::errors::argument_error)?;
            LogicalType::new(&known).map_err(|error| failure(None, &error.to_string()))
        });
        let types = types.collect::<Result<Vec<_>, Error>>()?;
        let mut types: Vec<_> = types.iter().map(LogicalType::raw).collect();
        let mut raw = std::ptr::null_mut();
        // SAFETY: the connection is open, and the texts and types live across the call.
        let state = unsafe {
            ffi::duckdb_appender_create_query(
                link.raw,
                sql.as_ptr(),
                types.len() as ffi::idx_t,
                types.as_mut_ptr(),
                std::ptr::null(),
                names.as_mut_ptr(),
                &raw mut raw,
            )
        };
        Inner::new(link, raw, state)?.appender()
    }

    /// Adds a row, which is an Array.
    pub(crate) fn row(&self, row: RArray) -> Result<(), Error> {
        let mut inner = self.inner()?;
        let Some(inner) = &mut *inner else { return Err(failure(None, "the appender is closed")) };
        if row.len() != inner.columns.len() {
            let (given, due) = (row.len(), inner.columns.len());
            return Err(failure(None, &format!("a row of {given} values for a table of {due} columns")));
        }
        // Stands for a column's default value.
        let default = constant::<Value>("Crosslane::DEFAULT")?.as_raw();
        let defaults = inner.defaults.len();
        for (index, (_, writer, column)) in inner.columns.iter_mut().enumerate() {
            let value: Value = row.entry(index as isize)?;
            let mut value = value.as_raw();
            if value == default {
                value = Qnil as VALUE;
                inner.defaults.push((inner.rows, index));
            }
            let Err(fault) = columns::write_row(writer, value, column) else { continue };
            let before = inner.rows;
            inner.defaults.truncate(defaults);
            inner.columns.iter_mut().for_each(|(_, _, column)| column.truncate(before));
            let what = match fault {
                Fault::Refused(refused) => refused.1.replacen("returned", "got", 1),
                Fault::Failed(unwind) => return Err(unwind.into()),
            };
            return Err(failure(None, &format!("row {}, column {}: {what}", inner.count + 1, index + 1)));
        }
        inner.rows += 1;
        inner.count += 1;
        // SAFETY: a constant of DuckDB's.
        if inner.rows == unsafe { ffi::duckdb_vector_size() } as usize {
            inner.fill()?;
            if !inner.link.is_at_work() {
                return inner.send();
            }
        }
        Ok(())
    }

    /// Adds some rows of an Arrow C stream; returns false at its end. `names` are the columns'
    /// names.
    pub(crate) fn take(&self, stream: Obj<ArrowStream>, names: Vec<String>) -> Result<bool, Error> {
        let mut source = stream.source()?;
        source.open()?;
        let closed = || failure(None, "the appender is closed");
        {
            let inner = self.inner()?;
            let columns = inner.as_ref().ok_or_else(closed)?.columns.iter();
            source.check(&names, columns.map(|(known, ..)| known))?;
        }
        // The code that makes the rows may close the database.
        if !source.advance()? {
            return Ok(false);
        }
        let mut inner = self.inner()?;
        let inner = inner.as_mut().ok_or_else(closed)?;
        let (raw, before) = (inner.raw, source.rows());
        let due = inner.columns.iter().map(|(known, ..)| known);
        let added = inner.link.run(|| {
            let added = source.append(|chunk| append(raw, chunk));
            added.map_err(|why| source.explain(&why, &names, due))
        });
        inner.count += source.rows() - before;
        added.map(|()| true)
    }

    /// Whether DuckDB has got rows. It may have written some of them.
    pub(crate) fn is_begun(&self) -> Result<bool, Error> {
        Ok(self.inner()?.as_ref().is_some_and(|inner| inner.count > 0))
    }

    /// Writes the added rows and returns their number.
    pub(crate) fn close(&self) -> Result<usize, Error> {
        let Some(mut inner) = self.inner()?.take() else { return Ok(0) };
        if inner.link.is_at_work() {
            let advice = "let the query end before the rows do";
            return Err(failure(
                None,
                &format!("a query is at work on the connection of the rows; {advice}"),
            ));
        }
        inner.fill()?;
        inner.send()?;
        let raw = inner.raw;
        // SAFETY: the appender lives.
        inner.link.run(|| outcome(raw, unsafe { ffi::duckdb_appender_close(raw) }))?;
        Ok(inner.count)
    }

    /// Discards the rows that are not written, unless the appender is in use.
    pub(crate) fn free(&self) {
        if let Ok(mut inner) = self.0.try_borrow_mut() {
            inner.take();
        }
    }

    fn inner(&self) -> Result<RefMut<'_, Option<Inner>>, Error> {
        self.0.try_borrow_mut().map_err(|_| failure(None, "the appender is at work already"))
    }
}

/// The text of an appender's last error.
fn message(appender: ffi::duckdb_appender) -> String {
    // SAFETY: the appender lives; the error is destroyed, and its text copied before.
    unsafe {
        let mut error = ffi::duckdb_appender_error_data(appender);
        let message = text(ffi::duckdb_error_data_message(error));
        ffi::duckdb_destroy_error_data(&raw mut error);
        message
    }
}

/// The outcome of a call of an appender, with DuckDB's error message.
fn outcome(appender: ffi::duckdb_appender, state: ffi::duckdb_state) -> Result<(), String> {
    if state == OK { Ok(()) } else { Err(message(appender)) }
}

fn append(appender: ffi::duckdb_appender, chunk: &Chunk) -> Result<(), String> {
    // SAFETY: the appender and the chunk live.
    outcome(appender, unsafe { ffi::duckdb_append_data_chunk(appender, chunk.0) })
}

impl Inner {
    /// The appender that DuckDB made with this state.
    fn new(link: Arc<Link>, raw: ffi::duckdb_appender, state: ffi::duckdb_state) -> Result<Self, Error> {
        let process = std::process::id();
        let (columns, defaults, full) = (Vec::new(), Vec::new(), Vec::new());
        let inner = Inner { raw, columns, defaults, rows: 0, count: 0, full, process, link };
        if state == OK { Ok(inner) } else { Err(inner.error()) }
    }

    /// Prepares the columns for rows.
    fn appender(mut self) -> Result<Appender, Error> {
        // SAFETY: the appender lives; the types are destroyed.
        unsafe {
            for index in 0..ffi::duckdb_appender_column_count(self.raw) {
                let mut logical = ffi::duckdb_appender_column_type(self.raw, index);
                let known = data_type(logical);
                ffi::duckdb_destroy_logical_type(&raw mut logical);
                let known =
                    known.map_err(|error| failure(None, &format!("column {}: {error}", index + 1)))?;
                self.columns.push((known.clone(), columns::writer(&known)?, ColumnBuilder::new(&known)));
            }
        }
        Ok(Appender(RefCell::new(Some(self))))
    }

    fn message(&self) -> String {
        message(self.raw)
    }

    fn error(&self) -> Error {
        failure(None, &self.message())
    }

    /// Makes a chunk from the rows in the columns.
    fn fill(&mut self) -> Result<(), Error> {
        if self.rows == 0 {
            return Ok(());
        }
        let chunk = self.chunk();
        self.rows = 0;
        self.defaults.clear();
        self.columns.iter_mut().for_each(|(_, _, column)| column.clear());
        self.full.push(chunk?);
        Ok(())
    }

    fn send(&mut self) -> Result<(), Error> {
        let raw = self.raw;
        for chunk in std::mem::take(&mut self.full) {
            self.link.run(|| append(raw, &chunk))?;
        }
        Ok(())
    }

    fn chunk(&self) -> Result<Chunk, Error> {
        let engine = |error: crosslane::Error| failure(None, &error.to_string());
        let types = self.columns.iter().map(|(known, ..)| LogicalType::new(known));
        let types = types.collect::<Result<Vec<_>, _>>().map_err(engine)?;
        let chunk = Chunk::new(&types).map_err(engine)?;
        // SAFETY: the chunk has vectors of these types with room for a vector's rows.
        unsafe {
            for (index, (known, _, column)) in self.columns.iter().enumerate() {
                let column = column.column(known);
                if let Some((row, what)) = values::unfit(&column).first_key_value() {
                    let what = what.replacen("returned", "got", 1);
                    let row = self.count - self.rows + row + 1;
                    return Err(failure(None, &format!("row {row}, column {}: {what}", index + 1)));
                }
                let vector = ffi::duckdb_data_chunk_get_vector(chunk.0, index as ffi::idx_t);
                let mut results = Results::new(vector, known, self.rows);
                results.accept(0, &column).map_err(engine)?;
            }
            ffi::duckdb_data_chunk_set_size(chunk.0, self.rows as ffi::idx_t);
            for (row, column) in &self.defaults {
                let (row, column) = (*row as ffi::idx_t, *column as ffi::idx_t);
                if ffi::duckdb_append_default_to_chunk(self.raw, chunk.0, column, row) != OK {
                    return Err(self.error());
                }
            }
        }
        Ok(chunk)
    }
}
