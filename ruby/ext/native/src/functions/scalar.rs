//! Calls of functions, in the guest and in host lanes. The loop over the rows is in
//! `crosslane-guest`.
//!
//! A whole batch runs in one `rb_protect`, so a call costs no more than Ruby's own.

use crate::errors::argument_error;
use crate::functions::{block, concurrent};
use crate::lane::failure::{describe, retry_after};
use crate::lane::wait::wait;
use crate::signature::specification;
use crate::values::{CallError, Held, Vm, intern};
use crosslane::{ColumnBuilder, Entry, Failure, RetryAfter};
use crosslane_guest::{Batch, Invoke, Language};
use crosslane_gvl::{self as gvl, Unwind, protect};
use crosslane_process::guest::{Call, Emitted, GuestLane, Next, Room, RowCounts};
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, RArray, Value};
use rb_sys::{Qnil, Qtrue, VALUE};
use std::ffi::{CStr, c_int};
use std::time::Duration;

/// The number of argument values on the stack, where the collector finds them. It is also the limit
/// of the parameters.
pub(crate) const PLACES: usize = 66;
/// The most arguments of a call of a function with parameters of type ANY.
const MOST_ARGUMENTS: usize = 64;

/// A declared scalar function, ready to be called.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) ready: crosslane_guest::Function<Vm>,
    pub(crate) callee: Callee,
}

impl Function {
    /// Prepares a declaration (`Crosslane::Declaration`). `types` are the arguments' types if a
    /// parameter has the type ANY.
    pub(crate) fn new(vm: &Vm, declared: Value, types: Option<&str>) -> Result<Self, Error> {
        let spec = specification(declared)?;
        let ready = crosslane_guest::Function::new(vm, &spec, Entry::Call, types)?;
        let count = ready.types().len();
        if types.is_some() && count > MOST_ARGUMENTS {
            return Err(argument_error(format!(
                "called with {count} arguments: where one may be of any type, there are at most {MOST_ARGUMENTS}"
            )));
        }
        let callee = Callee::new(declared.funcall("callee", (vm.host,))?)?;
        let leading: RArray = declared.funcall("leading", ())?;
        Ok(Self { ready, callee: callee.behind(leading)? })
    }
}

/// The object that is called, and the way of calling it.
#[derive(Debug)]
pub(crate) struct Callee {
    kind: Kind,
    object: Held,
    /// An argument that precedes those of each call.
    leading: Option<Held>,
}

#[derive(Debug)]
enum Kind {
    Proc,
    Method,
    /// An object with a method of this name.
    Named(rb_sys::ID),
    /// An aggregate: the method that adds a row, and its receiver. Without a receiver, the state
    /// itself is the receiver.
    States(rb_sys::ID, Option<Held>),
}

impl Callee {
    fn new(object: Value) -> Result<Self, Unwind> {
        let raw = object.as_raw();
        // SAFETY: asking for a class raises nothing.
        let kind = unsafe {
            if rb_sys::rb_obj_is_proc(raw) == Qtrue as VALUE {
                Kind::Proc
            } else if rb_sys::rb_obj_is_kind_of(raw, rb_sys::rb_cMethod) == Qtrue as VALUE {
                Kind::Method
            } else {
                return Self::of_method(object, c"call");
            }
        };
        Ok(Self { kind, object: Held::new(object)?, leading: None })
    }

    /// Adds the leading argument, if the Array has one.
    fn behind(self, leading: RArray) -> Result<Self, Error> {
        let leading = if leading.is_empty() { None } else { Some(Held::new(leading.entry(0)?)?) };
        Ok(Self { leading, ..self })
    }

    /// An object of which a method is called.
    fn of_method(object: Value, name: &CStr) -> Result<Self, Unwind> {
        // SAFETY: protected, with the GVL.
        let name = gvl::made(|| unsafe { intern(name) })?;
        Ok(Self { kind: Kind::Named(name), object: Held::new(object)?, leading: None })
    }

    /// An aggregate. `step` is called with a state and a row. If it is nil, the state itself takes
    /// the row.
    pub(crate) fn of_states(declared: Value, step: Value) -> Result<Self, Unwind> {
        let (name, step) = if step.is_nil() { (c"update", None) } else { (c"call", Some(Held::new(step)?)) };
        // SAFETY: protected, with the GVL.
        let name = gvl::made(|| unsafe { intern(name) })?;
        Ok(Self { kind: Kind::States(name, step), object: Held::new(declared)?, leading: None })
    }

    /// The method that adds a row to a state, and its receiver unless it is the state itself. With
    /// the GVL.
    pub(crate) fn update(&self) -> (rb_sys::ID, Option<VALUE>) {
        match &self.kind {
            Kind::States(name, step) => (*name, step.as_ref().map(|step| step.get().as_raw())),
            Kind::Named(name) => (*name, None),
            Kind::Proc | Kind::Method => unreachable!("a scalar function has no states"),
        }
    }

    /// The object. With the GVL.
    #[inline(always)]
    pub(crate) fn raw(&self) -> VALUE {
        self.object.get().as_raw()
    }
}

/// The arguments of a call. They are on the stack, where the collector finds them.
pub(crate) struct Arguments {
    values: [VALUE; PLACES],
    count: usize,
    /// An Array of all arguments, if `values` is too small.
    all: VALUE,
}

impl Arguments {
    /// The arguments of a function with a fixed number of parameters.
    pub(crate) fn taken(&self) -> (usize, &[VALUE; PLACES]) {
        (self.count, &self.values)
    }

