//! Arrow C streams (the Arrow C stream interface, `ArrowArrayStream`) as rows of an appender.
//!
//! A stream may be made in Ruby. Each of its callbacks may raise, throw, or be left because its
//! thread is ended. So they are called with the GVL, protected, and no frame between here and the
//! callback holds anything that must be dropped.
//!
//! While such a jump is under way, no other Ruby code may run, such as a `release`. So an `ensure`
//! in Ruby calls `release`: there the VM keeps the jump. The rows are converted and appended
//! without the GVL.

use crate::engine::connection::session::failure;
use crate::engine::data::export::Stream;
use crate::engine::library::text::text;
use crosslane::builder::Overflow;
use crosslane::call::Output;
use crosslane::{ColumnBuilder, DataType, values};
use crosslane_gvl::{Unwind, protect};
use crosslane_vectors::arrow::{Batch, Refusal, Schema};
use crosslane_vectors::{Chunk, LogicalType, Results};
use libduckdb_sys as ffi;
use magnus::Error;
use std::cell::{RefCell, RefMut};
use std::ffi::c_int;
use std::ops::Range;

/// The most chunks that are appended before the VM may use the thread.
const CHUNKS: usize = 64;

/// `Crosslane::Native::ArrowStream`.
#[magnus::wrap(class = "Crosslane::Native::ArrowStream", free_immediately)]
pub(crate) struct ArrowStream(RefCell<Source>);

/// A stream that is being read.
pub(crate) struct Source {
    stream: Stream,
    schema: Option<Schema>,
    /// The array that the stream has returned last.
    array: ffi::ArrowArray,
    /// The number of the array's rows that are appended.
    taken: usize,
    /// The number of all appended rows.
    rows: usize,
}

// SAFETY: only used with the GVL, or by the thread that has borrowed it.
unsafe impl Send for Source {}

impl ArrowStream {
    /// Moves a stream from its address to this object. A released stream stays at the address.
    pub(crate) fn take(address: usize) -> Result<Self, Error> {
        let place = address as *mut Stream;
        // SAFETY: the address is that of a stream, which the Ruby code guarantees, or null.
        // Consumers may move it.
        let stream = unsafe {
            if place.is_null() || (*place).release.is_none() {
                let why = "there is no Arrow stream at this address, or it was released already";
                return Err(failure(None, why));
            }
            let stream = place.read();
            (*place).release = None;
            stream
        };
        let array = ffi::ArrowArray::empty();
        Ok(Self(RefCell::new(Source { stream, schema: None, array, taken: 0, rows: 0 })))
    }

    pub(crate) fn source(&self) -> Result<RefMut<'_, Source>, Error> {
        self.0.try_borrow_mut().map_err(|_| failure(None, "the Arrow stream is being read already"))
    }

    /// Releases the stream. The last user of the stream calls this.
    pub(crate) fn release(&self) -> Result<(), Error> {
        let mut source = self.source()?;
        source.release_array()?;
        let Some(release) = source.stream.release else { return Ok(()) };
        let stream = &raw mut source.stream;
        // SAFETY: it was not released yet.
        let released = protect(|| unsafe { release(stream) });
        // The stream counts as released even if the callback has raised.
        source.stream.release = None;
        Ok(released?)
    }
}

impl Source {
    /// The number of appended rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Reads the schema. With the GVL.
    pub(crate) fn open(&mut self) -> Result<(), Error> {
        if self.stream.release.is_none() {
            return Err(failure(None, "the Arrow stream was released already"));
        }
        if self.schema.is_none() {
            self.schema = Some(self.read_schema()?);
        }
        Ok(())
    }

