//! Ruby as a language of `crosslane-guest`, and the error types.

use crosslane_gvl::Unwind;
use rb_sys::VALUE;

/// The error of a failed call.
pub(crate) type CallError = crosslane_guest::CallError<Unwind>;
/// The reason why an object is not a valid value for a column.
pub(crate) type Fault = crosslane_guest::Fault<Unwind>;
pub(super) type Made = Result<VALUE, Unwind>;
pub(super) type Written = Result<(), Fault>;

/// Ruby, for use by a thread with the GVL.
///
/// Its errors are jumps. A function that makes or takes an object may end with a jump to the
/// [`crosslane_gvl::protect`] around it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vm {
    /// Whether it calls functions for the engine in its own process. Then an exception that ends a
    /// program is raised to the program. In a worker, such an exception is a failed call.
    pub(crate) host: bool,
}

impl Vm {
    /// # Safety
    /// With the GVL, as long as it is used. Functions that make or take an object are called
    /// protected, by frames that hold nothing that must be dropped.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self { host: false }
    }

    /// For calls of functions, for the engine in this process or in another one.
    ///
    /// # Safety
    /// As [`Vm::new`].
    pub(crate) unsafe fn calling(host: bool) -> Self {
        Self { host }
    }
}
