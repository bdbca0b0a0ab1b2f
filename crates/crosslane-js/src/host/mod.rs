//! The process around the isolates: a zygote whose lanes are threads, one isolate each.

pub mod attention;
mod bell;
mod lane;
mod loader;
mod process;
mod thread_memory;
mod watch;

pub use process::{check, run};
