//! Rows: results, appended rows, and Arrow streams in both directions.

pub(crate) mod append;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod rows;
