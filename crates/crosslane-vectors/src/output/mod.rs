//! Columns into DuckDB: the results of calls, and of table functions.

mod pending;
mod projection;
mod results;

pub use pending::PendingRows;
pub use projection::Projection;
pub use results::Results;
