//! Serves a lane: finds the function of each call, and answers the call.
//!
//! Forked workers and host lanes run the same loop. A host lane is a thread of the engine's own
//! process.
//!
//! A lane waits without the GVL. A signal, `Timeout` or `Thread#kill` ends the wait at once.

use crate::errors::io_error;
use crate::functions::aggregate::Accumulated;
use crate::functions::callable::{Callable, callable};
use crate::values::Vm;
use crosslane::{ColumnBuilder, Entry};
use crosslane_guest::{Language, done, fail, refuse};
use crosslane_gvl::{Unwind, constant};
use crosslane_process::guest::{Call, GuestLane};
use magnus::value::ReprValue;
use magnus::{Error, RModule, Value};
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::convert::Infallible;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The buffers and states of a lane that later calls of a function reuse.
#[derive(Default)]
pub(crate) struct Reuse {
    /// The buffers for results of scalar functions, by the functions' numbers.
    columns: HashMap<u32, (Weak<Callable>, ColumnBuilder)>,
    /// The accumulated states of aggregates, by the functions' numbers.
    accumulated: HashMap<u32, (Weak<Callable>, Accumulated)>,
}

/// The entry of a function. When a new function is added, the entries of dropped functions are
/// removed.
fn reused<'a, T, E>(
    all: &'a mut HashMap<u32, (Weak<Callable>, T)>,
    number: u32,
    callable: &Arc<Callable>,
    new: impl FnOnce() -> Result<T, E>,
) -> Result<&'a mut T, E> {
    if !all.contains_key(&number) {
        all.retain(|_, (callable, _)| callable.strong_count() > 0);
    }
    match all.entry(number) {
        Occupied(known) => Ok(&mut known.into_mut().1),
        Vacant(place) => Ok(&mut place.insert((Arc::downgrade(callable), new()?)).1),
    }
}

/// Serves the calls of one lane until its engine closes it.
///
/// `memory` and `socket` are the descriptors that the engine sent. `functions` has the declarations
/// by number, and may change. A host lane (`host`) stores exceptions, so that the engine's thread
/// can raise them again.
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
    // SAFETY: an engine sent them for this lane, which is opened only here.
    let mut lane = unsafe { GuestLane::open(memory, socket, spin) }.map_err(io_error)?;
    // SAFETY: with the GVL, which is released only in waits.
    let vm = unsafe { Vm::calling(host) };
    let mut reuse = Reuse::default();
    while let Some(call) = vm.next_call(&mut lane)? {
        answer(&vm, functions, &mut lane, call, &mut reuse)?;
    }
    Ok(())
}

/// Answers one call. It has its own stack frame, which does not exist while the lane waits for the
/// next call. The collector scans the stack, and would keep any object there alive.
#[inline(never)]
fn answer(
    vm: &Vm,
    functions: Value,
    lane: &mut GuestLane,
    call: Call,
    reuse: &mut Reuse,
) -> Result<(), Unwind> {
    let of_all = match call.entry() {
        Some(Entry::SetUp) if !vm.host => Some(prepares("set_up", (functions, call.set_up_only()))),
        Some(Entry::TearDown) if !vm.host => Some(prepares("tear_down", (functions,))),
        _ => None,
    };
    if let Some(outcome) = of_all {
        return done(vm, lane, call, outcome.map_err(Unwind::from));
    }
    // A stream function knows the types of its batches itself.
    let types = if call.entry() == Some(Entry::Map) { None } else { lane.types(&call)? };
    match callable(vm, functions, call.header.function, types) {
        Ok(callable) => answer_by(vm, &callable, lane, call, reuse),
        Err(error) => fail(vm, lane, call, Unwind::from(error).into()),
    }
}

/// Runs the set-up or the tear-down of all stateful functions of a guest.
fn prepares(method: &str, arguments: impl magnus::ArgList) -> Result<(), Error> {
    let _: Value = constant::<RModule>("Crosslane::Prepares")?.funcall(method, arguments)?;
    Ok(())
}

/// Answers one call of a prepared function.
pub(crate) fn answer_by(
    vm: &Vm,
    callable: &Arc<Callable>,
    lane: &mut GuestLane,
    call: Call,
    reuse: &mut Reuse,
) -> Result<(), Unwind> {
    let number = call.header.function;
    match &**callable {
        Callable::Table(table) => table.answer(vm, lane, call),
        Callable::Aggregate(aggregate) => {
            match reused(&mut reuse.accumulated, number, callable, || Accumulated::new(vm)) {
                Ok(accumulated) => aggregate.answer(vm, accumulated, lane, call),
                Err(unwind) => fail(vm, lane, call, unwind.into()),
            }
        }
        Callable::Scalar(function) if call.entry() == Some(Entry::Call) => {
            let Ok(out) = reused(&mut reuse.columns, number, callable, || {
                Ok::<_, Infallible>(function.ready.results())
            });
            function.ready.answer(vm, &function.callee, lane, call, out)
        }
        Callable::Scalar(_) => refuse(vm, lane, call, &call.refusal(), None),
    }
}
