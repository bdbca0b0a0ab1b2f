//! Remote lanes: what travels between an engine and a server, and the engine's end of it.
//!
//! ```text
//!  engine ══ socket ══ server
//! (client)
//! ```
//!
//! A [`client`] gives its engine lanes like those of a library of its own machine. What an engine writes into the ring of a local worker
//! travels over the socket as it is ([`wire`]), so that calls, streams, pipelining, limits and errors are the same. The server
//! is a crate of its own (`crosslane-server`), which engines and guests do not need.

pub mod address;
mod any;
pub mod client;
pub mod lane;
pub mod session;
mod socket;
pub mod stream;
pub mod tls;
mod wait;
pub mod wire;

pub use address::Address;
pub use any::{AnyLane, AnyZygote};
pub use client::{Remote, RemoteZygote};
pub use lane::LaneOptions;
pub use session::Session;
