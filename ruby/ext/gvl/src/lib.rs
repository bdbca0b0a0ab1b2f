//! Ruby's lock and its longjmps, for native code that waits or calls Ruby.

mod gvl;
mod lookup;
mod protect;
#[cfg(test)]
mod tests;

pub use gvl::{Me, Stand, check_interrupts, stand, with, without, without_fail, without_or_raise};
pub use lookup::{constant, define};
pub use protect::{Unwind, class_name, made, prepare, protect};
