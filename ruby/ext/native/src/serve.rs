//! Serves the lanes of a forked worker as well as host lanes, which are threads of the engine's own process: finds what a
//! call is for.
//!
//! The GVL is given up while a lane waits; a signal, `Timeout` or `Thread#kill` ends the wait at once.

use crate::aggregate::Accumulated;
use crate::kept;
use crate::objects::Vm;
use crate::ready::{Ready, ready};
use crosslane::lane::COUNT;
use crosslane::{ColumnBuilder, Entry, Failure};
use crosslane_guest::{Language, Progress, done, fail, refuse};
use crosslane_gvl::{self as gvl, Me, Unwind};
use crosslane_process::guest::{Call, GuestLane};
use crosslane_ring::ProgressWord;
use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Module, RModule, Ruby, Value};
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::convert::Infallible;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a lane keeps of the functions that it has called.
#[derive(Default)]
pub(crate) struct Outs {
    /// Where it writes the results of scalar functions, by their numbers.
    columns: HashMap<u32, (Weak<Ready>, ColumnBuilder)>,
    /// What it has accumulated of aggregates, by their numbers.
    accumulated: HashMap<u32, (Weak<Ready>, Accumulated)>,
}

/// What is kept for a function. When one is new, what was kept for those that are no more is dropped.
fn kept_for<'a, T, E>(
    all: &'a mut HashMap<u32, (Weak<Ready>, T)>,
    number: u32,
    ready: &Arc<Ready>,
    new: impl FnOnce() -> Result<T, E>,
) -> Result<&'a mut T, E> {
    if !all.contains_key(&number) {
        all.retain(|_, (ready, _)| ready.strong_count() > 0);
    }
    match all.entry(number) {
        Occupied(known) => Ok(&mut known.into_mut().1),
        Vacant(place) => Ok(&mut place.insert((Arc::downgrade(ready), new()?)).1),
    }
}

/// Serves the calls of one lane until its engine closes it.
///
/// `memory` and `socket` are the descriptors that the engine sent; `functions` has the declarations by their numbers,
/// and may change. A host lane (`host`) keeps exceptions, so that they can be raised again.
pub(crate) fn serve(
    memory: i32,
    socket: i32,
    functions: Value,
    spin_microseconds: u64,
    host: bool,
) -> Result<(), Error> {
    // SAFETY: the zygote received both descriptors for this lane and gives them away here.
    let (memory, socket) = unsafe { (OwnedFd::from_raw_fd(memory), OwnedFd::from_raw_fd(socket)) };
    let spin = Duration::from_micros(spin_microseconds);
    // SAFETY: an engine sent them for this lane, which is opened here alone.
    let mut lane = unsafe { GuestLane::open(memory, socket, spin) }.map_err(io_error)?;
    // SAFETY: with the GVL, which is given up in waits alone.
    let vm = unsafe { Vm::calling(host) };
    let mut outs = Outs::default();
    while let Some(call) = vm.next_call(&mut lane)? {
        answer(&vm, functions, &mut lane, call, &mut outs)?;
    }
    Ok(())
}

/// Answers one call. Its frame is gone while the lane waits for the next: the collector takes any word there for an object.
#[inline(never)]
fn answer(
    vm: &Vm,
    functions: Value,
    lane: &mut GuestLane,
    call: Call,
    outs: &mut Outs,
) -> Result<(), Unwind> {
    let of_all = match call.entry() {
        Some(Entry::SetUp) if !vm.host => Some("set_up"),
        Some(Entry::TearDown) if !vm.host => Some("tear_down"),
        _ => None,
    };
    if let Some(method) = of_all {
        return done(vm, lane, call, stateful(method, functions).map_err(Unwind::from));
    }
    // A stream function knows the types of its batches.
    let types = if call.entry() == Some(Entry::Map) { None } else { lane.types(&call)? };
    match ready(vm, functions, call.header.function, types) {
        Ok(ready) => answer_by(vm, &ready, lane, call, outs),
        Err(error) => fail(vm, lane, call, Unwind::from(error).into()),
    }
}

