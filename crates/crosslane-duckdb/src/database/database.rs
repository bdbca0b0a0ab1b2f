//! What the extension keeps for one database: settings, libraries, and the connection that registers
//! functions.
//!
//! # Lifetime
//! A connection keeps its database open, so the extension's own would hold the file's lock for ever. (Those of queries for
//! streams end with the query that reads the stream, which a connection of the user's runs.) A
//! thread, the watchdog, looks at `duckdb_connection_count()` and closes the connection when no other
//! is left; DuckDB then destroys the database, with it the registered functions, and with them the
//! libraries and their processes. At the end of the process the watchdog is stopped first, because
//! DuckDB's own static data goes away.

use crate::aggregate::{self, Known};
use crate::connection::{Connection, Instance};
use crate::names::{self, Names};
use crate::scalar::{self, Registered};
use crate::signals::{self, Asker};
use crate::{commands, map};
use crosslane::call::CallGroups;
use crosslane::catalog::{self, Catalog, Registration};
use crosslane::pool::{Pool, PoolOptions};
use crosslane::stats::now;
use crosslane::warmth::Warmth;
use crosslane::{DataType, Error, Function, Kind, Library, Settings, Signature, TypeNames};
use crosslane_process::{Origin, Source, Zygote, ZygoteOptions, guests};
use crosslane_remote::{AnyZygote, LaneOptions, Remote, RemoteZygote};
use crosslane_vectors::{find_interrupts, type_names};
use libduckdb_sys as ffi;
use std::collections::HashSet;
use std::env;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a user sets something.
const HOW_TO_SET: &str = "CALL crosslane_set('{name}', '{value}')";

/// The environment variable with what shows a server that this program may come.
const TOKEN: &str = "CROSSLANE_TOKEN";

/// How long the file may stay locked after the last close, about.
const WATCH: Duration = Duration::from_millis(150);

pub(crate) type AnyLibrary = Library<AnyZygote>;
pub(crate) type Entry = catalog::Entry<AnyZygote>;

/// The library of the functions that programs handed over.
const REGISTERED: &str = "registered functions";

/// A function that a program has serialised, and a signature for each number of its arguments.
#[derive(Debug, Clone)]
pub(crate) struct Pickled {
    pub(crate) signatures: Vec<Signature>,
    pub(crate) bytes: Vec<u8>,
}

impl Pickled {
    /// Whether the other takes its place, which stays beside functions that take other types if it is an overload.
    fn is_replaced_by(&self, other: &Self, overload: bool) -> bool {
        let mut pairs =
            self.signatures.iter().flat_map(|one| other.signatures.iter().map(move |new| (one, new)));
        pairs.any(|(one, new)| {
            one.name.eq_ignore_ascii_case(&new.name) && (!overload || one.takes_the_same(new))
        })
    }
}

/// What a load may do beside loading.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Permissions {
    /// Take the names of macros and built-in functions.
    pub(crate) replace: bool,
    /// Leave calls ambiguous for a moment: the caller makes DuckDB forget the outdated functions.
    pub(crate) outdate: bool,
}

