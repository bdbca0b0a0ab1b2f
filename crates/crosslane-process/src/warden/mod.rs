//! The thread that watches a zygote and its workers: their answers, their ends, their output, and
//! their memory.

pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod proc;
mod usage;
mod watch;

pub(crate) use watch::{Ended, LaneRecord, NewLane, UNREAD, Warden};
