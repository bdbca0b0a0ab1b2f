//! The host process of JavaScript: a zygote whose lanes are threads, with one isolate each.
//!
//! | file | content | thread |
//! |---|---|---|
//! | `program` | what the program's arguments ask for | main |
//! | `zygote` | the main loop: requests of the engine, new lanes, lanes to be closed | main |
//! | `confine` | what the process may ask of the kernel, before the load and after it | main |
//! | `loader` | loads the library in a child process, and gets the snapshot from the child | main |
//! | `watch` | finds calls that take too much time or memory, and ends them | main |
//! | `thread_memory` | reads the kernel's counters of a thread's memory and time | main, and lanes' by a signal |
//! | `lane` | answers the calls of one engine connection | a lane's |
//! | `waker` | wakes the main thread | lanes' |
//! | `context` | the process of one context of a program | main, and one of its own |
//! | `attention` | whether the main thread has calls to watch | all |

pub mod attention;
pub mod confine;
#[cfg(node)]
mod context;
mod lane;
mod loader;
mod program;
mod thread_memory;
mod waker;
mod watch;
mod zygote;

pub use program::main;
use zygote::{check, run};
