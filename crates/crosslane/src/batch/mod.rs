//! Batches of rows in Arrow's layout: how columns are written, sent and read.

mod borrowed;
pub mod builder;
mod format;
mod rows;

pub use borrowed::Unread;
pub use builder::ColumnBuilder;
pub use format::*;
pub use rows::Rows;
