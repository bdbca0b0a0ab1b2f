//! Calling a function with a batch: the hottest loop of the guest, and of the host lanes.
//!
//! A whole batch runs in one `rb_protect`, so that a call costs no more than Ruby's own. What does not change
//! within a batch is worked out before it.

use crate::objects::{self, Fault, Reader, Vm, Writer, exception, made};
use crate::values::{Held, intern};
use crosslane::batch::Column;
use crosslane::lane::WRITING;
use crosslane::{Calling, ColumnBuilder, DataType, Leniency, Signature, Verdict};
use crosslane_guest::{Argument, Class, Values};
use crosslane_gvl::{Unwind, protect};
use crosslane_process::guest::Mishaps;
use crosslane_process::limits::MemoryLimit;
use crosslane_ring::ProgressWord;
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Value};
use rb_sys::{Qnil, Qtrue, VALUE};
use std::ffi::c_int;
use std::time::Duration;

/// The most parameters: their values lie on the stack, where the collector sees them.
pub(crate) const MOST_PARAMETERS: usize = 66;
/// The most arguments of a call, where one may be of any type.
const MOST_ARGUMENTS: usize = 64;

/// A declared function, ready to be called.
#[derive(Debug)]
pub(crate) struct Function {
    callee: Callee,
    /// What is called.
    _held: Held,
    pub(crate) types: Vec<DataType>,
    /// Whether the last argument is an Array of any number of arguments.
    variadic: bool,
    pub(crate) returns: DataType,
    admits_null: Vec<bool>,
    calling: Calling,
    readers: Vec<Reader>,
    writer: Writer,
    host: bool,
    leniency: Leniency,
    memory_limit: Option<u64>,
}

/// What is called; the function holds it.
#[derive(Debug, Clone, Copy)]
enum Callee {
    Proc(VALUE),
    Method(VALUE),
    Object(VALUE),
}

// SAFETY: the objects stay where they are, and are only used with the GVL.
unsafe impl Send for Callee {}
// SAFETY: as above.
unsafe impl Sync for Callee {}

impl Callee {
    fn new(object: Value) -> Self {
        let raw = object.as_raw();
        // SAFETY: asking for a class raises nothing.
        unsafe {
            if rb_sys::rb_obj_is_proc(raw) == Qtrue as VALUE {
                Callee::Proc(raw)
            } else if rb_sys::rb_obj_is_kind_of(raw, rb_sys::rb_cMethod) == Qtrue as VALUE {
                Callee::Method(raw)
            } else {
                Callee::Object(raw)
            }
        }
    }

    /// # Safety
    /// With the GVL, protected; there must be as many arguments.
    #[inline(always)]
    unsafe fn call(self, count: c_int, arguments: *const VALUE) -> VALUE {
        // SAFETY: as the caller says.
        unsafe {
            match self {
                Callee::Proc(object) => {
                    rb_sys::rb_proc_call_with_block(object, count, arguments, Qnil as VALUE)
                }
                Callee::Method(object) => rb_sys::rb_method_call(count, arguments, object),
                Callee::Object(object) => rb_sys::rb_funcallv(object, intern(c"call"), count, arguments),
            }
        }
    }

    /// # Safety
    /// As [`Callee::call`]; of a variadic function the last argument must be an Array.
    unsafe fn call_with(self, values: &mut [VALUE; MOST_PARAMETERS], count: c_int, variadic: bool) -> VALUE {
        // SAFETY: as the caller says; the Array with all arguments is among the values.
        unsafe {
            if !variadic {
                return self.call(count, values.as_ptr());
            }
            let all = spread(values, count);
            self.call(rb_sys::RARRAY_LEN(all) as c_int, rb_sys::RARRAY_CONST_PTR(all))
        }
    }
}

