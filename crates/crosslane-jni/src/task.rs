//! The work of one Spark task.
//!
//! A task has a [`Program`], which says what becomes of a batch of rows: the results of calls, the rows of tables, or what a stream function makes
//! of it, or of all batches. A thread of its own works off batch after batch, while the task's thread reads the next rows from Spark and hands results on.
//! So both directions are full, and all that is Spark's (the input, its context, its memory) stays on the task's thread.
//!
//! # Protocol
//! Two queues lead to the thread and back. The task puts no more than `depth` batches in before it takes all answers to the oldest, which come in
//! order, unless an answer says that the function wants one more; so the first queue never fills. Answers wait in the second for room. The memory of a batch belongs to the thread from
//! [`Task::submit`] until its last answer, or an error, was taken, or [`Task::end`] has returned. An error is the last that comes.
//!
//! | who waits | for | ended by |
//! |---|---|---|
//! | the task, in [`Task::take`] | an answer | it; an error; its timeout |
//! | the thread | a batch | it; the end of the queue, which [`Task::finish`] and [`Task::end`] are |
//! | the thread | room for an answer | the task, which takes one; [`Task::end`], which lets go of the queue |
//! | the thread | a guest | the reply, the guest's death, the deadline, or the cancellation that [`Task::end`] is |

use crate::columns::{given, tell};
use crate::library::group;
use crosslane::batch::{Column, Encode};
use crosslane::call::{
    Asked, CallGroup, Caller, Input, Iteration, LARGEST_PARTITIONS, Map, MapInput, MapOptions, MapStep,
    Results, Row, Scan, call,
};
use crosslane::pool::Zygote;
use crosslane::stats::now;
use crosslane::{ColumnBuilder, DataType, Error, Function, Kind, Library, Rows};
use serde::Deserialize;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// So many answers wait for the task at most.
const WAITING: usize = 2;

/// Where an argument of a step comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Argument {
    /// A column of the batch.
    Input(usize),
    /// The results of an earlier step.
    Result(usize),
}

/// A use of a function with each batch.
pub struct Step<Z: Zygote> {
    /// Whose function it is.
    pub library: Arc<Library<Z>>,
    /// The function.
    pub function: Arc<Function>,
    /// One for each of its parameters.
    pub arguments: Vec<Argument>,
    /// Of a function that is called with an iterator: whether its results are one for each row, in the order of the rows.
    pub aligned: bool,
}

impl<Z: Zygote> fmt::Debug for Step<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.function.name();
        f.debug_struct("Step")
            .field("function", &name)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

/// What becomes of each batch.
#[derive(Debug)]
pub struct Program<Z: Zygote> {
    /// The types of the batch's columns.
    inputs: Vec<DataType>,
    steps: Vec<Step<Z>>,
    /// How many lanes the work may use.
    width: usize,
    /// How many batches a lane may have.
    depth: usize,
}

impl<Z: Zygote> Program<Z> {
    /// A program of these steps: calls of scalar functions, or one use of a table or stream function. Each input has the type of the
    /// parameter that it is for.
    ///
    /// # Errors
    /// [`Error::Engine`] if arguments do not fit their parameters, or these functions do not go together.
    pub fn new(inputs: usize, steps: Vec<Step<Z>>, width: usize, depth: usize) -> Result<Self, Error> {
        let mut types: Vec<Option<DataType>> = vec![None; inputs];
        for (number, step) in steps.iter().enumerate() {
            let function = &step.function;
            let parameters = &function.signature.parameters;
            let wrong =
                |what: &str| Error::Engine(format!("{}: {what} {:?}", function.name(), step.arguments));
            if !(function.spec.kind == Kind::Scalar || steps.len() == 1) {
                return Err(wrong("it is the only step of a program:"));
            }
            if parameters.len() != step.arguments.len() {
                return Err(wrong("its arguments are"));
            }
            for (parameter, argument) in parameters.iter().zip(&step.arguments) {
                let data_type = &parameter.data_type;
                match argument {
                    Argument::Input(input) => {
                        let known = types.get_mut(*input).ok_or_else(|| wrong("there is no such input:"))?;
                        if known.get_or_insert_with(|| data_type.clone()) != data_type {
                            return Err(wrong("an input has two types:"));
                        }
                    }
                    Argument::Result(result) => {
                        let made = steps[..number].get(*result).map(|step| &step.function.signature.returns);
                        if made != Some(data_type) {
                            return Err(wrong("a result has another type:"));
                        }
                    }
                }
            }
        }
        let inputs = types.into_iter().collect::<Option<Vec<_>>>();
        let inputs = inputs.ok_or_else(|| Error::Engine("an input that no function takes".into()))?;
        Ok(Self { inputs, steps, width: width.max(1), depth: depth.max(1) })
    }

