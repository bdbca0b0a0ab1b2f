//! The states of aggregates, by the numbers that the engine gives them.
//!
//! A language says in [`Aggregates`] how a state begins, takes rows and other states, and gives its
//! result. Everything else is here: the state of a row, NULLs, retries, rows that are buffered for
//! a vectorized update, copies, and the end of states.

use crate::aggregate::buffered_rows::BufferedRows;
use crate::calls::{Batch, CallError, Function, Language, Progress, fail, refuse, succeed};
use crate::values::Fault;
use crosslane::batch::{Column, Encode};
use crosslane::lane::COUNT;
use crosslane::{Calling, ColumnBuilder, Entry, ErrorPolicy, FunctionSpec, Verdict};
use crosslane_process::guest::{Call, GuestLane, RowCounts};
use crosslane_process::limits;
use std::io;

/// How a language accumulates. All methods but [`Aggregates::states`] are called within
/// [`crate::Invoke::enter`].
pub trait Aggregates: Language {
    /// A place for states by their numbers, which the language's collector sees.
    type States;

    /// An empty place for states.
    ///
    /// # Errors
    /// If there is no memory.
    fn states(&self) -> Result<Self::States, Self::Error>;

    /// The state of a number, if it has one.
    fn state(&self, states: &Self::States, number: usize) -> Option<Self::Value>;

    /// Keeps the state of a number, or forgets it.
    fn keep(&self, states: &mut Self::States, number: usize, state: Option<Self::Value>);

    /// A new state.
    ///
    /// # Errors
    /// The error that the function raised.
    fn start(&self, callee: &Self::Callee) -> Result<Self::Value, Self::Error>;

    /// Adds the arguments to a state, and empties them. They are a row, or columns of rows. Returns
    /// the state.
    ///
    /// # Errors
    /// The error that the function raised.
    fn update(
        &self,
        callee: &Self::Callee,
        state: Self::Value,
        arguments: &mut Self::Arguments,
    ) -> Result<Self::Value, Self::Error>;

    /// Adds another state, which is not used again, to a state. Returns the state.
    ///
    /// # Errors
    /// The error that the function raised.
    fn merge(
        &self,
        callee: &Self::Callee,
        state: Self::Value,
        other: Self::Value,
    ) -> Result<Self::Value, Self::Error>;

    /// A copy of a state. It shares nothing with the state that may change.
    ///
    /// # Errors
    /// The error that the function raised.
    fn copy(&self, callee: &Self::Callee, state: Self::Value) -> Result<Self::Value, Self::Error> {
        let saved = self.save(callee, state)?;
        self.load(callee, saved)
    }

    /// The result of a state. The state stays as it is.
    ///
    /// # Errors
    /// The error that the function raised.
    fn finish(&self, callee: &Self::Callee, state: Self::Value) -> Result<Self::Value, Self::Error>;

    /// A state as bytes.
    ///
    /// # Errors
    /// The error that the function raised.
    fn save(&self, callee: &Self::Callee, state: Self::Value) -> Result<Self::Value, Self::Error>;

    /// The state that was saved as these bytes.
    ///
    /// # Errors
    /// The error that the function raised.
    fn load(&self, callee: &Self::Callee, saved: Self::Value) -> Result<Self::Value, Self::Error>;
}

/// The entries of an aggregate.
const ENTRIES: [Entry; 6] =
    [Entry::Update, Entry::Combine, Entry::Finish, Entry::Save, Entry::Load, Entry::Forget];

/// An aggregate, ready to be used.
#[derive(Debug)]
pub struct Aggregate<L: Aggregates> {
    entries: Vec<Function<L>>,
    calling: Calling,
    memory_limit: Option<u64>,
}

/// The states of an aggregate on a lane.
#[derive(Debug)]
pub struct Accumulated<L: Aggregates> {
    states: States<L::States>,
    /// Rows of a vectorized aggregate that are not added yet.
    buffered: BufferedRows,
    /// The results of the current call.
    out: ColumnBuilder,
}

/// The states of a lane.
#[derive(Debug)]
struct States<S> {
    all: S,
    /// How many states there are.
    living: usize,
    /// The size of the process when the first of the states began.
    base: Option<u64>,
}

impl<S> States<S> {
    /// Keeps the state of a number. `new` says that the number had no state.
    #[inline]
    fn keep<L: Aggregates<States = S>>(&mut self, language: &L, number: usize, state: L::Value, new: bool) {
        language.keep(&mut self.all, number, Some(state));
        self.living += usize::from(new);
    }

    /// Forgets the state of a number that has one.
    fn forget<L: Aggregates<States = S>>(&mut self, language: &L, number: usize) {
        language.keep(&mut self.all, number, None);
        self.living -= 1;
    }
}

