//! Crosslane's core: functions in other languages for parallel SQL engines.
//!
//! An engine finds a [`Function`] in a [`Library`] of its [`catalog`] and calls it with a batch:
//! [`call`] takes a [`lane::Lane`] from the library's [`pool::Pool`], submits the batch, or slices of it to
//! several lanes, and collects the results. This crate knows no engine and no guest language.

// Tests that are also those of users call this crate by its name.
#[cfg(test)]
extern crate self as crosslane;

pub mod batch;
pub mod builder;
pub mod calendar;
pub mod call;
pub mod catalog;
mod cost;
pub mod display;
mod error;
mod exchange;
mod function;
#[cfg(test)]
#[path = "../tests/it/idle.rs"]
mod idle;
mod instances;
pub mod integer;
mod kind;
pub mod lane;
mod leniency;
pub mod pool;
mod rows;
pub mod settings;
pub mod signature;
mod spread;
pub mod states;
pub mod stats;
mod type_names;
mod types;
mod unread;
pub mod values;
pub mod warmth;
mod wkb;

pub use builder::ColumnBuilder;
pub use error::{Error, Failure, Place, Stall, shortened};
pub use exchange::{Address, Entry, Exchanges, Part};
pub use function::{
    Calling, Function, FunctionSpec, LARGEST_MEMORY_LIMIT, LONGEST_TIMEOUT, Library, MOST_CONCURRENCY,
    MOST_RETRIES,
};
pub use instances::Instances;
pub use kind::{EntryTypes, Kind};
pub use leniency::{Leniency, OnError, Verdict};
pub use rows::Rows;
pub use settings::Settings;
pub use signature::Signature;
pub use type_names::TypeNames;
pub use types::{DataType, Field, Layout, MOST_LEVELS, MOST_MEMBERS, code_width, member, timetz};
pub use unread::Unread;
