//! Functions, the libraries that they come from, and the catalog of all libraries.

pub mod catalog;
mod declared;
mod instances;
mod kind;
mod on_error;

pub use declared::{
    Calling, Function, FunctionSpec, LARGEST_MEMORY_LIMIT, LONGEST_TIMEOUT, Library, MOST_CONCURRENCY,
    MOST_RETRIES,
};
pub use instances::Instances;
pub use kind::{EntryTypes, Kind};
pub use on_error::{Leniency, OnError, Verdict, backoff};
