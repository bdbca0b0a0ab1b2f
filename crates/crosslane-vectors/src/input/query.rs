//! A query whose rows are the input of a stream.
//!
//! It is read chunk by chunk, as its rows are made: DuckDB's own buffer holds a few, and the query waits while that is
//! full. Chunks are put together to batches of about [`LARGE`] bytes. Before many rows are sent batches are shorter, so
//! that the rows of a short query are for all lanes, and a query that makes its rows slowly has short ones all the
//! time.

use crate::aggregate::Scratch;
use crate::input::{Rows, VectorRows};
use crate::room;
use crate::table::Chunk;
use crate::types::LogicalType;
use crosslane::batch::{Body, Encode, Plan};
use crosslane::call::{MapInput, map_types};
use crosslane::{DataType, Error, Field};
use libduckdb_sys as ffi;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Write;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// About how many bytes a batch has; one of twice as many is cut.
const LARGE: usize = 1 << 20;
/// The most rows of a batch.
const MOST_ROWS: usize = 65_536;
/// So many rows a batch may have from the first on, if they are not large.
const FEW_ROWS: usize = 2048;
/// After this time a batch is sent as it is.
const SLOW: Duration = Duration::from_millis(10);

/// What is wrong with a query, in DuckDB's words.
///
/// # Safety
/// The text must be null or DuckDB's, and live.
unsafe fn refused(text: *const c_char) -> Error {
    // SAFETY: as the caller says.
    let text = unsafe { text.as_ref().map_or(c"", |text| CStr::from_ptr(text)) };
    Error::Engine(text.to_string_lossy().into_owned())
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|error| Error::Engine(format!("a query: {error}")))
}

/// A text in quotes, as SQL has it.
fn quoted(text: &str, quote: char) -> String {
    let doubled = text.replace(quote, &format!("{quote}{quote}"));
    format!("{quote}{doubled}{quote}")
}

struct Extracted(ffi::duckdb_extracted_statements);

impl Drop for Extracted {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_extracted(&raw mut self.0) };
    }
}

struct Prepared(ffi::duckdb_prepared_statement);

impl Prepared {
    /// # Errors
    /// DuckDB's, and if it is not one statement.
    ///
    /// # Safety
    /// The connection must be open.
    unsafe fn new(connection: ffi::duckdb_connection, query: &str) -> Result<Self, Error> {
        let query = c_string(query)?;
        // SAFETY: as the caller says; what DuckDB makes is destroyed on every way out, also where it fails.
        unsafe {
            let mut extracted = ptr::null_mut();
            let count = ffi::duckdb_extract_statements(connection, query.as_ptr(), &raw mut extracted);
            let extracted = Extracted(extracted);
            match count {
                0 => {
                    let error = ffi::duckdb_extract_statements_error(extracted.0);
                    return Err(if error.is_null() { not_one("nothing") } else { refused(error) });
                }
                1 => {}
                _ => return Err(not_one(&format!("{count} statements"))),
            }
            let mut prepared = Self(ptr::null_mut());
            let state =
                ffi::duckdb_prepare_extracted_statement(connection, extracted.0, 0, &raw mut prepared.0);
            if state != ffi::duckdb_state_DuckDBSuccess {
                return Err(refused(ffi::duckdb_prepare_error(prepared.0)));
            }
            Ok(prepared)
        }
    }

