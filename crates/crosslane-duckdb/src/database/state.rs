//! The extension's part of one database, and its settings.

use super::connection::{Connection, Instance};
use super::library::AnyLibrary;
use super::pickled::Pickled;
use super::watched::{WatchedLibrary, WatchedServer};
use crate::function::aggregate::Known;
use crosslane::call::CallGroups;
use crosslane::catalog::Catalog;
use crosslane::pool::PoolOptions;
use crosslane::trace::Trace;
use crosslane::warm_limit::WarmLimit;
use crosslane::{Error, Settings, TypeNames, lock};
use crosslane_remote::AnyZygote;
use crosslane_vectors::type_names;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// The extension's part of one database.
#[derive(Debug)]
pub(crate) struct Database {
    /// `None` while the database is being closed.
    pub(super) connection: Mutex<Option<Connection>>,
    /// Opens further connections; `None` in a DuckDB with an unknown layout.
    pub(super) instance: Option<Instance>,
    pub(super) settings: Mutex<Settings>,
    pub(crate) catalog: Catalog<AnyZygote>,
    /// One thread loads at a time, so that versions and functions belong together. Holds the
    /// functions that programs serialised.
    pub(super) loading: Mutex<Vec<Pickled>>,
    /// What files were loaded from, by the names of their libraries.
    pub(super) watched: Mutex<HashMap<String, WatchedLibrary>>,
    /// The servers that load their files again, by the names of their libraries.
    pub(super) servers: Mutex<HashMap<String, WatchedServer>>,
    /// Names that our functions share with functions of DuckDB or of other extensions.
    pub(super) shared_names: Mutex<HashSet<String>>,
    pub(super) aggregates: Mutex<Known>,
    /// Held while the libraries end.
    pub(super) ending: Mutex<()>,
    pub(crate) groups: Arc<CallGroups>,
    /// The bound on the idle lanes of all libraries.
    pub(super) warm_limit: Arc<WarmLimit>,
    /// What happens in the libraries, while a user wants to see it.
    pub(crate) trace: Arc<Trace>,
}

impl Database {
    /// What the extension keeps for a database, before anything is loaded.
    pub(crate) fn new(
        connection: Option<Connection>,
        instance: Option<Instance>,
        settings: Settings,
    ) -> Self {
        Self {
            connection: Mutex::new(connection),
            instance,
            warm_limit: Arc::new(WarmLimit::new(most_warm(&settings))),
            settings: Mutex::new(settings),
            catalog: Catalog::default(),
            loading: Mutex::default(),
            watched: Mutex::default(),
            servers: Mutex::default(),
            shared_names: Mutex::default(),
            aggregates: Mutex::default(),
            ending: Mutex::default(),
            groups: Arc::default(),
            trace: Arc::default(),
        }
    }

    /// Closes the connection and ends the libraries.
    pub(crate) fn close(&self) {
        let last = lock(&self.connection).take();
        lock(&self.servers).clear();
        self.end_libraries();
        // This may destroy the database, which may wait for other threads, so no lock is held.
        drop(last);
    }

    fn end_libraries(&self) {
        let _ending = lock(&self.ending);
        self.catalog.clear();
    }

    /// Ends libraries with `set_up`, because the program ends: their workers have to clean up.
    /// Others need nothing.
    pub(super) fn tear_down(&self) {
        let is_stateful = |library: &Arc<AnyLibrary>| library.functions.iter().any(|one| one.spec.set_up);
        if self.catalog.libraries().iter().any(is_stateful) {
            self.end_libraries();
        }
        // The watchdog may be ending them now.
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

    /// Opens a connection for a query. It keeps the database open, so the caller closes it with the
    /// query.
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

    pub(crate) fn settings(&self) -> Settings {
        lock(&self.settings).clone()
    }

    /// The settings of files for which some are given in addition to the database's own.
    pub(super) fn settings_with(&self, given: &[(&str, String)]) -> Result<Settings, Error> {
        let mut settings = self.settings();
        if !given.is_empty() {
            self.may_set()?;
        }
        given.iter().try_for_each(|(name, value)| settings.set(name, value))?;
        match given.iter().find(|(name, _)| *name != "sandbox") {
            Some((name, _)) if settings.sandbox().is_none() => {
                Err(Error::Setting(format!("{name} allows nothing without sandbox := 'on'")))
            }
            _ => Ok(settings),
        }
    }

    fn may_set(&self) -> Result<(), Error> {
        match self.flag("lock_configuration")? {
            false => Ok(()),
            true => Err(Error::Setting(
                "the configuration is locked (lock_configuration): set what you need before you lock it"
                    .into(),
            )),
        }
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        self.may_set()?;
        if self.settings().is_program(name) {
            self.may_load()?;
        }
        let settings = {
            let mut settings = lock(&self.settings);
            settings.set(name, value)?;
            settings.clone()
        };
        self.groups.set_fan_out(settings.fan_out);
        self.warm_limit.set_limit(most_warm(&settings));
        for library in self.catalog.libraries() {
            library.pool.configure(pool_options(&settings));
        }
        Ok(())
    }

    /// A setting of DuckDB's that is true or false and holds for the whole database.
    fn flag(&self, name: &str) -> Result<bool, Error> {
        let query = format!("SELECT current_setting('{name}')::BOOLEAN::BIGINT");
        self.with_connection(|connection| Ok(connection.number(&query)? != 0))
    }

    /// Checks that files may be read and programs started, which DuckDB calls external access.
    pub(super) fn may_load(&self) -> Result<(), Error> {
        if self.flag("enable_external_access")? {
            return Ok(());
        }
        Err(Error::Setting(
            "this database may not load or drop functions: external access is off (enable_external_access). Load files and \
             register functions before you turn it off; what is loaded stays callable"
                .into(),
        ))
    }

    /// The types that the database has besides DuckDB's own, as the extension's connection knows
    /// them.
    pub(crate) fn types(&self) -> Result<TypeNames, Error> {
        // SAFETY: the connection is open.
        self.with_connection(|connection| unsafe { type_names(connection.raw()) })
    }

    /// The types that signatures may name. Most signatures name none, so a catalog that cannot be
    /// listed fails no load.
    pub(super) fn known_types(&self) -> TypeNames {
        self.types().unwrap_or_default()
    }
}

pub(super) fn pool_options(settings: &Settings) -> PoolOptions {
    let warm = if settings.warm_lanes == 0 { cores() } else { settings.warm_lanes };
    PoolOptions { warm, idle_timeout: settings.idle_timeout }
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many idle lanes all libraries may have together: enough for two queries to use all
/// processors without a boot.
fn most_warm(settings: &Settings) -> usize {
    if settings.warm_lanes == 0 { 2 * cores() } else { settings.warm_lanes }
}
