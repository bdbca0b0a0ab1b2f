//! Idle workers: how they sleep, and how events and threads wake them.

mod busy;
mod counts;
mod monitor;
mod poller;

pub use busy::BusyPoll;
pub(crate) use busy::{Busy, Polled};
pub(crate) use counts::Idle;
pub(crate) use monitor::Monitor;
pub(crate) use poller::{Poller, Ready, Token};
