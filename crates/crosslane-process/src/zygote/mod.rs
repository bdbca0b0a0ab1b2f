//! The process that loads a library and forks its workers: its program, its requests, and its end.

pub mod environment;
mod fork_server;
pub mod guests;
mod process;
pub mod reaper;
mod root;
mod ruby;

pub use fork_server::ForkServer;
pub use process::{Loaded, Origin, Zygote, ZygoteOptions};
pub use root::Program;
pub use ruby::prepared as prepared_ruby;
