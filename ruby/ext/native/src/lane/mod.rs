//! The parts that every lane uses, in a worker and in the engine's process: waits, progress and
//! exceptions.

pub(crate) mod clock;
pub(crate) mod exceptions;
pub(crate) mod failure;
pub(crate) mod poll;
pub(crate) mod wait;
