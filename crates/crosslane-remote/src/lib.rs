//! Remote lanes: the messages between an engine and a server, and the engine's end of the
//! connection.
//!
//! ```text
//!  engine ══ socket ══ server
//! (client)
//! ```
//!
//! A [`client`] gives an engine lanes to a server. They work like the lanes of a library on the
//! engine's own machine. The socket carries the same bytes that an engine writes into the ring of a
//! local worker ([`wire`]). So calls, streams, pipelining, limits and errors are the same. The
//! server is another crate (`crosslane-server`). Engines and guests do not need that crate.

pub mod address;
mod any;
pub mod client;
pub mod context;
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
