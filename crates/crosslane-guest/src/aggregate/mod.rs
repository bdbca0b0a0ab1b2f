//! Aggregates: the states of a lane, and the rows that are buffered for them.

mod buffered_rows;
mod groups;
mod states;

pub use groups::Groups;
pub use states::{Accumulated, Aggregate, Aggregates};
