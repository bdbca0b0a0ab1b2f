//! The workers of a library, and who gets the next.
//!
//! A server has so many workers for a library at most, each behind a lane. A [`Route`] takes one when it has something to do, and
//! gives it back when nothing is in flight; so a worker never works for two clients at a time, and what one client's call does to its
//! worker befalls no other. Who finds none stands in line.
//!
//! A scan, a stream and the states of an aggregate *hold* their worker for as long as their query needs, which may call other functions of the
//! library meanwhile, or other states. If such workers counted, queries could wait for each other for ever. So the limit is on the workers that
//! are not held, and there may be [`HELD`] times as many in all. So it is with a worker whose client has gone and that has not yet ended what was
//! cancelled then. If all of these are held for [`STUCK`], who waits gets an error.
//!
//! Calls that are known to be long wait behind short ones, for [`PATIENCE`] at most, and leave one worker to the short ones.
//!
//! # Who watches
//! One thread, the watcher, sleeps on the reply rings of all lanes at once, and lets the route of a lane with news take them. It
//! looks at deaths, deadlines and progress every [`TICK`]. It does not spin before it sleeps. While calls come fast, the scheduler's
//! worker that waits for them polls the rings as well ([`BusyPoll`]): they are hushed then, so that workers need not wake the watcher for each
//! reply.
//!
//! A lane whose client does not read is *stalled*: nobody takes its replies, its ring fills, and its worker waits. The watcher leaves it
//! alone until the connection has room again.
//!
//! # Locks
//! In this order: a route's state, a lane, the line of a library. What is granted to another route is delivered when none is
//! held ([`Grant`]).

mod lend;
mod slot;
mod watcher;

pub(crate) use lend::{Census, Workers};
pub(crate) use slot::{Borrower, Grant, Slot, check};
pub(crate) use watcher::Watcher;
