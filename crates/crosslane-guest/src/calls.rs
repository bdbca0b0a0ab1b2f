//! The loop: take a batch, call the function for its rows, answer.
//!
//! | a row | becomes |
//! |---|---|
//! | with NULL in a parameter that does not admit it | NULL, without a call |
//! | whose call or result failed | tried again `retries` times, with growing pauses |
//! | that failed for good | NULL with `on_error = null`, else the failure of the call |
//!
//! A vectorized function is called for all rows together, without those of the first kind.

use crate::Declared;
use crate::reader::{Argument, Reader};
use crate::values::{Class, Fault, Refusal, Values};
use crate::writer::Writer;
use crosslane::batch::Column;
use crosslane::lane::WRITING;
use crosslane::{Calling, ColumnBuilder, DataType, Failure, Instances, Leniency, Signature, Verdict};
use crosslane_process::guest::{Call, GuestLane, Mishaps};
use crosslane_process::limits::MemoryLimit;
use crosslane_ring::ProgressWord;
use std::io;
use std::time::Duration;

/// How a language calls its functions.
pub trait Language: Values {
    /// What is called.
    type Callee;
    /// The arguments of a call, where the language's collector sees them.
    type Arguments;

    /// Runs `work`, which calls the function for one row after the other: a language that is entered and left at some
    /// cost does that here, once.
    ///
    /// # Errors
    /// What ended it before its end.
    fn enter(&self, callee: &Self::Callee, work: impl FnMut(&mut Self::Arguments))
    -> Result<(), Self::Error>;

    /// Adds an argument to those of the next call.
    fn argument(&self, arguments: &mut Self::Arguments, value: Self::Value);

    /// Calls the function, and empties the arguments.
    ///
    /// # Errors
    /// What it raised.
    fn call(
        &self,
        callee: &Self::Callee,
        arguments: &mut Self::Arguments,
    ) -> Result<Self::Value, Self::Error>;

    /// An error as the engine's users should read it.
    fn describe(&self, error: Self::Error) -> Failure;

    /// Whether an error ends the lane, and is no failure of the call that it came to.
    fn ends_lane(&self, _error: &Self::Error) -> bool {
        false
    }

    /// Runs `work`, which may allocate so many bytes.
    fn limited<R>(&self, bytes: u64, work: impl FnOnce() -> R) -> R {
        let _limit = MemoryLimit::set(bytes);
        work()
    }

    /// Waits for the next call, for languages that give up a lock meanwhile.
    ///
    /// # Errors
    /// If the engine broke the protocol.
    fn next_call(&self, lane: &mut GuestLane) -> io::Result<Option<Call>> {
        lane.next_call()
    }

    /// Waits before another try.
    ///
    /// # Errors
    /// What ended the wait.
    fn pause(&self, time: Duration) -> Result<(), Self::Error> {
        std::thread::sleep(time);
        Ok(())
    }
}

/// A function, and where its results are collected.
type Ready<L> = (Function<L>, ColumnBuilder);

/// What is ready of a function.
struct Known<L: Language> {
    plain: Option<Ready<L>>,
    /// What it is for arguments of some types, by those as text, if it takes any.
    instances: Instances<Box<str>, Ready<L>>,
}

impl<L: Language> Known<L> {
    fn get(
        &mut self,
        language: &L,
        declared: &Declared<L::Callee>,
        types: Option<&str>,
    ) -> Result<&mut Ready<L>, Failure> {
        let new = || Function::new(language, declared, types);
        match types {
            None => match &mut self.plain {
                Some(known) => Ok(known),
                none => Ok(none.insert(new()?)),
            },
            Some(types) => self.instances.get_or_make(types, new),
        }
    }
}

fn failure(class: &str, message: String) -> Failure {
    Failure { class: class.into(), message, ..Failure::default() }
}

