//! The process that loads a library and forks its lanes.

mod lanes;

pub use lanes::{Guest, Loaded, live, main, note, readable};
