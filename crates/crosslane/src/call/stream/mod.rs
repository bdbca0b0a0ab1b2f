//! Streams of batches through a function.

mod iterate;
mod lost;
mod map;

pub use iterate::Iteration;
pub use map::{LONGEST_ANSWER, Map, MapInput, MapOptions, MapStep, map_types, table_of};
