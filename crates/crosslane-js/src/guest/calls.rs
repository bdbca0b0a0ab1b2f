//! Runs the functions of a library in an isolate. A [`Guest`] is such an isolate.

use crate::guest::columns;
use crate::guest::outcome::{Answer, News, Step};
use crate::guest::results::Results;
use crate::isolate::value_rules;
use crate::isolate::{Argument, Handle, Host, Isolate, Reason, Thrown, Value};
use crate::library::{Function, Library};
use crosslane::batch::Column;
use crosslane::lane::{COUNT, WRITING};
use crosslane::{DataType, Entry, ErrorPolicy, Failure, Instances, Kind, Verdict};
use crosslane_process::guest::RowCounts;
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The memory limit of a function that sets none, in bytes.
pub const MEMORY: usize = 512 << 20;

/// How often a scan that waits for a timer checks for messages of the engine.
const LOOK: Duration = Duration::from_millis(20);

/// An isolate with a library in it.
#[derive(Debug)]
pub struct Guest {
    isolate: Isolate,
    library: Arc<Library>,
    /// The bytes that the isolate used before the first call, or after the last set-up.
    base: usize,
    limit: usize,
    /// Whether the heap may still hold the memory of a call that exceeded its limit.
    spent: bool,
    /// Whether the isolate may hold states of aggregates.
    states: bool,
    /// The indices of the functions that are set up.
    ready: HashSet<usize>,
    /// The numbers of prepared functions in the isolate, by the function's index and the argument
    /// types. For functions that take arguments of any type.
    instances: Instances<(usize, Vec<DataType>), usize>,
    /// The function of the current scan, and the type of the scan's rows.
    scan: (usize, DataType),
}

impl Guest {
    /// Boots an isolate of the library.
    ///
    /// # Errors
    /// If the process has no memory for the isolate.
    pub fn boot(library: &Arc<Library>, host: Box<dyn Host>) -> Result<Self, Thrown> {
        let limits = library.functions.iter().filter_map(|function| function.spec.memory_limit);
        let most = limits.max().map_or(MEMORY, |limit| (limit as usize).max(MEMORY));
        let isolate = Isolate::boot(Some(&library.snapshot), host, MEMORY, most)?;
        let base = isolate.memory();
        Ok(Self {
            isolate,
            library: Arc::clone(library),
            base,
            limit: 0,
            spent: false,
            states: false,
            ready: HashSet::new(),
            instances: Instances::default(),
            scan: (0, DataType::Varchar),
        })
    }

    /// Returns the handle that ends the guest's calls.
    pub fn handle(&self) -> &Arc<Handle> {
        self.isolate.handle()
    }

    /// Returns whether a call exceeded its memory limit. Then a new guest should replace this one.
    pub fn is_spent(&self) -> bool {
        self.spent
    }

    /// Returns whether the isolate may hold states of aggregates. They are lost with the isolate.
    pub fn has_states(&self) -> bool {
        self.states
    }

    /// Returns whether the function of this index must be set up before it is called.
    pub fn needs_set_up(&self, index: usize) -> bool {
        self.library.functions[index].spec.set_up && !self.ready.contains(&index)
    }

    /// Sets up the function of this index.
    ///
    /// # Errors
    /// Why the set-up failed. `None` if no caller waits for it any more.
    pub fn set_up(&mut self, index: usize) -> Result<(), Option<Failure>> {
        let library = Arc::clone(&self.library);
        let function = &library.functions[index];
        self.limit_memory(function);
        if let Err(thrown) = self.isolate.call(c"setUp", &[index as f64], &[]) {
            let time = library.time.as_secs_f64();
            let late =
                || format!("this took longer than {time} s; the setting load_timeout changes this limit");
            let failure = self.failure_or(function, thrown, late);
            return Err(failure.map(|failure| function.in_set_up(failure)));
        }
        self.ready.insert(index);
        // The memory that the set-up keeps does not count for calls. `memory_kept` collects the
        // garbage of the set-up first. So a call does not get the memory of garbage in addition to
        // its limit.
        self.base = self.isolate.memory_kept();
        Ok(())
    }

    /// Tears down the function of this index, if it is set up.
    ///
    /// # Errors
    /// Why the tear-down failed. `None` if no caller waits for it any more.
    pub fn tear_down(&mut self, index: usize) -> Result<(), Option<Failure>> {
        if !self.ready.remove(&index) {
            return Ok(());
        }
        let function = &Arc::clone(&self.library).functions[index];
        let ended = self.isolate.call(c"tearDown", &[index as f64], &[]);
        ended.map(drop).map_err(|thrown| {
            let failure = self.failure_or(function, thrown, || "this took too long".into());
            failure.map(|failure| function.in_tear_down(failure))
        })
    }

