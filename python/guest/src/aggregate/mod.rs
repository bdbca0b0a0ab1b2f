//! Aggregates: the states of a lane, by the numbers that the engine gives them.
//!
//! `answer` takes an exchange to the entry that it is for: `update`, `combine` (with `save` and
//! `load`) or `finish`. All of them work on the `accumulator`.

mod accumulator;
mod answer;
mod buffered_rows;
mod combine;
mod finish;
mod instance_bytes;
mod pending_rows;
mod state;
mod update;

pub(crate) use accumulator::Aggregate;
