//! The embedded database: a small client of libduckdb, and functions of this very program for its queries.
//!
//! | module | what |
//! |---|---|
//! | [`api`] | libduckdb's functions, looked up when it is loaded |
//! | [`host`] | the host lanes of this process |
//! | [`session`] | what a query's thread and its workers tell each other |
//! | [`database`], [`rows`], [`arrow`], [`append`], [`import`], [`bind`], [`parameter`] | the client |
//! | [`forget`] | taking functions back |
//! | [`scalar`], [`table`], [`aggregate`] | the program's blocks as DuckDB's functions |

pub(crate) mod aggregate;
pub(crate) mod api;
pub(crate) mod append;
pub(crate) mod arrow;
pub(crate) mod bind;
pub(crate) mod database;
pub(crate) mod forget;
pub(crate) mod host;
pub(crate) mod import;
pub(crate) mod parameter;
pub(crate) mod rows;
pub(crate) mod scalar;
pub(crate) mod session;
pub(crate) mod table;
