//! A work-stealing scheduler whose event dispatchers go first.
//!
//! Tasks are futures. They run on a few worker threads, each with a queue of its own, from which idle workers steal.
//! The tasks that wait for sockets are woken by *event dispatchers*, and a dispatcher never waits behind
//! the work that it started: when it starts a handler, it puts itself into a queue of its own, and any idle worker
//! takes it from there before any other task.
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
//!         // It runs at once; this task goes on when it waits, or on another worker.
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
//! # What is where
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
//!     [ dispatcher 0's queue ] [ dispatcher 1's queue ]     room for one: the dispatcher itself
//! ```
//!
//! - [`priority`] is the queue of a dispatcher, and why nobody else can be in it.
//! - `dispatcher` and `io`: sockets, their readiness, and who is woken.
//! - `worker`: what a worker does next. `idle`: who sleeps, and who is woken. `monitor`: what waits behind a long
//!   task.
//! - `poller`: epoll, wakes and the kernel's timer. `busy`: polling for a moment before a sleep. `timer`: sleeping tasks.
//! - `task`: starting and ending tasks. `blocking`: calls that block. `scheduler`: groups of workers, and their
//!   shutdown. `process`: what happens after a fork.
//!
//! # Priority is not inherited
//!
//! Elsewhere a task carries an index that says in which priority queue it belongs, and what it starts can
//! inherit that index by mistake. Here nothing carries one: only the [`priority::Turn`] of a dispatcher leads into
//! its queue, and what a dispatcher starts has none.

#[cfg(not(target_os = "linux"))]
compile_error!("crosslane-sched runs on Linux: it waits with epoll, eventfd and timerfd");

mod blocking;
#[path = "idle/busy.rs"]
mod busy;
#[path = "dispatcher/dispatchers.rs"]
mod dispatcher;
#[path = "idle/counts.rs"]
mod idle;
#[path = "io/descriptor.rs"]
mod io;
#[path = "worker/monitor.rs"]
mod monitor;
#[path = "idle/poller.rs"]
mod poller;
#[path = "dispatcher/priority.rs"]
pub mod priority;
mod process;
#[path = "scheduler/group.rs"]
mod scheduler;
mod stats;
mod sync;
#[path = "task/start.rs"]
mod task;
#[path = "timer/timers.rs"]
mod timer;
#[path = "worker/worker.rs"]
mod worker;

pub use busy::BusyPoll;
pub use dispatcher::Dispatcher;
pub use io::{Interest, Io};
pub use scheduler::{Builder, Handle, Scheduler, Shutdown};
pub use stats::{BlockingStats, WorkerStats};
pub use task::{Foreground, JoinError, JoinHandle, Panic, foreground, spawn, spawn_blocking, yield_now};
pub use timer::{Elapsed, Sleep, sleep, timeout};

/// The examples of the page are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/scheduler.md")]
struct Page;
