//! A guest: an isolate that answers calls of its library's functions.

use crate::columns;
use crate::isolate::{Argument, Handle, Host, Isolate, Reason, Thrown, Value};
use crate::library::{Function, Library};
use crate::results::Results;
use crate::rules;
use crosslane::batch::Column;
use crosslane::lane::{COUNT, WRITING};
use crosslane::{DataType, Failure, Instances, Leniency, Verdict};
use crosslane_process::guest::Mishaps;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The limit of a function that names none, in bytes.
pub const MEMORY: usize = 512 << 20;

/// What became of a call.
#[derive(Debug)]
pub enum Answer<'a> {
    /// Its results.
    Done(Results<'a>, Mishaps),
    /// Why it failed, and for which row if one is to blame.
    Failed(Failure, Option<usize>),
    /// Nobody waits for it any more.
    Closed,
}

/// An isolate with a library in it.
#[derive(Debug)]
pub struct Guest {
    isolate: Isolate,
    library: Arc<Library>,
    /// What the isolate holds before any call.
    base: usize,
    limit: usize,
    /// Whether its heap may still hold what exceeded the limit.
    spent: bool,
    /// What the isolate has prepared for calls of functions that take arguments of any type: the number there, by the
    /// function's index and the types.
    instances: Instances<(usize, Vec<DataType>), usize>,
}

impl Guest {
    /// Boots an isolate of the library.
    ///
    /// # Errors
    /// If the process has no room for it.
    pub fn boot(library: &Arc<Library>, host: Box<dyn Host>) -> Result<Self, Thrown> {
        let limits = library.functions.iter().filter_map(|function| function.memory_limit);
        let most = limits.max().map_or(MEMORY, |limit| (limit as usize).max(MEMORY));
        let isolate = Isolate::boot(&library.snapshot, host, MEMORY, most)?;
        let base = isolate.memory();
        Ok(Self {
            isolate,
            library: Arc::clone(library),
            base,
            limit: 0,
            spent: false,
            instances: Instances::default(),
        })
    }

    /// What ends its calls.
    pub fn handle(&self) -> &Arc<Handle> {
        self.isolate.handle()
    }

    /// Whether a call exceeded its memory, so that the guest should be replaced by a fresh one.
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    /// Calls the function of this index with a batch. The low half of `progress` is where the guest notes the
    /// row at work.
    pub fn answer(
        &mut self,
        index: usize,
        columns: &[Column<'_>],
        rows: usize,
        progress: &AtomicU64,
    ) -> Answer<'_> {
        let library = Arc::clone(&self.library);
        let Some(function) = library.functions.get(index) else {
            let message = format!("a call of function {index} of {}", library.functions.len());
            return Answer::Failed(Failure { class: "Error".into(), message, ..Failure::default() }, None);
        };
        self.limit_memory(function);
        let number = match self.number(index, function, columns) {
            Ok(number) => number,
            Err(Thrown::Exception(failure)) => return Answer::Failed(failure, None),
            Err(Thrown::Ended(Reason::Closed, _)) => return Answer::Closed,
            Err(Thrown::Ended(reason, traceback)) => {
                self.spent = true;
                let (class, message) = ("RangeError".into(), reason.to_string());
                return Answer::Failed(Failure { class, message, traceback, ..Failure::default() }, None);
            }
        };
        let mut arguments = vec![Argument::Word(progress)];
        let bytes = if function.vectorized { Argument::Bytes } else { Argument::Reused };
        columns.iter().for_each(|column| columns::add(column, bytes, &mut arguments));
        let mut call =
            BatchRun { function, guest: self, progress, mishaps: Mishaps::default(), tries: HashMap::new() };
        let begun = call.guest.isolate.call(c"begin", &[rows as f64, number as f64], &arguments);
        let ended = call.finish(begun, rows);
        let mishaps = call.mishaps;
        self.isolate.detach();
        match ended {
            Ok(()) => match Results::new(&function.returns, self.isolate.reply()) {
                Ok(results) => Answer::Done(results, mishaps),
                Err(failure) => Answer::Failed(failure, None),
            },
            Err(Some((failure, row))) => Answer::Failed(failure, row.filter(|row| *row < rows)),
            Err(None) => Answer::Closed,
        }
    }

