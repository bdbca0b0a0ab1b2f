//! A query whose rows are the input of a stream.
//!
//! It is read chunk by chunk. DuckDB's own buffer holds a few chunks, and the query waits while the
//! buffer is full. Chunks are combined to batches of about [`LARGE`] bytes. The first batches are
//! shorter, so that all lanes get rows of a short query. A query that makes its rows slowly has
//! short batches all the time.

use super::copy::copy;
use super::query::Chunks;
use super::rows::Rows;
use super::vector_rows::VectorRows;
use crate::types::LogicalType;
use crate::vector::{Chunk, Scratch, memory};
use crosslane::batch::{Body, Encode, Plan};
use crosslane::call::{MapInput, map_types};
use crosslane::{DataType, Error};
use libduckdb_sys as ffi;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The usual size of a batch in bytes. A batch of twice the size is cut.
const LARGE: usize = 1 << 20;
/// The most rows of a batch.
const MOST_ROWS: usize = 65_536;
/// The rows that each batch may have, also the first, if they are small.
const FEW_ROWS: usize = 2048;
/// After this time a batch is sent as it is.
const SLOW: Duration = Duration::from_millis(10);

/// The rows of a query as the batches of a stream.
#[derive(Debug)]
pub struct StreamInput {
    chunks: Chunks,
    /// A STRUCT of the query's columns.
    rows: Arc<DataType>,
    /// The type as text, as batches carry it.
    types: Arc<str>,
    lanes: usize,
    /// How many rows were returned.
    sent: usize,
    /// Bytes per row of the last batch.
    width: usize,
    /// A chunk that belongs to the next batch.
    waiting: Option<Chunk>,
    /// Further pieces of a batch that was cut.
    pieces: VecDeque<MapInput>,
}

impl StreamInput {
    /// Runs a query of [`query_for`] for a stream over `lanes` lanes. Returns when the first rows
    /// are there.
    ///
    /// # Errors
    /// [`Error::Engine`] with DuckDB's error.
    ///
    /// # Safety
    /// The connection must outlive the source, and no other thread may use it meanwhile, except to
    /// interrupt it. The query's columns must be the fields of `rows`.
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

    /// Reads the chunks of one batch.
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

    /// How many rows the next batch may have, at least `rows`.
    fn capacity(&self, rows: usize) -> usize {
        let fair = self.sent / (2 * self.lanes);
        let light = LARGE / self.width.max(1);
        fair.min(light).clamp(rows.max(FEW_ROWS), MOST_ROWS)
    }
}

/// Rows of a stream, in a vector of our own.
struct Batch {
    scratch: Scratch,
    data_type: Arc<DataType>,
    /// The type as text, as batches carry it.
    types: Arc<str>,
    rows: usize,
    capacity: usize,
}

// SAFETY: a batch that is shared is only read.
unsafe impl Sync for Batch {}

impl Batch {
    fn new(data_type: &Arc<DataType>, types: &Arc<str>, capacity: usize) -> Result<Self, Error> {
        memory::check_list(data_type, capacity)?;
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

    /// Adds a chunk for which there is space. Returns its bytes.
    fn append(&mut self, chunk: &Chunk) -> Result<usize, Error> {
        let rows = chunk.rows();
        // SAFETY: the chunk has a column of the type of each field, and the vector has space for
        // the rows.
        unsafe {
            for (column, data_type) in (0..).zip(self.data_type.children()) {
                let from = ffi::duckdb_data_chunk_get_vector(chunk.0, column);
                let to = ffi::duckdb_struct_vector_get_child(self.scratch.vector, column);
                copy(from, to, data_type, self.scratch.all, 0..rows, self.rows)?;
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

/// Cuts rows of a batch into pieces, until each is small enough or has one row.
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
    /// It borrows from the batch, so it is declared first.
    rows: VectorRows<'static>,
    batch: Arc<Batch>,
}

// SAFETY: it only reads the batch, which it keeps alive.
unsafe impl Send for Piece {}

impl Piece {
    fn new(batch: &Arc<Batch>, rows: Range<usize>) -> Result<Self, Error> {
        // SAFETY: the batch lives as long as the piece, in one place, and has these rows. A batch
        // that is shared does not change.
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
