//! The states of aggregates: the lane and the number of each state.
//!
//! A state is stored in the guest of one lane, from its first row on. The engine's own memory holds
//! two words for each state: the lane and the number. Any thread may copy them.
//!
//! The lanes belong to one [`Accumulation`]: one use of an aggregate in one query. Each engine
//! thread gets its own lane there, so that the threads do not wait for each other. A thread that
//! uses a state in another thread's lane waits until that lane is free. When the accumulation ends,
//! its lanes forget its states and go back to the pool.

mod accumulates;
mod accumulation;
mod columns;
mod combine;
mod registry;
mod state;

pub use accumulates::Accumulates;
pub use accumulation::{Accumulation, aggregate};
pub use registry::destroy;
pub use state::{State, States};