    /// The number of what the isolate has prepared for a call with these columns.
    fn number(&mut self, index: usize, function: &Function, columns: &[Column<'_>]) -> Result<usize, Thrown> {
        if !function.takes_any {
            return Ok(index);
        }
        let key = (index, columns.iter().map(|column| column.data_type.clone()).collect());
        if let Some(number) = self.instances.get(&key) {
            return Ok(*number);
        }
        self.instances.make_room();
        let number = self.library.functions.len() + self.instances.count();
        let types = function.described(key.1.iter(), false).to_string();
        self.isolate.call(c"instance", &[index as f64, number as f64], &[Argument::Text(&types)])?;
        self.instances.keep(key, number);
        Ok(number)
    }

    fn limit_memory(&mut self, function: &Function) {
        let limit = self.base + function.memory_limit.map_or(MEMORY, |limit| limit as usize);
        if self.limit != limit {
            self.limit = limit;
            self.isolate.limit_memory(limit);
        }
    }
}

/// A batch at work.
struct BatchRun<'a> {
    guest: &'a mut Guest,
    function: &'a Function,
    progress: &'a AtomicU64,
    mishaps: Mishaps,
    /// How often rows that failed were called again: several rows run at once, and fail in turns.
    tries: HashMap<usize, u32>,
}

impl BatchRun<'_> {
    /// Carries on until there are results. `Err(None)` if nobody waits for them.
    fn finish(
        &mut self,
        mut step: Result<Value, Thrown>,
        rows: usize,
    ) -> Result<(), Option<(Failure, Option<usize>)>> {
        loop {
            step = match step {
                Ok(value) if value.array => return Ok(()),
                Ok(value) => {
                    // Until the next timer, deadline or try; JavaScript itself sees to the deadlines.
                    let time = Duration::from_secs_f64(value.number.clamp(0.0, 1e6) / 1000.0);
                    if !self.guest.handle().rest(time) {
                        return Err(None);
                    }
                    self.guest.isolate.call(c"settled", &[], &[])
                }
                Err(thrown) => {
                    let row = self.progress.load(Relaxed) as u32;
                    let row = if row & COUNT == 0 { row & !WRITING } else { row } as usize;
                    let (null, pause) = match self.forgive(thrown, row, rows)? {
                        Verdict::Null => (1.0, Duration::ZERO),
                        Verdict::Again(pause) => (0.0, pause),
                    };
                    let numbers = [row as f64, null, pause.as_secs_f64() * 1000.0];
                    self.guest.isolate.call(c"resume", &numbers, &[])
                }
            }
        }
    }

    /// What becomes of a row that failed.
    fn forgive(
        &mut self,
        thrown: Thrown,
        row: usize,
        rows: usize,
    ) -> Result<Verdict, Option<(Failure, Option<usize>)>> {
        let failure = match thrown {
            Thrown::Exception(failure) => failure,
            Thrown::Ended(Reason::Closed, _) => return Err(None),
            Thrown::Ended(Reason::Timeout, traceback) => {
                let message = rules::late(self.function.timeout.unwrap_or_default());
                Failure { class: "TimeoutError".into(), message, traceback, ..Failure::default() }
            }
            Thrown::Ended(
                reason @ (Reason::Memory | Reason::NoMemory | Reason::NoHeap | Reason::Stuck),
                traceback,
            ) => {
                self.guest.spent = true;
                let message =
                    if reason == Reason::Memory { self.memory_message() } else { reason.to_string() };
                Failure { class: "RangeError".into(), message, traceback, ..Failure::default() }
            }
        };
        let vectorized = self.function.vectorized;
        let leniency = Leniency { retries: self.function.retries, on_error: self.function.on_error };
        if !vectorized && row >= rows {
            if row == u32::MAX as usize || leniency == Leniency::default() {
                return Err(Some((failure, None)));
            }
            // Several rows were ended together. They are called one by one to see which was to blame.
            return Ok(Verdict::Again(Duration::ZERO));
        }
        let tries = self.tries.entry(if vectorized { 0 } else { row }).or_default();
        let rows = if vectorized { rows } else { 1 };
        self.mishaps.judge(leniency, Some((failure, Some(row))), tries, rows)
    }

    fn memory_message(&self) -> String {
        match self.function.memory_limit {
            Some(limit) => format!("more than {} were used, the function's memory_limit", megabytes(limit)),
            None => format!(
                "more than {} were used; the option memory_limit changes this limit",
                megabytes(MEMORY as u64)
            ),
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}
