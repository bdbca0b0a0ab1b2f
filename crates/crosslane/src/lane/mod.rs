//! Lanes, and the exchanges over them.

mod error;
mod exchange;
mod traits;

pub use error::LaneError;
pub use exchange::{Address, Entry, Exchanges, Part};
pub(crate) use traits::ROUND_TRIP;
pub use traits::{COUNT, Lane, Patience, Stuck, WRITING, Waiter, plan_batch, rest_until, wait_any};
