//! DuckDB's vectors and types as Crosslane's columns and types, and back, and Arrow arrays as columns: what every engine
//! adapter around DuckDB needs, the extension as well as a client that embeds the database.

#[path = "aggregate/callbacks.rs"]
mod aggregate;
pub mod arrow;
#[path = "function/failures.rs"]
mod attempts;
#[path = "function/callback.rs"]
pub mod guard;
#[path = "input/vector_rows.rs"]
mod input;
#[path = "function/interrupt.rs"]
mod interrupt;
#[path = "output/results.rs"]
mod output;
#[path = "output/pending.rs"]
mod portions;
#[path = "output/projection.rs"]
mod projection;
#[path = "types/encoding.rs"]
mod recoded;
#[path = "vector/memory.rs"]
mod room;
#[path = "function/scalar.rs"]
mod scalar;
#[path = "input/query.rs"]
mod source;
#[path = "vector/string.rs"]
mod string;
#[path = "function/table.rs"]
mod table;
#[path = "types/names.rs"]
mod type_names;
#[path = "types/logical.rs"]
mod types;
#[path = "vector/validity.rs"]
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
