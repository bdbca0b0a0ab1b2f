//! The server: its connections, its functions, and their workers.
//!
//! ```text
//! lifecycle ─ connection ─ route ─ workers     (each uses those to its right)
//!                 └─ outbox ─┘
//! ```
//!
//! A [`connection`] is a client's socket. It has a [`route`] for each lane of the client. A route
//! takes a worker from the [`workers`] of a library while it has something to do. Replies go
//! through the connection's [`outbox`]. The [`budget`] limits the bytes of all messages that wait.

mod budget;
mod connection;
mod connections;
mod counters;
mod lifecycle;
mod outbox;
mod route;
mod route_state;
mod served;
mod shared;
mod workers;

pub(crate) use connection::MOST_LANES;
pub(crate) use connections::ENDING;
pub(crate) use counters::FunctionCounters;
pub use lifecycle::{Options, ServedLibrary, Server};
pub(crate) use served::ServedFunction;
pub(crate) use shared::Shared;
pub(crate) use workers::Census;
