//! A load generator: one thread that sends requests at planned times, or keeps some on their way, and notes when each is
//! answered.
//!
//! What would flatter a server is avoided: all times are planned before the first request is sent ([`plan`](mod@plan)) and latencies
//! count from them, so that a slow answer does not delay the next request, nor hide how long that one waited; every
//! sample is kept; a server that does not read stops no other connection; and a request that was never answered counts
//! with the time that it has waited for.
//!
//! What travels is the caller's: it makes the [`Connection`]s, and a [`Watch`] says what is to be done beside.

mod generator;
pub mod plan;
mod priority;

pub use generator::{Connection, Load, Outcome, Watch, Work, run};
pub use plan::{Arrivals, Mix, Planned};
