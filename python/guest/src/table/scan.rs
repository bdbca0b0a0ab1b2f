//! Table functions: what a generator yields becomes batches, which the engine takes while the next ones are made.
//!
//! Rows are asked for and written into their columns one by one, here: CPython then makes each row's tuple out of the memory of the
//! one before, and the engine is told of each row, for its timeouts. The first batches are short, so that a query with a LIMIT has
//! its rows at once, and so are those of a slow generator. A generator of batches gives whole columns. What a declared stream function
//! gives for a batch of its input goes the same way.

use crate::arrow::{self, Direction, Exported};
use crate::loops::result_writer;
use crate::loops::row_caller::Argument;
use crate::loops::row_iterator::Live;
use crate::serve::{describe, ends_lane, wait_for_room};
use crate::stream;
use crate::values::fast_path::Plain;
use crate::values::layout::{self, Layout};
use crate::values::objects::{self, Reader, Vm, Wish, overflow};
use crosslane::batch::{Body, Encode, Plan};
use crosslane::call::LONGEST_BATCH;
use crosslane::lane::{COUNT, WRITING};
use crosslane::{ColumnBuilder, DataType, Entry, Failure, Field, Kind, OnError, Signature};
use crosslane_process::guest::{Call, Emitted, GuestLane, Mishaps};
use crosslane_process::limits::MemoryLimit;
use crosslane_ring::ProgressWord;
use pyo3::exceptions::{PyException, PyOSError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyList, PyString, PyTuple, PyType};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most rows of the first batch; those behind it are four times as long each.
const FIRST: usize = 16;
/// For so long a batch grows at most, about.
const PATIENCE: Duration = Duration::from_millis(10);
/// The most rows of a batch of a stream.
const MOST_ROWS: usize = 65_536;
/// A batch of more bytes does not grow.
const LARGE: usize = 1 << 18;
/// After so many rows it is looked for both.
const OFTEN: usize = 64;

/// A table function, ready to be scanned, or a stream function, ready for batches.
pub(crate) struct Table<'py> {
    /// `crosslane._tables.Table`, or `crosslane._stream_tables.StreamTable`.
    declared: Bound<'py, PyAny>,
    is_stream: bool,
    /// The types of the scan's own columns and of the arguments.
    scanned: Vec<DataType>,
    /// Of the arguments, or of the columns of a stream.
    readers: Vec<Reader<'py>>,
    /// The pyarrow type of the batches that a vectorized stream function gets.
    frame: Option<Bound<'py, PyAny>>,
    columns: Arc<[Field]>,
    shapes: Vec<Wish<'py>>,
    vectorized: bool,
    on_error: OnError,
    memory_limit: Option<u64>,
}

/// Why a scan ends before its rows do.
enum End {
    /// The engine wants no more of it.
    Cancelled,
    Failed(PyErr),
    /// The native half has failed.
    Refused(Failure),
}

impl From<PyErr> for End {
    fn from(error: PyErr) -> Self {
        End::Failed(error)
    }
}

impl From<std::io::Error> for End {
    fn from(error: std::io::Error) -> Self {
        End::Failed(error.into())
    }
}

/// What a scan is asked for.
struct Asked<'py> {
    partition: Option<Bound<'py, PyBytes>>,
    wanted: Vec<usize>,
    /// The arguments, or what `StreamTable` gets for a batch.
    values: Bound<'py, PyAny>,
}

