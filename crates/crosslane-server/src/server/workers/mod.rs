//! The workers of a library, and the queue of routes that wait for one.
//!
//! A server has a limit on the workers of each library. Each worker has a lane of its own. A
//! [`Route`] takes a worker when it has something to do, and gives it back when nothing is in
//! flight. So a worker never works for two clients at a time. If a client's call harms its worker,
//! no other client's call is affected. A route that finds no worker waits in a queue.
//!
//! A scan, a stream and the states of an aggregate *hold* their worker for as long as their query
//! needs it. Meanwhile the query may call other functions of the library, or need other states. If
//! held workers counted, queries could wait for each other for ever. So the limit is on the workers
//! that are not held, and there may be [`HELD`] times as many in all. A worker also does not count
//! while it ends cancelled calls of a client that has gone. If all of these are held for [`STUCK`],
//! the routes that wait get an error.
//!
//! Calls that are known to be long wait behind short ones, for [`PATIENCE`] at most. They leave one
//! worker to the short ones.
//!
//! # The watcher
//! One thread, the watcher, sleeps on the reply rings of all lanes at once. If a lane has news, the
//! watcher lets its route take them. It looks at deaths, deadlines and progress every [`TICK`]. It
//! does not spin before it sleeps. While calls come fast, one of the scheduler's threads waits for
//! them. That thread polls the rings as well ([`BusyPoll`]), and turns off the watcher's wake-ups
//! (`Watch::suppress_wakes`). Then the lanes' workers do not wake the watcher for each reply.
//!
//! A lane whose client does not read is *stalled*. No thread takes its replies, so its ring fills,
//! and its worker waits. The watcher leaves the lane alone until the connection has room again.
//!
//! # Locks
//! Locks are taken in this order: a route's state, a lane, the queue of a library. A grant to
//! another route is delivered when no lock is held ([`Grant`]).

mod lend;
mod slot;
mod watcher;

pub(crate) use lend::{Census, Workers};
pub(crate) use slot::{Borrower, Grant, Slot};
pub(crate) use watcher::Watcher;