    /// Gets the next array if all rows of the last one are appended; returns false at the end. With
    /// the GVL.
    pub(crate) fn advance(&mut self) -> Result<bool, Error> {
        while self.taken as i64 >= self.array.length {
            self.release_array()?;
            let Some(get_next) = self.stream.get_next else { return Ok(false) };
            let (stream, array) = (&raw mut self.stream, &raw mut self.array);
            let mut state = 0;
            // SAFETY: the stream was not released, and there is room for an array.
            protect(|| unsafe { state = get_next(stream, array) })?;
            if state != 0 {
                // After a failed callback, the array's content is invalid.
                self.array = ffi::ArrowArray::empty();
                return Err(self.said(state)?);
            }
            if self.array.release.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read_schema(&mut self) -> Result<Schema, Error> {
        let stream = &raw mut self.stream;
        let Some(get_schema) = self.stream.get_schema else {
            return Err(failure(None, "the Arrow stream has no schema"));
        };
        let mut given = ffi::ArrowSchema::empty();
        let schema = &raw mut given;
        let mut state = 0;
        // SAFETY: the stream was not released, and there is room for a schema.
        protect(|| unsafe { state = get_schema(stream, schema) })?;
        if state != 0 {
            return Err(self.said(state)?);
        }
        // SAFETY: the stream has given it, and it is released behind this.
        let read = unsafe { Schema::new(&given) };
        if let Some(release) = given.release {
            // SAFETY: it was not released yet.
            protect(|| unsafe { release(schema) })?;
        }
        read.map_err(|why| failure(None, &why))
    }

    /// Releases the array. With the GVL.
    fn release_array(&mut self) -> Result<(), Unwind> {
        self.taken = 0;
        let mut array = std::mem::replace(&mut self.array, ffi::ArrowArray::empty());
        let place = &raw mut array;
        match array.release {
            // SAFETY: it was not released yet. Arrays may be moved.
            Some(release) => protect(|| unsafe { release(place) }),
            None => Ok(()),
        }
    }

    /// The stream's error for a failed call.
    fn said(&mut self, state: c_int) -> Result<Error, Unwind> {
        let (get, stream) = (self.stream.get_last_error, &raw mut self.stream);
        let mut said = std::ptr::null();
        if let Some(get) = get {
            // SAFETY: the stream was not released.
            protect(|| unsafe { said = get(stream) })?;
        }
        // SAFETY: the text lives until the next call.
        let message = if said.is_null() { String::new() } else { unsafe { text(said) } };
        let number = std::io::Error::from_raw_os_error(state);
        let message = if message.is_empty() { number.to_string() } else { message };
        Ok(failure(None, &format!("the Arrow stream has failed: {message}")))
    }

    /// Checks that the stream has a column for each expected one.
    pub(crate) fn check<'a>(
        &self,
        names: &[String],
        types: impl ExactSizeIterator<Item = &'a DataType>,
    ) -> Result<(), Error> {
        let given = || self.schema.iter().flat_map(Schema::columns);
        let due = types.len();
        if given().count() == due {
            return match given().zip(types).zip(1..).find(|(((_, given), due), _)| is_ambiguous(given, due)) {
                None => Ok(()),
                Some((((name, given), due), column)) => {
                    let advice = "SET arrow_lossless_conversion = true where DuckDB makes the stream";
                    let message =
                        format!("column {column} ({name}): {given} of Arrow cannot become {due}: {advice}");
                    Err(failure(None, &message))
                }
            };
        }
        let given: Vec<_> = given().map(|(name, _)| name).collect();
        let columns = |count| if count == 1 { "1 column".into() } else { format!("{count} columns") };
        let (has, are) = (columns(given.len()), if due == 1 { "is" } else { "are" });
        let names = if names.len() == due { format!(" ({})", names.join(", ")) } else { String::new() };
        let message =
            format!("the Arrow stream has {has} ({}) where {due} {are} due{names}", given.join(", "));
        Err(failure(None, &message))
    }

    /// Appends the next rows, as chunks.
    pub(crate) fn append(&mut self, append: impl Fn(&Chunk) -> Result<(), String>) -> Result<(), String> {
        let Some(schema) = &self.schema else { return Ok(()) };
        // SAFETY: the stream has given both.
        let batch = unsafe { Batch::new(schema, &self.array)? };
        // SAFETY: a constant of DuckDB's.
        let most = unsafe { ffi::duckdb_vector_size() } as usize;
        for _ in 0..CHUNKS {
            let mut count = most.min(batch.rows() - self.taken);
            if count == 0 {
                break;
            }
            let chunk = loop {
                match chunk(schema, &batch, self.taken..self.taken + count) {
                    Err((row, column, Refusal::Overflow(Overflow::TooLarge))) if count == 1 => {
                        return Err(self.place(row, column, "a value of more than 2 GiB"));
                    }
                    Err((_, _, Refusal::Overflow(Overflow::TooLarge))) => count = count.div_ceil(2),
                    Err((row, column, why)) => return Err(self.place(row, column, &why.to_string())),
                    Ok(chunk) => break chunk,
                }
            };
            append(&chunk)
                .map_err(|why| format!("rows {} to {}: {why}", self.rows + 1, self.rows + count))?;
            self.taken += count;
            self.rows += count;
        }
        Ok(())
    }

    /// The place of an error: a row of the array, and a column.
    fn place(&self, row: usize, column: usize, what: &str) -> String {
        let name = self.schema.iter().flat_map(Schema::columns).nth(column).map_or("", |(name, _)| name);
        let row = self.rows - self.taken + row + 1;
        format!("row {row}, column {} ({name}): {what}", column + 1)
    }

    /// An error, with the types of both sides if they differ.
    pub(crate) fn explain<'a>(
        &self,
        why: &str,
        names: &[String],
        types: impl Iterator<Item = &'a DataType> + Clone,
    ) -> String {
        let given: Vec<_> = self.schema.iter().flat_map(Schema::columns).collect();
        if given.iter().map(|(_, given)| *given).eq(types.clone()) || why.starts_with("row ") {
            return why.into();
        }
        let given: Vec<_> = given.iter().map(|(name, given)| format!("{name} {given}")).collect();
        let due: Vec<_> = names.iter().zip(types).map(|(name, due)| format!("{name} {due}")).collect();
        format!("{why}; the Arrow stream has ({}), the table ({})", given.join(", "), due.join(", "))
    }
}

