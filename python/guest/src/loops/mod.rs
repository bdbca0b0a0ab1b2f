//! The rows of a batch: their arguments, the loop that calls a function for each row, and their
//! results.

mod argument;
mod result_writer;
mod reuse;
mod row_caller;
mod row_iterator;
mod row_results;
mod selection;

pub(crate) use argument::Argument;
pub(crate) use result_writer::ResultWriter;
#[cfg(test)]
pub(crate) use reuse::ReusedObjects;
pub(crate) use row_caller::RowCaller;
pub(crate) use row_iterator::{Cursor, Loop};
pub(crate) use row_results::RowResults;
pub(crate) use selection::Selection;
