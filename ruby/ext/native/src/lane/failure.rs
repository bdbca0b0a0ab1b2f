//! Exceptions as failures of calls.

use crate::lane::exceptions;
use crosslane::{Failure, RetryAfter};
use crosslane_gvl::{Unwind, constant};
use magnus::rb_sys::FromRawValue;
use magnus::value::ReprValue;
use magnus::{RModule, Value};
use rb_sys::VALUE;

/// The failure of a call, described for the engine's users.
pub(crate) fn describe(unwind: Unwind, host: bool) -> Result<Failure, Unwind> {
    let Unwind::Raise(raised) = unwind else { return Err(unwind) };
    // SAFETY: the exception lies on this stack.
    let exception = unsafe { Value::from_raw(raised) };
    let errors: RModule = constant("Crosslane::Errors")?;
    let retry_after = retry_after(raised)?;
    let (class, message, traceback): (String, String, String) = errors.funcall("describe", (exception,))?;
    let ticket = if host { exceptions::add(raised) } else { 0 };
    Ok(Failure { class, message, traceback, ticket, retry_after, ..Failure::default() })
}

/// The time that an exception names for the next try. It must lie on the caller's stack. With the
/// GVL.
pub(crate) fn retry_after(raised: VALUE) -> Result<Option<RetryAfter>, Unwind> {
    // SAFETY: the exception is alive, as the caller says.
    let exception = unsafe { Value::from_raw(raised) };
    let seconds: Option<f64> =
        constant::<RModule>("Crosslane::Errors")?.funcall("retry_after", (exception,))?;
    Ok(seconds.and_then(RetryAfter::seconds))
}
