//! The watchdog: the thread that closes the extension's connection when no other is left.

use super::state::{Database, lock};
use std::time::Duration;

/// How long the file may stay locked after the last close, about.
const WATCH: Duration = Duration::from_millis(150);

impl Database {
    /// What the watchdog does.
    pub(crate) fn watch(&self) {
        loop {
            std::thread::sleep(WATCH);
            let connection = lock(&self.connection);
            let Some(open) = &*connection else { return };
            // The user may have a function of this name, too.
            let count = open.number("SELECT count::BIGINT FROM system.main.duckdb_connection_count()");
            drop(connection);
            crosslane_vectors::sweep();
            match count {
                Ok(1) => return self.close(),
                // DuckDB has given the database up; holding on to it would only keep the file locked.
                Err(refusal) if refusal.is_fatal() => return self.close(),
                // The next look may succeed.
                Ok(_) | Err(_) => {}
            }
        }
    }
}
