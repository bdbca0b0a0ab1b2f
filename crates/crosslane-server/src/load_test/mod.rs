//! The load generator of `crosslane bench serve`: calls of one row at planned times, and how long each takes.
//!
//! The loop, the plan and what keeps the figures honest are [`crosslane_load`]'s. Here are the calls, and the report. For each number of
//! calls per second there are new connections and a run of its own. What has failed is counted, and has no part in the
//! latencies, since it may be fast; what was not answered counts with the time that it has waited.

mod call;
mod lanes;
mod run;

pub use call::Asked;
pub use run::{Event, Plan, measure};
