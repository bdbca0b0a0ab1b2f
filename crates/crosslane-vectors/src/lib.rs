//! DuckDB's vectors and types as Crosslane's columns and types, and back, and Arrow arrays as columns: what every engine
//! adapter around DuckDB needs, the extension as well as a client that embeds the database.

mod aggregate;
pub mod arrow;
mod attempts;
pub mod guard;
mod input;
mod output;
mod projection;
mod recoded;
mod room;
mod scalar;
mod string;
mod table;
mod types;
mod validity;

pub use aggregate::{Aggregate, register_aggregate, sweep};
pub use attempts::Attempts;
pub use input::Arguments;
pub use output::Results;
pub use projection::Projection;
pub use scalar::{Callee, Context, Scalar, register_scalar};
pub use table::{Bound, Chunk, Query, Table, arguments, register_table};
pub use types::{LogicalType, data_type};
