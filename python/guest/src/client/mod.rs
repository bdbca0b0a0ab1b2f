//! The native half of `crosslane.Client` and of `crosslane.map`: the engine's end of calls and
//! streams.

mod arguments;
mod context;
mod map;
mod reading;
mod session;
mod stop_signal;
mod table_reader;

pub(crate) use context::set_trace_context;
pub(crate) use map::Map;
pub(crate) use session::{Cancellation, Client};
