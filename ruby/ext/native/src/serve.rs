//! The guest's loop: take a batch, call the function, answer. It serves the lanes of a forked worker as well as
//! host lanes, which are threads of the engine's own process.
//!
//! The GVL is given up while a lane waits; a signal, `Timeout` or `Thread#kill` ends the wait at once.

use crate::argument_error;
use crate::function::{Function, Mishap, Progress};
use crate::table::Table;
use crosslane::lane::COUNT;
use crosslane::{ColumnBuilder, Failure};
use crosslane_gvl::Unwind;
use crosslane_gvl::{self as gvl, Me};
use crosslane_process::guest::{Call, GuestLane, Next};
use crosslane_ring::ProgressWord;
use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Module, RArray, RModule, Ruby, Value};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

enum Prepared {
    Function(Box<Function>, ColumnBuilder),
    Table(Box<Table>),
}

/// Serves the calls of one lane until its engine closes it.
///
/// `memory` and `socket` are the descriptors that the engine sent; `functions` are the declarations, in the order
/// of their indices, and may grow. A host lane (`host`) keeps exceptions, so that they can be raised again.
pub(crate) fn serve(
    memory: i32,
    socket: i32,
    functions: RArray,
    spin_microseconds: u64,
    host: bool,
) -> Result<(), Error> {
    // SAFETY: the zygote received both descriptors for this lane and gives them away here.
    let (memory, socket) = unsafe { (OwnedFd::from_raw_fd(memory), OwnedFd::from_raw_fd(socket)) };
    let spin = Duration::from_micros(spin_microseconds);
    // SAFETY: an engine sent them for this lane, which is opened here alone.
    let mut lane = unsafe { GuestLane::open(memory, socket, spin) }.map_err(io_error)?;
    let mut prepared: Vec<Option<Prepared>> = Vec::new();
    while let Some(call) = next_call(&mut lane)? {
        let index = call.header.function as usize;
        let declared: Value = functions.entry(index as isize)?;
        if declared.is_nil() {
            return Err(argument_error(format!("a call of function {index} of {}", functions.len())));
        }
        prepared.resize_with(prepared.len().max(index + 1), || None);
        if prepared[index].is_none() {
            match prepare(declared, host) {
                Ok(ready) => prepared[index] = Some(ready),
                Err(error) => {
                    let failure = describe(Unwind::from(error), declared, host)?;
                    lane.fail(call, &failure, None).map_err(io_error)?;
                    continue;
                }
            }
        }
        match &mut prepared[index] {
            Some(Prepared::Function(function, out)) => {
                answer(function, out, &mut lane, call, declared, host)?;
            }
            Some(Prepared::Table(table)) => table.answer(&mut lane, call, declared, host)?,
            None => {}
        }
    }
    Ok(())
}

fn prepare(declared: Value, host: bool) -> Result<Prepared, Error> {
    let kind: String = declared.funcall("kind", ())?;
    if kind == "table" {
        return Ok(Prepared::Table(Box::new(Table::new(declared)?)));
    }
    let function = Function::new(declared, host)?;
    let out = ColumnBuilder::new(&function.returns);
    Ok(Prepared::Function(Box::new(function), out))
}

/// Waits for the next call without the GVL; `None` when the engine has closed the lane.
pub(crate) fn next_call(lane: &mut GuestLane) -> Result<Option<Call>, Error> {
    loop {
        let stop = AtomicBool::new(false);
        let alarm = lane.alarm();
        let me = Me::get();
        let next = gvl::without(
            || lane.next_call_or(|| stop.load(Relaxed) || me.is_wanted()),
            || {
                stop.store(true, Relaxed);
                alarm.sound();
            },
        );
        gvl::check_interrupts()?;
        match next {
            Some(Ok(Next::Call(call))) => return Ok(Some(call)),
            Some(Ok(Next::Closed)) => return Ok(None),
            Some(Ok(Next::Stopped)) | None => {}
            Some(Err(error)) => return Err(io_error(error)),
        }
    }
}

fn answer(
    function: &Function,
    out: &mut ColumnBuilder,
    lane: &mut GuestLane,
    call: Call,
    declared: Value,
    host: bool,
) -> Result<(), Error> {
    let outcome = {
        let columns = lane.columns(function.types.iter()).map_err(io_error)?;
        let progress = Progress { word: Some(lane.progress()), sequence: call.header.sequence as u32 };
        function.run(&columns, call.header.rows as usize, progress, out)
    };
    match outcome {
        Ok(mishaps) => lane.succeed(call, out, mishaps).map_err(io_error),
        Err(Mishap { unwind: Unwind::Jump(state), .. }) => Err(Unwind::Jump(state).into_error()),
        Err(Mishap { unwind, row }) => {
            let failure = describe(unwind, declared, host)?;
            lane.fail(call, &failure, row).map_err(io_error)
        }
    }
}

/// What ended a call, as the engine's users should read it.
pub(crate) fn describe(unwind: Unwind, declared: Value, host: bool) -> Result<Failure, Error> {
    let Unwind::Raise(exception) = unwind else { return Err(unwind.into_error()) };
    // SAFETY: the exception lies on this stack.
    let exception = unsafe { Value::from_raw(exception) };
    let ruby = Ruby::get().expect("with the GVL");
    let errors: RModule = ruby.class_object().const_get::<_, RModule>("Crosslane")?.const_get("Errors")?;
    let file: String = declared.funcall("file", ())?;
    let (class, message, traceback): (String, String, String) =
        errors.funcall("describe", (exception, file))?;
    let ticket = if host { errors.funcall("keep", (exception,))? } else { 0 };
    Ok(Failure { class, message, traceback, ticket })
}

pub(crate) fn io_error(error: std::io::Error) -> Error {
    Error::new(Ruby::get().expect("with the GVL").exception_io_error(), error.to_string())
}

/// Tells the engine how many rows of a batch are done, so that it can tell slow from stuck.
#[magnus::wrap(class = "Crosslane::Native::Clock", free_immediately)]
pub(crate) struct Clock {
    word: Option<ProgressWord>,
    sequence: u32,
}

impl Clock {
    pub(crate) fn object(progress: Progress<'_>) -> Value {
        let clock = Clock { word: progress.word.cloned(), sequence: progress.sequence };
        Ruby::get().expect("with the GVL").obj_wrap(clock).as_value()
    }

    pub(crate) fn call(&self, done: u32) {
        if let Some(word) = &self.word {
            // The highest bit keeps a count from being taken for a row.
            word.set(self.sequence, done | COUNT);
        }
    }
}
