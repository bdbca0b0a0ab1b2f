//! The embedded database: a small client of libduckdb, and the program's own functions for its
//! queries.

pub(crate) mod connection;
pub(crate) mod data;
pub(crate) mod functions;
pub(crate) mod library;
pub(crate) mod parameters;
