//! The entries of aggregates: instances of a class by the numbers of states.
//!
//! Rows are added by a loop in Python, as those of [`crate::iterate`]: its iterator gives the `update` of the instance that a row
//! is for, which is kept beside the instance, and puts the arguments into their cells.

use crate::arrow::{self, Direction};
use crate::iterate::{Cursor, Live, Loop, Results as Rows};
use crate::listwise::Writer;
use crate::objects::{self, Reader, Wish, overflow};
use crate::plain::Plain;
use crate::row::{Argument, RowCaller};
use crate::serve::{Mishap, describe, ends_lane, forgive, wait_for_room};
use crosslane::batch::{Column, bit};
use crosslane::{ColumnBuilder, DataType, Entry, Kind, Leniency, Signature, Verdict};
use crosslane_process::guest::{Call, GuestLane, Mishaps};
use crosslane_process::limits::MemoryLimit;
use crosslane_ring::ProgressWord;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashSet;
use std::ptr;

/// An instance, and its method `update`.
struct State {
    instance: Py<PyAny>,
    update: Py<PyAny>,
}

/// So many rows are collected for a vectorized aggregate, or arguments of so many bytes, until they are added to their groups.
const MOST_ROWS: usize = 1 << 18;
const MOST_BYTES: usize = 64 << 20;
/// The state of a row that is left out.
const NOBODY: u32 = u32::MAX;

/// The rows that a vectorized aggregate was sent, and that are not yet added to their groups.
struct Collected<'py> {
    /// pyarrow's types of the arguments.
    types: Vec<Bound<'py, PyAny>>,
    /// The arguments of each batch: a list of arrays.
    chunks: Bound<'py, PyList>,
    /// The states of the rows of all batches.
    states: Vec<u32>,
    bytes: usize,
}

/// An aggregate on one lane.
pub(crate) struct Aggregate<'py> {
    /// `crosslane._aggregate.States`.
    states: Bound<'py, PyAny>,
    /// By their numbers.
    living: Vec<Option<State>>,
    signature: Signature,
    readers: Vec<Reader<'py>>,
    writer: Writer<'py>,
    admits_null: Vec<bool>,
    each: Loop,
    /// If it is vectorized.
    collected: Option<Collected<'py>>,
    /// The answers of one batch.
    results: ColumnBuilder,
    saved: ColumnBuilder,
    /// What the loop over rows is given instead of results.
    nothing: ColumnBuilder,
    leniency: Leniency,
    memory_limit: Option<u64>,
}

impl<'py> Aggregate<'py> {
    pub(crate) fn new(declared: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = declared.py();
        let signature: String = declared.getattr("signature")?.extract()?;
        let signature: Signature = signature.parse().map_err(crate::value_error)?;
        let shapes: Vec<Wish<'py>> = declared.getattr("shapes")?.extract()?;
        let parameters = signature.parameters.iter().zip(shapes);
        let readers = parameters.map(|(field, shape)| objects::reader(py, &field.data_type, shape));
        let module = py.import("crosslane._aggregate")?;
        let on_error: String = declared.getattr("on_error")?.extract()?;
        let kind: String = declared.getattr("kind")?.extract()?;
        let types = signature.parameters.iter().map(|field| &field.data_type);
        let types = types.map(|data_type| arrow::pyarrow_type(py, data_type, Direction::Argument));
        let collected = match kind.as_str() {
            "vectorized" => Some(Collected {
                types: types.collect::<PyResult<_>>()?,
                chunks: PyList::empty(py),
                states: Vec::new(),
                bytes: 0,
            }),
            _ => None,
        };
        Ok(Self {
            collected,
            states: module.getattr("States")?.call1((declared,))?,
            living: Vec::new(),
            readers: readers.collect::<PyResult<_>>()?,
            writer: Writer::new(py, &signature.returns, declared.getattr("result_shape")?.extract()?)?,
            admits_null: declared.getattr("admits_null")?.extract()?,
            each: Loop::new(&module.getattr("loop")?.call1((signature.parameters.len(),))?)?,
            results: ColumnBuilder::new(&signature.returns),
            saved: ColumnBuilder::new(&DataType::Blob),
            nothing: ColumnBuilder::new(&DataType::Boolean),
            signature,
            leniency: Leniency {
                retries: declared.getattr("retries")?.extract()?,
                on_error: on_error.parse().map_err(PyValueError::new_err)?,
            },
            memory_limit: declared.getattr("memory_limit")?.extract()?,
        })
    }

