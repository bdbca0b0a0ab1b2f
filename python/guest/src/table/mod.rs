//! Table functions, and stream functions that are declared with their columns: rows that Python
//! yields become batches.

mod partial_batch;
mod row_writer;
mod scan;
mod sink;

pub(crate) use scan::Table;