    fn run(&self, work: &Work<'_, Z>) -> Result<(), Ended> {
        match &self.steps[..] {
            [step] if step.function.spec.kind == Kind::Table => self.scan_all(step, work),
            [step] if step.function.spec.iterates => self.iterate(step, work),
            [step] if step.function.spec.kind == Kind::Stream => self.map(step, work),
            _ => work.batches.iter().try_for_each(|batch| {
                let results = self.call_all(&batch, work.caller)?;
                work.answer(Answer {
                    results,
                    row: None,
                    last: true,
                    wants: false,
                    counts: Counts::default(),
                })
            }),
        }
    }

    /// The batch's columns.
    fn columns<'a>(&'a self, batch: &'a Batch) -> Result<Vec<Column<'a>>, Error> {
        // SAFETY: who submitted the batch vouches for it.
        unsafe { given(&batch.table, self.inputs.iter()) }
    }

    /// The results of all steps.
    fn call_all(&self, batch: &Batch, caller: Caller<'_>) -> Result<Vec<Results>, Error> {
        let inputs = self.columns(batch)?;
        let mut results: Vec<Results> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let made: Vec<Column<'_>> = results.iter().map(Results::column).collect();
            let columns = step.arguments.iter().map(|argument| match argument {
                Argument::Input(input) => &inputs[*input],
                Argument::Result(result) => &made[*result],
            });
            let arguments = Arguments { rows: 0..batch.rows, columns: columns.collect() };
            let mut output = Results::new(step.function.signature.returns.clone());
            call(&step.library, &step.function, caller, &arguments, &mut output)?;
            if output.rows() != batch.rows {
                let (got, due) = (output.rows(), batch.rows);
                return Err(Error::Engine(format!("{}: {got} results of {due} rows", step.function.name())));
            }
            drop(made);
            results.push(output);
        }
        Ok(results)
    }

    /// The tables of each row's arguments, one behind the other. The rows of a table come in any number of answers.
    fn scan_all(&self, step: &Step<Z>, work: &Work<'_, Z>) -> Result<(), Ended> {
        let returns = &step.function.signature.returns;
        for batch in work.batches {
            let inputs = self.columns(&batch)?;
            for row in 0..batch.rows {
                let columns = step.arguments.iter().filter_map(|argument| match argument {
                    Argument::Input(input) => Some(&inputs[*input]),
                    Argument::Result(_) => None,
                });
                let arguments = Arguments { rows: row..row + 1, columns: columns.collect() };
                let arguments = Row::of(&arguments, self.arguments_of(step))?;
                let (library, function) = (&step.library, &step.function);
                let partitions =
                    Scan::partitions(library, function, work.caller, arguments.clone(), LARGEST_PARTITIONS)?;
                for partition in partitions {
                    let wanted = (0..returns.children().len()).collect();
                    let asked = Asked { partition, wanted, arguments: arguments.clone() };
                    let (library, function) = (Arc::clone(&step.library), Arc::clone(&step.function));
                    let mut scan = Scan::open(library, function, work.caller, returns.clone(), asked)?;
                    while let Some(rows) = scan.next(work.caller)? {
                        let mut results = Results::new(returns.clone());
                        crosslane::call::Output::accept(&mut results, 0, &rows)?;
                        work.answer(Answer::of(results, Some(row)))?;
                    }
                }
            }
            work.done(returns)?;
        }
        Ok(())
    }

    fn arguments_of<'a>(&self, step: &'a Step<Z>) -> impl Iterator<Item = DataType> + use<'a, Z> {
        step.function.signature.parameters.iter().map(|parameter| parameter.data_type.clone())
    }

    /// What a stream function makes of the batches, in their order. A batch is copied, because it is kept until its last results are there.
    fn map(&self, step: &Step<Z>, work: &Work<'_, Z>) -> Result<(), Ended> {
        let options = MapOptions { lanes: self.width, depth: self.depth, ordered: true };
        let mut map = Map::new(Arc::clone(&step.library), Arc::clone(&step.function), options)?;
        let returns = step.function.signature.returns.clone();
        loop {
            match map.next(work.caller)? {
                MapStep::Wants => match work.batches.recv() {
                    Ok(batch) => {
                        map.put(self.copy(&batch)?);
                        // It can be filled again at once.
                        work.done(&returns)?;
                    }
                    Err(_) => map.end(),
                },
                MapStep::Output(rows, first) => {
                    let mut results = Results::new(returns.clone());
                    results.rest(&rows, first)?;
                    work.answer(Answer::of(results, None))?;
                }
                MapStep::Done => return Ok(()),
            }
        }
    }

    /// A batch that is kept, of a program whose only input is a STRUCT.
    fn copy(&self, batch: &Batch) -> Result<MapInput, Error> {
        let mut copy = ColumnBuilder::new(&self.inputs[0]);
        copy.extend(&self.columns(batch)?[0]).map_err(|error| Error::Engine(error.to_string()))?;
        Ok(MapInput { rows: batch.rows, content: Box::new(copy) })
    }

    /// What a function makes of all batches, which it is called with once. If its results are aligned, the batches are done with one after
    /// the other, as there are results for all of their rows.
    fn iterate(&self, step: &Step<Z>, work: &Work<'_, Z>) -> Result<(), Ended> {
        let (library, function) = (Arc::clone(&step.library), Arc::clone(&step.function));
        let mut iteration = Iteration::new(library, function, self.depth)?;
        let returns = &step.function.signature.returns;
        let mut aligned = Aligned { due: VecDeque::new(), results: Results::new(returns.clone()) };
        loop {
            match iteration.next(work.caller)? {
                MapStep::Wants => {
                    if aligned.due.len() >= self.depth {
                        // The function wants to see more before it gives the results that the task waits for.
                        work.answer(Answer {
                            wants: true,
                            ..Answer::of(Results::new(returns.clone()), None)
                        })?;
                    }
                    match work.batches.recv() {
                        Ok(batch) => {
                            iteration.put(self.copy(&batch)?);
                            if step.aligned {
                                aligned.due.push_back(batch.rows);
                            } else {
                                work.done(returns)?;
                            }
                        }
                        Err(_) => iteration.end(),
                    }
                }
                MapStep::Output(rows, first) if step.aligned => aligned.add(&rows, first, work)?,
                MapStep::Output(rows, first) => {
                    let mut results = Results::new(returns.clone());
                    results.rest(&rows, first)?;
                    work.answer(Answer::of(results, None))?;
                }
                MapStep::Done if aligned.due.is_empty() => return Ok(()),
                MapStep::Done => {
                    let name = step.function.name();
                    return Err(Error::Engine(format!("{name}: fewer results than rows")).into());
                }
            }
        }
    }

    /// What the functions have counted on this thread.
    fn counted(&self) -> Counts {
        let mut counts = Counts::default();
        for (number, step) in self.steps.iter().enumerate() {
            // A function may have several steps.
            if self.steps[..number].iter().any(|other| Arc::ptr_eq(&other.function, &step.function)) {
                continue;
            }
            let here = step.function.stats.here();
            counts.worked += here.guest.get();
            counts.errors += here.errors.get();
            counts.retries += here.retries.get();
            counts.deaths += here.deaths.get();
        }
        counts
    }
}