    /// Runs an entry of the aggregate of this index.
    pub fn enter(
        &mut self,
        index: usize,
        entry: Entry,
        columns: &[Column<'_>],
        rows: usize,
        progress: &AtomicU64,
    ) -> Answer<'_> {
        let library = Arc::clone(&self.library);
        let function = &library.functions[index];
        self.limit_memory(function);
        self.states |= matches!(entry, Entry::Update | Entry::Combine | Entry::Load);
        // For a vectorized update, the prelude retries and leaves out rows when it makes a group's
        // columns.
        let lenient = entry == Entry::Finish || entry == Entry::Update && !function.is_vectorized();
        let error_policy = if lenient { function.error_policy() } else { ErrorPolicy::default() };
        let arguments = columns::arguments(progress, columns, Argument::Reused);
        let mut call = BatchRun::new(self, function, progress, error_policy, false);
        // The rows that wait for a vectorized update must be in the states before other entries
        // run.
        let mut ended = Ok(());
        if function.is_vectorized() && !matches!(entry, Entry::Update | Entry::Forget) {
            ended = call.flush(index);
        }
        if ended.is_ok() {
            let numbers = [rows as f64, index as f64, f64::from(entry as u32)];
            let begun = call.guest.isolate.call(c"enter", &numbers, &arguments);
            ended = call.finish(begun, rows);
        }
        if ended.is_ok() && entry == Entry::Update && call.guest.isolate.reply().count(0) == 1 {
            ended = call.flush(index);
        }
        let row_counts = call.row_counts;
        if ended.is_ok() && entry == Entry::Forget {
            self.states = self.isolate.reply().count(0) == 1;
        }
        self.isolate.detach();
        let returns = match entry {
            Entry::Finish => Some(&function.signature.returns),
            Entry::Save => Some(&DataType::Varchar),
            _ => None,
        };
        self.answered(ended, returns, rows, row_counts)
    }

