//! The load generator of `crosslane bench serve`: calls of one row at planned times, and their
//! latencies.
//!
//! [`crosslane_load`] has the loop and the plan, and says what keeps the figures honest. This
//! module has the calls and the report. Each rate of calls has new connections and a run of its
//! own. Calls that failed are counted, and are not part of the latencies, because a failure may be
//! fast. A call that was not answered counts with the time that it has waited.

mod call;
mod lanes;
mod run;

pub use call::Asked;
pub use run::{Event, Plan, measure};
