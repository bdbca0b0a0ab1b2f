//! Functions of libraries as functions of DuckDB.

pub(crate) mod aggregate;
pub(crate) mod scalar;
mod table;
