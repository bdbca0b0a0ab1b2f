//! Remote lanes: the functions of one machine, for the engines of others.
//!
//! ```text
//!  engine ── ring ── relay ══ socket ══ connection ── routes ── ring ── worker
//!        (client)                               (server)
//! ```
//!
//! The [`server`] has the libraries and their workers. A [`client`] gives its engine lanes like those of any other library; what
//! the engine writes into a lane's ring travels as it is ([`wire`]), so that calls, streams, pipelining, limits and errors are the
//! same as on one machine.

pub mod address;
pub mod client;
mod connection;
mod offer;
mod route;
pub mod server;
pub mod session;
mod stream;
pub mod tls;
pub mod wire;
mod workers;

pub use address::Address;
pub use client::attach;
pub use server::{Options, Server};
pub use session::Session;
