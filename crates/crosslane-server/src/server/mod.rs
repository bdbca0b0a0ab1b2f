//! The server: its connections, its functions, and their workers.
//!
//! ```text
//! lifecycle ─ connection ─ route ─ offer ─ workers     (each uses those to its right)
//!                 └─ outbox ─┘
//! ```
//!
//! An [`offer`] has the functions of the server's libraries. A server that loads its files again makes
//! another one. A [`connection`] is a client's socket, and has one offer. It has a [`route`] for each lane of the client. A route
//! takes a worker from the [`workers`] of a library while it has something to do. Replies go
//! through the connection's [`outbox`]. The [`budget`] limits the bytes of all messages that wait.

mod budget;
mod connection;
mod connections;
mod counters;
mod lifecycle;
mod offer;
mod outbox;
mod route;
mod served;
mod shared;
mod spans;
mod turns;
mod workers;

pub(crate) use connection::MOST_LANES;
pub(crate) use connections::ENDING;
pub(crate) use counters::FunctionCounters;
pub use lifecycle::{Options, Server};
pub(crate) use offer::Offer;
pub use offer::ServedLibrary;
pub(crate) use served::ServedFunction;
pub(crate) use shared::Shared;
#[cfg(feature = "otel")]
pub(crate) use spans::variable;
pub use spans::{Call, Outcome, SpanCounts, Spans, are_spans_wanted};
pub(crate) use workers::Census;
