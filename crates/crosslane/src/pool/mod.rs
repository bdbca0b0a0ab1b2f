//! The warm lanes of a library: checked out, given back, refilled in the background.
//!
//! One thread, the keeper, owns the zygote: it starts it (so that the zygote's parent thread lives
//! as long as the pool), boots lanes, and ends lanes that are idle for too long. All other threads take a lane from
//! the idle stack, and wait in line only if it is empty. Lanes boot without the pool's lock.
//!
//! # Warm lanes
//! A pool keeps as many lanes ready as [`PoolOptions::warm`] says, until the idle timeout. Pools may share a bound ([`crate::pool::warmth`]):
//! then one that nobody has used keeps one lane, and all together no more than the bound. The keeper asks before it boots a lane that
//! no waiter is due for, and looks what is too much when its lanes were used.
//!
//! # Shelves
//! A worker that has given its lane back takes one for its next batch a moment later. So the lane stays on the
//! thread's shelf ([`crate::pool::per_thread`]), from which it is taken without the lock and without a cache line that other workers
//! write. It is idle there: who finds no other takes it from the shelf, the keeper collects what lies on shelves when it
//! looks for lanes that nobody has used, and as long as there are waiters the shelves are closed.
//!
//! # The line
//! Each waiter has a place in line, and its [`Turn`] says what it waits for:
//!
//! | turn | ended by | becomes |
//! |---|---|---|
//! | `Due` | the keeper, which boots a lane as long as a waiter is due for whom none prepares itself | `Served`, or `Refused` if the boot fails |
//! | `Refused` | the next lane that is given back | `Served`; an error if none will be |
//! | `Served` | the waiter: it takes its lane and leaves the line | |
//!
//! A waiter may leave at any time (its query was cancelled). Whenever the lock is free:
//!
//! 1. While a waiter is due or refused, no lane is idle: a lane that is booted or given back goes to the first such
//!    waiter, and later waiters stand behind it. So no thread can take a lane that was made for another.
//! 2. While a waiter is due, the keeper boots a lane, or has been notified and is about to look, or as many lanes prepare
//!    themselves as waiters are due.
//! 3. While there is a line the shelves are closed and empty. A lane that a thread puts on one just then comes back to
//!    that thread, which gives it to the line.
//! 4. `out` counts the lanes that are checked out, with those of `Served` and those on shelves. While it is not 0 and
//!    there is a line, one of them will come back or end, and the thread that gives it back or ends it notifies the line.
//! 5. There is one exception to 4: a scan keeps its lane while its thread needs another lane for what it does with the
//!    rows. If all lanes are held by threads that wait in line and were refused, none would ever come back. Then the
//!    first of these waiters gets its error.
//! 6. Lanes boot and end (which may wait for a process) without the lock.
//!
//! # Ending lanes
//! A lane that is given back may be at work on something that was cancelled. The pool keeps it, and throws away what still
//! comes: the keeper does every [`GLANCE`], and who finds no idle lane does, too, also in line. It counts as checked out until its guest has
//! ended the exchange; then it is idle, or goes to the line. A guest that takes longer than [`GRACE`] loses its lane.
//!
//! # Set-up
//! A library may have functions that prepare something on each lane ([`Zygote::set_up`]). A new lane is told to
//! ([`Entry::SetUp`]), and is looked after like one that is ending until it has answered: so a query finds lanes that
//! are prepared. What a guest answers does not matter: a function whose preparation failed tries it again when it is called,
//! and tells its caller. A lane that is lost while it prepares counts as a boot that failed. Before idle lanes end,
//! their guests are told to end what they have prepared ([`Entry::TearDown`]), for which they have [`GRACE`].

mod checkout;
mod ending;
mod keeper;
mod options;
pub(crate) mod per_thread;
mod queue;
mod state;
#[cfg(test)]
mod tests;
pub mod warmth;

pub use checkout::Pool;
pub use options::{PoolOptions, PoolStats, SetUp, Stop, Zygote};
pub use state::PooledLane;