    fn columns(&self) -> Vec<String> {
        // SAFETY: the statement lives; the texts are given to the caller.
        unsafe {
            let count = ffi::duckdb_prepared_statement_column_count(self.0);
            let name = |column| {
                let text = ffi::duckdb_prepared_statement_column_name(self.0, column);
                let owned =
                    text.as_ref().map_or(c"", |text| CStr::from_ptr(text)).to_string_lossy().into_owned();
                ffi::duckdb_free(text.cast_mut().cast());
                owned
            };
            (0..count).map(name).collect()
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once.
        unsafe { ffi::duckdb_destroy_prepare(&raw mut self.0) };
    }
}

fn not_one(what: &str) -> Error {
    Error::Engine(format!("the query of a stream is one SELECT, not {what}"))
}

/// The query that gives the columns that a function takes, by their names and cast to their types, out of those that a
/// user's query has. It can be prepared.
///
/// # Errors
/// [`Error::Engine`] with DuckDB's error, or if the user's is no single SELECT without parameters, or lacks a column.
///
/// # Safety
/// The connection must be open, and nobody else use it meanwhile.
pub unsafe fn query_for(
    connection: ffi::duckdb_connection,
    query: &str,
    wanted: &[Field],
) -> Result<String, Error> {
    // SAFETY: as the caller says.
    let given = unsafe {
        let given = Prepared::new(connection, query)?;
        if ffi::duckdb_prepared_statement_type(given.0)
            != ffi::duckdb_statement_type_DUCKDB_STATEMENT_TYPE_SELECT
        {
            return Err(not_one("another statement"));
        }
        if ffi::duckdb_nparams(given.0) > 0 {
            return Err(Error::Engine(
                "the query of a stream has no parameters: write the values into its text".into(),
            ));
        }
        given.columns()
    };
    let query = cast(query, &given, wanted)?;
    // SAFETY: as above.
    drop(unsafe { Prepared::new(connection, &query)? });
    Ok(query)
}

fn cast(query: &str, given: &[String], wanted: &[Field]) -> Result<String, Error> {
    let called =
        |name: &str| given.iter().filter(|given| given.to_lowercase() == name.to_lowercase()).count();
    let missing: Vec<_> = wanted.iter().filter(|field| called(&field.name) == 0).collect();
    if !missing.is_empty() {
        let missing: Vec<_> = missing.into_iter().map(|field| field.name.as_str()).collect();
        return Err(Error::Engine(format!(
            "the query of a stream has no column {}; its columns are {}",
            missing.join(", "),
            given.join(", ")
        )));
    }
    if let Some(field) = wanted.iter().find(|field| called(&field.name) > 1) {
        return Err(Error::Engine(format!("the query of a stream has several columns {}", field.name)));
    }
    let mut columns = String::new();
    for field in wanted {
        let comma = if columns.is_empty() { "" } else { ", " };
        let name = quoted(&field.name, '"');
        let _ = write!(columns, "{comma}CAST({name} AS {}) AS {name}", field.data_type);
    }
    // So the query may end with a semicolon or a comment.
    Ok(format!("SELECT {columns} FROM system.main.query({})", quoted(query, '\'')))
}

/// The rows of a query, as they are made.
struct Chunks {
    result: ffi::duckdb_result,
    /// Whether there are no more: DuckDB 1.5 says another time that the result is closed.
    ended: bool,
    _prepared: Prepared,
}

impl Chunks {
    /// # Safety
    /// The connection must outlive the result, and nobody else use it meanwhile, but to interrupt it.
    unsafe fn new(connection: ffi::duckdb_connection, query: &str) -> Result<Self, Error> {
        // SAFETY: as the caller says; what DuckDB makes is destroyed on every way out.
        unsafe {
            let prepared = Prepared::new(connection, query)?;
            let mut pending = ptr::null_mut();
            let begun = ffi::duckdb_pending_prepared_streaming(prepared.0, &raw mut pending);
            if begun != ffi::duckdb_state_DuckDBSuccess {
                let error = refused(ffi::duckdb_pending_error(pending));
                ffi::duckdb_destroy_pending(&raw mut pending);
                return Err(error);
            }
            let mut chunks = Self { result: std::mem::zeroed(), ended: false, _prepared: prepared };
            let state = ffi::duckdb_execute_pending(pending, &raw mut chunks.result);
            ffi::duckdb_destroy_pending(&raw mut pending);
            if state != ffi::duckdb_state_DuckDBSuccess {
                return Err(refused(ffi::duckdb_result_error(&raw mut chunks.result)));
            }
            Ok(chunks)
        }
    }

