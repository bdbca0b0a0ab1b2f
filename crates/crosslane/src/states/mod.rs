//! The states of aggregates: which lane each lives in, and under which number.
//!
//! A state lives in the guest of one lane, from its first row on. The engine's own memory of a state holds two words, the lane
//! and the number, which any thread may copy. The lanes belong to one [`Accumulation`]: one use of an aggregate in one query.
//! Each thread of the engine gets a lane of its own there, so that threads do not wait for each other; who works on a state
//! of another's lane takes its turn. When the accumulation ends, the lanes forget its states and go back to the pool.

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
