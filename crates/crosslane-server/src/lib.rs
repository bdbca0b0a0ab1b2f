//! Remote lanes: the functions of one machine, for the engines of others.
//!
//! ```text
//!  engine ══ socket ══ connection ── routes ── ring ── worker
//! (client)                     (server)
//! ```
//!
//! The [`server`] has the libraries and their workers. A [`client`] gives its engine lanes like those of any other library. What
//! an engine writes into the ring of a worker on its own machine travels over the socket as it is ([`wire`]), so that calls, streams,
//! pipelining, limits and errors are the same.

pub mod address;
mod any;
mod budget;
pub mod client;
mod connection;
pub mod doors;
pub mod flight;
pub mod http;
pub mod lane;
pub mod load;
pub mod log;
mod meter;
mod metrics;
mod monitor;
mod offer;
mod route;
pub mod server;
pub mod session;
mod stream;
pub mod tls;
pub mod wire;
mod workers;

pub use address::Address;
pub use any::{AnyLane, AnyZygote};
pub use client::{Remote, RemoteZygote};
pub use doors::Doors;
pub use http::Http;
pub use lane::LaneOptions;
pub use server::{Options, Server};
pub use session::Session;