/// Results that are one for each row.
struct Aligned {
    /// The rows of the batches that are not done with.
    due: VecDeque<usize>,
    /// Of the first of these.
    results: Results,
}

impl Aligned {
    /// Adds results, and answers the batches that have all of theirs.
    fn add<Z: Zygote>(
        &mut self,
        results: &Column<'_>,
        mut first: usize,
        work: &Work<'_, Z>,
    ) -> Result<(), Ended> {
        while first < results.rows {
            let Some(rows) = self.due.front().copied() else {
                return Err(Error::Engine("more results than rows".into()).into());
            };
            let more = (rows - self.results.rows()).min(results.rows - first);
            self.results.part(results, first..first + more)?;
            first += more;
            if self.results.rows() == rows {
                self.due.pop_front();
                let empty = Results::new(results.data_type.clone());
                let results = std::mem::replace(&mut self.results, empty);
                work.answer(Answer { last: true, ..Answer::of(results, None) })?;
            }
        }
        Ok(())
    }
}

/// Why a thread's work has ended.
enum Ended {
    /// The task wants no more.
    Unwanted,
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Ended::Failed(error)
    }
}

/// What a thread works with.
struct Work<'a, Z: Zygote> {
    program: &'a Program<Z>,
    batches: &'a Receiver<Batch>,
    answers: &'a SyncSender<Result<Answer, Error>>,
    caller: Caller<'a>,
    /// When the last answer was given, and what was counted until then.
    told: std::cell::Cell<(Instant, Counts)>,
}

