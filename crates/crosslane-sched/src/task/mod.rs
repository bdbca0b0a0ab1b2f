//! Tasks: futures that a group runs.
//!
//! The crate `async-task` has the cell of a task, its wakers and its cancellation. A scheduler adds
//! three things: it decides where a task goes that has to run, it keeps panics inside of the task,
//! and it lists all tasks, so that shutdown can cancel those that wait.

mod contain;
mod join;
mod list;
mod start;

pub(crate) use contain::wake;
pub use join::{JoinError, JoinHandle, Panic};
pub(crate) use list::Tasks;
pub use start::{Foreground, foreground, spawn, spawn_blocking, yield_now};
