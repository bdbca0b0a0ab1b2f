//! The process that loads a library and forks its workers: which program it is, what it is told, and how it ends.

pub mod guests;
mod process;
pub mod reaper;
mod ruby;

pub use process::{Loaded, Origin, Zygote, ZygoteOptions};
pub use ruby::compiled as compiled_ruby;
