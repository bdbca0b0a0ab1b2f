//! The zygote: loads one library, then forks a lane whenever the engine asks for one.
//!
//! # Protocol
//! The engine starts it with a control socket as descriptor 3 (`docs/protocol.md`). The process
//! that the engine has started becomes the reaper of a child, and the zygote goes on in that child.
//! It answers the load. Then one loop waits for the socket and for a pipe, into which the handlers
//! of SIGCHLD and SIGINT write. When the socket ends, the zygote kills its lanes and ends.
//!
//! # Threads
//! A fork has only the thread that forked. If the library has started other threads, the zygote
//! restarts itself with `exec`, with nothing loaded. Each lane then loads the library
//! ([`Guest::command`]).
//!
//! # Lanes
//! A lane has its own process group, so that what a function starts ends with the lane. It gets
//! SIGKILL when the zygote dies. Its output goes to the log pipe. It has the signal handlers that
//! were there before the zygote's, and a score that makes the system end it before the database
//! when memory runs out.
//!
//! # Streams
//! A file may close the standard streams of its process. They are opened again after the load, so
//! that the next pipe does not take the number of one.

mod control;
mod fork_server;
mod guest;
mod lanes;
mod load;
mod log;
mod program;
mod restart;
mod sandbox;
mod signals;
mod threads;

pub use guest::{Guest, Loaded};
pub use program::{live, main};
pub use sandbox::restrict;
pub use signals::{is_caught, readable};
pub use threads::lost_threads_note;
