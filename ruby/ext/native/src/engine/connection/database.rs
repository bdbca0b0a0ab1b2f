//! Databases, for Ruby.
//!
//! # Files
//! A file that this process has already opened is not opened again. DuckDB's file lock works only
//! between processes, so two instances in one process would overwrite each other's rows. Databases
//! of one file share one instance. They also share the state through which its connections
//! communicate.
//!
//! # Lifetime
//! A connection keeps its database open. The collector may free either at any time, while it holds
//! the GVL. Closing may wait for DuckDB's threads that need the GVL. So a separate thread closes
//! them in this case. A forked child closes nothing, because DuckDB's threads do not exist there.

use crate::engine::connection::closing::{Raw, await_closed, briefly};
use crate::engine::connection::connection::Connection;
use crate::engine::connection::handle::Handle;
use crate::engine::connection::link::Link;
use crate::engine::connection::session::{Sessions, failure, lock};
use crate::engine::library::text::{OK, c_string, text};
use libduckdb_sys as ffi;
use magnus::{Error, RHash};
use std::ffi::CString;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

/// DuckDB's instances by file, and their process. A fork opens files itself.
static INSTANCES: Mutex<Option<(u32, Raw<ffi::duckdb_instance_cache>)>> = Mutex::new(None);

fn instances() -> Raw<ffi::duckdb_instance_cache> {
    let mut instances = lock(&INSTANCES);
    match &*instances {
        Some((process, Raw(cache))) if *process == std::process::id() => Raw(*cache),
        _ => {
            // SAFETY: it lives as long as the process.
            let cache = unsafe { ffi::duckdb_create_instance_cache() };
            *instances = Some((std::process::id(), Raw(cache)));
            Raw(cache)
        }
    }
}

/// The data that the connections of an instance share, by its file.
fn sessions(path: Option<&CString>) -> Arc<Sessions> {
    static SHARED: Mutex<Vec<(CString, Weak<Sessions>)>> = Mutex::new(Vec::new());
    let Some(path) = path else { return Arc::default() };
    let mut shared = lock(&SHARED);
    shared.retain(|(_, sessions)| sessions.strong_count() > 0);
    let known = shared.iter().find(|(other, _)| other == path).and_then(|(_, sessions)| sessions.upgrade());
    known.unwrap_or_else(|| {
        let sessions = Arc::default();
        shared.push((path.clone(), Arc::downgrade(&sessions)));
        sessions
    })
}

/// `Crosslane::Native::Database`.
#[magnus::wrap(class = "Crosslane::Native::Database", free_immediately)]
#[derive(Debug)]
pub(crate) struct Database(Mutex<Option<Arc<Handle>>>);

impl Database {
    /// Opens a file or a database in memory. A path must be absolute and without links. `config`
    /// maps DuckDB's settings to texts.
    pub(crate) fn open(path: Option<String>, config: RHash) -> Result<Self, Error> {
        let path = path.map(|path| c_string(&path)).transpose()?;
        let mut settings = Vec::new();
        config.foreach(|name: String, value: String| {
            settings.push((c_string(&name)?, c_string(&value)?));
            Ok(magnus::r_hash::ForEach::Continue)
        })?;
        let sessions = sessions(path.as_ref());
        let opened = briefly(|| {
            // SAFETY: all handles and texts live across the calls; all allocations are freed.
            unsafe {
                let mut config = std::ptr::null_mut();
                ffi::duckdb_create_config(&raw mut config);
                for (name, value) in &settings {
                    if ffi::duckdb_set_config(config, name.as_ptr(), value.as_ptr()) != OK {
                        ffi::duckdb_destroy_config(&raw mut config);
                        return Err(format!("DuckDB refuses the setting {name:?} = {value:?}"));
                    }
                }
                let (mut raw, mut error) = (std::ptr::null_mut(), std::ptr::null_mut());
                let error_place = &raw mut error;
                let state = match &path {
                    None => ffi::duckdb_open_ext(std::ptr::null(), &raw mut raw, config, error_place),
                    Some(path) => {
                        let Raw(cache) = instances();
                        ffi::duckdb_get_or_create_from_cache(
                            cache,
                            path.as_ptr(),
                            &raw mut raw,
                            config,
                            error_place,
                        )
                    }
                };
                ffi::duckdb_destroy_config(&raw mut config);
                if state == OK {
                    return Ok(Raw(raw));
                }
                let message = text(error);
                ffi::duckdb_free(error.cast());
                Err(message)
            }
        });
        let Raw(raw) = opened.map_err(|message| failure(None, &message))?;
        let handle = Handle { raw, process: std::process::id(), sessions };
        Ok(Self(Mutex::new(Some(Arc::new(handle)))))
    }

    /// Makes a connection.
    pub(crate) fn connect(&self) -> Result<Connection, Error> {
        let Some(handle) = lock(&self.0).clone() else {
            return Err(failure(None, "the database is closed"));
        };
        if handle.process != std::process::id() {
            return Err(failure(
                None,
                "this process was forked after the database was opened; open it again in the child",
            ));
        }
        let opened = briefly(|| {
            // SAFETY: the database is open; the context is destroyed.
            unsafe {
                let mut raw = std::ptr::null_mut();
                if ffi::duckdb_connect(handle.raw, &raw mut raw) != OK {
                    return None;
                }
                let mut context = std::ptr::null_mut();
                ffi::duckdb_connection_get_client_context(raw, &raw mut context);
                let number = ffi::duckdb_client_context_get_connection_id(context);
                ffi::duckdb_destroy_client_context(&raw mut context);
                Some((Raw(raw), number))
            }
        });
        let Some((Raw(raw), number)) = opened else {
            return Err(failure(None, "DuckDB refused a connection"));
        };
        let session = handle.sessions.add(number);
        Ok(Connection(Mutex::new(Some(Arc::new(Link {
            raw,
            number,
            session,
            database: handle,
            at_work: AtomicBool::new(false),
        })))))
    }

    /// Closes the database after its last connection is closed.
    pub(crate) fn close(&self) {
        let handle = lock(&self.0).take();
        briefly(move || drop(handle));
        briefly(await_closed);
    }
}
