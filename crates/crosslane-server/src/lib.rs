//! Remote lanes: the functions of one machine, for the engines of others.
//!
//! ```text
//!  engine ══ socket ══ connection ── routes ── ring ── worker
//! (client)                     (server)
//! ```
//!
//! The [`server`] has the libraries and their workers. What a client's engine would write into the ring of a worker on its own machine
//! arrives over the socket as it is ([`wire`]). The client is a crate of its own ([`crosslane_remote`]).

#[cfg(feature = "flight")]
pub mod flight;
pub mod http;
pub mod load_test;
mod lock;
pub mod log;
pub mod server;

pub use crosslane_remote::{Address, LaneOptions, Remote, RemoteZygote, address, client, lane, tls, wire};
pub use http::{Http, HttpRuntime};
pub use server::{Options, Server};
