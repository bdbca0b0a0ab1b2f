//! DuckDB's C++ functions that change its catalog, looked up by name.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

/// DuckDB's C++ functions, in the order that the shim expects.
#[repr(C)]
pub(crate) struct Catalog([*mut c_void; 5]);

// SAFETY: addresses of code.
unsafe impl Send for Catalog {}
// SAFETY: as above.
unsafe impl Sync for Catalog {}

/// The functions' mangled names: `ClientContext::RunFunctionInTransaction`,
/// `Catalog::GetSystemCatalog`, `Catalog::GetSchema`, `DuckSchemaEntry::GetCatalogSet`,
/// `CatalogSet::DropEntry`. DuckDB 2.0 has a class for names.
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

/// Looks up the functions, once.
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

/// The functions; `None` if libduckdb does not export them.
pub(crate) fn catalog() -> Option<&'static Catalog> {
    CATALOG.get()?.as_ref()
}
