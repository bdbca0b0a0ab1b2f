//! The rows of a batch: their arguments, the loop that calls a function for each row, and their results.

pub(crate) mod result_writer;
pub(crate) mod reuse;
pub(crate) mod row_caller;
pub(crate) mod row_iterator;
