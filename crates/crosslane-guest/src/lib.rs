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

mod batch;
mod calls;
mod declared;
mod function;
mod groups;
mod numbers;
mod parts;
mod places;
mod reader;
mod scan;
mod states;
mod values;
mod writer;
mod zygote;

pub use batch::{Batch, Mishap, Progress};
pub use calls::{Language, done, fail, refuse, serve, succeed};
pub use crosslane_process::guest::{GuestLane, Room};
pub use declared::{Declarations, Declared, SIZE_UNITS};
pub use function::Function;
pub use groups::{Collected, Groups, Sorted};
pub use numbers::decimal_text;
pub use places::traceback;
pub use reader::{Argument, Reader};
pub use scan::Rows;
pub use states::{Accumulated, Aggregate, Aggregates};
pub use values::{
    Class, DAY, Fault, Integer, Moment, NULL_KEY, Refusal, Taken, Values, Wrong, units_per_second,
};
pub use writer::Writer;
pub use zygote::{Guest, Loaded, live, main, note, readable};
