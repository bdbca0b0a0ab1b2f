//! DuckDB's vectors, chunks and values, and the memory that they take.

mod chunk;
pub(crate) mod memory;
mod query;
mod scratch;
pub(crate) mod string;
pub(crate) mod validity;
mod value;

pub use chunk::Chunk;
pub use query::{QueryError, query, quoted};
pub(crate) use scratch::Scratch;
pub(crate) use value::copied_text;
pub use value::{Value, owned_text};
