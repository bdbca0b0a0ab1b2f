//! Parameters of statements: Ruby objects as DuckDB values.

pub(crate) mod bind;
mod kind;
mod value;