/// Serves the calls of one lane until its engine closes it; `functions` are the library's, in the order in which it
/// declared them.
///
/// # Errors
/// If the engine is gone or broke the protocol.
pub fn serve<L: Language>(
    language: &L,
    functions: &[Declared<L::Callee>],
    lane: &mut GuestLane,
) -> io::Result<()> {
    let mut known: Vec<Known<L>> =
        functions.iter().map(|_| Known { plain: None, instances: Instances::default() }).collect();
    while let Some(call) = language.next_call(lane)? {
        let index = call.header.function as usize;
        let (Some(declared), Some(known)) = (functions.get(index), known.get_mut(index)) else {
            let count = functions.len();
            return Err(io::Error::other(format!("a call of function {index} of {count}")));
        };
        let (function, out) = match known.get(language, declared, lane.types(&call)?) {
            Ok(ready) => ready,
            Err(failure) => {
                lane.fail(call, &failure, None)?;
                continue;
            }
        };
        let outcome = {
            let columns = lane.columns(function.types.iter())?;
            let progress = Progress { word: lane.progress(), sequence: call.header.exchange as u32 };
            let rows = call.header.rows as usize;
            let mut work = || function.run(language, &declared.callee, &columns, rows, progress, out);
            match declared.spec.memory_limit {
                Some(bytes) => language.limited(bytes, work),
                None => work(),
            }
        };
        match outcome {
            Ok(mishaps) => lane.succeed(call, out, mishaps)?,
            Err(mishap) if language.ends_lane(&mishap.error) => {
                return Err(io::Error::other(language.describe(mishap.error).to_string()));
            }
            Err(mishap) => lane.fail(call, &language.describe(mishap.error), mishap.row)?,
        }
    }
    Ok(())
}

/// What went wrong, and for which row if one is to blame.
struct Mishap<E> {
    error: E,
    row: Option<usize>,
}

/// Where a batch tells which row it is at.
#[derive(Clone, Copy)]
struct Progress<'a> {
    word: &'a ProgressWord,
    sequence: u32,
}

impl Progress<'_> {
    #[inline(always)]
    fn set(&self, row: u32) {
        self.word.set(self.sequence, row);
    }
}

/// A declared function, ready to be called.
struct Function<L: Language> {
    types: Vec<DataType>,
    /// Whether the last argument is a LIST of any number of arguments.
    variadic: bool,
    vectorized: bool,
    admits_null: Vec<bool>,
    leniency: Leniency,
    readers: Vec<Reader<L>>,
    writer: Writer<L>,
}

impl<L: Language> Function<L> {
    /// Prepares a function, for arguments of these types if it takes any.
    fn new(language: &L, declared: &Declared<L::Callee>, types: Option<&str>) -> Result<Ready<L>, Failure> {
        let wrong = |what: String| failure("DeclarationError", what);
        let spec = &declared.spec;
        let mut signature: Signature =
            spec.signature.parse().map_err(|error| wrong(format!("{}: {error}", spec.signature)))?;
        let mut admits_null = spec.admits_null.clone();
        if let Some(types) = types {
            let rest = admits_null.pop_if(|_| signature.variadic).unwrap_or_default();
            signature = signature.for_types(types).map_err(|error| wrong(error.to_string()))?;
            admits_null.resize(signature.parameters.len(), rest);
        } else if signature.takes_any() {
            return Err(wrong(format!("a call of {signature} without the types of its arguments")));
        }
        let types: Vec<DataType> = signature.parameters.into_iter().map(|field| field.data_type).collect();
        let raised = |error| language.describe(error);
        let out = ColumnBuilder::new(&signature.returns);
        let function = Self {
            readers: types
                .iter()
                .map(|data_type| Reader::new(language, data_type))
                .collect::<Result<_, _>>()
                .map_err(raised)?,
            writer: Writer::new(language, &signature.returns).map_err(raised)?,
            types,
            variadic: signature.variadic,
            vectorized: spec.calling == Calling::Vectorized,
            admits_null,
            leniency: Leniency { retries: spec.retries, on_error: spec.on_error },
        };
        Ok((function, out))
    }

