//! Converts DuckDB's vectors and types to Crosslane's columns and types, and back, and Arrow arrays
//! to columns. Both adapters for DuckDB use it: the extension, and Ruby's client that embeds the
//! database.

mod aggregate;
pub mod arrow;
mod function;
mod input;
mod output;
mod types;
mod vector;

pub use aggregate::{Aggregate, register_aggregate, sweep};
pub use function::callback;
pub use function::{
    Bound, Callee, Client, Context, Query, RecentFailure, Scalar, Table, add_result_columns, find_interrupts,
    is_version, register_scalar, register_table,
};
pub use input::{Arguments, StreamInput, query_for};
pub use output::{PendingRows, Projection, Results};
pub use types::{LogicalType, data_type, type_names};
pub use vector::{Chunk, QueryError, Value, owned_text, query, quoted};
