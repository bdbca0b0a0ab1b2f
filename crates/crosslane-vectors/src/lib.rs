//! DuckDB's vectors and types as Crosslane's columns and types, and back, and Arrow arrays as columns: what every engine
//! adapter around DuckDB needs, the extension as well as a client that embeds the database.

mod aggregate;
pub mod arrow;
mod attempts;
pub mod guard;
mod input;
mod interrupt;
mod output;
mod portions;
mod projection;
mod recoded;
mod room;
mod scalar;
mod source;
mod string;
mod table;
mod type_names;
mod types;
mod validity;

pub use aggregate::{Aggregate, register_aggregate, sweep};
pub use attempts::Attempts;
pub use input::Arguments;
pub use interrupt::{Client, find_interrupts};
pub use output::Results;
pub use portions::Portions;
pub use projection::Projection;
pub use scalar::{Callee, Context, Scalar, register_scalar};
pub use source::{Source, query_for};
pub use table::{Bound, Chunk, Query, Table, register_table};
pub use type_names::type_names;
pub use types::{LogicalType, data_type};
