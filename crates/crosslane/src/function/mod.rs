//! Functions, the libraries that they come from, and the catalog of all libraries.

pub mod catalog;
mod definition;
mod instances;
mod kind;
mod library;
mod memo;
mod on_error;
mod rate;
mod repeats;
mod spec;
mod store;

pub(crate) use definition::KeptResults;
pub use definition::{Declaration, Function};
pub use instances::Instances;
pub use kind::{EntryTypes, Kind};
pub use library::Library;
pub(crate) use memo::{Memo, milliseconds};
pub use on_error::{ErrorPolicy, LONGEST_PAUSE, OnError, RetryAfter, Verdict, backoff, pause};
pub(crate) use rate::Rate;
pub(crate) use repeats::Repeats;
pub use spec::{
    Calling, FunctionSpec, LARGEST_MEMORY_LIMIT, LONGEST_TIMEOUT, MOST_BATCH, MOST_BUDGET, MOST_CONCURRENCY,
    MOST_RETRIES, MOST_WORKERS,
};
pub use store::Store;
