//! Table functions: the rows that a generator yields become batches. The engine takes a batch while
//! the next one is made.
//!
//! The generator is asked for each row here, and the row is written into its columns. So CPython
//! makes the tuple of a row out of the memory of the tuple before, and the engine is told of each
//! row, for its timeouts. The first batches are short, so that a query with a LIMIT has its rows at
//! once. So are the batches of a slow generator. A generator of batches gives whole columns. The
//! rows that a declared stream function gives for a batch of its input go the same way.

use super::partial_batch::PartialBatch;
use super::row_writer::{RowWriter, exception};
use super::sink::{ScanEnd, Sink, fail};
use crate::arrow::{self, Direction, Exported, Piece, Results};
use crate::declaration::Declaration;
use crate::lane::{ends_lane, succeed};
use crate::loops::{Argument, ResultWriter, Selection};
use crate::stream;
use crate::values::{Hint, Reader, Vm, overflow};
use crosslane::batch::Column;
use crosslane::call::LONGEST_BATCH;
use crosslane::lane::COUNT;
use crosslane::{ColumnBuilder, DataType, Entry, Field, Kind, OnError};
use crosslane_process::guest::{Call, GuestLane, RowCounts};
use crosslane_process::limits::MemoryLimit;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList};
use std::sync::Arc;

/// The most rows of the first batch. Each further batch has four times as many.
const FIRST_ROWS: usize = 16;
/// The most rows of a batch of a stream.
const MOST_ROWS: usize = 65_536;

/// A table function, ready to be scanned, or a stream function, ready for batches.
pub(crate) struct Table<'py> {
    /// `crosslane._declare.signature.tables.Table`, or `crosslane._declare.signature.tables.StreamTable`.
    declared: Bound<'py, PyAny>,
    is_stream: bool,
    /// The types of the scan's own columns and of the arguments.
    scanned: Vec<DataType>,
    /// Of the arguments, or of the columns of a stream.
    readers: Vec<Reader<'py>>,
    /// The pyarrow type of the batches that a vectorized stream function gets.
    frame: Option<Bound<'py, PyAny>>,
    columns: Arc<[Field]>,
    hints: Vec<Hint<'py>>,
    vectorized: bool,
    on_error: OnError,
    memory_limit: Option<u64>,
}

/// The request of the engine to a scan.
struct ScanRequest<'py> {
    partition: Option<Bound<'py, PyBytes>>,
    wanted: Vec<usize>,
    /// The arguments of the function, or the batch for a `StreamTable`.
    values: Bound<'py, PyAny>,
}

impl<'py> Table<'py> {
    /// `declared` is a declared function. Returns None if it is no table function.
    pub(crate) fn new(declared: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let py = declared.py();
        let table = declared.getattr("table")?;
        if table.is_none() {
            return Ok(None);
        }
        let declaration = Declaration::read(declared)?;
        let signature = &declaration.signature;
        let DataType::Struct(columns) = &signature.returns else {
            return Err(PyValueError::new_err(format!("{signature} is no table")));
        };
        let is_stream = signature.stream;
        let (kind, entry) = if is_stream { (Kind::Stream, Entry::Map) } else { (Kind::Table, Entry::Scan) };
        let Some(carried) = kind.entry(entry, signature) else {
            return Err(PyValueError::new_err(format!("{signature} is no table")));
        };
        let vectorized: bool = table.getattr("vectorized")?.extract()?;
        let (arguments, frame) = match &signature.parameters[..] {
            [Field { data_type: data_type @ DataType::Struct(columns), .. }] if is_stream => {
                let frame = vectorized.then(|| arrow::pyarrow_type(py, data_type, Direction::Argument));
                (&columns[..], frame.transpose()?)
            }
            arguments => (arguments, None),
        };
        Ok(Some(Self {
            is_stream,
            frame,
            scanned: carried.takes().cloned().collect(),
            readers: declaration.readers_of(py, arguments)?,
            columns: Arc::clone(columns),
            hints: table.getattr("shapes")?.extract()?,
            vectorized,
            on_error: declaration.error_policy.on_error,
            memory_limit: declaration.memory_limit,
            declared: table,
        }))
    }

    /// Answers an exchange: sends rows until there are no more, or the engine wants no more.
    pub(crate) fn answer(&self, py: Python<'py>, lane: &mut GuestLane, call: Call) -> PyResult<()> {
        let limit = self.memory_limit.and_then(MemoryLimit::set);
        match call.entry() {
            Some(Entry::Scan) if !self.is_stream => self.scan(py, lane, call, limit),
            Some(Entry::Map) if self.is_stream => self.scan(py, lane, call, limit),
            Some(Entry::Partitions) if !self.is_stream => {
                let partitions = self.partitions(py, lane);
                drop(limit);
                match partitions {
                    Ok(out) => succeed(py, lane, call.with_rows(out.rows()), &out, RowCounts::default()),
                    Err(error) => fail(py, lane, call, ScanEnd::Failed(error), None),
                }
            }
            _ => {
                let refusal = call.refusal();
                fail(py, lane, call, ScanEnd::Refused(refusal), None)
            }
        }
    }

