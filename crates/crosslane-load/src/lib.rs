//! A load generator. One thread sends requests at planned times, or keeps a number of them in
//! flight. It records when each is answered.
//!
//! The measurement must not make a server look better than it is:
//!
//! - All times are planned before the first request is sent ([`plan`](mod@plan)).
//! - Latencies count from the planned times. So a slow answer does not delay the next request, and
//!   does not hide how long that request waited.
//! - Every sample is kept.
//! - A server that does not read from one connection does not stop the others.
//! - A request that was never answered counts with the time that it has waited.
//!
//! The caller defines the requests: it implements [`Connection`]. A [`Watch`] does other work
//! during the run.

mod generator;
pub mod plan;
mod priority;

pub use generator::{Connection, Load, Outcome, Watch, Work, run};
pub use plan::{Arrivals, Mix, Planned};
