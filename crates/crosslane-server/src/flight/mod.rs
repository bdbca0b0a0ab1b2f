//! Arrow Flight, with the contract that Databend and RisingWave use for external functions.
//!
//! | call | here |
//! |---|---|
//! | GetFlightInfo, of the path `[name]` | its schema: `total_records` arguments, and then the results |
//! | ListFlights | the same for all functions |
//! | DoExchange, whose first message has this path | batches of arguments in, batches of results out |
//! | DoAction `protocol_version` | 2, as of arrow-udf |
//!
//! This module is a client of its own server, over connections within the process. So its calls
//! wait in the same queue for the same workers as those of other clients. Limits, retries, timeouts
//! and errors are those of any engine ([`crosslane::call`]). A call costs one hop more than a call
//! that this module would give to a worker itself.
//!
//! # Bounds
//! There are at most as many connections and exchanges as the server has connections. There are at
//! most half as many calls at once, because each call is a connection of the server. Further calls
//! wait in the order in which they came. The server's largest message is also the largest here.

mod calls;
mod columns;
mod context;
mod exchange;
mod function;
mod incoming;
mod service;
mod status;
mod types;

pub use service::{Flight, Options};