impl<'py> Table<'py> {
    /// `declared` is what the function was declared as; none if it is no table function.
    pub(crate) fn new(declared: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let py = declared.py();
        let table = declared.getattr("table")?;
        if table.is_none() {
            return Ok(None);
        }
        let signature: String = declared.getattr("signature")?.extract()?;
        let signature: Signature = signature.parse().map_err(crate::value_error)?;
        let DataType::Struct(columns) = &signature.returns else {
            return Err(PyValueError::new_err(format!("{signature} is no table")));
        };
        let is_stream = signature.stream;
        let (kind, entry) = if is_stream { (Kind::Stream, Entry::Map) } else { (Kind::Table, Entry::Scan) };
        let Some(carried) = kind.entry(entry, &signature) else {
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
        let shapes: Vec<Wish<'py>> = declared.getattr("shapes")?.extract()?;
        let readers = arguments.iter().zip(shapes);
        let readers = readers.map(|(field, shape)| objects::reader(py, &field.data_type, shape));
        let on_error: String = declared.getattr("on_error")?.extract()?;
        Ok(Some(Self {
            is_stream,
            frame,
            scanned: carried.takes().cloned().collect(),
            readers: readers.collect::<PyResult<_>>()?,
            columns: Arc::clone(columns),
            shapes: table.getattr("shapes")?.extract()?,
            vectorized,
            on_error: on_error.parse().map_err(PyValueError::new_err)?,
            memory_limit: declared.getattr("memory_limit")?.extract()?,
            declared: table,
        }))
    }

    /// Answers an exchange, until there is no more or nothing more is wanted.
    pub(crate) fn answer(&self, py: Python<'py>, lane: &mut GuestLane, call: Call) -> PyResult<()> {
        let limit = self.memory_limit.and_then(MemoryLimit::set);
        match call.entry() {
            Some(Entry::Scan) if !self.is_stream => self.scan(py, lane, call, limit),
            Some(Entry::Map) if self.is_stream => self.scan(py, lane, call, limit),
            Some(Entry::Partitions) if !self.is_stream => {
                let partitions = self.partitions(py, lane);
                drop(limit);
                match partitions {
                    Ok(out) => {
                        let call = call.with_rows(out.rows());
                        lane.succeed_after(call, &out, Mishaps::default(), |lane, size| {
                            wait_for_room(py, lane, size)
                        })
                    }
                    Err(error) => fail(py, lane, call, End::Failed(error), None),
                }
            }
            _ => {
                let refusal = call.refusal();
                fail(py, lane, call, End::Refused(refusal), None)
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

    fn values(
        &self,
        py: Python<'py>,
        columns: &[crosslane::batch::Column<'_>],
    ) -> PyResult<Bound<'py, PyList>> {
        let vm = Vm::new(py);
        let values = self.readers.iter().zip(columns).map(|(reader, column)| reader.read(&vm, column, 0));
        PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
    }

    /// A batch of a stream, read from the lane.
    fn batch(&self, py: Python<'py>, lane: &GuestLane) -> PyResult<Asked<'py>> {
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
        Ok(Asked { partition: None, wanted: (0..self.columns.len()).collect(), values })
    }

    /// What the scan is about, read from the lane.
    fn asked(&self, py: Python<'py>, lane: &GuestLane) -> PyResult<Asked<'py>> {
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
        Ok(Asked {
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
        let asked = match self.asked(py, lane) {
            Ok(asked) => asked,
            Err(error) => return fail(py, lane, call, End::Failed(error), None),
        };
        let wanted = asked.wanted.iter().map(|place| self.columns[*place].clone());
        let rows = DataType::Struct(wanted.collect());
        let progress = lane.progress().clone();
        let mut sink = Sink {
            py,
            lane,
            call,
            progress,
            out: ColumnBuilder::new(&rows),
            mishaps: Mishaps::default(),
            sent: 0,
            // What was asked for a batch is not asked to end early.
            longest: if self.is_stream { LONGEST_BATCH } else { FIRST },
            begun: Instant::now(),
        };
        let mut iterator = None;
        let outcome = self.run(&mut sink, &asked, &mut iterator);
        // Whatever the generator was at, it ends before the exchange does.
        let closed = iterator.map_or(Ok(()), |iterator| close(&iterator));
        drop(limit);
        let outcome = match (outcome, closed) {
            (Ok(()), closed) => closed.map_err(End::Failed),
            (outcome, Err(error)) if ends_lane(py, &error) => outcome.and(Err(End::Failed(error))),
            (outcome, _) => outcome,
        };
        sink.finish(outcome)
    }

    /// Calls the function, and sends what it yields.
    fn run(
        &self,
        sink: &mut Sink<'_, 'py>,
        asked: &Asked<'py>,
        iterator: &mut Option<Bound<'py, PyIterator>>,
    ) -> Result<(), End> {
        let py = sink.py;
        sink.progress.set(sink.call.header.exchange as u32, COUNT);
        let Asked { partition, wanted, values } = asked;
        let made = match (self.is_stream, self.vectorized) {
            (false, _) => self.declared.call_method1(intern!(py, "scan"), (values, partition, wanted)),
            (true, false) => self.declared.call_method1(intern!(py, "rows"), (values,)),
            (true, true) => self.declared.call_method1(intern!(py, "batches"), (values,)),
        }?;
        let iterator = iterator.insert(made.cast_into::<PyIterator>().map_err(PyErr::from)?).clone();
        if self.vectorized {
            return self.batches(sink, asked, &iterator);
        }
        let vm = Vm::new(py);
        let columns = asked.wanted.iter().map(|place| Target::new(vm, self, *place));
        let rows = Rows {
            table: self,
            vm,
            layout: layout::known(),
            targets: columns.collect::<PyResult<Vec<_>>>()?,
            whole: asked.wanted.len() == self.columns.len(),
            values: RefCell::default(),
        };
        sink.out.reserve(LONGEST_BATCH).map_err(overflow)?;
        while let Some(row) = next(&iterator)? {
            if let Err(error) = rows.write(&row, &mut sink.out) {
                sink.forgive(self.on_error, error)?;
            }
            sink.row()?;
        }
        Ok(())
    }

    fn batches(
        &self,
        sink: &mut Sink<'_, 'py>,
        asked: &Asked<'py>,
        iterator: &Bound<'py, PyIterator>,
    ) -> Result<(), End> {
        let py = sink.py;
        let fields = || asked.wanted.iter().map(|place| &self.columns[*place]);
        let kinds = fields().map(|field| arrow::pyarrow_type(py, &field.data_type, Direction::Result));
        let kinds = kinds.collect::<PyResult<Vec<_>>>()?;
        let writers = fields().map(|field| result_writer::Writer::of_columns(py, &field.data_type));
        let writers = writers.collect::<PyResult<Vec<_>>>()?;
        let types: Vec<_> = fields().map(|field| &field.data_type).collect();
        let made = py.import("crosslane._tables")?.getattr("Batches")?;
        let batches = made.call1((&self.declared, &asked.wanted, kinds))?;
        while let Some(yielded) = next(iterator)? {
            if let Some(error) = exception(&yielded) {
                sink.forgive(self.on_error, error)?;
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
                            Some(exported) => Piece::Array(exported.part(types[at], first, count)?),
                            None => {
                                let list = column.cast::<PyList>().map_err(PyErr::from)?;
                                let list = list.get_slice(first, first + count);
                                let mut out = ColumnBuilder::new(types[at]);
                                out.reserve(count).map_err(overflow)?;
                                let all = Live::new(list.len(), &[]);
                                writers[at]
                                    .write_all(&list, 0, &all, &mut out, |_| {})
                                    .map_err(|(error, _)| error)?;
                                Piece::Values(out)
                            }
                        });
                    }
                    sink.send(count, &Columns { rows: count, pieces })?;
                }
            }
        }
        Ok(())
    }

    /// How many of these rows a batch has at most.
    fn longest(&self, lane: &GuestLane, rows: usize, columns: &[Bound<'py, PyAny>]) -> PyResult<usize> {
        if !self.is_stream || columns.iter().any(|column| column.is_instance_of::<PyList>()) {
            return Ok(LONGEST_BATCH);
        }
        let bytes =
            columns.iter().map(|column| column.getattr(intern!(column.py(), "nbytes"))?.extract::<usize>());
        let bytes = bytes.sum::<PyResult<usize>>()?;
        // Two of them fit into the ring.
        let fitting = rows.saturating_mul(lane.most() / 2) / bytes.max(1);
        Ok(fitting.clamp(1, MOST_ROWS))
    }
}

/// The next object of an iterator.
fn next<'py>(iterator: &Bound<'py, PyIterator>) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: it gives a new reference, or null, with an exception set unless the iterator is at its end.
    match unsafe { Bound::from_owned_ptr_or_opt(iterator.py(), ffi::PyIter_Next(iterator.as_ptr())) } {
        Some(object) => Ok(Some(object)),
        None => PyErr::take(iterator.py()).map_or(Ok(None), Err),
    }
}

/// An error that is yielded in the place of a row.
fn exception(object: &Bound<'_, PyAny>) -> Option<PyErr> {
    object.is_instance_of::<PyException>().then(|| PyErr::from_value(object.clone()))
}

/// Ends a generator.
fn close(iterator: &Bound<'_, PyIterator>) -> PyResult<()> {
    let py = iterator.py();
    let Some(close) = iterator.getattr_opt(intern!(py, "close"))? else { return Ok(()) };
    match close.call0() {
        Ok(_) => Ok(()),
        Err(error) if ends_lane(py, &error) => Err(error),
        // Nobody waits for its rows any more.
        Err(error) => {
            error.write_unraisable(py, Some(iterator));
            Ok(())
        }
    }
}

/// Tells the engine that an exchange has failed, in the row of its table with this number.
fn fail(py: Python<'_>, lane: &mut GuestLane, call: Call, end: End, row: Option<u64>) -> PyResult<()> {
    let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
    let failure = match end {
        End::Failed(error) if ends_lane(py, &error) => return Err(error),
        End::Failed(error) => describe(py, error)?,
        End::Refused(failure) => failure,
        End::Cancelled => {
            return lane.succeed_after(call.with_rows(0), &Columns::none(), Mishaps::default(), wait);
        }
    };
    lane.fail_after(call, &failure, row.and_then(|row| usize::try_from(row).ok()), wait)
}

/// Where the rows of a scan go.
struct Sink<'a, 'py> {
    py: Python<'py>,
    lane: &'a mut GuestLane,
    call: Call,
    progress: ProgressWord,
    /// Those that were not sent.
    out: ColumnBuilder,
    /// What happened to them.
    mishaps: Mishaps,
    sent: u64,
    /// How many rows the batch at hand has at most.
    longest: usize,
    begun: Instant,
}

impl Sink<'_, '_> {
    fn rows(&self) -> u64 {
        self.sent + self.out.rows() as u64
    }

    /// Counts a row that was written, and sends the batch if it is time to.
    #[inline]
    fn row(&mut self) -> Result<(), End> {
        let rows = self.out.rows();
        self.tell();
        if self.lane.has_message() && self.lane.is_cancelled(&self.call)? {
            return Err(End::Cancelled);
        }
        let due = rows >= self.longest
            || (rows.is_multiple_of(OFTEN) || rows.is_power_of_two())
                && (self.out.size() > LARGE || self.begun.elapsed() > PATIENCE);
        if due { self.flush() } else { Ok(()) }
    }

    /// Tells the engine how many rows there are, for its timeouts.
    #[inline]
    fn tell(&self) {
        let rows = self.rows().min(u64::from(WRITING - 1)) as u32;
        self.progress.set(self.call.header.exchange as u32, rows | COUNT);
    }

    /// Makes the row at hand NULL that is an error, or fails with it.
    #[cold]
    fn forgive(&mut self, on_error: OnError, error: PyErr) -> Result<(), End> {
        let rows = self.out.rows();
        self.out.truncate(rows);
        if on_error == OnError::Fail || ends_lane(self.py, &error) {
            return Err(End::Failed(error));
        }
        self.out.null();
        self.mishaps.errors += 1;
        Ok(())
    }

    /// Sends the rows so far.
    fn flush(&mut self) -> Result<(), End> {
        let rows = self.out.rows();
        if rows > 0 {
            let out = std::mem::replace(&mut self.out, ColumnBuilder::new(&DataType::Boolean));
            let sent = self.send(rows, &out);
            self.out = out;
            self.out.clear();
            sent?;
            self.longest = (self.longest * 4).min(LONGEST_BATCH);
        }
        self.begun = Instant::now();
        Ok(())
    }

    /// Sends rows, as soon as there is room for them. Other threads of Python go on meanwhile.
    fn send(&mut self, rows: usize, content: &(dyn Encode + Sync)) -> Result<(), End> {
        let mishaps = std::mem::take(&mut self.mishaps);
        let Self { py, lane, call, .. } = self;
        let emitted = py.detach(|| lane.emit_with(call, rows, content, mishaps, || false))?;
        match emitted {
            Emitted::Sent => {}
            Emitted::Cancelled => return Err(End::Cancelled),
            Emitted::Failed(failure) => return Err(End::Refused(failure)),
            Emitted::Stopped => return Err(End::Failed(PyRuntimeError::new_err("the lane was stopped"))),
        }
        self.sent += rows as u64;
        self.tell();
        Ok(())
    }

    /// Ends the exchange.
    fn finish(mut self, outcome: Result<(), End>) -> PyResult<()> {
        let row = self.rows();
        let outcome = match outcome {
            // What was made before counts.
            Err(End::Failed(error)) => match self.flush() {
                Ok(()) | Err(End::Failed(_)) => Err(End::Failed(error)),
                Err(other) => Err(other),
            },
            other => other,
        };
        let Self { py, lane, call, out, mishaps, .. } = self;
        match outcome {
            Ok(()) => {
                let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
                lane.succeed_after(call.with_rows(out.rows()), &out, mishaps, wait)
            }
            Err(end) => fail(py, lane, call, end, Some(row)),
        }
    }
}

/// A wanted column.
struct Target<'py> {
    place: usize,
    name: Bound<'py, PyString>,
    plain: Plain,
    writer: result_writer::Writer<'py>,
}

impl<'py> Target<'py> {
    fn new(vm: Vm<'py>, table: &Table<'py>, place: usize) -> PyResult<Self> {
        let py = vm.py();
        let Field { name, data_type } = &table.columns[place];
        let writer = result_writer::Writer::new(py, data_type, table.shapes[place].clone())?;
        Ok(Self { place, name: PyString::intern(py, name), plain: writer.plain(), writer })
    }
}

/// How yielded objects become rows.
struct Rows<'a, 'py> {
    table: &'a Table<'py>,
    vm: Vm<'py>,
    layout: Option<Layout>,
    targets: Vec<Target<'py>>,
    /// Whether all columns are wanted.
    whole: bool,
    /// A type whose objects are values of the only column.
    values: RefCell<Option<Bound<'py, PyType>>>,
}

impl<'py> Rows<'_, 'py> {
    /// Adds a row. After an error it may be there in part.
    #[inline]
    fn write(&self, row: &Bound<'py, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        // SAFETY: a look at the object's type.
        if unsafe { ffi::PyTuple_Check(row.as_ptr()) } != 0 {
            // SAFETY: it is a tuple.
            self.tuple(unsafe { row.cast_unchecked::<PyTuple>() }, out)?;
        } else if !self.alone(row, out)? {
            self.other(row, out)?;
        }
        out.nested().map_err(overflow)
    }

    /// Adds a row that is the value of the only column, if it is of a type of which that is known.
    #[inline]
    fn alone(&self, row: &Bound<'py, PyAny>, out: &mut ColumnBuilder) -> PyResult<bool> {
        let ([_], [target], [child]) = (&*self.table.columns, &self.targets[..], &mut out.children[..])
        else {
            return Ok(false);
        };
        // SAFETY: the object lives, and `Bound` says that the interpreter's lock is held.
        if unsafe { target.plain.add(self.layout, row.as_ptr(), child) } {
            return Ok(true);
        }
        let known = self.values.borrow().as_ref().is_some_and(|known| row.get_type().is(known));
        if known {
            self.value(target, row, child)?;
        }
        Ok(known)
    }

    #[inline]
    fn tuple(&self, row: &Bound<'py, PyTuple>, out: &mut ColumnBuilder) -> PyResult<()> {
        // SAFETY: it is a living tuple.
        let count = unsafe { ffi::PyTuple_Size(row.as_ptr()) } as usize;
        let all = count == self.table.columns.len();
        if !all && (self.whole || count != self.targets.len()) {
            return Err(self.wrong_length(row, count)?);
        }
        for (at, (target, child)) in self.targets.iter().zip(&mut out.children).enumerate() {
            let place = if all { target.place } else { at };
            // SAFETY: the tuple has this place; it keeps the object, and does not change.
            unsafe {
                let object = ffi::PyTuple_GetItem(row.as_ptr(), place as ffi::Py_ssize_t);
                if !target.plain.add(self.layout, object, child) {
                    self.value(target, &Bound::from_borrowed_ptr(row.py(), object), child)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a value of any kind.
    #[inline]
    fn any(&self, target: &Target<'py>, value: &Bound<'py, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        // SAFETY: the object lives, and `Bound` says that the interpreter's lock is held.
        let plain = unsafe { target.plain.add(self.layout, value.as_ptr(), out) };
        if plain { Ok(()) } else { self.value(target, value, out) }
    }

    /// Adds a value that is none of the usual.
    #[cold]
    fn value(
        &self,
        target: &Target<'py>,
        value: &Bound<'py, PyAny>,
        out: &mut ColumnBuilder,
    ) -> PyResult<()> {
        target.writer.write(value, out).inspect_err(|error| {
            let note = format!("in column {}", target.name);
            // What it cannot be noted on is told without.
            let _ = error.value(value.py()).call_method1(intern!(value.py(), "add_note"), (note,));
        })
    }

    #[cold]
    fn other(&self, row: &Bound<'py, PyAny>, out: &mut ColumnBuilder) -> PyResult<()> {
        let py = row.py();
        if let Some(error) = exception(row) {
            return Err(error);
        }
        if row.is_instance_of::<PyList>() {
            return self.tuple(&row.cast::<PyList>()?.to_tuple(), out);
        }
        if let Ok(row) = row.cast::<PyDict>() {
            for (target, child) in self.targets.iter().zip(&mut out.children) {
                let value = row.get_item(&target.name)?;
                let value = value.ok_or_else(|| {
                    let keys: Vec<_> = row.keys().iter().map(|key| key.to_string()).collect();
                    self.wrong(&format!("a row without {}; it has {}", target.name, keys.join(", ")))
                })?;
                self.any(target, &value, child)?;
            }
            return Ok(());
        }
        let fields = row.getattr_opt(intern!(py, "__dataclass_fields__"))?;
        if self.table.columns.len() == 1 && fields.is_none() {
            *self.values.borrow_mut() = Some(row.get_type());
            let mut columns = self.targets.iter().zip(&mut out.children);
            return columns.try_for_each(|(target, child)| self.value(target, row, child));
        }
        let text = row.is_instance_of::<PyString>() || row.is_instance_of::<PyBytes>();
        // SAFETY: a look at the object's type.
        if !text && fields.is_none() && unsafe { ffi::PySequence_Check(row.as_ptr()) } != 0 {
            // SAFETY: it gives a new reference, or null with an exception set.
            let tuple = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PySequence_Tuple(row.as_ptr()))? };
            return self.tuple(&tuple.cast_into::<PyTuple>()?, out);
        }
        for (target, child) in self.targets.iter().zip(&mut out.children) {
            let Some(value) = row.getattr_opt(&target.name)? else {
                use crosslane_guest::Values as _;
                let shown = self.vm.shown(row)?;
                let names = self.names();
                return Err(PyTypeError::new_err(format!(
                    "yielded {shown} where a row is due: a tuple, a dict or an object of {names}"
                )));
            };
            self.any(target, &value, child)?;
        }
        Ok(())
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.table.columns.iter().map(|field| field.name.as_str()).collect();
        names.join(", ")
    }

    fn wrong(&self, what: &str) -> PyErr {
        PyValueError::new_err(format!("yielded {what}, where the columns are {}", self.names()))
    }

    #[cold]
    fn wrong_length(&self, row: &Bound<'py, PyTuple>, count: usize) -> PyResult<PyErr> {
        use crosslane_guest::Values as _;
        let shown = self.vm.shown(row.as_any())?;
        Ok(self.wrong(&format!("{shown} of {count} value(s)")))
    }
}

/// The rows of a part of a batch, as STRUCTs.
struct Columns<'a> {
    rows: usize,
    pieces: Vec<Piece<'a>>,
}

enum Piece<'a> {
    Array(arrow::Part<'a>),
    Values(ColumnBuilder),
}

impl Columns<'_> {
    fn none() -> Self {
        Self { rows: 0, pieces: Vec::new() }
    }
}

impl Encode for Columns<'_> {
    fn plan(&self, plan: &mut Plan) {
        plan.node(self.rows, 0);
        plan.buffer(0);
        for piece in &self.pieces {
            match piece {
                Piece::Array(part) => part.plan(plan),
                Piece::Values(out) => out.plan(plan),
            }
        }
    }

    fn write(&self, body: &mut Body<'_>) {
        body.buffer();
        for piece in &self.pieces {
            match piece {
                Piece::Array(part) => part.write(body),
                Piece::Values(out) => out.write(body),
            }
        }
    }
}
