//! Ruby as a language of `crosslane-guest`, and its types of errors.

use crosslane_gvl::Unwind;
use rb_sys::VALUE;

/// Why a call failed.
pub(crate) type CallError = crosslane_guest::CallError<Unwind>;
/// Why an object is no value of a column.
pub(crate) type Fault = crosslane_guest::Fault<Unwind>;
pub(super) type Made = Result<VALUE, Unwind>;
pub(super) type Written = Result<(), Fault>;

/// Ruby, as a thread with the GVL uses it.
///
/// Its errors are jumps: what makes or takes an object may be left by one, to the [`crosslane_gvl::protect`] around it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vm {
    /// Whether it calls for the engine in its own process. Then what ends a program is for that program, and in a worker it
    /// is a failed call.
    pub(crate) host: bool,
}

impl Vm {
    /// # Safety
    /// With the GVL, as long as it is used. What makes or takes an object is called protected, by frames that hold nothing
    /// that is to be dropped.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Self { host: false }
    }

    /// To call functions, for the engine in this process or for another.
    ///
    /// # Safety
    /// As [`Vm::new`].
    pub(crate) unsafe fn calling(host: bool) -> Self {
        Self { host }
    }
}