impl<L: Aggregates> Accumulated<L> {
    /// No states.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(language: &L) -> Result<Self, L::Error> {
        let out = ColumnBuilder::new(&crosslane::DataType::Boolean);
        let states = States { all: language.states()?, living: 0, base: None };
        Ok(Self { states, buffered: BufferedRows::default(), out })
    }

    /// How many bytes may be allocated, if the states and the work on them may take `bytes`
    /// together.
    fn remaining(&mut self, bytes: u64) -> u64 {
        let Some(now) = limits::data_size() else { return bytes };
        if self.states.living == 0 && self.buffered.is_empty() {
            self.states.base = Some(now);
        }
        self.states.base.map_or(bytes, |base| base.saturating_add(bytes).saturating_sub(now))
    }
}

/// The number of a row's state, in a column.
fn number(columns: &[Column<'_>], place: usize, row: usize) -> usize {
    columns[place].value::<i64>(row) as usize
}

impl<L: Aggregates> Aggregate<L> {
    /// Prepares an aggregate.
    ///
    /// # Errors
    /// If the language cannot have a type.
    pub fn new(language: &L, spec: &FunctionSpec) -> Result<Self, L::Error> {
        let entries = ENTRIES.into_iter().map(|entry| Function::new(language, spec, entry, None));
        let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
        for function in &mut entries {
            // An update and a finish may be tried again if the function declares so. Work on states
            // that failed half-way cannot be done again.
            if !matches!(function.entry(), Entry::Update | Entry::Finish) {
                function.prepared.error_policy = ErrorPolicy::default();
            }
        }
        Ok(Self { entries, calling: spec.calling, memory_limit: spec.memory_limit })
    }

    /// Does the work of a call, and answers it.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol, or what ended the lane.
    pub fn answer(
        &self,
        language: &L,
        callee: &L::Callee,
        accumulated: &mut Accumulated<L>,
        lane: &mut GuestLane,
        call: Call,
    ) -> Result<(), L::Error> {
        let function = call.entry().and_then(|entry| self.entry(entry));
        let Some(function) = function else {
            return refuse(language, lane, call, &call.refusal(), None);
        };
        // An engine can always forget states.
        let outcome = match self.memory_limit.filter(|_| function.entry() != Entry::Forget) {
            Some(bytes) => {
                let remaining = accumulated.remaining(bytes);
                language.limited(remaining, || self.run(language, callee, accumulated, function, lane, call))
            }
            None => self.run(language, callee, accumulated, function, lane, call),
        };
        match outcome {
            Ok(row_counts) => {
                let (call, results): (Call, &dyn Encode) = if function.prepared.writer.is_some() {
                    (call, &accumulated.out)
                } else {
                    (call.with_rows(0), &())
                };
                succeed(language, lane, call, results, row_counts)
            }
            Err(mishap) => fail(language, lane, call, mishap),
        }
    }

    fn entry(&self, entry: Entry) -> Option<&Function<L>> {
        self.entries.iter().find(|function| function.entry() == entry)
    }

    fn run(
        &self,
        language: &L,
        callee: &L::Callee,
        accumulated: &mut Accumulated<L>,
        function: &Function<L>,
        lane: &GuestLane,
        call: Call,
    ) -> Result<RowCounts, CallError<L::Error>> {
        let broken = |error: io::Error| CallError::from(L::Error::from(error));
        let columns = lane.columns(function.types().iter()).map_err(broken)?;
        let rows = call.header.rows as usize;
        let progress = Progress { word: Some(lane.progress()), sequence: call.header.exchange as u32 };
        let mut row_counts = RowCounts::default();
        if function.entry() == Entry::Forget {
            accumulated.buffered.forget((0..rows).map(|row| number(&columns, 0, row)));
        }
        let batch = Batch::new(&function.prepared, language, callee, &columns, rows, progress);
        if function.entry() == Entry::Update && self.calling == Calling::Vectorized {
            let taken = (0..rows).filter(|row| !batch.skips(*row));
            let taken = taken.map(|row| (number(&columns, 0, row), row));
            accumulated.buffered.add(lane.message(), taken);
            if accumulated.buffered.is_full() {
                self.flush(language, callee, accumulated, progress, &mut row_counts)?;
            }
            return Ok(row_counts);
        }
        self.flush(language, callee, accumulated, progress, &mut row_counts)?;
        let Accumulated { states, out, .. } = accumulated;
        *out = function.results();
        out.reserve(rows).map_err(|overflow| Fault::from(overflow).into_error(language))?;
        let done = batch.run_rows_by(out, |row, values, out| {
            self.step(language, callee, states, &batch, &columns, row, values, out)
        })?;
        Ok(RowCounts {
            errors: row_counts.errors + done.errors,
            retries: row_counts.retries + done.retries,
            ..row_counts
        })
    }

    /// Does the work of a row. No local variable here needs to be dropped, because the language may
    /// jump out.
    #[allow(clippy::too_many_arguments, reason = "a jump must not leave a structure of these half-used")]
    #[inline(always)]
    fn step(
        &self,
        language: &L,
        callee: &L::Callee,
        states: &mut States<L::States>,
        batch: &Batch<'_, L>,
        columns: &[Column<'_>],
        row: usize,
        values: &mut L::Arguments,
        out: &mut ColumnBuilder,
    ) -> Result<(), Fault<L::Error>> {
        let at = number(columns, 0, row);
        let failed = Fault::Failed;
        let state = language.state(&states.all, at);
        match batch.entry() {
            Entry::Update => {
                let new = state.is_none();
                let state = state.map_or_else(|| language.start(callee), Ok).map_err(failed)?;
                batch.arguments_behind(1, row, |value| language.argument(values, value)).map_err(failed)?;
                let state = language.update(callee, state, values).map_err(failed)?;
                states.keep(language, at, state, new);
            }
            Entry::Combine => {
                let source = number(columns, 1, row);
                let Some(other) = language.state(&states.all, source) else { return Ok(()) };
                let keep = crosslane::batch::bit(columns[2].data, row);
                let other = if keep { language.copy(callee, other).map_err(failed)? } else { other };
                self.add(language, callee, states, at, state, other)?;
                if !keep {
                    states.forget(language, source);
                }
            }
            Entry::Load => {
                let saved = batch.argument(1, row).map_err(failed)?;
                let other = language.load(callee, saved).map_err(failed)?;
                self.add(language, callee, states, at, state, other)?;
            }
            Entry::Finish => {
                let state = state.map_or_else(|| language.start(callee), Ok).map_err(failed)?;
                return batch.write(&language.finish(callee, state).map_err(failed)?, out);
            }
            Entry::Save => match state {
                Some(state) => return batch.write(&language.save(callee, state).map_err(failed)?, out),
                None => out.null(),
            },
            _ if state.is_some() => states.forget(language, at),
            _ => {}
        }
        Ok(())
    }

    /// Adds a state to the state of a number.
    fn add(
        &self,
        language: &L,
        callee: &L::Callee,
        states: &mut States<L::States>,
        at: usize,
        state: Option<L::Value>,
        other: L::Value,
    ) -> Result<(), Fault<L::Error>> {
        let new = state.is_none();
        let sum = match state {
            Some(state) => language.merge(callee, state, other).map_err(Fault::Failed)?,
            None => other,
        };
        states.keep(language, at, sum, new);
        Ok(())
    }

    /// Adds the buffered rows to their states, by one update for each group.
    fn flush(
        &self,
        language: &L,
        callee: &L::Callee,
        accumulated: &mut Accumulated<L>,
        progress: Progress<'_>,
        row_counts: &mut RowCounts,
    ) -> Result<(), CallError<L::Error>> {
        let buffered = std::mem::take(&mut accumulated.buffered);
        let Some(function) = self.entry(Entry::Update).filter(|_| !buffered.is_empty()) else {
            return Ok(());
        };
        let sorted = buffered.sorted(function.types());
        let sorted =
            sorted.map_err(|error| CallError::from(L::Error::from(io::Error::other(error.to_string()))))?;
        let states = &mut accumulated.states;
        for (done, (at, rows)) in sorted.groups.iter().enumerate() {
            let mut tries = 0;
            loop {
                progress.set(COUNT | done as u32);
                let mut fault = None;
                let entered = language.enter(callee, |values| {
                    let mut update = || -> Result<(), L::Error> {
                        for (column, reader) in function.prepared.readers.iter().enumerate().skip(1) {
                            let list = language.list(rows.len(), |row| {
                                let (column, place) = sorted.value(rows[row], column);
                                reader.read(language, column, place)
                            })?;
                            language.argument(values, list);
                        }
                        let state = language.state(&states.all, at);
                        let new = state.is_none();
                        let state = state.map_or_else(|| language.start(callee), Ok)?;
                        let state = language.update(callee, state, values)?;
                        states.keep(language, at, state, new);
                        Ok(())
                    };
                    fault = update().err();
                });
                let Some(error) = entered.err().or(fault) else { break };
                let mishap = CallError { error, row: None };
                let error_policy = function.prepared.error_policy;
                let rows = rows.len();
                let verdict =
                    progress.retry_or_null(language, error_policy, mishap, &mut tries, rows, row_counts)?;
                if verdict == Verdict::Null {
                    break;
                }
            }
        }
        Ok(())
    }
}