/// An Array of the arguments, those of the last one's Array one by one. It takes the place of the first, where the
/// collector sees it.
///
/// # Safety
/// With the GVL, protected; the values must be so many arguments, the last of them an Array.
unsafe fn spread(values: &mut [VALUE; MOST_PARAMETERS], count: c_int) -> VALUE {
    let fixed = count as usize - 1;
    // SAFETY: as the caller says.
    unsafe {
        let all = rb_sys::rb_ary_new_from_values(fixed as i64, values.as_ptr());
        rb_sys::rb_ary_concat(all, values[fixed]);
        values[0] = all;
        all
    }
}

/// What became of a batch that was not completed.
#[derive(Debug)]
pub(crate) struct Mishap {
    pub(crate) unwind: Unwind,
    pub(crate) row: Option<usize>,
}

impl From<Unwind> for Mishap {
    fn from(unwind: Unwind) -> Self {
        Mishap { unwind, row: None }
    }
}

/// Where a batch tells which row it is at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress<'a> {
    pub(crate) word: Option<&'a ProgressWord>,
    pub(crate) sequence: u32,
}

impl Progress<'_> {
    #[inline(always)]
    fn set(&self, row: u32) {
        if let Some(word) = self.word {
            word.set(self.sequence, row);
        }
    }
}

impl Function {
    /// Prepares what Ruby declared (`Crosslane::Declaration`), for arguments of these types if it takes any. What ends a
    /// program is for the program that the engine runs in (`host`), and in a worker a failed call.
    pub(crate) fn new(declared: Value, types: Option<&str>, host: bool) -> Result<Self, Error> {
        let signature: String = declared.funcall("signature", ())?;
        let mut signature: Signature = signature.parse().map_err(crate::argument_error)?;
        let mut admits_null: Vec<bool> = declared.funcall("admits_null", ())?;
        if let Some(types) = types {
            let rest = admits_null.pop_if(|_| signature.variadic).unwrap_or_default();
            signature = signature.for_types(types).map_err(crate::argument_error)?;
            admits_null.resize(signature.parameters.len(), rest);
            if admits_null.len() > MOST_ARGUMENTS {
                let count = admits_null.len();
                return Err(crate::argument_error(format!(
                    "called with {count} arguments: where one may be of any type, there are at most {MOST_ARGUMENTS}"
                )));
            }
        } else if signature.takes_any() {
            let what = format!("a call of {signature} without the types of its arguments");
            return Err(crate::argument_error(what));
        }
        let calling: String = declared.funcall("calling", ())?;
        let on_error: String = declared.funcall("on_error", ())?;
        let types: Vec<DataType> = signature.parameters.into_iter().map(|field| field.data_type).collect();
        let callee: Value = declared.funcall("callee", (host,))?;
        Ok(Self {
            callee: Callee::new(callee),
            _held: Held::new(callee),
            readers: types.iter().map(objects::reader).collect::<Result<_, _>>()?,
            writer: objects::writer(&signature.returns)?,
            types,
            variadic: signature.variadic,
            returns: signature.returns,
            admits_null,
            calling: match calling.as_str() {
                "vectorized" => Calling::Vectorized,
                "async" => Calling::Async,
                _ => Calling::Row,
            },
            host,
            leniency: Leniency {
                retries: declared.funcall("retries", ())?,
                on_error: on_error.parse().map_err(|error: String| crate::argument_error(error))?,
            },
            memory_limit: declared.funcall("memory_limit", ())?,
        })
    }

