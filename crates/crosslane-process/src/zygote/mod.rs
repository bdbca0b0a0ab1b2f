//! The process that loads a library and forks its workers: its program, its requests, and its end.

mod caches;
mod connections;
mod devices;
pub mod environment;
mod fork_server;
pub mod guests;
mod lanes;
mod process;
pub mod reaper;
mod root;
mod ruby;

pub use connections::ask as ask_for_connections;
pub use fork_server::ForkServer;
pub use lanes::Zygote;
pub use process::{Loaded, Origin, ZygoteOptions};
pub use root::Program;
pub use ruby::prepared as prepared_ruby;
