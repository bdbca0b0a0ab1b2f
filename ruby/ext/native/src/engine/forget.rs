//! Forgetting functions, so that others can have their names.
//!
//! DuckDB's interface for C adds functions and never takes one back. Of the same name it refuses a second aggregate,
//! ignores a second table function, and keeps a scalar function of other types beside the new one. So the one that is
//! replaced is dropped from the catalog as DuckDB's Python package does it, in C++ (`shim/forget.cc`).

use crate::engine::database::{Connection, briefly};
use libduckdb_sys as ffi;
use magnus::Error;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// DuckDB's functions in C++, in the order in which the shim has them.
#[repr(C)]
pub(crate) struct Catalog([*mut c_void; 5]);

// SAFETY: addresses of code.
unsafe impl Send for Catalog {}
// SAFETY: as above.
unsafe impl Sync for Catalog {}

unsafe extern "C" {
    fn crosslane_forget(
        duckdb: *const Catalog,
        context: *mut c_void,
        name: *const c_char,
        length: usize,
        table: bool,
    ) -> bool;
}

/// Their names: `ClientContext::RunFunctionInTransaction`, `Catalog::GetSystemCatalog`, `Catalog::GetSchema`,
/// `DuckSchemaEntry::GetCatalogSet`, `CatalogSet::DropEntry`. DuckDB 2.0 has a class for names.
const NAMES: [[&CStr; 5]; 2] = [
    [
        c"_ZN6duckdb13ClientContext24RunFunctionInTransactionERKSt8functionIFvvEEb",
        c"_ZN6duckdb7Catalog16GetSystemCatalogERNS_13ClientContextE",
        c"_ZN6duckdb7Catalog9GetSchemaERNS_13ClientContextERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        c"_ZN6duckdb15DuckSchemaEntry13GetCatalogSetENS_11CatalogTypeE",
        c"_ZN6duckdb10CatalogSet9DropEntryERNS_13ClientContextERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEbb",
    ],
    [
        c"_ZN6duckdb13ClientContext24RunFunctionInTransactionERKSt8functionIFvvEEb",
        c"_ZN6duckdb7Catalog16GetSystemCatalogERNS_13ClientContextE",
        c"_ZN6duckdb7Catalog9GetSchemaERNS_13ClientContextERKNS_10IdentifierE",
        c"_ZN6duckdb15DuckSchemaEntry13GetCatalogSetENS_11CatalogTypeE",
        c"_ZN6duckdb10CatalogSet9DropEntryERNS_13ClientContextERKNS_10IdentifierEbb",
    ],
];

static CATALOG: OnceLock<Option<Catalog>> = OnceLock::new();

/// Looks the functions up, once.
///
/// # Safety
/// The handle must be libduckdb's.
pub(crate) unsafe fn find(library: *mut c_void) {
    CATALOG.get_or_init(|| {
        // SAFETY: as the caller says; the names are C strings.
        let of =
            |names: &[&CStr; 5]| Catalog(names.map(|name| unsafe { libc::dlsym(library, name.as_ptr()) }));
        NAMES.iter().map(of).find(|catalog| catalog.0.iter().all(|address| !address.is_null()))
    });
}

/// Has DuckDB forget the functions of a name, in the connection's transaction if it has one: the table functions, or
/// all others. Whether it did.
pub(crate) fn forget(connection: &Connection, name: String, table: bool) -> Result<bool, Error> {
    let link = connection.link()?;
    let Some(Some(catalog)) = CATALOG.get() else { return Ok(false) };
    // SAFETY: the connection is open. DuckDB's handle of its context is a structure with the address of that. The
    // functions are those that the shim expects, as their names say, and the text lives across the call.
    let forgotten = briefly(|| unsafe {
        let mut handle = std::ptr::null_mut();
        ffi::duckdb_connection_get_client_context(link.raw, &raw mut handle);
        let context = handle.cast::<*mut c_void>().read();
        let forgotten = crosslane_forget(catalog, context, name.as_ptr().cast(), name.len(), table);
        ffi::duckdb_destroy_client_context(&raw mut handle);
        forgotten
    });
    Ok(forgotten)
}