    /// Removes the arguments.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// # Safety
    /// With the GVL, protected.
    #[cold]
    unsafe fn push_beyond(&mut self, value: VALUE) {
        // SAFETY: as the caller says; all places have values.
        unsafe {
            if self.all == Qnil as VALUE {
                self.all = rb_sys::rb_ary_new_from_values(PLACES as i64, self.values.as_ptr());
            }
            rb_sys::rb_ary_push(self.all, value);
        }
    }
}

/// Code that runs within `enter` is protected. "Protected" means this in the SAFETY comments below.
impl Invoke for Vm {
    type Callee = Callee;
    type Arguments = Arguments;

    #[inline]
    fn enter(&self, callee: &Callee, mut work: impl FnMut(&mut Arguments)) -> Result<(), Unwind> {
        let mut work = || {
            let nil = Qnil as VALUE;
            let mut arguments = Arguments { values: [nil; PLACES], count: 0, all: nil };
            if let Some(leading) = &callee.leading {
                arguments.values[0] = leading.get().as_raw();
                arguments.count = 1;
            }
            work(&mut arguments);
        };
        match callee.kind {
            // `yield` is the fastest way to call a block.
            Kind::Proc => block::with_block(callee.raw(), &mut work),
            _ => protect(work),
        }
    }

    #[inline(always)]
    fn argument(&self, arguments: &mut Arguments, value: VALUE) {
        match arguments.values.get_mut(arguments.count) {
            Some(place) => {
                *place = value;
                arguments.count += 1;
            }
            // SAFETY: protected.
            None => unsafe { arguments.push_beyond(value) },
        }
    }

    #[inline(always)]
    fn call(&self, callee: &Callee, arguments: &mut Arguments) -> Result<VALUE, Unwind> {
        let Arguments { values, count, all } = arguments;
        // SAFETY: protected; there are so many arguments, which the collector sees until they are
        // emptied. A Proc is the block of the frame that was entered.
        let result = unsafe {
            let (count, values) = match *all == Qnil as VALUE {
                true => (*count as c_int, values.as_ptr()),
                false => (rb_sys::RARRAY_LEN(*all) as c_int, rb_sys::RARRAY_CONST_PTR(*all)),
            };
            match callee.kind {
                Kind::Proc => rb_sys::rb_yield_values2(count, values),
                Kind::Method => rb_sys::rb_method_call(count, values, callee.raw()),
                Kind::Named(name) | Kind::States(name, _) => {
                    rb_sys::rb_funcallv(callee.raw(), name, count, values)
                }
            }
        };
        *count = usize::from(callee.leading.is_some());
        *all = Qnil as VALUE;
        Ok(result)
    }

    fn is_final(&self, error: &Unwind) -> bool {
        matches!(error, Unwind::Jump(_)) || self.host && error.is_final()
    }

    fn retry_after(&self, error: &Unwind) -> Result<Option<RetryAfter>, Unwind> {
        if let Unwind::Raise(raised) = error { retry_after(*raised) } else { Ok(None) }
    }

    /// Pauses without the GVL.
    fn pause(&self, time: Duration) -> Result<(), Unwind> {
        let time =
            rb_sys::timeval { tv_sec: time.as_secs() as i64, tv_usec: i64::from(time.subsec_micros()) };
        // SAFETY: protected, and nothing in this frame needs to be dropped.
        protect(|| unsafe { rb_sys::rb_thread_wait_for(time) })
    }
}

impl Language for Vm {
    fn run_concurrently(
        &self,
        batch: &Batch<'_, Self>,
        out: &mut ColumnBuilder,
    ) -> Result<RowCounts, CallError> {
        concurrent::run(batch, out)
    }

    fn describe(&self, error: Unwind) -> Result<Failure, Unwind> {
        describe(error, self.host)
    }

    fn next_call(&self, lane: &mut GuestLane) -> Result<Option<Call>, Unwind> {
        loop {
            let next = wait(lane, |lane, stop| lane.next_call_or(stop));
            gvl::check_interrupts()?;
            match next.transpose()? {
                Some(Next::Call(call)) => return Ok(Some(call)),
                Some(Next::Closed) => return Ok(None),
                Some(Next::Stopped | Next::Cancelled) | None => {}
            }
        }
    }

    /// Waits without the GVL: other threads of this process need not wait for the engine.
    fn wait_for_room(&self, lane: &mut GuestLane, size: usize) -> Result<(), Unwind> {
        // In most cases there is room.
        while !lane.wait_for_room_or(size, || true)? {
            let waited = wait(lane, |lane, stop| lane.wait_for_room_or(size, stop));
            gvl::check_interrupts()?;
            waited.transpose()?;
        }
        Ok(())
    }

    /// Waits without the GVL. A cancel is reported at once, even if another event ended the wait.
    fn await_room(&self, lane: &mut GuestLane, call: &Call, room: Room) -> Result<bool, Unwind> {
        // In most cases there is room.
        let mut waited = Some(lane.await_room(call, room, || true));
        loop {
            match waited {
                Some(Ok(Emitted::Sent)) => return Ok(true),
                Some(Ok(Emitted::Cancelled) | Err(_)) => return Ok(false),
                Some(Ok(Emitted::Stopped | Emitted::Failed(_))) | None => {}
            }
            waited = wait(lane, |lane, stop| lane.await_room(call, room, stop));
            if !matches!(waited, Some(Ok(Emitted::Cancelled) | Err(_))) {
                gvl::check_interrupts()?;
            }
        }
    }
}
