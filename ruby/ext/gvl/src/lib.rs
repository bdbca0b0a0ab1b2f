//! Ruby's lock and its longjmps, for native code that waits and calls.

mod gvl;
mod protect;
#[cfg(test)]
mod tests;

pub use gvl::{Me, Stand, check_interrupts, stand, with, without};
pub use protect::{Unwind, protect};