    /// Answers an exchange.
    pub(crate) fn answer(&mut self, py: Python<'py>, lane: &mut GuestLane, call: Call) -> PyResult<()> {
        let entry = call.entry().unwrap_or_default();
        let wait = |lane: &mut GuestLane, size| wait_for_room(py, lane, size);
        let signature = self.signature.clone();
        let Some(types) = Kind::Aggregate.entry(entry, &signature) else {
            return Ok(lane.fail(call, &call.refusal(), None)?);
        };
        let limit = self.memory_limit.and_then(MemoryLimit::set);
        let mut mishaps = Mishaps::default();
        let outcome = {
            let columns = lane.columns(types.takes())?;
            let rows = Exchange { columns: &columns, call, progress: lane.progress() };
            self.run(py, entry, &rows, &mut mishaps)
        };
        drop(limit);
        let answer = call.with_rows(types.answer(call.header.rows as usize));
        match outcome {
            Ok(()) => match entry {
                Entry::Finish => lane.succeed_after(answer, &self.results, mishaps, wait),
                Entry::Save => lane.succeed_after(answer, &self.saved, mishaps, wait),
                _ => lane.succeed_after(answer, &(), mishaps, wait),
            },
            Err(mishap) if ends_lane(py, &mishap.error) => Err(mishap.error),
            Err(mishap) => lane.fail_after(call, &describe(py, mishap.error)?, mishap.row, wait),
        }
    }

    fn run(
        &mut self,
        py: Python<'py>,
        entry: Entry,
        rows: &Exchange<'_>,
        mishaps: &mut Mishaps,
    ) -> Result<(), Mishap> {
        // Those that are forgotten need their rows no more.
        if !matches!(entry, Entry::Update | Entry::Forget) {
            self.flush(py, rows, mishaps)?;
        }
        match entry {
            Entry::Update if self.collected.is_some() => self.collect(py, rows, mishaps),
            Entry::Update => self.update(py, rows, mishaps),
            Entry::Combine => rows.each(|row| {
                let keep = bit(rows.columns[2].data, row);
                self.combine(py, rows.state(0, row), rows.state(1, row), keep)
            }),
            Entry::Finish => {
                self.results.clear();
                self.results.reserve(rows.count()).map_err(overflow)?;
                (0..rows.count()).try_for_each(|row| self.finish(py, rows, row, mishaps))
            }
            Entry::Save => {
                self.saved.clear();
                rows.each(|row| self.save(py, rows.state(0, row)))
            }
            Entry::Load => rows.each(|row| {
                if rows.columns[1].is_valid(row) {
                    let saved = rows.columns[1].bytes(row);
                    let other = self.states.call_method1(intern!(py, "load"), (saved,))?;
                    self.merge(py, rows.state(0, row), State::new(&other)?)?;
                }
                Ok(())
            }),
            _ => {
                if let Some(collected) = self.collected.as_mut().filter(|all| !all.states.is_empty()) {
                    let gone: HashSet<u32> = (0..rows.count()).map(|row| rows.state(0, row) as u32).collect();
                    let gone = collected.states.iter_mut().filter(|state| gone.contains(state));
                    gone.for_each(|state| *state = NOBODY);
                }
                rows.each(|row| {
                    drop(self.take(rows.state(0, row)));
                    Ok(())
                })
            }
        }
    }

    /// Keeps rows until there are many.
    fn collect(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        let columns = &rows.columns[1..];
        let live = self.live(rows);
        for row in (0..rows.count()).filter(|row| live.is_live(*row)) {
            rows.at(row);
            self.method(py, rows.state(0, row)).map_err(|error| (error, row))?;
        }
        let Some(collected) = &mut self.collected else { return Ok(()) };
        let arrays = columns.iter().zip(&collected.types);
        let arrays = arrays.map(|(column, data_type)| arrow::to_pyarrow(column, data_type));
        collected.chunks.append(PyList::new(py, arrays.collect::<PyResult<Vec<_>>>()?)?)?;
        let states =
            (0..rows.count()).map(|row| if live.is_live(row) { rows.state(0, row) as u32 } else { NOBODY });
        collected.states.extend(states);
        collected.bytes += columns.iter().map(bytes).sum::<usize>();
        if collected.states.len() >= MOST_ROWS || collected.bytes >= MOST_BYTES {
            self.flush(py, rows, mishaps)?;
        }
        Ok(())
    }

