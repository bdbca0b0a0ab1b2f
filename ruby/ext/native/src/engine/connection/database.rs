//! Databases, as Ruby has them.
//!
//! # Files
//! A file that this process has open already is not opened again: DuckDB's lock on it is one between processes, and two
//! instances would overwrite each other's rows. They share one instance, and so what its connections tell each other.
//!
//! # Lifetime
//! A connection keeps its database open. The collector may free any of them at any time, with the GVL held, and
//! closing may wait for workers that need the GVL: so it is left to a thread of its own then. In a forked child
//! nothing is closed, because DuckDB's threads are not there.

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

/// DuckDB's instances by their files, and the process that they belong to: a fork has files of its own.
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

/// What the connections of an instance share, by its file.
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
    /// Opens a file, of which the path is absolute and without links, or a database in memory; `config` maps DuckDB's
    /// settings to texts.
    pub(crate) fn open(path: Option<String>, config: RHash) -> Result<Self, Error> {
        let path = path.map(|path| c_string(&path)).transpose()?;
        let mut settings = Vec::new();
        config.foreach(|name: String, value: String| {
            settings.push((c_string(&name)?, c_string(&value)?));
            Ok(magnus::r_hash::ForEach::Continue)
        })?;
        let sessions = sessions(path.as_ref());
        let opened = briefly(|| {
            // SAFETY: all handles and texts live across the calls; what is allocated is freed.
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

    /// A new connection.
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

    /// Closes the database as soon as its connections are closed.
    pub(crate) fn close(&self) {
        let handle = lock(&self.0).take();
        briefly(move || drop(handle));
        briefly(await_closed);
    }
}
