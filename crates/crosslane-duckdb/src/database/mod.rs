//! What the extension keeps for one database: settings, libraries, and the connection that
//! registers functions.
//!
//! # Lifetime
//! A connection keeps its database open, so the extension's own connection would hold the file's
//! lock for ever. (Connections for the queries of streams end with the user's query that reads the
//! stream.) A thread, the watchdog, reads `duckdb_connection_count()`, and closes the connection
//! when no other is left. Then DuckDB destroys the database and the registered functions, and so
//! the libraries and their processes end. At the end of the process the watchdog stops first,
//! because DuckDB's static data is destroyed then.

mod connection;
mod definitions;
pub(crate) mod exit;
pub(crate) mod library;
mod load;
pub(crate) mod names;
mod pickled;
mod publish;
mod reload;
mod state;
mod watchdog;
mod watched;

pub(crate) use connection::{Connection, Instance};
pub(crate) use definitions::{Kept, Restored};
pub(crate) use names::Permissions;
pub(crate) use pickled::Pickled;
pub(crate) use reload::Reloaded;
pub(crate) use state::Database;
