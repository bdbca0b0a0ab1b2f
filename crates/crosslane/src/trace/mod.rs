//! Traces: what happened in an engine, event by event, with times.
//!
//! A [`Trace`] belongs to one engine instance, such as a DuckDB database. The pools of the instance
//! share it, and each has a [`Tracer`] with the name of its library. A call finds the tracer in the
//! pool of its library. So the calls of two databases in one process do not mix.
//!
//! The functions of [`Log`], [`Tracer`] and [`Relay`] are the only ones that record events. [`Log`]
//! also counts, so that what is counted is traced. [`Relay`] is for servers, which count by themselves.
//!
//! # Protocol
//! - **The switch.** A thread reads it with one relaxed load for each thing that it counts. If the
//!   trace is off, the thread does nothing more.
//! - **The buffers.** Each thread has its own buffer, behind a lock that only a start and a reader
//!   take besides. A thread takes the lock once for all events of a slice.
//! - **The bound.** All buffers together have room for [`MOST_EVENTS`] events. A thread reserves room
//!   for 256 events at once, so that threads rarely write the same counter. An event without room is
//!   dropped, and counted in the thread's buffer. So a trace has the first events, among which are
//!   boots and set-ups.
//! - **The start.** A start needs a trace that is off. It sets the time and the room, empties each
//!   buffer under its lock, and turns the switch on last. A thread may have read the switch during
//!   the trace before. Its event began before the new trace, so the buffer refuses it.
//! - **The stop.** A stop turns the switch off and keeps the events for readers. A thread that has
//!   read the switch before may still add its event.
//! - **The end.** [`Trace::forget`] frees the events of a trace that is off.
//!
//! # The slowest calls
//! An event of a slow call carries the first arguments of its slice. A call is slow if fewer than 10
//! calls of this trace took as long before it. So the slowest calls of the whole trace have their
//! arguments, and few others.

mod event;
mod log;
mod recording;
mod relay;
mod slowest;
#[cfg(test)]
mod tests;
mod tracer;

pub use event::{Event, EventKind, Subject};
pub use recording::{MOST_EVENTS, Status, Trace};
pub use relay::Relay;
pub use tracer::Tracer;
