//! The watchdog: the thread that closes the extension's connection when no other is left. It also
//! notices when a server has other functions.

use super::state::Database;
use crosslane::lock;
use std::sync::Arc;
use std::time::Duration;

/// About how long the file stays locked after the last close.
const WATCH: Duration = Duration::from_millis(150);

impl Database {
    /// Closes the extension's connection when no other is left. The watchdog's thread runs this.
    pub(crate) fn watch(self: &Arc<Self>) {
        loop {
            std::thread::sleep(WATCH);
            let connection = lock(&self.connection);
            let Some(open) = &*connection else { return };
            // Qualified, because the user may have a function of this name.
            let count = open.number("SELECT count::BIGINT FROM system.main.duckdb_connection_count()");
            drop(connection);
            crosslane_vectors::sweep();
            self.renew_servers();
            match count {
                Ok(1) => return self.close(),
                // DuckDB has invalidated the database; keeping it open would only keep the file
                // locked.
                Err(refusal) if refusal.is_fatal() => return self.close(),
                // The next query may succeed.
                Ok(_) | Err(_) => {}
            }
        }
    }
}