    fn next(&mut self) -> Result<Option<Chunk>, Error> {
        if self.ended {
            return Ok(None);
        }
        // SAFETY: the result lives, and the chunk is given to the caller.
        unsafe {
            let chunk = ffi::duckdb_fetch_chunk(self.result);
            if !chunk.is_null() {
                return Ok(Some(Chunk(chunk)));
            }
            self.ended = true;
            let error = ffi::duckdb_result_error(&raw mut self.result);
            let failed = error.as_ref().is_some_and(|error| !CStr::from_ptr(error).is_empty());
            if failed { Err(refused(error)) } else { Ok(None) }
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once, and before its statement.
        unsafe { ffi::duckdb_destroy_result(&raw mut self.result) };
    }
}

/// The rows of a query as the batches of a stream.
pub struct Source {
    chunks: Chunks,
    /// A STRUCT of the query's columns.
    rows: Arc<DataType>,
    /// The same as it travels.
    types: Arc<str>,
    lanes: usize,
    /// Rows that were given out.
    sent: usize,
    /// Bytes of a row of the last batch.
    width: usize,
    /// What was read and belongs to the next batch.
    waiting: Option<Chunk>,
    /// The rest of what was cut.
    pieces: VecDeque<MapInput>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Source {
    /// Runs a query of [`query_for`] for a stream over so many lanes. It returns when the first rows are there.
    ///
    /// # Errors
    /// [`Error::Engine`] with DuckDB's error.
    ///
    /// # Safety
    /// The connection must outlive the source, and nobody else use it meanwhile, but to interrupt it. The query's columns must be
    /// the fields of `rows`.
    pub unsafe fn new(
        connection: ffi::duckdb_connection,
        query: &str,
        rows: Arc<DataType>,
        lanes: usize,
    ) -> Result<Self, Error> {
        // SAFETY: as the caller says.
        let chunks = unsafe { Chunks::new(connection, query)? };
        let (types, lanes) = (map_types(&rows).into(), lanes.max(1));
        Ok(Self { chunks, rows, types, lanes, sent: 0, width: 0, waiting: None, pieces: VecDeque::new() })
    }

    /// The next batch; `None` if there are no more rows.
    ///
    /// # Errors
    /// [`Error::Engine`] with DuckDB's error.
    pub fn next_batch(&mut self) -> Result<Option<MapInput>, Error> {
        if self.pieces.is_empty()
            && let Some(batch) = self.gather()?
        {
            self.sent += batch.rows;
            let all = 0..batch.rows;
            cut(&Arc::new(batch), all, &mut self.pieces)?;
        }
        Ok(self.pieces.pop_front())
    }

    /// Reads as many chunks as are a batch.
    fn gather(&mut self) -> Result<Option<Batch>, Error> {
        let Some(first) = self.read()? else { return Ok(None) };
        let begun = Instant::now();
        let mut batch = Batch::new(&self.rows, &self.types, self.capacity(first.rows()))?;
        let mut bytes = batch.append(&first)?;
        while bytes < LARGE && begun.elapsed() < SLOW {
            let Some(chunk) = self.read()? else { break };
            if !batch.has_room(chunk.rows()) {
                self.waiting = Some(chunk);
                break;
            }
            bytes += batch.append(&chunk)?;
        }
        self.width = bytes.div_ceil(batch.rows);
        Ok(Some(batch))
    }

    /// The next chunk that has rows.
    fn read(&mut self) -> Result<Option<Chunk>, Error> {
        if let Some(waiting) = self.waiting.take() {
            return Ok(Some(waiting));
        }
        while let Some(chunk) = self.chunks.next()? {
            if chunk.rows() > 0 {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    /// How many rows the next batch may have, which has so many at least.
    fn capacity(&self, rows: usize) -> usize {
        let fair = self.sent / (2 * self.lanes);
        let light = LARGE / self.width.max(1);
        fair.min(light).clamp(rows.max(FEW_ROWS), MOST_ROWS)
    }
}

impl Chunk {
    fn rows(&self) -> usize {
        // SAFETY: the chunk lives.
        unsafe { ffi::duckdb_data_chunk_get_size(self.0) as usize }
    }
}

/// Rows of a stream, in a vector of our own.
struct Batch {
    scratch: Scratch,
    data_type: Arc<DataType>,
    /// The same as it travels.
    types: Arc<str>,
    rows: usize,
    capacity: usize,
}

// SAFETY: a batch that is shared is only read.
unsafe impl Sync for Batch {}

impl Batch {
    fn new(data_type: &Arc<DataType>, types: &Arc<str>, capacity: usize) -> Result<Self, Error> {
        room::check_list(data_type, capacity)?;
        let logical = LogicalType::new(data_type)?;
        // SAFETY: the type lives across the call.
        let scratch = unsafe { Scratch::new(logical.raw(), capacity as ffi::idx_t) };
        if scratch.vector.is_null() {
            return Err(Error::memory(capacity));
        }
        let (data_type, types) = (Arc::clone(data_type), Arc::clone(types));
        Ok(Self { scratch, data_type, types, rows: 0, capacity })
    }

    fn has_room(&self, rows: usize) -> bool {
        self.rows + rows <= self.capacity
    }

    /// Adds a chunk for which there is room. Returns how many bytes that was.
    fn append(&mut self, chunk: &Chunk) -> Result<usize, Error> {
        let rows = chunk.rows();
        // SAFETY: the chunk has a column of the type of each field, and the vector has room for the rows.
        unsafe {
            for (column, data_type) in (0..).zip(self.data_type.children()) {
                let from = ffi::duckdb_data_chunk_get_vector(chunk.0, column);
                let to = ffi::duckdb_struct_vector_get_child(self.scratch.vector, column);
                room::copy(from, to, data_type, self.scratch.all, 0..rows, self.rows)?;
            }
        }
        let added = self.rows..self.rows + rows;
        self.rows += rows;
        let mut plan = Plan::default();
        // SAFETY: the vector is of this type, has the rows, and outlives what is measured.
        unsafe { VectorRows::new(self.scratch.vector, &self.data_type, Rows::Range(added))?.plan(&mut plan) };
        Ok(if plan.is_too_large() { usize::MAX / 2 } else { plan.size() })
    }
}

/// Puts rows of a batch into pieces that are not too large, as far as several rows are.
fn cut(batch: &Arc<Batch>, rows: Range<usize>, pieces: &mut VecDeque<MapInput>) -> Result<(), Error> {
    let count = rows.len();
    let piece = Piece::new(batch, rows.clone())?;
    let mut plan = Plan::default();
    piece.plan(&mut plan);
    if count > 1 && (plan.is_too_large() || plan.size() > 2 * LARGE) {
        let middle = rows.start + count / 2;
        cut(batch, rows.start..middle, pieces)?;
        return cut(batch, middle..rows.end, pieces);
    }
    pieces.push_back(MapInput { rows: count, content: Box::new(piece) });
    Ok(())
}

/// Some rows of a batch.
struct Piece {
    /// It borrows from the batch, and so comes before it.
    rows: VectorRows<'static>,
    batch: Arc<Batch>,
}

// SAFETY: it only reads, and what it reads it has a share of.
unsafe impl Send for Piece {}

impl Piece {
    fn new(batch: &Arc<Batch>, rows: Range<usize>) -> Result<Self, Error> {
        // SAFETY: the batch lives as long as the piece, in one place, and has these rows. A batch that is shared does
        // not change.
        let rows = unsafe {
            let data_type: &'static DataType = &*Arc::as_ptr(&batch.data_type);
            VectorRows::new(batch.scratch.vector, data_type, Rows::Range(rows))?
        };
        Ok(Self { rows, batch: Arc::clone(batch) })
    }
}

impl Encode for Piece {
    fn plan(&self, plan: &mut Plan) {
        plan.types(&self.batch.types);
        self.rows.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.rows.write(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_taken_by_their_names_and_cast() {
        let DataType::Struct(wanted) = r#"STRUCT(id BIGINT, "De""lay" INTEGER)"#.parse().unwrap() else {
            panic!()
        };
        let given = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            cast("SELECT 'x'; --", &given(&["de\"lay", "more", "more", "ID"]), &wanted).unwrap(),
            "SELECT CAST(\"id\" AS BIGINT) AS \"id\", CAST(\"De\"\"lay\" AS INTEGER) AS \"De\"\"lay\" \
             FROM system.main.query('SELECT ''x''; --')"
        );
        let error = |names: &[&str]| cast("", &given(names), &wanted).unwrap_err().to_string();
        assert!(error(&["a", "b"]).ends_with("has no column id, De\"lay; its columns are a, b"));
        assert!(error(&["id", "ID", "de\"lay"]).ends_with("several columns id"));
    }
}
