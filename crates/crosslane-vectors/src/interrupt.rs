//! Whether DuckDB was told to interrupt what a connection does.
//!
//! The C interface can tell a connection to interrupt its query, and cannot tell a callback of that query. But it is a
//! byte in the object behind the connection, the client's context, which changes when an idle connection of our own is
//! interrupted. So its place is found once, and read in the contexts of others. Where it is not found, a query is
//! interrupted when its callbacks return.

use libduckdb_sys as ffi;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// How many bytes of a context are looked at: it has more.
const BYTES: usize = 64;
/// What the byte is then.
const INTERRUPTED: u8 = 1;

static PLACE: OnceLock<Option<usize>> = OnceLock::new();

/// Finds the place, unless it was looked for before. The next query of the connection is not interrupted.
///
/// # Safety
/// The connection must be open, and nobody else use it meanwhile.
pub unsafe fn find_interrupts(connection: ffi::duckdb_connection) {
    PLACE.get_or_init(|| {
        // SAFETY: as the caller says. The bytes are those of an object that is longer, and lives as long as the
        // connection.
        unsafe {
            let mut context = std::ptr::null_mut();
            ffi::duckdb_connection_get_client_context(connection, &raw mut context);
            let client = Client::of(context);
            ffi::duckdb_destroy_client_context(&raw mut context);
            // A connection begins with where its context is.
            if client.0 == 0 || *connection.cast::<usize>() != client.0 {
                return None;
            }
            let bytes = || (0..BYTES).map(|place| client.byte(place)).collect::<Vec<_>>();
            let before = bytes();
            ffi::duckdb_interrupt(connection);
            let after = bytes();
            let mut changed = (0..BYTES).filter(|place| before[*place] != after[*place]);
            let place = changed.next().filter(|place| (before[*place], after[*place]) == (0, INTERRUPTED));
            place.filter(|_| changed.next().is_none())
        }
    });
}

/// The client's context behind a connection: an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client(usize);

impl Client {
    /// # Safety
    /// The context must be null or one of DuckDB's.
    pub(crate) unsafe fn of(context: ffi::duckdb_client_context) -> Self {
        // SAFETY: as the caller says; DuckDB's handle is a reference to the object.
        Self(unsafe { context.cast::<usize>().as_ref().copied().unwrap_or_default() })
    }

    /// # Safety
    /// The context must live and have the byte.
    unsafe fn byte(self, place: usize) -> u8 {
        // SAFETY: as the caller says; others write single bytes.
        unsafe { (*(self.0 as *const AtomicU8).add(place)).load(Relaxed) }
    }

    /// Whether the query was interrupted that runs now.
    ///
    /// # Safety
    /// The context must live: it does as long as a query of its connection runs.
    pub unsafe fn is_interrupted(self) -> bool {
        let place = PLACE.get().copied().flatten().filter(|_| self.0 != 0);
        // SAFETY: as the caller says; the place is one of all contexts.
        place.is_some_and(|place| unsafe { self.byte(place) } == INTERRUPTED)
    }
}
