//! The entries of aggregates: instances of a class by the numbers of states.
//!
//! Rows are added by a loop in Python, as those of [`crate::loops::row_iterator`]: its iterator gives the instance that a row is for, and puts
//! the arguments into their cells. The first rows of a state wait ([`crate::aggregate::pending_rows`]).

use crate::aggregate::buffered_rows::{Collected, Groups};
use crate::aggregate::instance_bytes;
use crate::aggregate::pending_rows::{self, Form};
use crate::loops::result_writer::Writer;
use crate::loops::row_caller::{Argument, RowCaller};
use crate::loops::row_iterator::{Cursor, Live, Loop, Results as Rows};
use crate::serve::{Mishap, describe, ends_lane, forgive, wait_for_room};
use crate::values::fast_path::Plain;
use crate::values::objects::{self, Reader, Wish, overflow};
use crosslane::batch::{Column, bit};
use crosslane::lane::COUNT;
use crosslane::{ColumnBuilder, DataType, Entry, Kind, Leniency, Signature, Verdict};
use crosslane_process::guest::{Call, GuestLane, Mishaps};
use crosslane_process::limits::{self, MemoryLimit};
use crosslane_ring::ProgressWord;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::ptr;

/// What is accumulated under a number: a line of the processor's cache, since there may be millions, which are looked at in any order.
#[derive(Default)]
#[repr(align(64))]
struct State {
    instance: Option<Py<PyAny>>,
    /// The rows that are not in the instance. After an exchange a state has either an instance or these.
    waiting: pending_rows::Rows,
}

impl State {
    fn of(instance: Py<PyAny>) -> Self {
        Self { instance: Some(instance), waiting: pending_rows::Rows::default() }
    }

    fn is_nothing(&self) -> bool {
        self.instance.is_none() && self.waiting.is_empty()
    }

    /// Whether its rows wait for an instance that is not there yet.
    fn only_waits(&self) -> bool {
        self.instance.is_none() && !self.waiting.is_empty()
    }

    /// Whether its rows have to be added to an instance before the exchange is over.
    fn is_ripe(&self) -> bool {
        !self.waiting.is_empty() && (self.instance.is_some() || self.waiting.are_many())
    }
}

/// Rows that waited, and are to be added now.
struct Ripe {
    columns: Vec<ColumnBuilder>,
    /// The instance of each row.
    instances: Vec<*mut ffi::PyObject>,
}

impl Ripe {
    fn add(&mut self, form: &Form, rows: &pending_rows::Rows, instance: *mut ffi::PyObject) -> PyResult<()> {
        form.read(rows, &mut self.columns)?;
        self.instances.resize(self.instances.len() + rows.count(), instance);
        Ok(())
    }
}

