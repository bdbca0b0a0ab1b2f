//! Crosslane's core: functions in other languages for parallel SQL engines.
//!
//! An engine finds a [`Function`] in a [`Library`] of its [`catalog`] and calls it with a batch.
//! The [`call`] takes a [`lane::Lane`] from the library's [`pool::Pool`]. It submits the batch to
//! this lane, or slices of the batch to several lanes, and collects the results. This crate knows
//! no engine and no guest language.

// The unit tests and the integration tests share `tests/it/idle.rs`, which uses this crate by its
// name.
#[cfg(test)]
extern crate self as crosslane;

pub mod batch;
pub mod call;
mod cost;
pub mod ddl;
mod error;
pub mod function;
#[cfg(test)]
#[path = "../tests/it/idle.rs"]
mod idle;
pub mod lane;
mod lock;
pub mod pool;
mod sandbox;
pub mod settings;
pub mod states;
pub mod stats;
pub mod trace;
pub mod types;

pub use batch::{Borrowed, ColumnBuilder, Rows, builder, member};
pub use error::{Error, Failure, Place, Stall, beginning, shortened};
pub use function::{
    Calling, EntryTypes, ErrorPolicy, Function, FunctionSpec, Instances, Kind, LARGEST_MEMORY_LIMIT,
    LONGEST_TIMEOUT, Library, MOST_BATCH, MOST_BUDGET, MOST_CONCURRENCY, MOST_RETRIES, MOST_WORKERS, OnError,
    RetryAfter, Store, Verdict, catalog,
};
pub use lane::{Address, Entry, Exchanges, Part};
pub use lock::lock;
pub use pool::warm_limit;
pub use sandbox::{Host, Net, Sandbox};
pub use settings::Settings;
pub use types::{
    DataType, Field, Layout, MOST_LEVELS, MOST_MEMBERS, Signature, TypeNames, calendar, code_width, display,
    integer, signature, timetz, values,
};
