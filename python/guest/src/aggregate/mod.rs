//! Aggregates: the states of a lane, by the numbers that the engine gives them.

mod buffered_rows;
mod instance_bytes;
mod pending_rows;
mod states;

pub(crate) use states::Aggregate;
