//! How idle workers sleep, and what wakes them.

mod busy;
mod counts;
mod monitor;
mod poller;

pub use busy::BusyPoll;
pub(crate) use busy::{Busy, Polled};
pub(crate) use counts::Idle;
pub(crate) use monitor::Monitor;
pub(crate) use poller::{Poller, Ready, Token};