    /// Adds the collected rows to their groups, all of a group at once.
    fn flush(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        let Some(collected) = &mut self.collected else { return Ok(()) };
        let states = std::mem::take(&mut collected.states);
        let chunks = std::mem::replace(&mut collected.chunks, PyList::empty(py));
        collected.bytes = 0;
        if states.is_empty() {
            return Ok(());
        }
        // Where the rows of each state begin, by counting.
        let mut places = vec![0u32; self.living.len() + 1];
        let live = || (0u32..).zip(&states).filter(|(_, state)| **state != NOBODY);
        live().for_each(|(_, state)| places[*state as usize + 1] += 1);
        let mut groups = Vec::new();
        for state in 0..self.living.len() {
            let (begin, count) = (places[state], places[state + 1]);
            places[state + 1] += begin;
            if let Some(living) = self.living[state].as_ref().filter(|_| count > 0) {
                groups.push((living.update.clone_ref(py), begin, begin + count));
            }
        }
        let mut order = vec![0u32; places.last().copied().unwrap_or_default() as usize];
        for (row, state) in live() {
            let place = &mut places[*state as usize];
            order[*place as usize] = row;
            *place += 1;
        }
        if groups.is_empty() {
            return Ok(());
        }
        let counts: Vec<u32> = groups.iter().map(|(_, begin, end)| end - begin).collect();
        rows.progress.set(rows.sequence(), u32::MAX);
        let order = PyBytes::new(py, bytemuck::cast_slice(&order));
        let columns = self.states.call_method1(intern!(py, "sorted"), (chunks, order))?;
        let groups = PyList::new(py, groups)?;
        let (mut first, mut tries) = (0, 0);
        while let Err(error) =
            self.states.call_method1(intern!(py, "run"), (&columns, &groups, first)).map(drop)
        {
            let at: usize = self.states.getattr(intern!(py, "at"))?.extract()?;
            if at != first {
                tries = 0;
            }
            first = at;
            let count = counts.get(at).copied().unwrap_or_default() as usize;
            if let Verdict::Null = forgive(py, self.leniency, error.into(), &mut tries, count, mishaps)? {
                first += 1;
                tries = 0;
            }
        }
        Ok(())
    }

    /// The rows that are added.
    fn live(&self, rows: &Exchange<'_>) -> Live {
        let columns = rows.columns[1..].iter().zip(&self.admits_null);
        let skipping: Vec<&Column<'_>> = columns
            .filter_map(|(column, admits)| (!admits && column.validity.is_some()).then_some(column))
            .collect();
        Live::new(rows.count(), &skipping)
    }

    /// The place of a number.
    fn place(&mut self, number: usize) -> PyResult<&mut Option<State>> {
        let more = (number + 1).saturating_sub(self.living.len());
        let room = self.living.try_reserve(more);
        room.map_err(|_| PyMemoryError::new_err("no memory for the states of an aggregate"))?;
        while self.living.len() <= number {
            self.living.push(None);
        }
        Ok(&mut self.living[number])
    }

    fn take(&mut self, number: usize) -> Option<State> {
        self.living.get_mut(number).and_then(Option::take)
    }

    /// The method of a state that adds a row.
    fn method(&mut self, py: Python<'py>, number: usize) -> PyResult<*mut ffi::PyObject> {
        if let Some(Some(state)) = self.living.get(number) {
            return Ok(state.update.as_ptr());
        }
        let state = State::new(&self.states.getattr(intern!(py, "new"))?.call0()?)?;
        Ok(self.place(number)?.insert(state).update.as_ptr())
    }

    fn update(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        let count = rows.count();
        let columns = &rows.columns[1..];
        let live = self.live(rows);
        // Each is kept by its state until all rows are done: nothing else changes the states meanwhile.
        let mut methods = vec![ptr::null_mut(); count];
        let mut row = live.next(0);
        while row < count {
            rows.at(row);
            methods[row] = self.method(py, rows.state(0, row)).map_err(|error| (error, row))?;
            row = live.next(row + 1);
        }
        self.nothing.clear();
        self.nothing.reserve(count).map_err(overflow)?;
        let arguments = self.readers.iter().zip(columns).zip(&self.admits_null);
        let arguments = arguments.map(|((reader, column), sees)| Argument::new(reader, column, *sees));
        let mut all = vec![Argument::Object { objects: &methods }];
        all.extend(arguments);
        let taken = Rows::new(py, Plain::Boolean, &live, &mut self.nothing);
        let mut cursor = Cursor::new(&self.each, all, rows.progress, rows.sequence(), taken);
        let mut from = live.next(0);
        while from < count {
            let Err((error, row)) = cursor.run(from) else { break };
            if row == count {
                return Err(error.into());
            }
            let arguments = self.readers.iter().zip(columns).zip(&self.admits_null);
            let arguments = arguments.map(|((reader, column), sees)| Argument::new(reader, column, *sees));
            let arguments: Vec<_> = arguments.collect();
            // SAFETY: a row that is called has its method.
            let method = unsafe { Bound::from_borrowed_ptr(py, methods[row]) };
            let mut caller = RowCaller::new(&method, &arguments, false);
            let (mut error, mut tries) = (error, 0);
            while let Verdict::Again(_) =
                forgive(py, self.leniency, (error, row).into(), &mut tries, 1, mishaps)?
            {
                rows.at(row);
                match caller.call(row) {
                    Ok(_) => break,
                    Err(again) => error = again,
                }
            }
            cursor.results().push(row, py.None().bind(py))?;
            from = live.next(row + 1);
        }
        Ok(())
    }