    /// Runs the function over a batch, into `out`.
    pub(crate) fn run(
        &self,
        columns: &[Column<'_>],
        rows: usize,
        progress: Progress<'_>,
        out: &mut ColumnBuilder,
    ) -> Result<Mishaps, Mishap> {
        let limit = self.memory_limit.and_then(MemoryLimit::set);
        // The columns whose NULLs the function does not want to see.
        let skipping: Vec<&Column<'_>> = columns
            .iter()
            .zip(&self.admits_null)
            .filter_map(|(column, admits)| (!admits && column.validity.is_some()).then_some(column))
            .collect();
        out.clear();
        out.reserve(rows).map_err(|overflow| exception(overflow.into()))?;
        let outcome = match self.calling {
            Calling::Row => self.run_rows(columns, rows, progress, &skipping, out),
            Calling::Async => self.run_concurrently(columns, rows, progress, &skipping, out),
            Calling::Vectorized => self.run_vectorized(columns, rows, progress, &skipping, out),
        };
        drop(limit);
        outcome
    }

    fn run_rows(
        &self,
        columns: &[Column<'_>],
        rows: usize,
        progress: Progress<'_>,
        skipping: &[&Column<'_>],
        out: &mut ColumnBuilder,
    ) -> Result<Mishaps, Mishap> {
        let arguments: Vec<Argument<'_, Vm>> = self
            .readers
            .iter()
            .zip(columns)
            .zip(&self.admits_null)
            .map(|((reader, column), sees_null)| Argument::new(reader, column, *sees_null))
            .collect();
        let mut mishaps = Mishaps::default();
        let mut row = 0;
        let mut tries = (0, 0);
        while row < rows {
            let mut fault = None;
            let mut work = || {
                let mut values = [Qnil as VALUE; MOST_PARAMETERS];
                while row < rows {
                    if skipping.iter().any(|column| !column.is_valid(row)) {
                        out.null();
                        row += 1;
                        continue;
                    }
                    progress.set(row as u32);
                    // SAFETY: protected, with the GVL, and nothing in this frame is to be dropped; a Proc is this
                    // frame's block.
                    unsafe {
                        let vm = Vm::new();
                        for (value, argument) in values.iter_mut().zip(&arguments) {
                            *value = made(argument.get(&vm, row));
                        }
                        let count = arguments.len() as c_int;
                        let result = match self.callee {
                            Callee::Proc(_) if self.variadic => {
                                rb_sys::rb_yield_splat(spread(&mut values, count))
                            }
                            Callee::Proc(_) => rb_sys::rb_yield_values2(count, values.as_ptr()),
                            callee => callee.call_with(&mut values, count, self.variadic),
                        };
                        if let Err(what) = self.writer.write(&vm, &result, out) {
                            fault = Some(what);
                            return;
                        }
                    }
                    row += 1;
                }
            };
            let outcome = match self.callee {
                Callee::Proc(block) => crate::rows::with_block(block, &mut work),
                _ => protect(work),
            };
            let unwind = match (outcome, fault) {
                (Err(unwind), _) => unwind,
                (Ok(()), Some(fault)) => exception(fault),
                (Ok(()), None) => break,
            };
            // The VM wanted the thread when all rows were done: no call has failed.
            if row == rows {
                return Err(unwind.into());
            }
            out.truncate(row);
            if tries.0 != row {
                tries = (row, 0);
            }
            match self.forgive(Mishap { unwind, row: Some(row) }, &mut tries.1, 1, &mut mishaps)? {
                Verdict::Again(_) => {}
                Verdict::Null => {
                    out.null();
                    row += 1;
                }
            }
        }
        Ok(mishaps)
    }

    fn run_vectorized(
        &self,
        columns: &[Column<'_>],
        rows: usize,
        progress: Progress<'_>,
        skipping: &[&Column<'_>],
        out: &mut ColumnBuilder,
    ) -> Result<Mishaps, Mishap> {
        let mut mishaps = Mishaps::default();
        let kept = |row: usize| skipping.iter().all(|column| column.is_valid(row));
        let count = (0..rows).filter(|row| kept(*row)).count();
        let mut tries = 0;
        loop {
            progress.set(u32::MAX);
            let mut fault = None;
            let mut written_row = None;
            let outcome = protect(|| {
                let mut values = [Qnil as VALUE; MOST_PARAMETERS];
                // SAFETY: protected, with the GVL, and nothing in this frame is to be dropped.
                let written = unsafe {
                    for ((value, reader), column) in values.iter_mut().zip(&self.readers).zip(columns) {
                        *value = rb_sys::rb_ary_new_capa(count as i64);
                        for row in (0..rows).filter(|row| kept(*row)) {
                            rb_sys::rb_ary_push(*value, made(reader.read(&Vm::new(), column, row)));
                        }
                    }
                    if self.variadic {
                        // All lists of a batch are of one length: so many columns more.
                        let rest = &mut values[columns.len() - 1];
                        *rest = rb_sys::rb_funcallv(*rest, intern(c"transpose"), 0, std::ptr::null());
                    }
                    let result = self.callee.call_with(&mut values, columns.len() as c_int, self.variadic);
                    let at = |row: usize| {
                        written_row = Some(row);
                        progress.set(row as u32 | WRITING);
                    };
                    self.write_array(result, rows, count, kept, at, out)
                };
                fault = written.err();
            });
            let unwind = match (outcome, fault) {
                (Err(unwind), _) => unwind,
                (Ok(()), Some(fault)) => exception(fault),
                (Ok(()), None) => return Ok(mishaps),
            };
            out.clear();
            let mishap = Mishap { unwind, row: written_row };
            match self.forgive(mishap, &mut tries, rows, &mut mishaps)? {
                Verdict::Again(_) => {}
                Verdict::Null => {
                    (0..rows).for_each(|_| out.null());
                    return Ok(mishaps);
                }
            }
        }
    }

    /// Adds the elements of an Array as the results of the rows that were called. `at` is told which is next.
    ///
    /// # Safety
    /// With the GVL, protected.
    unsafe fn write_array(
        &self,
        result: VALUE,
        rows: usize,
        count: usize,
        kept: impl Fn(usize) -> bool,
        mut at: impl FnMut(usize),
        out: &mut ColumnBuilder,
    ) -> Result<(), Fault> {
        // SAFETY: as the caller says.
        unsafe {
            let vm = Vm::new();
            let Ok(array) = objects::array(result) else {
                let what = format!(
                    "returned {} where a list of results is due",
                    vm.shown(&result).map_err(Fault::Failed)?
                );
                return Err(Fault::Refused(Class::Type, what));
            };
            let length = rb_sys::RARRAY_LEN(array) as usize;
            if length != count {
                let what = format!("returned {length} results for {count} rows");
                return Err(Fault::Refused(Class::Value, what));
            }
            let mut next = 0;
            for row in 0..rows {
                if kept(row) {
                    at(row);
                    self.writer.write(&vm, &rb_sys::rb_ary_entry(array, next), out)?;
                    next += 1;
                } else {
                    out.null();
                }
            }
        }
        Ok(())
    }

    /// Hands the rows to the runner (`Crosslane::Runner`), which calls on as many threads as the function may have.
    fn run_concurrently(
        &self,
        columns: &[Column<'_>],
        rows: usize,
        progress: Progress<'_>,
        skipping: &[&Column<'_>],
        out: &mut ColumnBuilder,
    ) -> Result<Mishaps, Mishap> {
        let mut mishaps = Mishaps::default();
        let mut fault = None;
        let mut row = 0;
        let mut failed = Qnil as VALUE;
        progress.set(u32::MAX);
        let clock = crate::serve::Clock::object(progress);
        let clock = clock.as_raw();
        let mut batch = Qnil as VALUE;
        let mut outcome = Qnil as VALUE;
        let mut value = Qnil as VALUE;
        let mut spent = 0;
        // Calls the runner with rows that were tried before. False if one of them failed for good.
        //
        // SAFETY: to be called protected, with the GVL; nothing in its frame is to be dropped.
        let call = |rows: VALUE, spent: u32, mishaps: &mut Mishaps, failed: &mut VALUE| unsafe {
            let arguments = [rows, clock, rb_sys::rb_uint2inum(spent as usize)];
            let outcome = self.callee.call(3, arguments.as_ptr());
            mishaps.errors += rb_sys::rb_num2int(rb_sys::rb_ary_entry(outcome, 1)) as u32;
            mishaps.retries += rb_sys::rb_num2int(rb_sys::rb_ary_entry(outcome, 2)) as u32;
            *failed = rb_sys::rb_ary_entry(outcome, 3);
            outcome
        };
        // How often a row of an outcome was tried again.
        //
        // SAFETY: as above.
        let tries = |outcome: VALUE, row: usize, known: u32| unsafe {
            let tries = rb_sys::rb_ary_entry(outcome, 5);
            let tries = rb_sys::rb_hash_lookup(tries, rb_sys::rb_uint2inum(row));
            if tries == Qnil as VALUE { known } else { rb_sys::rb_num2int(tries) as u32 }
        };
        protect(|| {
            // SAFETY: protected, with the GVL, and nothing in this frame is to be dropped.
            unsafe {
                batch = rb_sys::rb_ary_new_capa(rows as i64);
                for row in 0..rows {
                    if skipping.iter().any(|column| !column.is_valid(row)) {
                        rb_sys::rb_ary_push(batch, Qnil as VALUE);
                        continue;
                    }
                    let values = rb_sys::rb_ary_new_capa(columns.len() as i64);
                    for (reader, column) in self.readers.iter().zip(columns) {
                        rb_sys::rb_ary_push(values, made(reader.read(&Vm::new(), column, row)));
                    }
                    if self.variadic {
                        rb_sys::rb_ary_concat(values, rb_sys::rb_ary_pop(values));
                    }
                    rb_sys::rb_ary_push(batch, values);
                }
                outcome = call(batch, 0, &mut mishaps, &mut failed);
                if failed != Qnil as VALUE {
                    row = rb_sys::rb_num2int(rb_sys::rb_ary_entry(outcome, 4)) as usize;
                }
            }
        })?;
        // What cannot be a result is a failed call like any other.
        let mut again = false;
        while failed == Qnil as VALUE && row < rows {
            protect(|| {
                // SAFETY: as above.
                unsafe {
                    if again {
                        let alone = rb_sys::rb_ary_new_capa(1);
                        rb_sys::rb_ary_push(alone, rb_sys::rb_ary_entry(batch, row as i64));
                        let outcome = call(alone, spent, &mut mishaps, &mut failed);
                        if failed != Qnil as VALUE {
                            return;
                        }
                        value = rb_sys::rb_ary_entry(rb_sys::rb_ary_entry(outcome, 0), 0);
                        spent = tries(outcome, 0, spent);
                    }
                    while row < rows {
                        if !again {
                            value = rb_sys::rb_ary_entry(rb_sys::rb_ary_entry(outcome, 0), row as i64);
                            spent = tries(outcome, row, 0);
                        }
                        progress.set(row as u32 | WRITING);
                        if let Err(what) = self.writer.write(&Vm::new(), &value, out) {
                            fault = Some(what);
                            return;
                        }
                        again = false;
                        row += 1;
                    }
                }
            })?;
            let Some(what) = fault.take() else { continue };
            out.truncate(row);
            let mishap = Mishap { unwind: exception(what), row: Some(row) };
            again = match self.forgive(mishap, &mut spent, 1, &mut mishaps)? {
                Verdict::Again(_) => true,
                Verdict::Null => {
                    out.null();
                    row += 1;
                    false
                }
            };
        }
        if failed != Qnil as VALUE {
            return Err(Mishap { unwind: Unwind::Raise(failed), row: Some(row) });
        }
        Ok(mishaps)
    }

    /// What becomes of rows whose call failed, after `tries` more than the first: it pauses before another, and counts.
    /// The error itself if there is none, and the rows do not become NULL.
    fn forgive(
        &self,
        mishap: Mishap,
        tries: &mut u32,
        rows: usize,
        mishaps: &mut Mishaps,
    ) -> Result<Verdict, Mishap> {
        if matches!(mishap.unwind, Unwind::Jump(_)) || self.host && mishap.unwind.is_final() {
            return Err(mishap);
        }
        let verdict = mishaps.judge(self.leniency, mishap, tries, rows)?;
        if let Verdict::Again(time) = verdict {
            pause(time)?;
        }
        Ok(verdict)
    }
}

/// Waits before another try, without the lock.
fn pause(time: Duration) -> Result<(), Unwind> {
    let time = rb_sys::timeval { tv_sec: time.as_secs() as i64, tv_usec: i64::from(time.subsec_micros()) };
    // SAFETY: protected, and nothing in this frame is to be dropped.
    protect(|| unsafe { rb_sys::rb_thread_wait_for(time) })
}
