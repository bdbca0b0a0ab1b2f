//! What every guest does, in any language. A guest in Rust implements four traits.
//!
//! | trait | what a language says in it | what the language gets |
//! |---|---|---|
//! | [`Values`] | how values are made and read | columns as values, and back ([`Reader`], [`Writer`]) |
//! | [`Invoke`] | how a function is called | the rows of a [`Batch`]: NULLs, retries, errors |
//! | [`Language`] | waits, limits, the text of an error | the loop of a lane ([`serve`]) |
//! | [`Guest`] | how a file is loaded | the zygote: load, fork, reap, logs, signals ([`main`]) |
//!
//! The rules about numbers that do not fit, infinities, units of time and NULLs are here, so that
//! they are the same in each language. The traits are generic: no value passes through a virtual
//! call. `docs/protocol.md` has the guide.

mod aggregate;
mod calls;
mod declarations;
mod scan;
mod traceback;
mod values;
mod zygote;

pub use aggregate::{Accumulated, Aggregate, Aggregates, Groups};
pub use calls::{Batch, CallError, Function, Invoke, Language, Progress, done, fail, refuse, serve, succeed};
pub use crosslane_process::guest::{GuestLane, Room};
pub use crosslane_sandbox::Runtime;
pub use crosslane_sandbox::recorder::note_variable;
pub use declarations::{Declarations, Declared, SIZE_UNITS};
pub use scan::Rows;
pub use traceback::traceback;
pub use values::{
    Argument, Class, DAY, Fault, Integer, NULL_KEY, Reader, Refusal, Taken, Temporal, Values, Writer, Wrong,
    decimal_text, units_per_second,
};
pub use zygote::{Guest, Loaded, is_caught, live, lost_threads_note, main, readable, restrict};