impl<Z: Zygote> Work<'_, Z> {
    fn answer(&self, answer: Answer) -> Result<(), Ended> {
        let (begun, before) = self.told.get();
        let after = self.program.counted();
        let counts = Counts {
            worked: after.worked - before.worked,
            called: begun.elapsed().as_nanos() as u64,
            errors: after.errors - before.errors,
            retries: after.retries - before.retries,
            deaths: after.deaths - before.deaths,
        };
        let sent = self.answers.send(Ok(Answer { counts, ..answer }));
        self.told.set((Instant::now(), after));
        sent.map_err(|_| Ended::Unwanted)
    }

    /// Says that the oldest batch can be filled again.
    fn done(&self, returns: &DataType) -> Result<(), Ended> {
        self.answer(Answer { last: true, ..Answer::of(Results::new(returns.clone()), None) })
    }
}

/// Arguments: rows of columns.
pub(crate) struct Arguments<'a> {
    pub(crate) rows: Range<usize>,
    pub(crate) columns: Vec<&'a Column<'a>>,
}

impl Input for Arguments<'_> {
    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let rows = self.rows.start + rows.start..self.rows.start + rows.end;
        let columns: Vec<_> = self.columns.iter().map(|column| Rows::new(column, rows.clone())).collect();
        take(&columns);
        Ok(())
    }
}

/// Rows that were handed over.
struct Batch {
    rows: usize,
    /// Tells where their columns lie ([`crate::columns`]).
    table: Vec<u64>,
}

/// What a batch cost. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inside of the functions.
    pub worked: u64,
    /// In calls, with what is inside of the functions.
    pub called: u64,
    /// Rows that became NULL because of `on_error = null`.
    pub errors: u64,
    /// Calls that were tried again.
    pub retries: u64,
    /// Workers that ended during a call.
    pub deaths: u64,
}

/// Results of a batch.
#[derive(Debug)]
pub struct Answer {
    /// Of each step.
    pub results: Vec<Results>,
    /// The row of the batch that they are all of; `None` if each row has its own, or they belong to none.
    pub row: Option<usize>,
    /// Whether the batch is done with.
    pub last: bool,
    /// Whether the function wants another batch before it gives more results: then one more than `depth` may be handed over.
    pub wants: bool,
    /// What they cost.
    pub counts: Counts,
}

