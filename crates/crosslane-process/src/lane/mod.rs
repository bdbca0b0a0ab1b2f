//! The engine's side of a lane: it sends batches, collects replies, and reports how a worker ended.

mod process_lane;
mod stack;

pub use process_lane::ProcessLane;
pub(crate) use process_lane::{Home, LaneOptions, append_output, how_it_ended};
