//! A guest: an isolate that answers calls of its library's functions.

use crate::columns;
use crate::isolate::{Argument, Handle, Host, Isolate, Reason, Thrown, Value};
use crate::library::{Function, Library};
use crate::results::Results;
use crosslane::Failure;
use crosslane::batch::Column;
use crosslane::call::backoff;
use crosslane_process::guest::Mishaps;
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
}

impl Guest {
    /// Boots an isolate of the library.
    pub fn boot(library: &Arc<Library>, host: Box<dyn Host>) -> Self {
        let limits = library.functions.iter().filter_map(|function| function.memory_limit);
        let most = limits.max().map_or(MEMORY, |limit| (limit as usize).max(MEMORY));
        let isolate = Isolate::boot(&library.snapshot, host, MEMORY, most);
        let base = isolate.memory();
        Self { isolate, library: Arc::clone(library), base, limit: 0, spent: false }
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
        let mut arguments = vec![Argument::Word(progress)];
        columns.iter().for_each(|column| columns::add(column, &mut arguments));
        let mut call = Call { function, guest: self, progress, mishaps: Mishaps::default(), tries: (0, 0) };
        let begun = call.guest.isolate.call(c"begin", &[rows as f64, index as f64], &arguments);
        let ended = call.finish(begun, rows);
        let mishaps = call.mishaps;
        if function.vectorized {
            self.isolate.detach();
        }
        match ended {
            Ok(()) => match Results::new(&function.returns, self.isolate.reply()) {
                Ok(results) => Answer::Done(results, mishaps),
                Err(failure) => Answer::Failed(failure, None),
            },
            Err(Some((failure, row))) => Answer::Failed(failure, row.filter(|row| *row < rows)),
            Err(None) => Answer::Closed,
        }
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
struct Call<'a> {
    guest: &'a mut Guest,
    function: &'a Function,
    progress: &'a AtomicU64,
    mishaps: Mishaps,
    /// The row that was tried last, and how often.
    tries: (usize, u32),
}

impl Call<'_> {
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
                    // Promises are pending, until the next timer at least.
                    let time = Duration::from_secs_f64(value.number.clamp(0.0, 1e6) / 1000.0);
                    match self.guest.handle().pause(time) {
                        Ok(()) => self.guest.isolate.call(c"settled", &[], &[]),
                        Err(reason) => Err(Thrown::Ended(reason, String::new())),
                    }
                }
                Err(thrown) => {
                    let row = self.progress.load(Relaxed) as u32 as usize;
                    let null = self.forgive(thrown, row, rows)?;
                    self.guest.isolate.call(c"resume", &[row as f64, f64::from(u8::from(null))], &[])
                }
            }
        }
    }

    /// Whether a row that failed becomes NULL; if not, it is called again.
    fn forgive(
        &mut self,
        thrown: Thrown,
        row: usize,
        rows: usize,
    ) -> Result<bool, Option<(Failure, Option<usize>)>> {
        let failure = match thrown {
            Thrown::Exception(failure) => failure,
            Thrown::Ended(Reason::Closed, _) => return Err(None),
            Thrown::Ended(Reason::Timeout, traceback) => {
                let message = format!("timed out after {} s", self.function.timeout.unwrap_or_default());
                Failure { class: "TimeoutError".into(), message, traceback, ..Failure::default() }
            }
            Thrown::Ended(Reason::Memory, traceback) => {
                self.guest.spent = true;
                Failure {
                    class: "RangeError".into(),
                    message: self.memory_message(),
                    traceback,
                    ..Failure::default()
                }
            }
        };
        if self.tries.0 != row {
            self.tries = (row, 0);
        }
        if self.tries.1 < self.function.retries {
            if !self.guest.handle().rest(backoff(self.tries.1)) {
                return Err(None);
            }
            self.tries.1 += 1;
            self.mishaps.retries += 1;
            return Ok(false);
        }
        if self.function.on_error == "null" {
            self.mishaps.errors += if self.function.vectorized { rows as u32 } else { 1 };
            return Ok(true);
        }
        Err(Some((failure, (!self.function.vectorized).then_some(row))))
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
