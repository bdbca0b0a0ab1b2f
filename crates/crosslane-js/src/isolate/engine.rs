//! Starts V8. Defines the host's functions, and the outcomes of a call.

use super::ffi::{self, ClOutcome, ClText};
use crosslane::Failure;
use std::ffi::CStr;
use std::fmt;
use std::sync::Once;

/// Flags that keep V8 from adding methods when an isolate boots, because the snapshot has those methods
/// (`js/language`). Shared memory is off: no limit counts it. So is the older V8's WebAssembly.
#[cfg(not(node))]
macro_rules! version_flags {
    () => {
        "--no-expose-wasm --no-harmony-sharedarraybuffer --no-harmony-atomics --no-harmony-object-has-own \
         --no-harmony-relative-indexing-methods --no-harmony-array-find-last"
    };
}
/// V8 13.6 unrolls loops, and finds loops that need no check because they end soon. It takes some endless
/// loops for such ones: `for (;;) list.push(new Array(1000).fill(0.5))`. Nothing could end those.
/// The thread of a call compiles its WebAssembly, so that the limits of the call hold for the compiler, too. What
/// begins with `"use asm"` is not compiled as WebAssembly.
#[cfg(node)]
macro_rules! version_flags {
    () => {
        "--no-turboshaft-loop-unrolling --enable-sharedarraybuffer-per-context --no-js-atomics-pause --no-js-error-iserror \
         --no-js-explicit-resource-management --no-js-float16array --no-js-promise-try --no-js-regexp-escape \
         --no-js-source-phase-imports --wasm-sync-tier-up --no-validate-asm"
    };
}

/// How much of the C++ stack JavaScript may use, in bytes. The thread's stack must be larger.
pub const STACK: usize = 4 << 20;
/// Twice the most memory that V8 allocates at once: a string of 2^29 characters of two bytes, or an
/// array of 2^27 elements. V8's own heap limit has room for such objects. This crate enforces
/// another limit, `HardLimit` in `shim/limits.h`.
pub(crate) const LARGEST_OBJECTS: usize = 2 << 30;

/// Why a call was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// The call used more memory than its limit.
    Memory = 1,
    /// The call took too long.
    Timeout = 2,
    /// No caller waits for the call any more.
    Closed = 3,
    /// The process has no memory for a value that it passes. (4 is [`ffi::PROGRAM`].)
    NoMemory = 5,
    /// V8 found no memory for its heap, and V8's own limit is not the reason.
    NoHeap = 6,
    /// V8 cannot go on, for example because a value would exceed V8's largest size.
    Stuck = 7,
    /// The process that ran the call has ended.
    Lost = 8,
}

impl Reason {
    pub(crate) fn of(number: u32) -> Self {
        match number {
            1 => Reason::Memory,
            2 => Reason::Timeout,
            5 => Reason::NoMemory,
            6 => Reason::NoHeap,
            7 => Reason::Stuck,
            8 => Reason::Lost,
            _ => Reason::Closed,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Memory => "the script used more memory than it may",
            Reason::Timeout => "the script took too long",
            Reason::Closed => "the script was ended",
            Reason::NoMemory => {
                "the process has no memory for a value that passes into JavaScript or out of it"
            }
            Reason::NoHeap => "V8 found no memory for its heap: the system gives the process no more",
            Reason::Stuck => "V8 cannot go on: a value may exceed its largest size",
            Reason::Lost => "the process of the context has ended",
        })
    }
}

/// How a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Thrown {
    /// The call threw. The failure has a ticket if a function of the program caused it.
    #[error("{0}")]
    Exception(Failure),
    /// The call was ended. The text is the stack at that moment, if it is known.
    #[error("{}", format!("{_0}\n{_1}").trim_end())]
    Ended(Reason, String),
}

/// The functions of the host. An isolate calls them on the thread that uses the isolate. While one of
/// them runs, it may call the isolate again.
pub trait Host {
    /// Takes a text that `console` printed. `error` is true for errors and warnings.
    fn print(&self, error: bool, text: &str);
    /// Returns whether the call that [`Handle::end`] should end still runs. V8's thread calls this
    /// at a check.
    fn confirm(&self, _reason: Reason) -> bool {
        true
    }
    /// Reports that V8 cannot go on. The process ends when this returns.
    fn fatal(&self, reason: Reason, what: &str);
    /// Returns the path and the source of a module that another module (`referrer`) imports.
    ///
    /// # Errors
    /// The reason why there is none.
    fn resolve(&self, specifier: &str, referrer: &str) -> Result<(String, Vec<u8>), String> {
        Err(format!("cannot import {specifier} from {referrer} here"))
    }
    /// Calls an attached function of a program ([`crate::embed`]) with an encoded array.
    ///
    /// # Errors
    /// The name and the message of the error that JavaScript then sees, separated by a line end.
    fn call(&self, number: u32, _arguments: &[u8]) -> Result<Vec<u8>, String> {
        Err(format!("Error\nthere is no function {number}"))
    }
}

/// V8's flags. Collector threads take cores from other lanes, and cost a tenth of the throughput of text
/// functions. With short calls of V8's own code, an isolate whose code is far from it has a copy of it, of
/// 1.4 MB. The host's isolates are far if there are many: V8 would open a file to find room nearby.
const FLAGS: &str = concat!(
    "--no-short-builtin-calls --stack-size=3900 --single-threaded-gc --no-verify-snapshot-checksum ",
    version_flags!()
);

/// Starts V8, once per process.
pub(crate) fn initialize() {
    static ONCE: Once = Once::new();
    // SAFETY: called once, before any other call.
    ONCE.call_once(|| unsafe { ffi::cl_initialize(ClText::new(FLAGS.as_bytes())) });
}

/// Returns V8's version.
pub fn version() -> String {
    // SAFETY: a static text.
    unsafe { CStr::from_ptr(ffi::cl_version()) }.to_string_lossy().into_owned()
}

/// Returns the version of V8 for which this library was compiled, such as `13.6`.
#[cfg(node)]
pub(crate) fn built_for() -> &'static str {
    // SAFETY: a static text.
    unsafe { CStr::from_ptr(ffi::cl_built_for()) }.to_str().unwrap_or_default()
}

/// # Safety
/// The outcome's texts must be alive.
pub(crate) unsafe fn check(outcome: &ClOutcome) -> Result<(), Thrown> {
    // SAFETY: the caller guarantees that the texts are alive.
    let text = |text: ClText| unsafe { text.text() }.into_owned();
    match outcome.status {
        ffi::OK => Ok(()),
        ffi::EXCEPTION if outcome.reason == Reason::Memory as u32 => {
            Err(Thrown::Ended(Reason::Memory, text(outcome.stack)))
        }
        ffi::EXCEPTION => Err(Thrown::Exception(Failure {
            class: text(outcome.name),
            message: text(outcome.message),
            traceback: text(outcome.stack),
            ticket: u64::from(outcome.reason == ffi::PROGRAM),
            ..Failure::default()
        })),
        _ => Err(Thrown::Ended(Reason::of(outcome.reason), text(outcome.stack))),
    }
}