/// Whether bytes would be cast to a BIT. DuckDB exports a BIT in a form that its cast cannot read.
fn is_ambiguous(given: &DataType, due: &DataType) -> bool {
    (*given == DataType::Blob && *due == DataType::Bit)
        || given.children().zip(due.children()).any(|(given, due)| is_ambiguous(given, due))
}

/// A chunk of some rows. The error has the row and the column that do not fit, and the reason.
fn chunk(schema: &Schema, batch: &Batch<'_>, rows: Range<usize>) -> Result<Chunk, (usize, usize, Refusal)> {
    let engine = |error: crosslane::Error| (rows.start, 0, Refusal::Wrong(error.to_string()));
    let types = schema.columns().map(|(_, data_type)| LogicalType::new(data_type));
    let chunk = Chunk::new(&types.collect::<Result<Vec<_>, _>>().map_err(engine)?).map_err(engine)?;
    for (index, (_, data_type)) in schema.columns().enumerate() {
        let mut out = ColumnBuilder::new(data_type);
        let added = batch.append(index, rows.clone(), &mut out);
        added.map_err(|why| (rows.start + out.rows(), index, why))?;
        let column = out.column(data_type);
        if let Some((row, what)) = values::unfit(&column).first_key_value() {
            let what = what.replacen("returned", "got", 1);
            return Err((rows.start + row, index, Refusal::Wrong(what)));
        }
        let engine = |error: crosslane::Error| (rows.start, index, Refusal::Wrong(error.to_string()));
        // SAFETY: the chunk has vectors of these types with room for a vector's rows.
        unsafe {
            let vector = ffi::duckdb_data_chunk_get_vector(chunk.0, index as ffi::idx_t);
            Results::new(vector, data_type, rows.len()).accept(0, &column).map_err(engine)?;
        }
    }
    // SAFETY: as above.
    unsafe { ffi::duckdb_data_chunk_set_size(chunk.0, rows.len() as ffi::idx_t) };
    Ok(chunk)
}
