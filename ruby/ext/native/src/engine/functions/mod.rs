//! The program's blocks as functions of DuckDB, and the host lanes that run them.

pub(crate) mod aggregate;
pub(crate) mod host;
pub(crate) mod scalar;
pub(crate) mod table;
