//! Event dispatchers. Each has a queue of its own.

mod dispatchers;
mod handle;
pub mod priority;

pub(crate) use dispatchers::{Dispatchers, Event, EventDispatcher, Snapshot};
pub use handle::Dispatcher;
