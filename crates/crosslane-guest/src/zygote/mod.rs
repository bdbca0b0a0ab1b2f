//! The zygote: loads one library, then forks a lane whenever the engine asks for one.
//!
//! # Protocol
//! The engine starts it with a control socket as descriptor 3 (`docs/protocol.md`). It makes the process that the engine
//! has started the reaper of a child and goes on in that. It answers the load; then one loop waits for the socket and
//! for a pipe, into which the handlers of SIGCHLD and SIGINT write. When the socket ends, it kills its lanes and ends.
//!
//! # Threads
//! A fork has only the thread that called it. If the library has started others, the zygote starts itself anew with
//! `exec`, with nothing loaded, and has each lane load the library ([`Guest::command`]).
//!
//! # Lanes
//! A lane has its own process group, so that what a function starts ends with it; SIGKILL at the zygote's death; its
//! output in the log pipe; the signal handlers that were there before the zygote's; and a score that makes the system
//! end it before the database when memory runs out.
//!
//! # Streams
//! A file may close its process's standard streams. They are open again when it is loaded, lest the next pipe takes the
//! number of one.

mod control;
mod guest;
mod lanes;
mod load;
mod log;
mod program;
mod restart;
mod signals;
mod threads;

pub use guest::{Guest, Loaded};
pub use program::{live, main};
pub use signals::readable;
pub use threads::lost_threads_note;