    fn combine(&mut self, py: Python<'py>, target: usize, source: usize, keep: bool) -> PyResult<()> {
        if !keep {
            return match self.take(source) {
                Some(other) => self.merge(py, target, other),
                None => Ok(()),
            };
        }
        let Some(Some(state)) = self.living.get(source) else { return Ok(()) };
        let copy = self.states.call_method1(intern!(py, "copy"), (&state.instance,))?;
        self.merge(py, target, State::new(&copy)?)
    }

    /// Adds what a state holds that nobody else has.
    fn merge(&mut self, py: Python<'py>, target: usize, other: State) -> PyResult<()> {
        match self.place(target)? {
            Some(state) => {
                state.instance.bind(py).call_method1(intern!(py, "merge"), (other.instance,)).map(drop)
            }
            none => {
                *none = Some(other);
                Ok(())
            }
        }
    }

    fn save(&mut self, py: Python<'py>, number: usize) -> PyResult<()> {
        let Some(Some(state)) = self.living.get(number) else {
            self.saved.null();
            return Ok(());
        };
        let saved = self.states.call_method1(intern!(py, "save"), (&state.instance,))?;
        self.saved.bytes(saved.extract()?).map_err(overflow)
    }

    fn finish(
        &mut self,
        py: Python<'py>,
        rows: &Exchange<'_>,
        row: usize,
        mishaps: &mut Mishaps,
    ) -> Result<(), Mishap> {
        let number = rows.state(0, row);
        let mut tries = 0;
        loop {
            rows.at(row);
            let fresh;
            let result = match self.living.get(number) {
                Some(Some(state)) => state.instance.bind(py).call_method0(intern!(py, "finish")),
                _ => {
                    fresh = self.states.getattr(intern!(py, "new")).and_then(|new| new.call0());
                    fresh.and_then(|instance| instance.call_method0(intern!(py, "finish")))
                }
            };
            let error = match result.and_then(|value| self.writer.write(&value, &mut self.results)) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            self.results.truncate(row);
            match forgive(py, self.leniency, (error, row).into(), &mut tries, 1, mishaps)? {
                Verdict::Again(_) => {}
                Verdict::Null => {
                    self.results.null();
                    return Ok(());
                }
            }
        }
    }
}

/// How many bytes a column's values have.
fn bytes(column: &Column<'_>) -> usize {
    size_of_val(column.data) + size_of_val(column.offsets) + column.children.iter().map(bytes).sum::<usize>()
}

impl State {
    fn new(instance: &Bound<'_, PyAny>) -> PyResult<Self> {
        let update = instance.getattr(intern!(instance.py(), "update"))?;
        Ok(Self { instance: instance.clone().unbind(), update: update.unbind() })
    }
}

/// The rows of an exchange.
struct Exchange<'a> {
    columns: &'a [Column<'a>],
    call: Call,
    progress: &'a ProgressWord,
}

impl Exchange<'_> {
    fn count(&self) -> usize {
        self.call.header.rows as usize
    }

    fn sequence(&self) -> u32 {
        self.call.header.exchange as u32
    }

    /// The number of a state.
    fn state(&self, column: usize, row: usize) -> usize {
        self.columns[column].value::<i64>(row) as usize
    }

    /// Tells the engine which row is worked on.
    fn at(&self, row: usize) {
        self.progress.set(self.sequence(), row as u32);
    }

    fn each(&self, mut each: impl FnMut(usize) -> PyResult<()>) -> Result<(), Mishap> {
        (0..self.count()).try_for_each(|row| {
            self.at(row);
            each(row).map_err(|error| (error, row).into())
        })
    }
}
