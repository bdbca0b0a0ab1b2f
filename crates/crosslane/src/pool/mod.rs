//! The warm lanes of a library. Callers check lanes out and give them back, and a thread boots more
//! in the background.
//!
//! One thread, the keeper, owns the zygote. It starts the zygote, so that the zygote's parent
//! thread lives as long as the pool. It also boots lanes, and ends lanes that are idle for too
//! long. All other threads take a lane from the idle stack, and wait in a queue only if the stack
//! is empty. Lanes boot without the pool's lock.
//!
//! # Warm lanes
//! A pool keeps as many lanes ready as [`PoolOptions::warm`] says, until the idle timeout. Pools
//! may share a bound ([`crate::pool::warm_limit`]). Then a pool that was never used keeps one lane, and
//! all pools together keep no more lanes than the bound. The keeper asks the bound before it boots
//! a lane for which no waiter is due. After boots, when no lane is in use, it checks whether all
//! pools together have too many.
//!
//! # Cells
//! A worker that gives its lane back takes one for its next batch a moment later. So the lane stays
//! in the cell of that thread ([`crate::pool::per_thread`]). The thread takes it from there
//! without the lock, and without a cache line that other workers write. A lane in a cell is idle:
//!
//! - A thread that finds no other lane takes one from any cell.
//! - The keeper collects the lanes in cells when it looks for lanes that no caller has used.
//! - The cells are closed as long as there are waiters.
//!
//! # The queue
//! Each waiter has a place in the queue. Its `Turn` says what it waits for:
//!
//! | turn | ended by | becomes |
//! |---|---|---|
//! | `Due` | the keeper: it boots a lane while more waiters are due than lanes prepare themselves | `Served`, or `Refused` if the boot fails |
//! | `Refused` | the next lane that is given back | `Served`; an error if no lane will be given back |
//! | `Served` | the waiter: it takes its lane and leaves the queue | |
//!
//! A waiter may leave at any time, because its query was cancelled. Whenever the lock is free:
//!
//! 1. While a waiter is due or refused, no lane is idle. A lane that is booted or given back goes
//!    to the first such waiter, and later waiters queue behind it. So no thread can take a lane
//!    that was made for another thread.
//! 2. While a waiter is due, one of these is true. The keeper boots a lane. Or the keeper has been
//!    notified and will look at the queue. Or as many lanes prepare themselves as waiters are due.
//! 3. While the queue is not empty, the cells are closed and empty. A thread may put a lane in a
//!    cell at the moment of closing. Then it gets the lane back, and gives it to the queue.
//! 4. `out` counts the lanes that are checked out. It includes the lanes of `Served` and those in
//!    cells. While `out` is not 0 and the queue is not empty, one of these lanes will come back
//!    or end. The thread that gives it back or ends it notifies the queue.
//! 5. There is one exception to 4. A scan keeps its lane while its thread needs another lane to
//!    process the rows. If refused waiters in the queue hold all lanes, no lane would ever come
//!    back. Then the first of these waiters gets its error.
//! 6. Lanes boot and end without the lock, because both may wait for a process.
//!
//! # Ending lanes
//! A lane that is given back may still work on a call that was cancelled. The pool keeps the lane,
//! and throws away the messages that still come. The keeper does so every `GLANCE`. A thread that
//! finds no idle lane does so too, also while it waits in the queue. The lane counts as checked out
//! until its guest has ended the exchange. Then it is idle, or goes to the queue. If a guest takes
//! longer than `GRACE`, the pool ends its lane.
//!
//! # Reserved lanes
//! A function with the option `workers` has lanes of its own, no more than the option says
//! ([`Reserved`]). A function with a sandbox of its own has lanes of its own, too, without a bound. They are a pool of their own, which is a part of the library's pool
//! ([`Pool::of`]). Its keeper boots its lanes with the same zygote. At the end, these pools end
//! first: the kernel ends a zygote with the thread that has started it.
//!
//! A pool with that bound boots no lane for a waiter if it has as many lanes as the bound. Then a
//! lane is out, since no lane is idle while there is a waiter. That lane comes back, or ends.
//! Only calls use reserved lanes, and a call that waits for a lane has no other lane. So each lane
//! that is out comes back.
//!
//! # Set-up
//! A library may have functions that prepare something on each lane ([`Zygote::set_up`]). The pool
//! sends `Entry::SetUp` to a new lane. Until the lane has answered, the pool treats it like a lane
//! that is ending. So a query finds lanes that are prepared. The pool ignores the content of the
//! answer. A function whose preparation failed tries it again when it is called, and reports a
//! failure to its caller. A lane that is lost while it prepares counts as a boot that failed.
//! Before idle lanes end, the pool tells their guests to end what they have prepared
//! (`Entry::TearDown`). They have `GRACE` for this.

mod checkout;
mod ending;
mod keeper;
mod options;
pub(crate) mod per_thread;
mod queue;
mod state;
#[cfg(test)]
mod tests;
pub mod warm_limit;

pub use checkout::Pool;
pub use options::{Common, PoolOptions, PoolStats, Reserved, SetUp, Stop, Zygote};
pub use state::PooledLane;