/// The first byte of rows that go to another lane, which `crosslane._aggregate` gives to no other form.
const WAITING: u8 = b'r';
/// An aggregate on one lane.
pub(crate) struct Aggregate<'py> {
    /// `crosslane._aggregate.States`.
    states: Bound<'py, PyAny>,
    /// Makes an instance.
    new: Bound<'py, PyAny>,
    /// Makes one that holds nothing; none for a class whose instances say themselves how they are saved.
    blank: Option<Bound<'py, PyAny>>,
    class: Bound<'py, PyAny>,
    /// The bytes of the last instance that was saved.
    bytes: Vec<u8>,
    /// By their numbers.
    living: Vec<State>,
    /// How the first rows of a state wait; none if they do not.
    form: Option<Form>,
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
    /// What the process had when the first of the living states began.
    base: Option<u64>,
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
        let states = module.getattr("States")?.call1((declared,))?;
        let types = signature.parameters.iter().map(|field| &field.data_type);
        let memory_limit: Option<u64> = declared.getattr("memory_limit")?.extract()?;
        let collected =
            (kind == "vectorized").then(|| Collected::new(py, types, memory_limit)).transpose()?;
        let flat = signature.parameters.iter().map(|field| &field.data_type);
        let admits_null: Vec<bool> = declared.getattr("admits_null")?.extract()?;
        // How far a call with a time limit has come is told by its own rows.
        let waits = collected.is_none() && declared.getattr("timeout")?.is_none();
        Ok(Self {
            form: Form::new(flat.zip(admits_null.iter().copied())).filter(|_| waits),
            collected,
            new: states.getattr("new")?,
            blank: states.getattr("blank")?.extract()?,
            class: states.getattr("of")?,
            bytes: Vec::new(),
            states: states.clone(),
            living: Vec::new(),
            readers: readers.collect::<PyResult<_>>()?,
            writer: Writer::new(py, &signature.returns, declared.getattr("result_shape")?.extract()?)?,
            admits_null,
            each: Loop::new(&module.getattr("loop")?.call1((signature.parameters.len(),))?)?,
            results: ColumnBuilder::new(&signature.returns),
            saved: ColumnBuilder::new(&DataType::Blob),
            nothing: ColumnBuilder::new(&DataType::Boolean),
            signature,
            leniency: Leniency {
                retries: declared.getattr("retries")?.extract()?,
                on_error: on_error.parse().map_err(PyValueError::new_err)?,
            },
            memory_limit,
            base: None,
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
        let limit = self.limit(entry);
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

    /// Limits what the states and what is done with them may take together. To forget states is always possible.
    fn limit(&mut self, entry: Entry) -> Option<MemoryLimit> {
        let bytes = self.memory_limit.filter(|_| entry != Entry::Forget)?;
        if self.living.is_empty() {
            self.base = limits::data_size();
        }
        MemoryLimit::up_to(self.base?.saturating_add(bytes))
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
            Entry::Combine => self.combine(py, rows, mishaps),
            Entry::Finish => self.finish(py, rows, mishaps),
            Entry::Save => {
                self.saved.clear();
                self.saved.reserve(rows.count()).map_err(overflow)?;
                self.waiting(rows);
                rows.each(|row| self.save(py, rows.state(0, row)))
            }
            Entry::Load => self.load(py, rows, mishaps),
            _ => {
                if let Some(collected) = &mut self.collected {
                    collected.forget((0..rows.count()).map(|row| rows.state(0, row)));
                }
                rows.each(|row| {
                    drop(self.take(rows.state(0, row)));
                    Ok(())
                })?;
                self.shrink();
                Ok(())
            }
        }
    }

    /// Keeps rows until there are many.
    fn collect(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        let columns = &rows.columns[1..];
        let live = self.live(rows);
        for row in (0..rows.count()).filter(|row| live.is_live(*row)) {
            rows.at(row);
            self.instance(rows.state(0, row)).map_err(|error| (error, row))?;
        }
        let Some(collected) = &mut self.collected else { return Ok(()) };
        let state = |row| live.is_live(row).then(|| rows.state(0, row));
        collected.add(columns, (0..rows.count()).map(state))?;
        if collected.is_full() {
            self.flush(py, rows, mishaps)?;
        }
        Ok(())
    }

    /// Adds the collected rows to their groups, all of a group at once.
    fn flush(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        let Some(collected) = self.collected.as_mut().filter(|all| !all.is_empty()) else { return Ok(()) };
        // None of what follows takes long, but all together may: the engine hears of each step.
        rows.progress.set(rows.sequence(), u32::MAX - 1);
        let sorted = collected.take_sorted(self.living.len());
        let groups = sorted.groups.iter().filter_map(|(state, begin, count)| {
            let instance = self.living[*state].instance.as_ref()?;
            Some((instance.clone_ref(py), *begin, *count))
        });
        let groups = Groups::new(groups.collect(), rows.progress.clone(), rows.sequence());
        rows.progress.set(rows.sequence(), u32::MAX);
        let order = PyBytes::new(py, bytemuck::cast_slice(&sorted.order));
        let parts = self.states.call_method1(intern!(py, "sorted"), (sorted.chunks, order))?;
        let groups = Bound::new(py, groups)?;
        let (mut failed, mut tries) = (None, 0);
        while let Err(error) = self.states.call_method1(intern!(py, "run"), (&parts, &groups)).map(drop) {
            let Some((at, count)) = groups.borrow().last() else { return Err(error.into()) };
            if failed.replace(at) != Some(at) {
                tries = 0;
            }
            if let Verdict::Again(_) = forgive(py, self.leniency, error.into(), &mut tries, count, mishaps)? {
                groups.borrow_mut().repeat();
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
    fn place(&mut self, number: usize) -> PyResult<&mut State> {
        if number >= self.living.len() {
            let more = number + 1 - self.living.len();
            let room = self.living.try_reserve(more);
            room.map_err(|_| PyMemoryError::new_err("no memory for the states of an aggregate"))?;
            self.living.resize_with(number + 1, State::default);
        }
        Ok(&mut self.living[number])
    }

    fn take(&mut self, number: usize) -> State {
        self.living.get_mut(number).map(std::mem::take).unwrap_or_default()
    }

    /// Leaves out the places behind the last state. If there is none, a lane that waits for another query keeps no memory for millions.
    fn shrink(&mut self) {
        let last = self.living.iter().rposition(|state| !state.is_nothing());
        self.living.truncate(last.map_or(0, |last| last + 1));
        if self.living.is_empty() {
            self.living = Vec::new();
        }
    }

    /// The instance of a state, which is made now if there is none.
    #[inline]
    fn instance(&mut self, number: usize) -> PyResult<*mut ffi::PyObject> {
        if let Some(State { instance: Some(instance), .. }) = self.living.get(number) {
            return Ok(instance.as_ptr());
        }
        let instance = self.new.call0()?;
        Ok(self.place(number)?.instance.insert(instance.unbind()).as_ptr())
    }

    fn update(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        let count = rows.count();
        let columns = &rows.columns[1..];
        let mut live = self.live(rows);
        let mut ripe = Vec::new();
        if self.form.is_some() {
            let most = (0..count).map(|row| rows.state(0, row)).max().unwrap_or_default();
            self.place(most)?;
            // In a loop that does nothing else the processor loads many states at once.
            let mut now = vec![0; count.div_ceil(8)];
            for row in 0..count {
                let has_instance = self.living[rows.state(0, row)].instance.is_some();
                now[row / 8] |= u8::from(has_instance && live.is_live(row)) << (row % 8);
            }
            let mut row = live.next(0);
            while row < count {
                if !bit(&now, row) {
                    let waits = self.waits(columns, row, rows.state(0, row), &mut ripe);
                    now[row / 8] |= u8::from(!waits.map_err(|error| (error, row))?) << (row % 8);
                }
                row = live.next(row + 1);
            }
            live = live.only(now);
            self.settle(py, rows, ripe, mishaps)?;
        }
        // Each is kept by its state until all rows are done: nothing else changes the states meanwhile.
        let mut instances = vec![ptr::null_mut(); count];
        let mut row = live.next(0);
        while row < count {
            rows.at(row);
            instances[row] = self.instance(rows.state(0, row)).map_err(|error| (error, row))?;
            row = live.next(row + 1);
        }
        self.add(py, rows, columns, &live, &instances, mishaps, false)
    }

    /// Whether a row waits, which it does only if its state has no instance. A state without room gets one.
    #[inline]
    fn waits(
        &mut self,
        columns: &[Column<'_>],
        row: usize,
        number: usize,
        ripe: &mut Vec<usize>,
    ) -> PyResult<bool> {
        let (state, Some(form)) = (&mut self.living[number], &self.form) else { return Ok(false) };
        if state.instance.is_some() {
            return Ok(false);
        }
        let waits = form.add(columns, row, &mut state.waiting)?;
        if !waits {
            state.instance = Some(self.new.call0()?.unbind());
            ripe.push(number);
        }
        Ok(waits)
    }

    /// Adds the rows of states that wait to their instances.
    fn settle(
        &mut self,
        py: Python<'py>,
        rows: &Exchange<'_>,
        numbers: Vec<usize>,
        mishaps: &mut Mishaps,
    ) -> Result<(), Mishap> {
        let Some(form) = self.form.as_ref().filter(|_| !numbers.is_empty()) else { return Ok(()) };
        let mut ripe = Ripe { columns: form.columns(), instances: Vec::new() };
        for number in numbers {
            let state = &mut self.living[number];
            if state.waiting.is_empty() {
                continue;
            }
            let instance = match &state.instance {
                Some(instance) => instance,
                None => state.instance.insert(self.new.call0()?.unbind()),
            };
            ripe.add(form, &std::mem::take(&mut state.waiting), instance.as_ptr())?;
        }
        self.add_ripe(py, rows, &ripe, mishaps)
    }

    /// Adds rows that waited. Their instances are kept by who calls this.
    fn add_ripe(
        &mut self,
        py: Python<'py>,
        rows: &Exchange<'_>,
        ripe: &Ripe,
        mishaps: &mut Mishaps,
    ) -> Result<(), Mishap> {
        let Some(form) = self.form.take() else { return Ok(()) };
        let columns = form.built(&ripe.columns);
        let live = Live::new(ripe.instances.len(), &[]);
        let added = self.add(py, rows, &columns, &live, &ripe.instances, mishaps, true);
        drop(columns);
        self.form = Some(form);
        added
    }

    /// Adds rows to their instances. Those that have waited are not the rows of the exchange.
    #[allow(clippy::too_many_arguments, reason = "one loop for rows that come and rows that have waited")]
    fn add(
        &mut self,
        py: Python<'py>,
        rows: &Exchange<'_>,
        columns: &[Column<'_>],
        live: &Live,
        instances: &[*mut ffi::PyObject],
        mishaps: &mut Mishaps,
        waited: bool,
    ) -> Result<(), Mishap> {
        let count = live.rows();
        let mut from = live.next(0);
        if from == count {
            return Ok(());
        }
        self.nothing.clear();
        self.nothing.reserve(count).map_err(overflow)?;
        let arguments = self.readers.iter().zip(columns).zip(&self.admits_null);
        let arguments = arguments.map(|((reader, column), sees)| Argument::new(reader, column, *sees));
        let mut all = vec![Argument::Object { objects: instances }];
        all.extend(arguments);
        let taken = Rows::new(py, Plain::Boolean, live, &mut self.nothing);
        let mut cursor = Cursor::new(&self.each, all, rows.progress, rows.sequence(), taken);
        if waited {
            cursor = cursor.counting();
        }
        while from < count {
            let Err((error, row)) = cursor.run(from) else { break };
            if row == count {
                return Err(error.into());
            }
            let arguments = self.readers.iter().zip(columns).zip(&self.admits_null);
            let arguments = arguments.map(|((reader, column), sees)| Argument::new(reader, column, *sees));
            let arguments: Vec<_> = arguments.collect();
            let place = |error: PyErr| -> PyResult<Mishap> {
                if !waited {
                    return Ok((error, row).into());
                }
                let values = arguments.iter().map(|argument| {
                    // SAFETY: it is a new reference.
                    argument.get(py, row).map(|value| unsafe { Bound::from_owned_ptr(py, value) })
                });
                let values = PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?;
                let names = self.signature.parameters.iter().map(|field| field.name.as_str());
                let names = PyList::new(py, names.collect::<Vec<_>>())?;
                self.states.call_method1(intern!(py, "blame"), (error.value(py), names, values))?;
                Ok(error.into())
            };
            // SAFETY: a row that is called has its instance.
            let instance = unsafe { Bound::from_borrowed_ptr(py, instances[row]) };
            let mut tries = 0;
            let mut mishap = place(error)?;
            while let Verdict::Again(_) = forgive(py, self.leniency, mishap, &mut tries, 1, mishaps)? {
                rows.progress.set(rows.sequence(), row as u32 | if waited { COUNT } else { 0 });
                let method = instance.getattr(intern!(py, "update"));
                let called = method.and_then(|method| RowCaller::new(&method, &arguments, false).call(row));
                match called {
                    Ok(_) => break,
                    Err(error) => mishap = place(error)?,
                }
            }
            cursor.results().push(row, py.None().bind(py))?;
            from = live.next(row + 1);
        }
        Ok(())
    }

    fn combine(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        let (targets, sources) = (|row| rows.state(0, row), |row| rows.state(1, row));
        // Most of those that must not wait any more are known before, and are done at once.
        let with_instance = |row: &usize| {
            let source = self.living.get(sources(*row));
            let target = self.living.get(targets(*row));
            // Both are looked at, so that the processor loads them for the loop below.
            source.is_some_and(|source| source.instance.is_some()) & target.is_some_and(State::only_waits)
        };
        let early = (0..rows.count()).filter(with_instance).map(targets).collect();
        self.settle(py, rows, early, mishaps)?;
        let mut ripe = Vec::new();
        for row in 0..rows.count() {
            let source = sources(row);
            let other = if bit(rows.columns[2].data, row) {
                if self.living.get(source).is_some_and(State::is_ripe) {
                    self.settle(py, rows, vec![source], mishaps)?;
                }
                rows.at(row);
                self.copy(py, source).map_err(|error| (error, row))?
            } else {
                self.take(source)
            };
            self.merge(py, rows, row, other, &mut ripe, mishaps)?;
        }
        self.settle(py, rows, ripe, mishaps)
    }

    /// A copy of a state that shares nothing with it that may change.
    fn copy(&mut self, py: Python<'py>, number: usize) -> PyResult<State> {
        let Some(State { instance, waiting }) = self.living.get(number) else { return Ok(State::default()) };
        let Some(instance) = instance else {
            return Ok(State { instance: None, waiting: waiting.copy()? });
        };
        let instance = instance.bind(py);
        let copy = match &self.blank {
            Some(blank)
                if instance.get_type().is(&self.class)
                    && instance_bytes::write(instance, &mut self.bytes)? =>
            {
                let copy = blank.call1((&self.class,))?;
                instance_bytes::read(&self.bytes, &copy)?;
                copy
            }
            _ => self.states.call_method1(intern!(py, "copy"), (instance,))?,
        };
        Ok(State::of(copy.unbind()))
    }

    /// Adds what a state holds that nobody else has to the target of a row.
    fn merge(
        &mut self,
        py: Python<'py>,
        rows: &Exchange<'_>,
        row: usize,
        other: State,
        ripe: &mut Vec<usize>,
        mishaps: &mut Mishaps,
    ) -> Result<(), Mishap> {
        let target = rows.state(0, row);
        if other.is_nothing() {
            return Ok(());
        }
        let state = self.place(target)?;
        if state.is_nothing() {
            *state = other;
        } else if other.instance.is_none() {
            state.waiting.append(&other.waiting)?;
        } else {
            if !state.waiting.is_empty() {
                self.settle(py, rows, vec![target], mishaps)?;
            }
            rows.at(row);
            let state = &mut self.living[target];
            if let (Some(instance), Some(other)) = (&state.instance, other.instance) {
                let merged = instance.bind(py).call_method1(intern!(py, "merge"), (other,));
                merged.map_err(|error| (error, row))?;
            }
            // These came to the other one within this exchange, and to this one thereby last.
            state.waiting = other.waiting;
        }
        if self.living[target].is_ripe() {
            ripe.push(target);
        }
        Ok(())
    }

    fn save(&mut self, py: Python<'py>, number: usize) -> PyResult<()> {
        let Some(State { instance: Some(instance), .. }) = self.living.get(number) else {
            let Some(state) = self.living.get(number).filter(|state| !state.waiting.is_empty()) else {
                self.saved.null();
                return Ok(());
            };
            state.waiting.save(WAITING, &mut self.bytes);
            return self.saved.bytes(&self.bytes).map_err(overflow);
        };
        let instance = instance.bind(py);
        let plain = self.blank.is_some() && instance.get_type().is(&self.class);
        if plain && instance_bytes::write(instance, &mut self.bytes)? {
            return self.saved.bytes(&self.bytes).map_err(overflow);
        }
        let saved = self.states.call_method1(intern!(py, "save"), (instance,))?;
        self.saved.bytes(saved.extract()?).map_err(overflow)
    }

    fn load(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        let saved = &rows.columns[1];
        let bytes = |row: usize| saved.is_valid(row).then(|| saved.bytes(row));
        let with_instance = |row: &usize| {
            let target = self.living.get(rows.state(0, *row));
            // As above.
            bytes(*row).is_some_and(|saved| saved.first() != Some(&WAITING))
                & target.is_some_and(State::only_waits)
        };
        let early = (0..rows.count()).filter(with_instance).map(|row| rows.state(0, row)).collect();
        self.settle(py, rows, early, mishaps)?;
        let mut ripe = Vec::new();
        for row in 0..rows.count() {
            if let Some(bytes) = bytes(row) {
                rows.at(row);
                let other = self.loaded(py, bytes).map_err(|error| (error, row))?;
                self.merge(py, rows, row, other, &mut ripe, mishaps)?;
            }
        }
        self.settle(py, rows, ripe, mishaps)
    }

    /// A new state from bytes that [`Aggregate::save`] gave, on any lane.
    fn loaded(&self, py: Python<'py>, bytes: &[u8]) -> PyResult<State> {
        let instance = match (bytes.first(), &self.blank) {
            (Some(&WAITING), _) => {
                return Ok(State { instance: None, waiting: pending_rows::Rows::load(bytes)? });
            }
            (Some(&instance_bytes::PLAIN), Some(blank)) => {
                let instance = blank.call1((&self.class,))?;
                instance_bytes::read(bytes, &instance)?;
                instance
            }
            _ => self.states.call_method1(intern!(py, "load"), (bytes,))?,
        };
        Ok(State::of(instance.unbind()))
    }

    /// How many rows are about states that wait. In a loop that does nothing else the processor loads many states at once.
    fn waiting(&self, rows: &Exchange<'_>) -> usize {
        let states = (0..rows.count()).map(|row| self.living.get(rows.state(0, row)));
        states.map(|state| usize::from(state.is_some_and(State::only_waits))).sum()
    }

    /// The results of states. What waits goes on waiting: its instances are for this only, since few states are finished twice.
    fn finish(&mut self, py: Python<'py>, rows: &Exchange<'_>, mishaps: &mut Mishaps) -> Result<(), Mishap> {
        self.results.clear();
        self.results.reserve(rows.count()).map_err(overflow)?;
        let mut fresh: Vec<Option<Bound<'py, PyAny>>> = vec![None; rows.count()];
        let waiting = self.waiting(rows);
        if let Some(form) = self.form.as_ref().filter(|_| waiting > 0) {
            let mut ripe = Ripe { columns: form.columns(), instances: Vec::new() };
            for (row, fresh) in fresh.iter_mut().enumerate() {
                let state = self.living.get(rows.state(0, row));
                if let Some(State { waiting, .. }) = state.filter(|state| state.only_waits()) {
                    rows.at(row);
                    let instance = fresh.insert(self.new.call0().map_err(|error| (error, row))?);
                    ripe.add(form, waiting, instance.as_ptr())?;
                }
            }
            self.add_ripe(py, rows, &ripe, mishaps)?;
        }
        for (row, fresh) in fresh.into_iter().enumerate() {
            self.finish_one(py, rows, row, fresh, mishaps)?;
        }
        Ok(())
    }

    fn finish_one(
        &mut self,
        py: Python<'py>,
        rows: &Exchange<'_>,
        row: usize,
        mut fresh: Option<Bound<'py, PyAny>>,
        mishaps: &mut Mishaps,
    ) -> Result<(), Mishap> {
        let mut tries = 0;
        loop {
            rows.at(row);
            let kept = self.living.get(rows.state(0, row)).and_then(|state| state.instance.as_ref());
            let instance = match (kept, &fresh) {
                (Some(kept), _) => Ok(kept.bind(py)),
                (None, Some(fresh)) => Ok(fresh),
                (None, None) => self.new.call0().map(|made| &*fresh.insert(made)),
            };
            let result = instance.and_then(|instance| instance.call_method0(intern!(py, "finish")));
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
