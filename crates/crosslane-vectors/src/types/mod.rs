//! SQL types as DuckDB has them.

pub(crate) mod encoding;
mod logical;
mod names;

pub(crate) use logical::decimal_width;
pub use logical::{LogicalType, data_type};
pub use names::type_names;
