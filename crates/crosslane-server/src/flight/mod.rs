//! A second door: Arrow Flight, with the contract that Databend and RisingWave use for external functions.
//!
//! | call | here |
//! |---|---|
//! | GetFlightInfo, of the path `[name]` | its schema: `total_records` arguments, and the results behind them |
//! | ListFlights | the same for all functions |
//! | DoExchange, whose first message has this path | batches of arguments in, batches of results out |
//! | DoAction `protocol_version` | 2, as of arrow-udf |
//!
//! The door is a client of its own server, over connections within the process. So its calls go through the same
//! workers as those of other clients, in the same line; and limits, retries, timeouts and errors are those of any
//! engine ([`crosslane::call`]). It costs a hop more than a door that would speak to the workers itself.
//!
//! # Bounds
//! There are as many connections and exchanges at most as the server has connections, and half as many calls at once,
//! each of which is a connection of the server. Those beyond wait in the order in which they came. A message is bounded
//! by the server's largest.

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
