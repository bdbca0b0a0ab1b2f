//! What every guest does, whatever its language: a guest in Rust implements three traits and is done.
//!
//! | trait | what a language says there | what it gets for it |
//! |---|---|---|
//! | [`Values`] | how its values are made, and what they hold | columns as values and back ([`Reader`], [`Writer`]) |
//! | [`Language`] | how a function is called, what an error says | the loop: NULLs, retries, limits, failures ([`serve`]) |
//! | [`Guest`] | how a file is loaded | the zygote: load, fork, reap, logs, signals ([`main`]) |
//!
//! All rules about numbers that do not fit, infinities, units of time and NULLs are here, so that they are the same in
//! each language. The traits are generic: no value passes through a virtual call. `docs/protocol.md` has the guide.

mod aggregate;
mod calls;
mod declarations;
mod scan;
mod traceback;
mod values;
mod zygote;

pub use aggregate::{Accumulated, Aggregate, Aggregates, Collected, Groups, Sorted};
pub use calls::{Batch, CallError, Function, Invoke, Language, Progress, done, fail, refuse, serve, succeed};
pub use crosslane_process::guest::{GuestLane, Room};
pub use declarations::{Declarations, Declared, SIZE_UNITS};
pub use scan::Rows;
pub use traceback::traceback;
pub use values::{
    Argument, Class, DAY, Fault, Integer, Moment, NULL_KEY, Reader, Refusal, Taken, Values, Writer, Wrong,
    decimal_text, units_per_second,
};
pub use zygote::{Guest, Loaded, live, lost_threads_note, main, readable};
