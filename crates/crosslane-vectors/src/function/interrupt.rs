//! Whether the query of a connection was interrupted.
//!
//! The C interface can interrupt a connection, but a callback cannot ask it whether its query was
//! interrupted. The flag is a byte in the client's context, the object behind a connection. To find
//! its offset, an idle connection of our own is interrupted once: the byte that changes is the
//! flag. If it is not found, an interrupted query ends when its callbacks return.

use libduckdb_sys as ffi;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// How many bytes of a context are searched; the context is longer.
const BYTES: usize = 64;
/// The flag's value after an interrupt.
const INTERRUPTED: u8 = 1;

static OFFSET: OnceLock<Option<usize>> = OnceLock::new();

/// Searches the offset of the flag, once per process. The next query of the connection is not
/// interrupted.
///
/// # Safety
/// The connection must be open, and no other thread may use it meanwhile.
pub unsafe fn find_interrupts(connection: ffi::duckdb_connection) {
    OFFSET.get_or_init(|| {
        // SAFETY: as the caller says. The bytes are those of an object that is longer, and lives as
        // long as the connection.
        unsafe {
            let mut context = std::ptr::null_mut();
            ffi::duckdb_connection_get_client_context(connection, &raw mut context);
            let client = Client::of(context);
            ffi::duckdb_destroy_client_context(&raw mut context);
            // A connection begins with the address of its context.
            if *connection.cast::<usize>() != client.address {
                return None;
            }
            let bytes = || (0..BYTES).map(|offset| client.byte(offset)).collect::<Vec<_>>();
            let before = bytes();
            ffi::duckdb_interrupt(connection);
            let after = bytes();
            let mut changed = (0..BYTES).filter(|offset| before[*offset] != after[*offset]);
            let offset =
                changed.next().filter(|offset| (before[*offset], after[*offset]) == (0, INTERRUPTED));
            offset.filter(|_| changed.next().is_none())
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

    /// The context for which DuckDB binds a function. The first argument of the C++ callback points
    /// to it, or to its address. A context begins with its own address
    /// (`std::enable_shared_from_this`).
    ///
    /// # Safety
    /// The argument must be DuckDB's first one of a callback that binds an aggregate.
    pub(crate) unsafe fn of_bind(argument: usize) -> Option<Self> {
        // SAFETY: as the caller says: it is the address of the context, or of the context's
        // address.
        let word = |address: usize| unsafe { *(address as *const usize) };
        let first = word(argument);
        let mut address = (first == argument || word(first) == first).then_some(first)?;
        // SAFETY: it is a context, to which a handle is a reference.
        Some(unsafe { Self::of((&raw mut address).cast()) })
    }

    /// # Safety
    /// The context must live and have the byte.
    unsafe fn byte(self, offset: usize) -> u8 {
        // SAFETY: as the caller says; others write single bytes.
        unsafe { (*(self.address as *const AtomicU8).add(offset)).load(Relaxed) }
    }

    /// Whether the query that runs now was interrupted.
    ///
    /// # Safety
    /// The context must live: it does as long as a query of its connection runs.
    pub unsafe fn is_interrupted(self) -> bool {
        let offset = OFFSET.get().copied().flatten();
        // SAFETY: as the caller says; all contexts have a byte at this offset.
        offset.is_some_and(|offset| unsafe { self.byte(offset) } == INTERRUPTED)
    }
}
