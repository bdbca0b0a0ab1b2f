//! Exceptions as failures of calls.

use crate::lane::exceptions;
use crosslane::Failure;
use crosslane_gvl::Unwind;
use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{Module, RModule, Ruby, Value};

/// The failure of a call, described for the engine's users.
pub(crate) fn describe(unwind: Unwind, host: bool) -> Result<Failure, Unwind> {
    let Unwind::Raise(raised) = unwind else { return Err(unwind) };
    // SAFETY: the exception lies on this stack.
    let exception = unsafe { Value::from_raw(raised) };
    let ruby = Ruby::get().expect("with the GVL");
    let errors: RModule = ruby.class_object().const_get::<_, RModule>("Crosslane")?.const_get("Errors")?;
    let (class, message, traceback): (String, String, String) = errors.funcall("describe", (exception,))?;
    let ticket = if host { exceptions::add(raised) } else { 0 };
    Ok(Failure { class, message, traceback, ticket, ..Failure::default() })
}