/// Sets up all functions of a guest that need it, or ends that.
fn stateful(method: &str, functions: Value) -> Result<(), Error> {
    let ruby = Ruby::get().expect("with the GVL");
    let all: RModule = ruby.class_object().const_get::<_, RModule>("Crosslane")?.const_get("Prepares")?;
    let _: Value = all.funcall(method, (functions,))?;
    Ok(())
}

/// Answers one call of a function that is ready.
pub(crate) fn answer_by(
    vm: &Vm,
    ready: &Arc<Ready>,
    lane: &mut GuestLane,
    call: Call,
    outs: &mut Outs,
) -> Result<(), Unwind> {
    let number = call.header.function;
    match &**ready {
        Ready::Table(table) => table.answer(vm, lane, call),
        Ready::Aggregate(aggregate) => {
            match kept_for(&mut outs.accumulated, number, ready, || Accumulated::new(vm)) {
                Ok(accumulated) => aggregate.answer(vm, accumulated, lane, call),
                Err(unwind) => fail(vm, lane, call, unwind.into()),
            }
        }
        Ready::Scalar(function) if call.entry() == Some(Entry::Call) => {
            let Ok(out) =
                kept_for(&mut outs.columns, number, ready, || Ok::<_, Infallible>(function.ready.results()));
            function.ready.answer(vm, &function.callee, lane, call, out)
        }
        Ready::Scalar(_) => refuse(vm, lane, call, &call.refusal(), None),
    }
}

/// Waits on the lane without the GVL. `wait` is told when the VM wants the thread: then the caller lets it do what it wants
/// ([`gvl::check_interrupts`]). `None` if the wait was not even begun.
pub(crate) fn wait<T>(
    lane: &mut GuestLane,
    wait: impl FnOnce(&mut GuestLane, &dyn Fn() -> bool) -> T,
) -> Option<T> {
    let stop = AtomicBool::new(false);
    let alarm = lane.alarm();
    let me = Me::get();
    gvl::without(
        || wait(lane, &|| stop.load(Relaxed) || me.is_wanted()),
        || {
            stop.store(true, Relaxed);
            alarm.sound();
        },
    )
}

/// What ended a call, as the engine's users should read it.
pub(crate) fn describe(unwind: Unwind, host: bool) -> Result<Failure, Unwind> {
    let Unwind::Raise(raised) = unwind else { return Err(unwind) };
    // SAFETY: the exception lies on this stack.
    let exception = unsafe { Value::from_raw(raised) };
    let ruby = Ruby::get().expect("with the GVL");
    let errors: RModule = ruby.class_object().const_get::<_, RModule>("Crosslane")?.const_get("Errors")?;
    let (class, message, traceback): (String, String, String) = errors.funcall("describe", (exception,))?;
    let ticket = if host { kept::keep(raised) } else { 0 };
    Ok(Failure { class, message, traceback, ticket, ..Failure::default() })
}

pub(crate) fn io_error(error: std::io::Error) -> Error {
    Unwind::from(error).into_error()
}

/// Tells the engine how many rows of a batch are done, so that it can tell slow from stuck.
#[magnus::wrap(class = "Crosslane::Native::Clock", free_immediately)]
pub(crate) struct Clock {
    word: Option<ProgressWord>,
    sequence: u32,
}

impl Clock {
    pub(crate) fn object(progress: Progress<'_>) -> Result<Value, Unwind> {
        let clock = Clock { word: progress.word.cloned(), sequence: progress.sequence };
        gvl::made(|| Ruby::get().expect("with the GVL").obj_wrap(clock).as_value())
    }

    pub(crate) fn call(&self, done: u32) {
        if let Some(word) = &self.word {
            // The highest bit keeps a count from being taken for a row.
            word.set(self.sequence, done | COUNT);
        }
    }
}
