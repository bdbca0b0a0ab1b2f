//! Sets the extension up for a database.

use crate::command;
use crate::database::{Connection, Database, Instance, Permissions, Restored, exit};
use crate::signals::{self, Asker};
use crate::stream;
use crosslane::Error;
use crosslane_process::guests;
use crosslane_vectors::find_interrupts;
use libduckdb_sys as ffi;
use std::env;
use std::sync::Arc;

/// How a user sets something.
const HOW_TO_SET: &str = "CALL crosslane_set('{name}', '{value}')";

/// Registers the commands and the functions of the files in `CROSSLANE_LOAD`, and starts the
/// watchdog.
///
/// # Safety
/// The database must be open.
pub(crate) unsafe fn install(database: ffi::duckdb_database) -> Result<(), Error> {
    crosslane_process::occupy_standard_descriptors();
    crosslane_process::report_panics();
    signals::notice_ctrl_c();
    // SAFETY: the caller vouches for the database.
    let (connection, instance) = unsafe { (Connection::own(database)?, Instance::of(database)) };
    // SAFETY: the connection is open, and no other code has it.
    unsafe { find_interrupts(connection.raw()) };
    let database = Arc::new(Database::new(Some(connection), instance, guests::settings(HOW_TO_SET)));
    let installed = begin(&database);
    if installed.is_err() {
        database.close();
    }
    installed
}

fn begin(database: &Arc<Database>) -> Result<(), Error> {
    // DuckDB cannot forget what is registered. A LOAD that fails must register nothing, so that it
    // can be tried again.
    database.with_connection(Connection::begin)?;
    let outcome = register_all(database);
    database.with_connection(|connection| connection.end(outcome))?;
    restore(database);
    let watched = Arc::clone(database);
    std::thread::Builder::new()
        .name("crosslane-watchdog".into())
        .spawn(move || watched.watch())
        .map_err(|error| Error::Engine(format!("no thread: {error}")))?;
    exit::stop_at_exit(Arc::clone(database));
    Ok(())
}

/// Loads the definitions of the database, if `CROSSLANE_RESTORE` says so. What is not loaded is told in
/// the log.
fn restore(database: &Arc<Database>) {
    if env::var_os("CROSSLANE_RESTORE").is_none_or(|value| value.is_empty()) {
        return;
    }
    let tell =
        |message: String| crosslane_process::print_to_log(format!("crosslane: {message}\n").as_bytes());
    match database.restore(Permissions::default(), Asker::PROGRAM) {
        Ok(restored) => restored.into_iter().for_each(|Restored { kept, error }| {
            if let Some(error) = error {
                tell(format!("the function {} was not restored: {error}", kept.function));
            }
        }),
        Err(error) => tell(format!("no function was restored: {error}")),
    }
}

fn register_all(database: &Arc<Database>) -> Result<(), Error> {
    database.with_connection(|connection| command::register(database, connection))?;
    database.with_connection(|connection| stream::register(database, connection))?;
    let Some(paths) = env::var_os("CROSSLANE_LOAD") else { return Ok(()) };
    let paths = env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty());
    let paths: Vec<_> = paths.collect();
    database.load_files(&paths, &[], Permissions::default(), Asker::PROGRAM).map(drop)
}
