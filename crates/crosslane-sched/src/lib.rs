//! A work-stealing scheduler whose event dispatchers go first.
//!
//! Tasks are futures. They run on a few worker threads. Each worker has a queue of its own, and
//! idle workers steal tasks from it. *Event dispatchers* wake the tasks that wait for sockets. A
//! dispatcher never waits behind the work that it started. When it starts a handler, it puts itself
//! into a queue of its own. Any idle worker takes it from this queue before any other task.
//!
//! ```
//! use crosslane_sched::{Io, Scheduler, foreground, spawn};
//! use std::net::{TcpListener, TcpStream};
//!
//! let scheduler = Scheduler::builder().workers(2).start()?;
//! let text = scheduler.block_on(async {
//!     let listener = Io::new(TcpListener::bind("127.0.0.1:0")?)?;
//!     let address = listener.get_ref().local_addr()?;
//!     spawn(async move {
//!         let (stream, _) = listener.accept().await?;
//!         // The new task runs at once. This task continues when the new one waits, or on another worker.
//!         foreground(async move { stream.write_all(b"hello").await }).await;
//!         std::io::Result::Ok(())
//!     });
//!     let stream = Io::<TcpStream>::connect(address).await?;
//!     let mut buffer = [0; 16];
//!     let length = stream.read(&mut buffer).await?;
//!     std::io::Result::Ok(buffer[..length].to_vec())
//! })?;
//! assert_eq!(text, b"hello");
//! # std::io::Result::Ok(())
//! ```
//!
//! # Parts of the crate
//!
//! ```text
//!  sockets, timers, wakes          other threads
//!          |                             |
//!   [ epoll of the tag ]          [ injection queue ]
//!          |  idle workers wait here     |
//!          v                             v
//!     +--------+     +--------+     +--------+
//!     | worker |     | worker |     | worker |   (threads of one tag)
//!     +--------+     +--------+     +--------+
//!      own queue <--- steal ---> own queue         newest first for the owner, oldest first for thieves
//!          ^
//!          | before any of these:
//!     [ dispatcher 0's queue ] [ dispatcher 1's queue ]     one entry: the dispatcher itself
//! ```
//!
//! - `scheduler`: groups of workers, the types for users, and the shutdown.
//! - `worker`: how a worker chooses its work, and the monitor. The monitor finds work that waits
//!   behind a long task.
//! - `idle`: how workers sleep and wake, epoll with its wakes and the kernel's timer, and busy
//!   polling.
//! - `dispatcher`: the dispatchers of a group; [`priority`] is the queue of one dispatcher.
//! - `io`: sockets, and their readiness.
//! - `task`: how tasks start and end. `timer`: tasks that sleep. `blocking`: threads for calls that
//!   block.
//! - `process`: checks for forks.
//!
//! # Priority is not inherited
//!
//! In other schedulers a task carries the index of its priority queue, and a task that it starts
//! can inherit the index by mistake. Here no task has an index. Only the [`priority::Turn`] of a
//! dispatcher gives access to its queue, and a task that a dispatcher starts has no turn.

#[cfg(not(target_os = "linux"))]
compile_error!("crosslane-sched runs on Linux: it waits with epoll, eventfd and timerfd");

mod blocking;
mod dispatcher;
mod idle;
mod io;
mod process;
mod scheduler;
mod stats;
mod sync;
mod task;
mod timer;
mod worker;

pub use dispatcher::{Dispatcher, priority};
pub use idle::BusyPoll;
pub use io::{Interest, Io};
pub use scheduler::{Builder, Handle, Scheduler, Shutdown};
pub use stats::{BlockingStats, WorkerStats};
pub use task::{Foreground, JoinError, JoinHandle, Panic, foreground, spawn, spawn_blocking, yield_now};
pub use timer::{Elapsed, Sleep, sleep, timeout};

/// Compiles the examples of the page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/scheduler.md")]
struct Page;
