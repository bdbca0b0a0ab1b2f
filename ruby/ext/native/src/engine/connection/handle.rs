//! An open database, which its connections share.

use crate::engine::connection::closing::{Raw, in_own_process};
use crate::engine::connection::session::Sessions;
use libduckdb_sys as ffi;
use std::sync::Arc;

/// An open database.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) raw: ffi::duckdb_database,
    pub(crate) process: u32,
    pub(crate) sessions: Arc<Sessions>,
}

// SAFETY: DuckDB's databases may be used by any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let raw = Raw(self.raw);
        in_own_process(self.process, move || {
            let Raw(mut raw) = { raw };
            // SAFETY: the last user is gone.
            unsafe { ffi::duckdb_close(&raw mut raw) };
        });
    }
}
