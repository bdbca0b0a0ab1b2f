//! Functions as DuckDB's scalar and table functions: what all adapters do alike.

mod bind;
pub mod callback;
mod callee;
mod context;
mod failures;
mod interrupt;
mod registration;
mod scalar;
mod table;
mod version;

pub use callee::Callee;
pub use context::Context;
pub use failures::RecentFailure;
pub use interrupt::{Client, find_interrupts};
pub use registration::add_result_columns;
pub(crate) use registration::{c_string, logical_types, registered};
pub use scalar::{Scalar, register_scalar};
pub use table::{Bound, Query, Table, register_table};
pub use version::is_version;
pub(crate) use version::version;
