//! What the extension keeps for one database: settings, libraries, and the connection that registers
//! functions.
//!
//! # Lifetime
//! A connection keeps its database open, so the extension's own would hold the file's lock for ever. A
//! thread, the watchdog, looks at `duckdb_connection_count()` and closes the connection when no other
//! is left; DuckDB then destroys the database, with it the registered functions, and with them the
//! libraries and their processes. At the end of the process the watchdog is stopped first, because
//! DuckDB's own static data goes away.

use crate::connection::Connection;
use crate::scalar::{self, Registered};
use crate::{commands, guests};
use crosslane::call::Crew;
use crosslane::catalog::{self, Catalog};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::{Error, Library, Settings};
use crosslane_process::{Origin, Source, Zygote, ZygoteOptions};
use libduckdb_sys as ffi;
use std::env;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// How long the file may stay locked after the last close, about.
const WATCH: Duration = Duration::from_millis(150);

pub(crate) type ProcessLibrary = Library<Zygote>;
pub(crate) type Entry = catalog::Entry<Zygote>;

/// The extension's part of one database.
pub(crate) struct Database {
    /// Gone when the database is being closed.
    connection: Mutex<Option<Connection>>,
    settings: Mutex<Settings>,
    pub(crate) catalog: Catalog<Zygote>,
    /// One at a time loads, so that versions and functions belong together.
    loading: Mutex<()>,
    pub(crate) crew: Arc<Crew>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Database {
    /// Registers the commands and what `CROSSLANE_LOAD` names, and starts the watchdog.
    ///
    /// # Safety
    /// The database must be open.
    pub(crate) unsafe fn install(database: ffi::duckdb_database) -> Result<(), Error> {
        // SAFETY: the caller vouches for the database.
        let connection = unsafe { Connection::open(database)? };
        let this = Arc::new(Self {
            connection: Mutex::new(Some(connection)),
            settings: Mutex::new(Settings::default()),
            catalog: Catalog::default(),
            loading: Mutex::new(()),
            crew: Arc::new(Crew::default()),
        });
        this.with_connection(|connection| commands::register(&this, connection))?;
        if let Some(paths) = env::var_os("CROSSLANE_LOAD") {
            for path in env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()) {
                this.load_file(&path)?;
            }
        }
        let watched = Arc::clone(&this);
        std::thread::Builder::new()
            .name("crosslane-watchdog".into())
            .spawn(move || watched.watch())
            .map_err(|error| Error::Engine(format!("no thread: {error}")))?;
        exit::stop_at_exit(this);
        Ok(())
    }

    pub(crate) fn with_connection<T>(
        &self,
        body: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match &*lock(&self.connection) {
            Some(connection) => body(connection),
            None => Err(Error::Engine("the database is being closed".into())),
        }
    }

    fn watch(&self) {
        loop {
            std::thread::sleep(WATCH);
            let mut connection = lock(&self.connection);
            let Some(open) = &*connection else { return };
            match open.number("SELECT count::BIGINT FROM duckdb_connection_count()") {
                Ok(1) | Err(_) => {
                    let last = connection.take();
                    drop(connection);
                    self.catalog.clear();
                    // This destroys the database, which may wait for others: no lock is held.
                    drop(last);
                    return;
                }
                Ok(_) => {}
            }
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let settings = {
            let mut settings = lock(&self.settings);
            settings.set(name, value)?;
            settings.clone()
        };
        self.crew.set_fan_out(settings.fan_out);
        for library in self.catalog.libraries() {
            library.pool.configure(pool_options(&settings));
        }
        Ok(())
    }

    pub(crate) fn load_file(self: &Arc<Self>, path: &Path) -> Result<Arc<ProcessLibrary>, Error> {
        let path = match path.strip_prefix("~") {
            Ok(rest) => env::home_dir().unwrap_or_default().join(rest),
            Err(_) => path.to_owned(),
        };
        let path = path.canonicalize().map_err(|error| Error::Load {
            library: path.display().to_string(),
            failure: Box::new(crosslane::Failure {
                class: "FileNotFoundError".into(),
                message: error.to_string(),
                ..crosslane::Failure::default()
            }),
        })?;
        self.load(Source::File { path })
    }

    /// Starts a zygote for the source and registers its functions; a library of the same name is replaced.
    pub(crate) fn load(self: &Arc<Self>, source: Source) -> Result<Arc<ProcessLibrary>, Error> {
        let origin = guests::origin(&source, &self.settings())?;
        self.start(source, origin)
    }

    /// Registers functions that threads of this very process run; the zygote is at the other end of the socket.
    pub(crate) fn load_threads(
        self: &Arc<Self>,
        name: String,
        socket: UnixStream,
    ) -> Result<Arc<ProcessLibrary>, Error> {
        self.start(Source::Thread { name }, Origin::thread(socket))
    }

    fn start(self: &Arc<Self>, source: Source, origin: Origin) -> Result<Arc<ProcessLibrary>, Error> {
        let _one_at_a_time = lock(&self.loading);
        let settings = self.settings();
        let name = source.name();
        let crew = Arc::clone(&self.crew);
        let options = ZygoteOptions {
            origin,
            source,
            load_timeout: settings.load_timeout,
            ring_size: settings.ring_size,
            spin: settings.spin,
            on_interrupt: Arc::new(move || crew.cancel()),
        };
        let (pool, loaded) = Pool::start(pool_options(&settings), move || Zygote::start(options))?;
        self.with_connection(|connection| {
            self.catalog.publish(name, loaded.functions, pool, |function, entry| {
                let registered = Registered { entry, crew: Arc::clone(&self.crew) };
                // SAFETY: the connection is open.
                unsafe { scalar::register(connection, function, registered) }
            })
        })
    }
}

fn pool_options(settings: &Settings) -> PoolOptions {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let warm = if settings.warm_lanes == 0 { cores() } else { settings.warm_lanes };
    PoolOptions { warm, idle_timeout: settings.idle_timeout }
}

/// Stopping the watchdogs before the process's static data goes away.
mod exit {
    use super::{Arc, Database, Mutex, Once, lock};
    use std::sync::Weak;

    static DATABASES: Mutex<Vec<Weak<Database>>> = Mutex::new(Vec::new());
    static HOOK: Once = Once::new();

    pub(super) fn stop_at_exit(database: Arc<Database>) {
        let mut databases = lock(&DATABASES);
        databases.retain(|database| database.strong_count() > 0);
        databases.push(Arc::downgrade(&database));
        // SAFETY: the hook is a plain function of this library, which is never unloaded.
        HOOK.call_once(|| unsafe {
            libc::atexit(hook);
        });
    }

    extern "C" fn hook() {
        for database in lock(&DATABASES).iter().filter_map(Weak::upgrade) {
            // The watchdog waits for this lock for the rest of the process's life.
            std::mem::forget(lock(&database.connection));
            std::mem::forget(database);
        }
    }
}
