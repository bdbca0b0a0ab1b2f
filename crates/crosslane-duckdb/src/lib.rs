//! The DuckDB extension.
//!
//! `LOAD` calls [`crosslane_init_c_api`]. It registers the commands (`crosslane_load` and others),
//! and the functions of each file in the environment variable `CROSSLANE_LOAD`. Each function
//! becomes a function of DuckDB whose callback passes DuckDB's vectors to [`crosslane::call`].
//!
//! No panic leaves a callback: [`crosslane_vectors::callback`] makes it an error of the query.

mod command;
mod database;
mod function;
mod install;
mod signals;
mod stream;

use crosslane_vectors::callback;
use libduckdb_sys as ffi;
use std::ffi::{CString, c_char};

/// The oldest C API that has all that the extension calls: scalar functions with a state per
/// worker.
const API_VERSION: &str = "v1.5.6";

/// The entry point, which DuckDB finds by the name of the file.
///
/// # Safety
/// DuckDB calls it with its own `info` and `access`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosslane_init_c_api(
    info: ffi::duckdb_extension_info,
    access: *const ffi::duckdb_extension_access,
) -> bool {
    // SAFETY: DuckDB passes valid pointers, and the database handle lives until this returns.
    let outcome = callback::guard(|| unsafe {
        match ffi::duckdb_rs_extension_api_init(info, access, API_VERSION) {
            Ok(true) => {}
            // DuckDB has set the error itself.
            Ok(false) => return Ok(false),
            Err(error) => return Err(crosslane::Error::Engine(error.to_owned())),
        }
        let get_database = (*access).get_database.ok_or_else(|| broken("get_database"))?;
        let database = get_database(info);
        if database.is_null() {
            return Ok(false);
        }
        install::install(*database)?;
        Ok(true)
    });
    outcome.unwrap_or_else(|error| {
        let text = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
        // SAFETY: as above; DuckDB copies the text.
        unsafe {
            if let Some(set_error) = (*access).set_error {
                set_error(info, text.as_ptr().cast::<c_char>());
            }
        }
        false
    })
}

fn broken(what: &str) -> crosslane::Error {
    crosslane::Error::Engine(format!("this DuckDB lacks {what}"))
}
