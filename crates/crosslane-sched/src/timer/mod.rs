//! Sleeping tasks: the timers of a group, and the futures that wait for them.

mod sleep;
mod timers;

pub use sleep::{Elapsed, Sleep, sleep, timeout};
pub(crate) use timers::{FAR_AWAY, Timers};
