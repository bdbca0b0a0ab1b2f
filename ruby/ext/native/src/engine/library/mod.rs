//! libduckdb: its functions, and what they take and give.

pub(crate) mod api;
pub(crate) mod catalog;
pub(crate) mod text;
