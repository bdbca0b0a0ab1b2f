//! Columns out of DuckDB: the arguments of calls, and the input of streams.

mod arguments;
mod copy;
mod query;
mod rows;
mod stream;
mod vector_rows;

pub use arguments::Arguments;
pub(crate) use copy::copy;
pub use query::query_for;
pub use stream::StreamInput;