impl Answer {
    /// Results of one step.
    fn of(results: Results, row: Option<usize>) -> Self {
        Self { results: vec![results], row, last: false, wants: false, counts: Counts::default() }
    }
}

impl Answer {
    /// What the JVM needs to read them: the columns of each step's results.
    pub fn table(&self) -> Vec<u64> {
        let mut table = Vec::new();
        self.results.iter().for_each(|results| tell(&results.column(), &mut table));
        table
    }
}

/// The work of one Spark task, under way.
#[derive(Debug)]
pub struct Task {
    group: Arc<CallGroup>,
    batches: Option<Sender<Batch>>,
    answers: Option<Receiver<Result<Answer, Error>>>,
    thread: Option<JoinHandle<()>>,
    /// The answer that was taken last: the JVM reads it.
    taken: Option<Answer>,
}

impl Task {
    /// Begins one.
    ///
    /// # Errors
    /// [`Error::Engine`] if there is no thread for it.
    pub fn begin<Z: Zygote>(program: Program<Z>) -> Result<Self, Error> {
        let group = group();
        let (batches, incoming) = channel::<Batch>();
        let (outgoing, answers) = sync_channel(WAITING.max(program.depth));
        let calls = Arc::clone(&group);
        // A cancellation ends what began before it. The thread may come to its first call after that.
        let begun = now();
        let thread = thread::Builder::new().name("crosslane-task".into()).spawn(move || {
            let caller = Caller::since(&calls, program.width, begun);
            let told = std::cell::Cell::new((Instant::now(), program.counted()));
            let work = Work { program: &program, batches: &incoming, answers: &outgoing, caller, told };
            // What ends without an error is taken for all that there is.
            let run = catch_unwind(AssertUnwindSafe(|| program.run(&work)));
            let defect = || Ended::Failed(Error::Engine("a defect of crosslane's, please report it".into()));
            if let Err(Ended::Failed(error)) = run.unwrap_or_else(|_| Err(defect())) {
                // If nobody listens, nobody wants to know.
                let _ = outgoing.send(Err(error));
            }
        });
        let thread = thread.map_err(|error| Error::Engine(format!("no thread: {error}")))?;
        let (batches, answers) = (Some(batches), Some(answers));
        Ok(Self { group, batches, answers, thread: Some(thread), taken: None })
    }

    /// Hands a batch over.
    ///
    /// # Safety
    /// The table must tell of columns of the program's inputs with so many rows, and nobody must change them until the batch's
    /// last answer, or an error, was taken, or the task has ended.
    pub unsafe fn submit(&mut self, rows: usize, table: Vec<u64>) {
        if let Some(batches) = &self.batches {
            // After an error nobody listens any more: it is there to be taken.
            let _ = batches.send(Batch { rows, table });
        }
    }

    /// Says that no more batches come.
    pub fn finish(&mut self) {
        self.batches = None;
    }

    /// The next answer, if it comes within the timeout; `Some(None)` when no more come. It is there until the next call of this.
    ///
    /// # Errors
    /// What the function raised, or what became of its lane. Then the task can only be ended.
    pub fn take(&mut self, timeout: Duration) -> Result<Option<Option<&Answer>>, Error> {
        self.taken = None;
        let Some(answers) = &self.answers else { return Ok(Some(None)) };
        match answers.recv_timeout(timeout) {
            Ok(answer) => {
                self.taken = Some(answer?);
                Ok(Some(self.taken.as_ref()))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) if self.batches.is_none() => Ok(Some(None)),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Engine("the work of this task has ended".into()))
            }
        }
    }

    /// Ends it, whatever it is at. When this returns, nothing reads the batches any more.
    pub fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.batches = None;
        self.answers = None;
        self.group.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of its own was reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.stop();
    }
}
