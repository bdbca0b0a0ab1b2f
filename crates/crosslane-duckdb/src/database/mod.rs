//! What the extension keeps for one database: settings, libraries, and the connection that registers
//! functions.
//!
//! # Lifetime
//! A connection keeps its database open, so the extension's own would hold the file's lock for ever. (Those of queries for
//! streams end with the query that reads the stream, which a connection of the user's runs.) A
//! thread, the watchdog, looks at `duckdb_connection_count()` and closes the connection when no other
//! is left; DuckDB then destroys the database, with it the registered functions, and with them the
//! libraries and their processes. At the end of the process the watchdog is stopped first, because
//! DuckDB's own static data goes away.

mod connection;
pub(crate) mod exit;
pub(crate) mod library;
mod load;
pub(crate) mod names;
mod pickled;
mod publish;
mod state;
mod watchdog;

pub(crate) use connection::{Connection, Instance};
pub(crate) use pickled::Pickled;
pub(crate) use publish::Permissions;
pub(crate) use state::Database;
