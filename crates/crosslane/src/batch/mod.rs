//! Batches of rows in Arrow's layout: how columns are written, sent and read.

mod borrowed;
pub mod builder;
mod column;
mod encode;
mod header;
mod key;
mod rows;

pub use borrowed::Borrowed;
pub use builder::ColumnBuilder;
pub use column::{
    Column, Malformed, bit, column, column_before, columns, failure_frame, failure_text, header, last_buffer,
    member, types,
};
pub use encode::{Body, Encode, Frame, Plan, Typed};
pub use header::{BATCH, CANCEL, FAILURE, HEAD, Header, LAST};
pub(crate) use key::append_key;
pub use rows::Rows;