    /// Returns the answer of a call that has ended. `returns` is the type of its results, if it has any.
    fn answered(
        &self,
        ended: Result<(), Option<(Failure, Option<usize>)>>,
        returns: Option<&DataType>,
        rows: usize,
        row_counts: RowCounts,
    ) -> Answer<'_> {
        match ended {
            Ok(()) => match returns.map(|returns| Results::after(0, returns, self.isolate.reply())) {
                None => Answer::Nothing(row_counts),
                Some(Ok(results)) => Answer::Done(results, row_counts),
                Some(Err(failure)) => Answer::Failed(failure, None),
            },
            Err(Some((failure, row))) => Answer::Failed(failure, row.filter(|row| *row < rows)),
            Err(None) => Answer::Closed,
        }
    }

    /// Begins an entry of the function of this index. `Scan` begins a scan of a table function.
    /// `Partitions` lists its partitions. `Map` passes a batch to a stream function. The stream
    /// function must be set up. The columns are those of the entry.
    pub fn open(
        &mut self,
        index: usize,
        entry: Entry,
        columns: &[Column<'_>],
        progress: &AtomicU64,
    ) -> Step<'static> {
        let function = &Arc::clone(&self.library).functions[index];
        self.limit_memory(function);
        if entry == Entry::Map {
            self.scan = (index, function.signature.returns.clone());
            let bytes = if function.is_vectorized() { Argument::Bytes } else { Argument::Reused };
            let rows = columns.first().map_or(0, |column| column.rows);
            return self.begin(c"openMap", [rows as f64, index as f64], columns, bytes, progress);
        }
        let is_table = entry == Entry::Scan;
        self.scan =
            (index, if is_table { wanted(&function.signature.returns, columns) } else { DataType::Varchar });
        let numbers = [index as f64, f64::from(u8::from(is_table))];
        self.begin(c"openScan", numbers, columns, Argument::Reused, progress)
    }

    fn begin<'a>(
        &mut self,
        method: &CStr,
        numbers: [f64; 2],
        columns: &'a [Column<'a>],
        bytes: fn(&'a [u8]) -> Argument<'a>,
        progress: &'a AtomicU64,
    ) -> Step<'static> {
        let arguments = columns::arguments(progress, columns, bytes);
        self.step(method, &numbers, &arguments, None).map_or_else(|step| step, |_| Step::Done)
    }

    /// Detaches the arguments of a scan that has ended.
    pub(crate) fn detach(&self) {
        self.isolate.detach();
    }

    /// Returns the next rows of the scan, at most `most`. Returns fewer rows if the engine has sent
    /// a message.
    pub fn rows(&mut self, most: usize, progress: &AtomicU64, news: News<'_>) -> Step<'_> {
        let arguments = [Argument::Word(progress), Argument::Word(news.0), Argument::None];
        let numbers = [most as f64, f64::from(news.1 as u32)];
        match self.step(c"scanRows", &numbers, &arguments, Some(news)) {
            Ok(true) => self.batch(),
            Ok(false) => Step::Interrupted,
            Err(step) => step,
        }
    }

    /// Returns the rows from before a failure, if the isolate can still be used.
    pub fn rest(&mut self) -> Step<'_> {
        if self.spent {
            return Step::Done;
        }
        match self.step(c"restOfScan", &[], &[], None) {
            Ok(_) => self.batch(),
            Err(step) => step,
        }
    }

    /// Ends the scan, at any point.
    pub fn close(&mut self, progress: &AtomicU64) -> Step<'static> {
        let arguments = [Argument::Word(progress), Argument::None];
        self.step(c"closeScan", &[], &arguments, None).map_or_else(|step| step, |_| Step::Done)
    }

    /// Reads the batch in the isolate's reply.
    fn batch(&self) -> Step<'_> {
        let reply = self.isolate.reply();
        match Results::after(3, &self.scan.1, reply) {
            Ok(results) => {
                let (last, errors, rows) = (reply.count(0) == 1, reply.count(1) as u32, reply.count(2));
                Step::Rows { results, rows, errors, last }
            }
            Err(failure) => Step::Failed(failure),
        }
    }

    /// Calls a method of a scan until the method is done. Returns `false` if the engine sends a
    /// message before that.
    fn step(
        &mut self,
        method: &CStr,
        numbers: &[f64],
        arguments: &[Argument<'_>],
        news: Option<News<'_>>,
    ) -> Result<bool, Step<'static>> {
        let mut step = self.isolate.call(method, numbers, arguments);
        loop {
            let pause = match step {
                Ok(value) if value.array => return Ok(true),
                Ok(value) => Duration::from_secs_f64(value.number.clamp(0.0, 1e6) / 1000.0),
                Err(thrown) => {
                    let function = &Arc::clone(&self.library).functions[self.scan.0];
                    return Err(self.failure(function, thrown).map_or(Step::Closed, Step::Failed));
                }
            };
            if news.is_some_and(|News(word, seen)| word.load(Relaxed) != seen) {
                return Ok(false);
            }
            if !self.handle().rest(pause.min(LOOK)) {
                return Err(Step::Closed);
            }
            step = self.isolate.call(c"settled", &[], &[]);
        }
    }

    /// Returns the failure of a call that threw or was ended. `None` if no caller waits for it.
    fn failure(&mut self, function: &Function, thrown: Thrown) -> Option<Failure> {
        self.failure_or(function, thrown, || value_rules::late(function.spec.timeout.unwrap_or_default()))
    }

    /// As [`Guest::failure`], for calls with another time limit than the function's timeout. `late`
    /// makes the message of a call that took too long.
    fn failure_or(
        &mut self,
        function: &Function,
        thrown: Thrown,
        late: impl FnOnce() -> String,
    ) -> Option<Failure> {
        match thrown {
            Thrown::Exception(failure) => Some(failure),
            Thrown::Ended(Reason::Closed, _) => None,
            Thrown::Ended(Reason::Timeout, traceback) => Some(Failure {
                class: "TimeoutError".into(),
                message: late(),
                traceback,
                ..Failure::default()
            }),
            Thrown::Ended(
                reason @ (Reason::Memory | Reason::NoMemory | Reason::NoHeap | Reason::Stuck | Reason::Lost),
                traceback,
            ) => {
                self.spent = true;
                let message =
                    if reason == Reason::Memory { memory_message(function) } else { reason.to_string() };
                Some(Failure { class: "RangeError".into(), message, traceback, ..Failure::default() })
            }
        }
    }

    /// Calls the function of this index with a batch. The function must be set up. The guest writes
    /// the current row into the low half of `progress`.
    pub fn answer(
        &mut self,
        index: usize,
        columns: &[Column<'_>],
        rows: usize,
        progress: &AtomicU64,
    ) -> Answer<'_> {
        let library = Arc::clone(&self.library);
        let function = &library.functions[index];
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
        let bytes = if function.is_vectorized() { Argument::Bytes } else { Argument::Reused };
        let arguments = columns::arguments(progress, columns, bytes);
        let mut call =
            BatchRun::new(self, function, progress, function.error_policy(), function.is_vectorized());
        let begun = call.guest.isolate.call(c"begin", &[rows as f64, number as f64], &arguments);
        let ended = call.finish(begun, rows);
        let row_counts = call.row_counts;
        self.isolate.detach();
        self.answered(ended, Some(&function.signature.returns), rows, row_counts)
    }

    /// Returns the number of the prepared function for a call with these columns. Prepares the
    /// function if needed.
    fn number(&mut self, index: usize, function: &Function, columns: &[Column<'_>]) -> Result<usize, Thrown> {
        if !function.signature.takes_any() {
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
        let limit = self.base + function.spec.memory_limit.map_or(MEMORY, |limit| limit as usize);
        if self.limit != limit {
            self.limit = limit;
            self.isolate.limit_memory(limit);
        }
    }
}

/// The call of a guest with a batch of rows.
struct BatchRun<'a> {
    guest: &'a mut Guest,
    function: &'a Function,
    progress: &'a AtomicU64,
    row_counts: RowCounts,
    /// How often each failed row was called again. Several rows run at once, and their failures
    /// alternate, so one counter is not enough.
    tries: HashMap<usize, u32>,
    error_policy: ErrorPolicy,
    /// Whether one call takes all rows.
    vectorized: bool,
}

