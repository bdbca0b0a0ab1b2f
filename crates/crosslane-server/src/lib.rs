//! Remote lanes: the functions of one machine, for the engines of others.
//!
//! ```text
//!  engine ══ socket ══ connection ── routes ── ring ── worker
//! (client)                     (server)
//! ```
//!
//! The [`server`] has the libraries and their workers. What a client's engine would write into the ring of a worker on its own machine
//! arrives over the socket as it is ([`wire`]). The client is a crate of its own ([`crosslane_remote`]).

mod budget;
mod connection;
pub mod doors;
#[cfg(feature = "flight")]
pub mod flight;
pub mod http;
pub mod load;
pub mod log;
mod meter;
mod metrics;
mod monitor;
mod offer;
mod route;
pub mod server;
mod workers;

use crosslane_remote::stream;
pub use crosslane_remote::{Address, LaneOptions, Remote, RemoteZygote, address, client, lane, tls, wire};
pub use doors::Doors;
pub use http::Http;
pub use server::{Options, Server};
