//! Aggregates: the states of a lane, and the rows that are buffered for them.

mod buffered_rows;
mod states;

pub use buffered_rows::{Collected, Groups, Sorted};
pub use states::{Accumulated, Aggregate, Aggregates};
