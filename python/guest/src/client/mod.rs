//! The native half of `crosslane.Client` and of `crosslane.map`: the engine's end of calls and streams.

mod map;
mod session;

pub(crate) use map::Map;
pub(crate) use session::{Cancellation, Client};