    fn partitions(&self, py: Python<'py>, lane: &GuestLane) -> PyResult<ColumnBuilder> {
        let leading = self.scanned.len() - self.readers.len();
        let values = self.values(py, &lane.columns(self.scanned[leading..].iter())?)?;
        let partitions = self.declared.call_method1(intern!(py, "partitions"), (values,))?;
        let mut out = ColumnBuilder::new(&DataType::Blob);
        for partition in partitions.cast_into::<PyList>()? {
            out.bytes(partition.cast::<PyBytes>()?.as_bytes()).map_err(overflow)?;
        }
        Ok(out)
    }

    fn values(&self, py: Python<'py>, columns: &[Column<'_>]) -> PyResult<Bound<'py, PyList>> {
        let vm = Vm::new(py);
        let values = self.readers.iter().zip(columns).map(|(reader, column)| reader.read(&vm, column, 0));
        PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
    }

    /// A batch of a stream, read from the lane.
    fn batch(&self, py: Python<'py>, lane: &GuestLane) -> PyResult<ScanRequest<'py>> {
        let columns = lane.columns(self.scanned.iter())?;
        let [batch] = &columns[..] else {
            return Err(PyOSError::new_err("a batch without its column"));
        };
        let values = match &self.frame {
            Some(frame) => arrow::to_pyarrow(batch, frame)?,
            None => {
                let lists = self.readers.iter().zip(&batch.children).map(|(reader, column)| {
                    let argument = Argument::new(reader, column, true);
                    let values = (0..batch.rows).map(|row| {
                        // SAFETY: it gives a new reference.
                        Ok(unsafe { Bound::from_owned_ptr(py, argument.get(py, row)?) })
                    });
                    PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
                });
                PyList::new(py, lists.collect::<PyResult<Vec<_>>>()?)?.into_any()
            }
        };
        Ok(ScanRequest { partition: None, wanted: (0..self.columns.len()).collect(), values })
    }

    /// The request of the engine, read from the lane.
    fn request(&self, py: Python<'py>, lane: &GuestLane) -> PyResult<ScanRequest<'py>> {
        if self.is_stream {
            return self.batch(py, lane);
        }
        let columns = lane.columns(self.scanned.iter())?;
        let [partition, wanted, arguments @ ..] = &columns[..] else {
            return Err(PyOSError::new_err("a scan without its columns"));
        };
        let places = if wanted.is_valid(0) {
            let place = |at| wanted.children[0].value::<i32>(at) as usize;
            wanted.elements(0).map(place).collect()
        } else {
            (0..self.columns.len()).collect::<Vec<_>>()
        };
        if let Some(place) = places.iter().find(|place| **place >= self.columns.len()) {
            return Err(PyOSError::new_err(format!("a scan of column {place} of {}", self.columns.len())));
        }
        Ok(ScanRequest {
            partition: partition.is_valid(0).then(|| PyBytes::new(py, partition.bytes(0))),
            wanted: places,
            values: self.values(py, arguments)?.into_any(),
        })
    }

    fn scan(
        &self,
        py: Python<'py>,
        lane: &mut GuestLane,
        call: Call,
        limit: Option<MemoryLimit>,
    ) -> PyResult<()> {
        let call = match self.is_stream {
            true => match stream::set_up(lane, call, &self.declared)? {
                Some(call) => call,
                None => return Ok(()),
            },
            false => call,
        };
        let request = match self.request(py, lane) {
            Ok(request) => request,
            Err(error) => return fail(py, lane, call, ScanEnd::Failed(error), None),
        };
        let wanted = request.wanted.iter().map(|place| self.columns[*place].clone());
        let rows = DataType::Struct(wanted.collect());
        // A stream function that got a batch is not asked to end early.
        let longest = if self.is_stream { LONGEST_BATCH } else { FIRST_ROWS };
        let mut sink = Sink::new(py, lane, call, &rows, longest);
        let mut iterator = None;
        let outcome = self.run(&mut sink, &request, &mut iterator);
        // The generator ends before the exchange does.
        let closed = iterator.map_or(Ok(()), |iterator| close(&iterator));
        drop(limit);
        let outcome = match (outcome, closed) {
            (Ok(()), closed) => closed.map_err(ScanEnd::Failed),
            (outcome, Err(error)) if ends_lane(py, &error) => outcome.and(Err(ScanEnd::Failed(error))),
            (outcome, _) => outcome,
        };
        sink.finish(outcome)
    }

    /// Calls the function, and sends the rows that it yields.
    fn run(
        &self,
        sink: &mut Sink<'_, 'py>,
        request: &ScanRequest<'py>,
        iterator: &mut Option<Bound<'py, PyIterator>>,
    ) -> Result<(), ScanEnd> {
        let py = sink.py;
        sink.progress.set(sink.call.header.exchange as u32, COUNT);
        let ScanRequest { partition, wanted, values } = request;
        let made = match (self.is_stream, self.vectorized) {
            (false, _) => self.declared.call_method1(intern!(py, "scan"), (values, partition, wanted)),
            (true, false) => self.declared.call_method1(intern!(py, "rows"), (values,)),
            (true, true) => self.declared.call_method1(intern!(py, "batches"), (values,)),
        }?;
        let iterator = iterator.insert(made.cast_into::<PyIterator>().map_err(PyErr::from)?).clone();
        if self.vectorized {
            return self.batches(sink, request, &iterator);
        }
        let rows = RowWriter::new(py, &self.columns, &self.hints, &request.wanted)?;
        sink.out.reserve(LONGEST_BATCH).map_err(overflow)?;
        while let Some(row) = next(&iterator)? {
            if let Err(error) = rows.write(&row, &mut sink.out) {
                sink.null_or_fail(self.on_error, error)?;
            }
            sink.row()?;
        }
        Ok(())
    }

    fn batches(
        &self,
        sink: &mut Sink<'_, 'py>,
        request: &ScanRequest<'py>,
        iterator: &Bound<'py, PyIterator>,
    ) -> Result<(), ScanEnd> {
        let py = sink.py;
        let fields = || request.wanted.iter().map(|place| &self.columns[*place]);
        let kinds = fields().map(|field| arrow::pyarrow_type(py, &field.data_type, Direction::Result));
        let kinds = kinds.collect::<PyResult<Vec<_>>>()?;
        let writers = fields().map(|field| ResultWriter::of_columns(py, &field.data_type));
        let writers = writers.collect::<PyResult<Vec<_>>>()?;
        let types: Vec<_> = fields().map(|field| &field.data_type).collect();
        let made = py.import("crosslane._worker.tables")?.getattr("Batches")?;
        let batches = made.call1((&self.declared, &request.wanted, kinds))?;
        while let Some(yielded) = next(iterator)? {
            if let Some(error) = exception(&yielded) {
                sink.null_or_fail(self.on_error, error)?;
                sink.row()?;
                continue;
            }
            sink.flush()?;
            for part in batches.call_method1(intern!(py, "parts"), (&yielded,))?.try_iter()? {
                let (rows, columns): (usize, Vec<Bound<'py, PyAny>>) = part?.extract()?;
                let exported = columns.iter().map(|column| match column.cast::<PyList>() {
                    Ok(_) => Ok(None),
                    Err(_) => Exported::new(column).map(Some),
                });
                let exported = exported.collect::<PyResult<Vec<_>>>()?;
                let longest = self.longest(sink.lane, rows, &columns)?;
                for first in (0..rows).step_by(longest) {
                    let count = longest.min(rows - first);
                    let mut pieces = Vec::with_capacity(columns.len());
                    for (at, column) in columns.iter().enumerate() {
                        pieces.push(match &exported[at] {
                            Some(exported) => Piece::Array(Results::part(exported, types[at], first, count)?),
                            None => {
                                let list = column.cast::<PyList>().map_err(PyErr::from)?;
                                let list = list.get_slice(first, first + count);
                                let mut out = ColumnBuilder::new(types[at]);
                                out.reserve(count).map_err(overflow)?;
                                let all = Selection::all(list.len());
                                writers[at]
                                    .write_all(&list, 0, &all, &mut out, |_| {})
                                    .map_err(|(error, _)| error)?;
                                Piece::Values(out)
                            }
                        });
                    }
                    sink.send(count, &PartialBatch { rows: count, pieces })?;
                }
            }
        }
        Ok(())
    }

    /// The most of these rows that a batch has.
    fn longest(&self, lane: &GuestLane, rows: usize, columns: &[Bound<'py, PyAny>]) -> PyResult<usize> {
        if !self.is_stream || columns.iter().any(|column| column.is_instance_of::<PyList>()) {
            return Ok(LONGEST_BATCH);
        }
        let bytes =
            columns.iter().map(|column| column.getattr(intern!(column.py(), "nbytes"))?.extract::<usize>());
        let bytes = bytes.sum::<PyResult<usize>>()?;
        // Two batches fit into the ring.
        let fitting = rows.saturating_mul(lane.most() / 2) / bytes.max(1);
        Ok(fitting.clamp(1, MOST_ROWS))
    }
}

/// The next object of an iterator.
fn next<'py>(iterator: &Bound<'py, PyIterator>) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: it gives a new reference, or null, with an exception set unless the iterator is at
    // its end.
    match unsafe { Bound::from_owned_ptr_or_opt(iterator.py(), ffi::PyIter_Next(iterator.as_ptr())) } {
        Some(object) => Ok(Some(object)),
        None => PyErr::take(iterator.py()).map_or(Ok(None), Err),
    }
}

/// Ends a generator.
fn close(iterator: &Bound<'_, PyIterator>) -> PyResult<()> {
    let py = iterator.py();
    let Some(close) = iterator.getattr_opt(intern!(py, "close"))? else { return Ok(()) };
    match close.call0() {
        Ok(_) => Ok(()),
        Err(error) if ends_lane(py, &error) => Err(error),
        // The engine does not wait for the rows any more, so the error is only logged.
        Err(error) => {
            error.write_unraisable(py, Some(iterator));
            Ok(())
        }
    }
}
