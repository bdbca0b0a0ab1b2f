//! Aggregates of files and of the program: the Ruby part of [`crosslane_guest::Aggregate`].
//!
//! The states of a lane are in an Array, at the indexes of their numbers. A state is an object of
//! the declared class, or a value that a block returned.

use crate::functions::scalar::{Arguments, Callee, PLACES};
use crate::signature::specification;
use crate::values::{Held, Vm, send};
use crosslane_guest::Aggregates;
use crosslane_gvl::{Unwind, made};
use crosslane_process::guest::{Call, GuestLane};
use magnus::rb_sys::AsRawValue;
use magnus::value::ReprValue;
use magnus::{Error, Ruby, Value};
use rb_sys::{Qnil, VALUE};
use std::ffi::c_int;

/// An aggregate that Ruby declared (`Crosslane::Aggregate`).
#[derive(Debug)]
pub(crate) struct Aggregate {
    ready: crosslane_guest::Aggregate<Vm>,
    callee: Callee,
}

/// The states that a lane has accumulated for one aggregate.
pub(crate) type Accumulated = crosslane_guest::Accumulated<Vm>;

impl Aggregate {
    pub(crate) fn new(vm: &Vm, declared: Value) -> Result<Self, Error> {
        let ready = crosslane_guest::Aggregate::new(vm, &specification(declared)?)?;
        Ok(Self { ready, callee: Callee::of_states(declared, declared.funcall("step", ())?)? })
    }

    pub(crate) fn answer(
        &self,
        vm: &Vm,
        accumulated: &mut Accumulated,
        lane: &mut GuestLane,
        call: Call,
    ) -> Result<(), Unwind> {
        self.ready.answer(vm, &self.callee, accumulated, lane, call)
    }
}

/// All methods are called protected, as `Language` requires.
impl Aggregates for Vm {
    type States = Held;

    fn states(&self) -> Result<Held, Unwind> {
        let array = made(|| Ruby::get().expect("with the GVL").ary_new())?;
        Held::new(array.as_value())
    }

    /// The Array itself represents a state that is nil. A nil entry means that there is no state.
    #[inline]
    fn state(&self, states: &Held, number: usize) -> Option<VALUE> {
        let array = states.get().as_raw();
        let nil = Qnil as VALUE;
        // SAFETY: with the GVL.
        match unsafe { rb_sys::rb_ary_entry(array, number as i64) } {
            none if none == nil => None,
            itself if itself == array => Some(nil),
            state => Some(state),
        }
    }

    #[inline]
    fn keep(&self, states: &mut Held, number: usize, state: Option<VALUE>) {
        let array = states.get().as_raw();
        let nil = Qnil as VALUE;
        let stored = match state {
            None => nil,
            Some(state) if state == nil => array,
            Some(state) => state,
        };
        // SAFETY: protected.
        unsafe { rb_sys::rb_ary_store(array, number as i64, stored) };
    }

    fn start(&self, callee: &Callee) -> Result<VALUE, Unwind> {
        // SAFETY: protected.
        Ok(unsafe { send(callee.raw(), c"start", &[]) })
    }

    fn update(&self, callee: &Callee, state: VALUE, arguments: &mut Arguments) -> Result<VALUE, Unwind> {
        let (update, step) = callee.update();
        let (count, values) = arguments.taken();
        // SAFETY: protected; there are so many arguments, which lie on the stack until they are
        // emptied.
        let state = unsafe {
            match step {
                None => {
                    rb_sys::rb_funcallv(state, update, count as c_int, values.as_ptr());
                    state
                }
                Some(step) => {
                    let mut all = [Qnil as VALUE; PLACES + 1];
                    all[0] = state;
                    all[1..=count].copy_from_slice(&values[..count]);
                    rb_sys::rb_funcallv(step, update, count as c_int + 1, all.as_ptr())
                }
            }
        };
        arguments.clear();
        Ok(state)
    }

    fn merge(&self, callee: &Callee, state: VALUE, other: VALUE) -> Result<VALUE, Unwind> {
        // SAFETY: protected.
        Ok(unsafe { send(callee.raw(), c"merge", &[state, other]) })
    }

    fn finish(&self, callee: &Callee, state: VALUE) -> Result<VALUE, Unwind> {
        // SAFETY: protected.
        Ok(unsafe { send(callee.raw(), c"finish", &[state]) })
    }

    fn copy(&self, callee: &Callee, state: VALUE) -> Result<VALUE, Unwind> {
        // SAFETY: protected.
        Ok(unsafe { send(callee.raw(), c"copy", &[state]) })
    }

    fn save(&self, callee: &Callee, state: VALUE) -> Result<VALUE, Unwind> {
        // SAFETY: protected.
        Ok(unsafe { send(callee.raw(), c"save", &[state]) })
    }

    fn load(&self, callee: &Callee, saved: VALUE) -> Result<VALUE, Unwind> {
        // SAFETY: protected.
        Ok(unsafe { send(callee.raw(), c"load", &[saved]) })
    }
}
