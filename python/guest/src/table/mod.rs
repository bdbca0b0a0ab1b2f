//! Table functions, and stream functions that are declared with their columns: rows that Python yields become batches.

mod scan;

pub(crate) use scan::Table;
