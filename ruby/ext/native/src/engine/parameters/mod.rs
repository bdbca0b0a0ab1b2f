//! Parameters of statements: Ruby objects as DuckDB's values.

pub(crate) mod bind;
mod kind;
mod value;
