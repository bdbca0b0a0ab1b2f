//! Remote lanes: engines call the functions of another machine.
//!
//! ```text
//!  engine ══ socket ══ connection ── routes ── ring ── worker
//! (client)                     (server)
//! ```
//!
//! The [`server`] has the libraries and their workers. On its own machine, an engine writes
//! messages into the ring of a worker. A client sends the same messages over the socket ([`wire`]).
//! The client is a crate of its own ([`crosslane_remote`]).

#[cfg(feature = "flight")]
pub mod flight;
pub mod http;
pub mod load_test;
pub mod log;
#[cfg(feature = "otel")]
pub mod otel;
pub mod server;

pub use crosslane_remote::{Address, LaneOptions, Remote, RemoteZygote, address, client, lane, tls, wire};
pub use http::{Http, HttpRuntime};
pub use server::{Options, Server};
