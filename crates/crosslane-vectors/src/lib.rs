//! DuckDB's vectors and types as Crosslane's columns and types, and back: what every engine adapter around DuckDB
//! needs, the extension as well as a client that embeds the database.

pub mod guard;
mod input;
mod output;
mod scalar;
mod types;

pub use input::Arguments;
pub use output::Results;
pub use scalar::{Context, register_scalar};
pub use types::{LogicalType, data_type};
