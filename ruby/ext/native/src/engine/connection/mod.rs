//! Databases, connections and statements, and how a query runs.

pub(crate) mod closing;
#[allow(clippy::module_inception, reason = "a connection is one of the things of this folder")]
pub(crate) mod connection;
pub(crate) mod database;
pub(crate) mod forget;
pub(crate) mod handle;
pub(crate) mod link;
pub(crate) mod session;
pub(crate) mod statement;
