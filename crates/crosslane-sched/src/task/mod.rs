//! Tasks: futures that a group runs.
//!
//! The crate `async-task` has the cell of a task, its wakers and its cancellation. A scheduler adds
//! three things. It chooses a queue for each task that has to run. It keeps panics inside of the
//! task. It lists all tasks, so shutdown can cancel the tasks that wait.

mod contain;
mod join;
mod list;
mod start;

pub(crate) use contain::wake;
pub use join::{JoinError, JoinHandle, Panic};
pub(crate) use list::Tasks;
pub use start::{Foreground, foreground, spawn, spawn_blocking, yield_now};
