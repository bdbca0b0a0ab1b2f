//! libduckdb: its functions, and their argument and result types.

pub(crate) mod api;
pub(crate) mod catalog;
pub(crate) mod text;