/// The extension's part of one database.
pub(crate) struct Database {
    /// Gone when the database is being closed.
    connection: Mutex<Option<Connection>>,
    /// What opens further ones, in a DuckDB that is known.
    instance: Option<Instance>,
    settings: Mutex<Settings>,
    pub(crate) catalog: Catalog<AnyZygote>,
    /// One at a time loads, so that versions and functions belong together. Holds what programs handed over.
    loading: Mutex<Vec<Pickled>>,
    /// Names that others' functions have beside ours.
    shared_names: Mutex<HashSet<String>>,
    aggregates: Mutex<Known>,
    /// Held while the libraries end.
    ending: Mutex<()>,
    pub(crate) groups: Arc<CallGroups>,
    /// The bound on the idle lanes of all libraries.
    warmth: Arc<Warmth>,
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
        crosslane_process::occupy_standard_descriptors();
        crosslane_process::report_panics();
        signals::notice_ctrl_c();
        // SAFETY: the caller vouches for the database.
        let (connection, instance) = unsafe { (Connection::open(database)?, Instance::of(database)) };
        // SAFETY: the connection is open, and nobody else's.
        unsafe { find_interrupts(connection.raw()) };
        let this = Arc::new(Self {
            connection: Mutex::new(Some(connection)),
            instance,
            settings: Mutex::new(guests::settings(HOW_TO_SET)),
            catalog: Catalog::default(),
            loading: Mutex::default(),
            shared_names: Mutex::default(),
            aggregates: Mutex::default(),
            ending: Mutex::default(),
            groups: Arc::default(),
            warmth: Arc::new(Warmth::new(most_warm(&Settings::default()))),
        });
        let installed = this.begin();
        if installed.is_err() {
            this.close();
        }
        installed
    }

    fn begin(self: &Arc<Self>) -> Result<(), Error> {
        // DuckDB keeps what is registered: a LOAD that fails must leave nothing, so that it can be tried again.
        self.with_connection(Connection::begin)?;
        let outcome = self.register_all();
        self.with_connection(|connection| connection.end(outcome))?;
        let watched = Arc::clone(self);
        std::thread::Builder::new()
            .name("crosslane-watchdog".into())
            .spawn(move || watched.watch())
            .map_err(|error| Error::Engine(format!("no thread: {error}")))?;
        exit::stop_at_exit(Arc::clone(self));
        Ok(())
    }

    fn register_all(self: &Arc<Self>) -> Result<(), Error> {
        self.with_connection(|connection| commands::register(self, connection))?;
        self.with_connection(|connection| map::register(self, connection))?;
        let Some(paths) = env::var_os("CROSSLANE_LOAD") else { return Ok(()) };
        let paths = env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty());
        let paths: Vec<_> = paths.collect();
        self.load_files(&paths, Permissions::default(), Asker::PROGRAM).map(drop)
    }

    /// Lets go of the database and of the libraries.
    fn close(&self) {
        let last = lock(&self.connection).take();
        self.end_libraries();
        // This may destroy the database, which may wait for others: no lock is held.
        drop(last);
    }

    fn end_libraries(&self) {
        let _ending = lock(&self.ending);
        self.catalog.clear();
    }

    /// Has workers end what they have set up, because the program ends. Other workers need nothing.
    fn tear_down(&self) {
        let is_stateful = |library: &Arc<AnyLibrary>| library.functions.iter().any(|one| one.spec.set_up);
        if self.catalog.libraries().iter().any(is_stateful) {
            self.end_libraries();
        }
        // The watchdog may be at it.
        drop(lock(&self.ending));
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

    /// Opens a connection for a query. It keeps the database open: who opens it closes it with the query.
    pub(crate) fn further_connection(&self) -> Result<Connection, Error> {
        let Some(instance) = &self.instance else {
            return Err(Error::Engine(
                "this version of DuckDB opens no connections for crosslane_map that crosslane knows of; use one that crosslane \
                 was made for, such as 1.5.6 or 2.0.0"
                    .into(),
            ));
        };
        // SAFETY: the connection that is locked keeps the database open.
        self.with_connection(|_| unsafe { instance.connect() })
    }

    fn watch(&self) {
        loop {
            std::thread::sleep(WATCH);
            let connection = lock(&self.connection);
            let Some(open) = &*connection else { return };
            // The user may have a function of this name, too.
            let count = open.number("SELECT count::BIGINT FROM system.main.duckdb_connection_count()");
            drop(connection);
            crosslane_vectors::sweep();
            match count {
                Ok(1) => return self.close(),
                // DuckDB has given the database up; holding on to it would only keep the file locked.
                Err(refusal) if refusal.is_fatal() => return self.close(),
                // The next look may succeed.
                Ok(_) | Err(_) => {}
            }
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        if self.flag("lock_configuration")? {
            return Err(Error::Setting(
                "the configuration is locked (lock_configuration): set what you need before you lock it"
                    .into(),
            ));
        }
        if self.settings().is_program(name) {
            self.may_load()?;
        }
        let settings = {
            let mut settings = lock(&self.settings);
            settings.set(name, value)?;
            settings.clone()
        };
        self.groups.set_fan_out(settings.fan_out);
        self.warmth.set_limit(most_warm(&settings));
        for library in self.catalog.libraries() {
            library.pool.configure(pool_options(&settings));
        }
        Ok(())
    }

    /// A setting of DuckDB's that is true or false, for the whole database.
    fn flag(&self, name: &str) -> Result<bool, Error> {
        let query = format!("SELECT current_setting('{name}')::BOOLEAN::BIGINT");
        self.with_connection(|connection| Ok(connection.number(&query)? != 0))
    }

    /// Whether files may be read, and programs started: what DuckDB calls external access.
    fn may_load(&self) -> Result<(), Error> {
        if self.flag("enable_external_access")? {
            return Ok(());
        }
        Err(Error::Setting(
            "this database may not load or drop functions: external access is off (enable_external_access). Load files and \
             register functions before you turn it off; what is loaded stays callable"
                .into(),
        ))
    }

    pub(crate) fn load_file(
        self: &Arc<Self>,
        path: &Path,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Arc<AnyLibrary>, Error> {
        // Not even whether there is such a file.
        self.may_load()?;
        let source = file(path)?;
        let origin = guests::origin(&source, &self.settings())?;
        let ready = self.prepare(origin, source, self.known_types(), |begun| asker.should_end(begun))?;
        let _one_at_a_time = lock(&self.loading);
        self.publish(ready, permissions)
    }

    /// Loads files side by side, and registers their functions in the order of the files: of two functions with one name, that of the
    /// last counts. If one cannot be loaded, none is; the error is that of the first such file.
    pub(crate) fn load_files(
        self: &Arc<Self>,
        paths: &[PathBuf],
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Vec<Arc<AnyLibrary>>, Error> {
        self.may_load()?;
        let (settings, types) = (self.settings(), self.known_types());
        let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let results = Mutex::new(Vec::new());
        let load = || loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(path) = paths.get(index).filter(|_| index < failed.load(Relaxed)) else { return };
            let ready = file(path).and_then(|source| {
                let origin = guests::origin(&source, &settings)?;
                // Nobody waits for those behind one that failed.
                let should_end = |begun| asker.should_end(begun) || failed.load(Relaxed) < index;
                self.prepare(origin, source, types.clone(), should_end)
            });
            if ready.is_err() {
                failed.fetch_min(index, Relaxed);
            }
            lock(&results).push((index, ready));
        };
        std::thread::scope(|scope| {
            // A guest reads its file, and compiles it: a few more than there are processors keep these busy.
            for _ in 1..paths.len().min(2 * cores()) {
                // Without it this thread loads all.
                let _ = std::thread::Builder::new().spawn_scoped(scope, load);
            }
            load();
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(index, _)| *index);
        let ready = results.into_iter().map(|(_, ready)| ready).collect::<Result<Vec<_>, _>>()?;
        let _one_at_a_time = lock(&self.loading);
        ready.into_iter().map(|ready| self.publish(ready, permissions)).collect()
    }

    /// Registers a function that a program has serialised; those of the same name are replaced, but for overloads. All such
    /// functions are one library.
    pub(crate) fn load_pickle(
        self: &Arc<Self>,
        pickled: Pickled,
        overload: bool,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Arc<AnyLibrary>, Error> {
        let mut registered = lock(&self.loading);
        let libraries = self.catalog.libraries();
        let library = libraries.iter().find(|library| library.name == REGISTERED);
        // What a file has replaced since stays the file's.
        let stays = |other: &Pickled| {
            library.is_some_and(|library| {
                let mut functions = library.functions.iter();
                functions.any(|it| {
                    other.signatures.contains(&it.signature) && self.catalog.is_current(library, it)
                })
            })
        };
        let mut pickles = registered.clone();
        pickles.retain(|other| !other.is_replaced_by(&pickled, overload) && stays(other));
        let before: usize = pickles.iter().map(|other| other.signatures.len()).sum();
        pickles.push(pickled);
        let sources = pickles.iter().map(|pickled| pickled.bytes.clone()).collect();
        let source = Source::Pickle { name: REGISTERED.into(), pickles: sources, by_name: true };
        self.may_load()?;
        let origin = guests::origin(&source, &self.settings())?;
        let mut ready = self.prepare(origin, source, self.known_types(), |begun| asker.should_end(begun))?;
        let is_current =
            |function: &Function| library.is_some_and(|old| self.catalog.is_current(old, function));
        let mut functions = ready.functions.into_iter();
        ready.functions = functions.by_ref().take(before).filter(|function| is_current(function)).collect();
        ready.kept = ready.functions.len();
        ready.functions.extend(functions);
        let library = self.publish(ready, permissions)?;
        *registered = pickles;
        Ok(library)
    }

    /// Registers functions that threads of this very process run; the zygote is at the other end of the socket.
    pub(crate) fn load_threads(
        self: &Arc<Self>,
        name: String,
        socket: UnixStream,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Arc<AnyLibrary>, Error> {
        self.may_load()?;
        let (origin, source) = (Origin::thread(socket), Source::Thread { name });
        let ready = self.prepare(origin, source, self.known_types(), |begun| asker.should_end(begun))?;
        let _one_at_a_time = lock(&self.loading);
        self.publish(ready, permissions)
    }

    /// Registers the functions of a server. Without a token, that of the environment is used.
    pub(crate) fn attach(
        self: &Arc<Self>,
        address: &str,
        token: Option<String>,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Arc<AnyLibrary>, Error> {
        self.may_load()?;
        let token = token.or_else(|| env::var(TOKEN).ok()).filter(|token| !token.is_empty());
        let remote = Remote::new(address, token).map_err(|error| Error::Setting(error.to_string()))?;
        let settings = self.settings();
        let options = LaneOptions { largest: settings.largest_batch, stuck: settings.stuck() };
        let name = remote.to_string();
        let begun = now();
        let (pool, functions) = Pool::start_unless(
            pool_options(&settings),
            Some(Arc::clone(&self.warmth)),
            || asker.should_end(begun),
            move |stop| {
                let (zygote, functions) = RemoteZygote::attach(remote, options, stop)?;
                Ok((AnyZygote::Remote(Box::new(zygote)), functions))
            },
        )?;
        let _one_at_a_time = lock(&self.loading);
        self.publish(Ready { name, functions, kept: 0, pool }, permissions)
    }

    /// The types that the database has besides DuckDB's own, as the extension's connection knows them.
    pub(crate) fn types(&self) -> Result<TypeNames, Error> {
        // SAFETY: the connection is open.
        self.with_connection(|connection| unsafe { type_names(connection.raw()) })
    }

    /// Those that signatures may name. Most name none: a catalog that cannot be listed fails no load.
    fn known_types(&self) -> TypeNames {
        self.types().unwrap_or_default()
    }

    /// Starts a zygote for a source, which loads its functions, unless what begins now should end.
    fn prepare(
        &self,
        origin: Origin,
        source: Source,
        types: TypeNames,
        should_end: impl Fn(u64) -> bool,
    ) -> Result<Ready, Error> {
        let settings = self.settings();
        let name = source.name();
        let groups = Arc::clone(&self.groups);
        let options = ZygoteOptions {
            origin,
            source,
            types,
            load_timeout: settings.load_timeout,
            stuck: settings.stuck(),
            ring_size: settings.ring_size,
            largest_batch: settings.largest_batch,
            spin: settings.spin,
            // The terminal's Ctrl-C is for the process as a whole, and so for all its connections.
            on_interrupt: Arc::new(move |at| groups.cancel_all_before(at)),
        };
        let begun = now();
        let (pool, functions) = Pool::start_unless(
            pool_options(&settings),
            Some(Arc::clone(&self.warmth)),
            || should_end(begun),
            move |stop| {
                let (zygote, loaded) = Zygote::start(options, stop)?;
                Ok((AnyZygote::Process(Box::new(zygote)), loaded.functions))
            },
        )?;
        Ok(Ready { name, functions, kept: 0, pool })
    }

    /// Gives a library's functions to the catalog and to DuckDB; a library of the same name is replaced.
    fn publish(
        self: &Arc<Self>,
        Ready { name, functions, kept, pool }: Ready,
        permissions: Permissions,
    ) -> Result<Arc<AnyLibrary>, Error> {
        let is_open = |stream: &&Arc<Function>| {
            let Signature { parameters, returns, .. } = &stream.signature;
            let mut tables = parameters.iter().map(|field| &field.data_type).chain([returns]);
            stream.spec.kind == Kind::Stream && tables.any(|table| *table == DataType::Any)
        };
        if let Some(stream) = functions.iter().find(is_open) {
            return Err(Error::Declaration(format!(
                "function {}: SQL needs to know the columns of both tables: {0}(rows TABLE(...)) -> TABLE(...)",
                stream.name()
            )));
        }
        // Looked up before the catalog is locked. DuckDB is told nothing of stream functions.
        let called = functions.iter().filter(|function| function.spec.kind != Kind::Stream);
        let called: Vec<_> = called.cloned().collect();
        let (tables, others): (Vec<_>, Vec<_>) =
            called.iter().cloned().partition(|function| function.signature.table);
        let ours: HashSet<_> = others.iter().map(|function| function.name().to_lowercase()).collect();
        let ours: HashSet<_> = ours.into_iter().filter(|name| self.catalog.knows(name, false)).collect();
        let tables: Vec<_> = tables.into_iter().map(|table| names::Table::of(&self.catalog, table)).collect();
        let changed = functions.iter().filter(|function| self.catalog.changes_result(function));
        let changed: Vec<_> = changed.map(|function| function.name().to_owned()).collect();
        self.with_connection(|connection| {
            self.catalog.publish(name, functions, kept, pool, |registrations| {
                let shared = connection.transaction(|| {
                    let names = Names::of(connection, called.iter())?;
                    let is_ours = |name: &str| ours.contains(name);
                    let shared = names::take(connection, &names, &others, is_ours, permissions.replace)?;
                    names::take_tables(connection, &names, &tables, permissions.replace)?;
                    self.register(connection, &names, registrations)?;
                    if !permissions.outdate {
                        names::tell_apart(connection, &changed)?;
                    }
                    Ok(shared)
                })?;
                lock(&self.shared_names).extend(shared);
                Ok(())
            })
        })
    }

    fn register(
        &self,
        connection: &Connection,
        names: &Names,
        functions: &[Registration<AnyZygote>],
    ) -> Result<(), Error> {
        // DuckDB keeps the first table function of a name.
        let unknown =
            functions.iter().filter(|(function, entry)| !function.signature.table || entry.is_new());
        unknown.into_iter().try_for_each(|(function, entry)| {
            if function.spec.kind == Kind::Aggregate {
                let (entry, mut known) = (Arc::clone(entry), lock(&self.aggregates));
                // SAFETY: the connection is open.
                return unsafe {
                    aggregate::register(connection, names, function, entry, &self.groups, &mut known)
                };
            }
            let registered = Registered { entry: Arc::clone(entry), groups: Arc::clone(&self.groups) };
            // SAFETY: the connection is open.
            unsafe { scalar::register(connection, function, registered) }
        })
    }

    /// Ends the functions of a name. DuckDB itself keeps the name, and calls of it say why they fail.
    pub(crate) fn drop_function(&self, name: &str) -> Result<Vec<Arc<Function>>, Error> {
        let _one_at_a_time = lock(&self.loading);
        // Nobody could bring it back.
        self.may_load()?;
        let dropped = self.catalog.forget(name);
        if dropped.is_empty() {
            return Err(self.with_connection(|connection| {
                let otherwise = "FROM crosslane_functions() lists what can be dropped";
                Ok(names::unknown(connection, "function", name, &self.catalog.names(), otherwise))
            })?);
        }
        Ok(dropped)
    }

    /// Names of functions of which DuckDB should forget what was loaded before, and can.
    pub(crate) fn outdated(&self) -> Vec<String> {
        let mut names = self.catalog.outdated();
        let (shared, aggregates) = (lock(&self.shared_names), lock(&self.aggregates));
        names.retain(|name| !shared.contains(name) && !aggregates.contains_key(name));
        names
    }

    /// Registers the functions of a name again, which DuckDB has forgotten.
    pub(crate) fn renew(&self, name: &str) -> Result<(), Error> {
        let _one_at_a_time = lock(&self.loading);
        self.with_connection(|connection| {
            self.catalog.renew(name, |functions| {
                let all = functions.iter().map(|(function, _)| function);
                let aggregates = all.filter(|function| function.spec.kind == Kind::Aggregate);
                let names = Names::of(connection, aggregates)?;
                connection.transaction(|| self.register(connection, &names, functions))
            })
        })
    }
}

/// A library whose functions nobody knows yet.
struct Ready {
    name: String,
    functions: Vec<Arc<Function>>,
    /// How many of the functions, the first, are those of the last version.
    kept: usize,
    pool: Pool<AnyZygote>,
}

/// The file of a path, which begins with `~` if it is below the user's home.
fn file(path: &Path) -> Result<Source, Error> {
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
    Ok(Source::File { path })
}

fn pool_options(settings: &Settings) -> PoolOptions {
    let warm = if settings.warm_lanes == 0 { cores() } else { settings.warm_lanes };
    PoolOptions { warm, idle_timeout: settings.idle_timeout }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many idle lanes all libraries may have together: two queries keep all processors busy without a boot.
fn most_warm(settings: &Settings) -> usize {
    if settings.warm_lanes == 0 { 2 * cores() } else { settings.warm_lanes }
}

/// Stopping the watchdogs before the process's static data goes away, and the ends of what functions have set up.
mod exit {
    use super::{Arc, Database, Mutex, lock};
    use std::sync::Weak;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// The databases of the process that is `OWNER`.
    static DATABASES: Mutex<Vec<Weak<Database>>> = Mutex::new(Vec::new());
    /// The process that opened a database last: this one, or one that it is a fork of. 0 before the first.
    static OWNER: AtomicU32 = AtomicU32::new(0);

    pub(super) fn stop_at_exit(database: Arc<Database>) {
        let mut databases = lock(&DATABASES);
        databases.retain(|database| database.strong_count() > 0);
        let owner = OWNER.swap(std::process::id(), Relaxed);
        if owner == 0 {
            // SAFETY: the hook is a plain function of this library, which is never unloaded.
            unsafe { libc::atexit(hook) };
        } else if owner != std::process::id() {
            databases.clear();
        }
        databases.push(Arc::downgrade(&database));
    }

    extern "C" fn hook() {
        // A fork has no watchdogs of the databases that were open before it, and maybe locks that one of them held,
        // which nobody opens any more.
        if OWNER.load(Relaxed) != std::process::id() {
            return;
        }
        for database in lock(&DATABASES).iter().filter_map(Weak::upgrade) {
            // The watchdog waits for this lock for the rest of the process's life.
            std::mem::forget(lock(&database.connection));
            database.tear_down();
            std::mem::forget(database);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::database::{Catalog, Settings};

        fn database() -> Arc<Database> {
            let database = Arc::new(Database {
                connection: Mutex::new(None),
                instance: None,
                settings: Mutex::new(Settings::default()),
                catalog: Catalog::default(),
                loading: Mutex::default(),
                shared_names: Mutex::default(),
                aggregates: Mutex::default(),
                ending: Mutex::default(),
                groups: Arc::default(),
                warmth: Arc::new(crosslane::warmth::Warmth::new(1)),
            });
            stop_at_exit(Arc::clone(&database));
            database
        }

        /// A fork is a copy of a moment, such as one in which a watchdog looks.
        #[test]
        fn a_fork_stops_its_own_databases_whatever_was_locked_when_it_was_made() {
            let parents = database();
            let looks = lock(&parents.connection);
            for own in [false, true] {
                // SAFETY: the fork runs nothing but this module, and ends without the rest of this program.
                unsafe {
                    let fork = libc::fork();
                    if fork == 0 {
                        libc::alarm(10);
                        let own = own.then(database);
                        hook();
                        let stopped = own.is_none_or(|own| own.connection.try_lock().is_err());
                        libc::_exit(i32::from(!stopped));
                    }
                    let mut status = -1;
                    assert_eq!(libc::waitpid(fork, &raw mut status, 0), fork);
                    assert_eq!(status, 0, "a fork {}", if own { "with a database" } else { "without one" });
                }
            }
            drop(looks);
        }
    }
}
