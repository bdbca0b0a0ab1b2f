//! libduckdb's functions, looked up when the library is loaded.
//!
//! The library is loaded when the first database is opened. So a worker of the guest does not load
//! it, and the program can choose the library. Its functions are stored in the table that DuckDB
//! passes to extensions. `libduckdb_sys` calls through this table, because the code that converts
//! vectors is shared with the extension.

use crate::engine::connection::session::{failure, lock};
use crate::engine::library::catalog;
use crate::engine::library::text::{c_string, text};
use libduckdb_sys as ffi;
use magnus::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;

/// The path of the loaded library, as the program gave it.
static OPEN: Mutex<Option<String>> = Mutex::new(None);

/// Fills the table. If the library lacks a function, the error is the function's name.
///
/// # Safety
/// The handle must be libduckdb's.
unsafe fn table(library: *mut c_void) -> Result<ffi::duckdb_ext_api_v1, String> {
    // SAFETY: the table consists of optional functions, and all-zero means none.
    let mut table: ffi::duckdb_ext_api_v1 = unsafe { std::mem::zeroed() };
    // The fields have the functions' names, which only the table's text for debugging tells:
    // `duckdb_ext_api_v1 { duckdb_open: None, duckdb_open_ext: None, ... }`.
    let fields = format!("{table:?}");
    let names: Vec<&str> = fields.split(' ').filter_map(|word| word.strip_suffix(':')).collect();
    let places = (&raw mut table).cast::<*mut c_void>();
    assert_eq!(size_of_val(&table), names.len() * size_of::<*mut c_void>());
    for (index, name) in names.into_iter().enumerate() {
        let symbol = CString::new(name).expect("a name in Rust");
        // SAFETY: the name is a C string. The table has so many places, each for a function, in the
        // order of its fields. A function's type is that of the C header of this DuckDB, which the
        // library implements.
        unsafe {
            let found = libc::dlsym(library, symbol.as_ptr());
            if found.is_null() {
                return Err(name.into());
            }
            places.add(index).write(found);
        }
    }
    Ok(table)
}

/// Loads libduckdb, once per process.
pub(crate) fn load(path: String) -> Result<(), Error> {
    // This must be done before a database is opened.
    crosslane_process::occupy_standard_descriptors();
    crosslane_process::report_panics();
    let mut open = lock(&OPEN);
    if let Some(known) = &*open {
        if *known == path {
            return Ok(());
        }
        return Err(failure(None, &format!("this process uses {known} already; it cannot use {path} too")));
    }
    let name = c_string(&path)?;
    // SAFETY: opening a library runs its initializers; the texts are C strings.
    let filled = unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        if library.is_null() {
            let why = CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned();
            let advice = "set CROSSLANE_LIBDUCKDB to the path of a libduckdb.so of 1.5.6 or newer";
            return Err(failure(None, &format!("{path} cannot be opened: {why}; {advice}")));
        }
        catalog::find(library);
        table(library)
    };
    let table = filled.map_err(|missing| {
        failure(None, &format!("{path} is no libduckdb of 1.5.6 or newer: it has no {missing}"))
    })?;
    TABLE.with(|place| place.set(Box::leak(Box::new(table))));
    let access = ffi::duckdb_extension_access { set_error: None, get_database: None, get_api: Some(get_api) };
    // SAFETY: the access and the table live across the call, which copies the functions.
    let ready =
        unsafe { ffi::duckdb_rs_extension_api_init(std::ptr::null_mut(), &raw const access, "v1.5.6") };
    match ready {
        Ok(true) => *open = Some(path),
        Ok(false) => {
            return Err(failure(None, &format!("{path} has no functions for extensions of DuckDB 1.5.6")));
        }
        Err(why) => return Err(failure(None, &format!("{path} cannot be used: {why}"))),
    }
    Ok(())
}

thread_local! {
    /// Passes the table through libduckdb_sys.
    static TABLE: std::cell::Cell<*const ffi::duckdb_ext_api_v1> = const { std::cell::Cell::new(std::ptr::null()) };
}

unsafe extern "C" fn get_api(_info: ffi::duckdb_extension_info, _version: *const c_char) -> *const c_void {
    TABLE.get().cast()
}

/// The library's version.
pub(crate) fn version() -> String {
    // SAFETY: a static text.
    unsafe { text(ffi::duckdb_library_version()) }
}
