//! The thread that watches a zygote and its workers: their answers, their ends, their output, their
//! memory, and what else those in a sandbox use.

pub(crate) mod bounds;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod observed;
pub(crate) mod proc;
mod usage;
mod watch;

pub(crate) use watch::{Ended, LaneRecord, NewLane, UNREAD, Warden};
