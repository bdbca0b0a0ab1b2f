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
            if *connection.cast::<usize>() != client.address {
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

/// The client's context behind a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    address: usize,
    /// DuckDB's number of the connection.
    pub connection: u64,
}

impl Client {
    /// # Safety
    /// The context must be one of DuckDB's, which lives.
    pub(crate) unsafe fn of(context: ffi::duckdb_client_context) -> Self {
        // SAFETY: as the caller says; DuckDB's handle is a reference to the object.
        unsafe {
            Self {
                address: *context.cast::<usize>(),
                connection: ffi::duckdb_client_context_get_connection_id(context),
            }
        }
    }

    /// The context that DuckDB binds a function for: the first argument of its C++ callback, or the first word of what that
    /// points to. A context can be shared, and so begins with its own address (`std::enable_shared_from_this`).
    ///
    /// # Safety
    /// The argument must be DuckDB's first one of a callback that binds an aggregate.
    pub(crate) unsafe fn of_bind(argument: usize) -> Option<Self> {
        // SAFETY: as the caller says: it is the address of the context, or of the address of the context.
        let word = |address: usize| unsafe { *(address as *const usize) };
        let first = word(argument);
        let mut address = (first == argument || word(first) == first).then_some(first)?;
        // SAFETY: it is a context, to which a handle is a reference.
        Some(unsafe { Self::of((&raw mut address).cast()) })
    }

    /// # Safety
    /// The context must live and have the byte.
    unsafe fn byte(self, place: usize) -> u8 {
        // SAFETY: as the caller says; others write single bytes.
        unsafe { (*(self.address as *const AtomicU8).add(place)).load(Relaxed) }
    }

    /// Whether the query was interrupted that runs now.
    ///
    /// # Safety
    /// The context must live: it does as long as a query of its connection runs.
    pub unsafe fn is_interrupted(self) -> bool {
        let place = PLACE.get().copied().flatten();
        // SAFETY: as the caller says; the place is one of all contexts.
        place.is_some_and(|place| unsafe { self.byte(place) } == INTERRUPTED)
    }
}