    fn run(
        &self,
        language: &L,
        callee: &L::Callee,
        columns: &[Column<'_>],
        rows: usize,
        progress: Progress<'_>,
        out: &mut ColumnBuilder,
    ) -> Result<Mishaps, Mishap<L::Error>> {
        out.clear();
        if let Err(overflow) = out.reserve(rows) {
            return Err(Mishap { error: Fault::from(overflow).into_error(language), row: None });
        }
        // The columns whose NULLs the function does not want to see.
        let skipping: Vec<&Column<'_>> = columns
            .iter()
            .zip(&self.admits_null)
            .filter_map(|(column, admits)| (!admits && column.validity.is_some()).then_some(column))
            .collect();
        let batch = Batch { function: self, language, callee, columns, rows, progress, skipping };
        if self.vectorized { batch.run_vectorized(out) } else { batch.run_rows(out) }
    }
}

/// A call at work.
struct Batch<'a, L: Language> {
    function: &'a Function<L>,
    language: &'a L,
    callee: &'a L::Callee,
    columns: &'a [Column<'a>],
    rows: usize,
    progress: Progress<'a>,
    skipping: Vec<&'a Column<'a>>,
}

impl<L: Language> Batch<'_, L> {
    #[inline(always)]
    fn skips(&self, row: usize) -> bool {
        self.skipping.iter().any(|column| !column.is_valid(row))
    }

    fn run_rows(&self, out: &mut ColumnBuilder) -> Result<Mishaps, Mishap<L::Error>> {
        let Self { function, language, .. } = *self;
        let fixed = function.readers.len() - usize::from(function.variadic);
        let arguments: Vec<Argument<'_, L>> = function.readers[..fixed]
            .iter()
            .zip(self.columns)
            .zip(&function.admits_null)
            .map(|((reader, column), sees_null)| Argument::new(reader, column, *sees_null))
            .collect();
        let mut mishaps = Mishaps::default();
        let mut row = 0;
        let mut tries = (0, 0);
        while row < self.rows {
            let mut fault = None;
            let entered = language.enter(self.callee, |values| {
                while row < self.rows {
                    if self.skips(row) {
                        out.null();
                        row += 1;
                        continue;
                    }
                    self.progress.set(row as u32);
                    match self.call_row(&arguments, values, row) {
                        Ok(result) => match function.writer.write(language, &result, out) {
                            Ok(()) => row += 1,
                            Err(what) => {
                                fault = Some(what);
                                return;
                            }
                        },
                        Err(error) => {
                            fault = Some(Fault::Failed(error));
                            return;
                        }
                    }
                }
            });
            let error = match (entered, fault) {
                (Err(error), _) => error,
                (Ok(()), Some(fault)) => fault.into_error(language),
                (Ok(()), None) => break,
            };
            // The language wanted the thread when all rows were done: no call has failed.
            if row == self.rows {
                return Err(Mishap { error, row: None });
            }
            out.truncate(row);
            if tries.0 != row {
                tries = (row, 0);
            }
            match self.forgive(Mishap { error, row: Some(row) }, &mut tries.1, 1, &mut mishaps)? {
                Verdict::Again(_) => {}
                Verdict::Null => {
                    out.null();
                    row += 1;
                }
            }
        }
        Ok(mishaps)
    }

    #[inline(always)]
    fn call_row(
        &self,
        arguments: &[Argument<'_, L>],
        values: &mut L::Arguments,
        row: usize,
    ) -> Result<L::Value, L::Error> {
        let language = self.language;
        for argument in arguments {
            language.argument(values, argument.get(language, row)?);
        }
        if self.function.variadic {
            let (reader, column) = (&self.function.readers[arguments.len()], &self.columns[arguments.len()]);
            for at in column.elements(row) {
                language.argument(values, reader.element(language, column, at)?);
            }
        }
        language.call(self.callee, values)
    }

    fn run_vectorized(&self, out: &mut ColumnBuilder) -> Result<Mishaps, Mishap<L::Error>> {
        let language = self.language;
        let mut mishaps = Mishaps::default();
        let rows: Vec<usize> = (0..self.rows).filter(|row| !self.skips(*row)).collect();
        let mut tries = 0;
        loop {
            self.progress.set(u32::MAX);
            let mut fault = None;
            let mut written = None;
            let entered = language.enter(self.callee, |values| {
                fault = self.call_columns(&rows, values, &mut written, out).err();
            });
            let error = match (entered, fault) {
                (Err(error), _) => error,
                (Ok(()), Some(fault)) => fault.into_error(language),
                (Ok(()), None) => return Ok(mishaps),
            };
            out.clear();
            match self.forgive(Mishap { error, row: written }, &mut tries, self.rows, &mut mishaps)? {
                Verdict::Again(_) => {}
                Verdict::Null => {
                    (0..self.rows).for_each(|_| out.null());
                    return Ok(mishaps);
                }
            }
        }
    }

    /// Calls with lists, one for each column, and adds the elements of the one that comes back. `written` is told which
    /// row is at work then.
    fn call_columns(
        &self,
        rows: &[usize],
        values: &mut L::Arguments,
        written: &mut Option<usize>,
        out: &mut ColumnBuilder,
    ) -> Result<(), Fault<L::Error>> {
        let Self { function, language, .. } = *self;
        let failed = Fault::Failed;
        let fixed = function.readers.len() - usize::from(function.variadic);
        for (reader, column) in function.readers[..fixed].iter().zip(self.columns) {
            let list = language.list(rows.len(), |at| reader.read(language, column, rows[at]));
            language.argument(values, list.map_err(failed)?);
        }
        if function.variadic {
            // All lists of a batch are of one length: so many columns more.
            let (reader, column) = (&function.readers[fixed], &self.columns[fixed]);
            let width = rows.first().map_or(0, |row| column.elements(*row).len());
            for place in 0..width {
                let list = language.list(rows.len(), |at| {
                    reader.element(language, column, column.elements(rows[at]).start + place)
                });
                language.argument(values, list.map_err(failed)?);
            }
        }
        let result = language.call(self.callee, values).map_err(failed)?;
        let expected = rows.len();
        let mut count = 0;
        let mut next = 0;
        let wrong = |count: usize| {
            Fault::Refused(Class::Value, format!("returned {count} results for {expected} rows"))
        };
        let each = |found: usize, value: &L::Value| {
            if found != expected {
                return Err(wrong(found));
            }
            let Some(row) = rows.get(count).copied() else { return Err(wrong(count + 1)) };
            (next..row).for_each(|_| out.null());
            (next, count) = (row + 1, count + 1);
            *written = Some(row);
            self.progress.set(row as u32 | WRITING);
            function.writer.write(language, value, out)
        };
        match language.with_elements(&result, each) {
            Ok(written) => written?,
            Err(Refusal::Failed(error)) => return Err(Fault::Failed(error)),
            Err(_) => {
                let shown = language.shown(&result).map_err(Fault::Failed)?;
                return Err(Fault::Refused(
                    Class::Type,
                    format!("returned {shown} where a list of results is due"),
                ));
            }
        }
        if count != expected {
            return Err(wrong(count));
        }
        (next..self.rows).for_each(|_| out.null());
        Ok(())
    }

    /// What becomes of rows whose call failed, after `tries` more than the first: it pauses before another, and counts.
    /// The error itself if there is none, and the rows do not become NULL.
    fn forgive(
        &self,
        mishap: Mishap<L::Error>,
        tries: &mut u32,
        rows: usize,
        mishaps: &mut Mishaps,
    ) -> Result<Verdict, Mishap<L::Error>> {
        if self.language.ends_lane(&mishap.error) {
            return Err(mishap);
        }
        let row = mishap.row;
        let verdict = mishaps.judge(self.function.leniency, mishap, tries, rows)?;
        if let Verdict::Again(time) = verdict {
            self.language.pause(time).map_err(|error| Mishap { error, row })?;
        }
        Ok(verdict)
    }
}