impl<'a> BatchRun<'a> {
    fn new(
        guest: &'a mut Guest,
        function: &'a Function,
        progress: &'a AtomicU64,
        error_policy: ErrorPolicy,
        vectorized: bool,
    ) -> Self {
        let (row_counts, tries) = (RowCounts::default(), HashMap::new());
        Self { guest, function, progress, row_counts, tries, error_policy, vectorized }
    }

    /// Continues the call until there are results. `Err(None)` if no caller waits for them.
    fn finish(
        &mut self,
        mut step: Result<Value, Thrown>,
        rows: usize,
    ) -> Result<(), Option<(Failure, Option<usize>)>> {
        loop {
            step = match step {
                Ok(value) if value.array => return Ok(()),
                Ok(value) => {
                    // The call waits until the next timer, deadline or try. JavaScript checks the
                    // deadlines itself.
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

    /// Updates the states with the rows that wait for a vectorized update.
    fn flush(&mut self, index: usize) -> Result<(), Option<(Failure, Option<usize>)>> {
        let arguments = [Argument::Word(self.progress)];
        let done = self.guest.isolate.call(c"flush", &[index as f64], &arguments);
        if let Err(thrown) = done {
            let failure = self.guest.failure(self.function, thrown);
            return Err(failure.map(|failure| (failure, None)));
        }
        self.row_counts.errors += self.guest.isolate.reply().count(0) as u32;
        Ok(())
    }

    /// Decides whether a failed row becomes NULL, is called again, or fails the call.
    fn forgive(
        &mut self,
        thrown: Thrown,
        row: usize,
        rows: usize,
    ) -> Result<Verdict, Option<(Failure, Option<usize>)>> {
        let failure = self.guest.failure(self.function, thrown).ok_or(None)?;
        // If the function is no aggregate, only this row is lost. If the engine needs the states
        // later, the end of the lane tells it that they are lost.
        if self.function.spec.kind == Kind::Aggregate && self.guest.spent && self.guest.states {
            let message = format!("{}; the states of this worker's groups are lost with it", failure.message);
            return Err(Some((Failure { message, ..failure }, None)));
        }
        let Self { vectorized, error_policy, .. } = *self;
        if !vectorized && row >= rows {
            if row == u32::MAX as usize || error_policy == ErrorPolicy::default() {
                return Err(Some((failure, None)));
            }
            // Several rows were ended together. The prelude calls them one by one to find the row
            // that is the cause.
            return Ok(Verdict::Again(Duration::ZERO));
        }
        let tries = self.tries.entry(if vectorized { 0 } else { row }).or_default();
        let rows = if vectorized { rows } else { 1 };
        self.row_counts.judge(error_policy, Some((failure, Some(row))), None, tries, rows)
    }
}

/// Returns the type of a scan's rows: all columns of the table, or the columns that the scan's
/// arguments name.
fn wanted(table: &DataType, columns: &[Column<'_>]) -> DataType {
    let DataType::Struct(fields) = table else { return table.clone() };
    let Some(places) = columns.get(1).filter(|places| places.rows > 0 && places.is_valid(0)) else {
        return table.clone();
    };
    let range = places.offsets[0] as usize..places.offsets[1] as usize;
    let places = range.map(|at| places.children[0].value::<i32>(at) as usize);
    DataType::Struct(places.filter_map(|place| fields.get(place).cloned()).collect())
}

fn memory_message(function: &Function) -> String {
    match function.spec.memory_limit {
        Some(limit) => format!("more than {} were used, the function's memory_limit", megabytes(limit)),
        None => {
            let limit = megabytes(MEMORY as u64);
            format!("more than {limit} were used; the option memory_limit changes this limit")
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}
