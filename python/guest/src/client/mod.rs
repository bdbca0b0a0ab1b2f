//! The native half of `crosslane.Client` and of `crosslane.map`: the engine's end of calls and
//! streams.

mod arguments;
mod map;
mod reading;
mod session;
mod stop_signal;
mod table_reader;

pub(crate) use map::Map;
pub(crate) use session::{Cancellation, Client};
