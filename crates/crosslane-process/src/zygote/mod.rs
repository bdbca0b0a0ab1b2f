//! The process that loads a library and forks its workers: its program, its requests, and its end.

pub mod guests;
mod process;
pub mod reaper;
mod ruby;

pub use process::{Loaded, Origin, Zygote, ZygoteOptions};
pub use ruby::compiled as compiled_ruby;
