//! Gives the functions of a library to the catalog and to DuckDB, and takes them back.

use super::connection::Connection;
use super::library::AnyLibrary;
use super::names::{self, Names, Permissions};
use super::state::Database;
use super::watched::WatchedLibrary;
use crate::function::scalar::Registered;
use crate::function::{aggregate, scalar};
use crosslane::catalog::Registration;
use crosslane::pool::Pool;
use crosslane::{DataType, Error, Function, Kind, Sandbox, Signature, lock};
use crosslane_process::{Files, Watched, definition};
use crosslane_remote::AnyZygote;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// A library that has started, and whose functions are not registered yet.
pub(super) struct Ready {
    pub(super) name: String,
    pub(super) functions: Vec<Arc<Function>>,
    /// How many functions, the first ones, are the same as in the last version.
    pub(super) kept: usize,
    pub(super) pool: Pool<AnyZygote>,
    /// The files that were run, if the guest reported any.
    pub(super) files: Option<Files>,
    /// The sandbox of the settings, if they have one. The file may ask for another.
    pub(super) allowed: Option<Sandbox>,
}

impl Database {
    /// Gives a library's functions to the catalog and to DuckDB; a library of the same name is
    /// replaced.
    pub(super) fn publish(
        self: &Arc<Self>,
        ready: Ready,
        permissions: Permissions,
    ) -> Result<Arc<AnyLibrary>, Error> {
        self.publish_with(ready, permissions, |_| Ok(()))
    }

    /// As [`Database::publish`]. `also` does more in the same transaction. If it fails, everything
    /// stays as it was.
    pub(super) fn publish_with(
        self: &Arc<Self>,
        Ready { name, functions, kept, pool, files, allowed }: Ready,
        permissions: Permissions,
        also: impl FnOnce(&Connection) -> Result<(), Error>,
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
        // Looked up before the catalog is locked. Stream functions are not registered with DuckDB.
        let called = functions.iter().filter(|function| function.spec.kind != Kind::Stream);
        let called: Vec<_> = called.cloned().collect();
        let (tables, others): (Vec<_>, Vec<_>) =
            called.iter().cloned().partition(|function| function.signature.table);
        let ours: HashSet<_> = others.iter().map(|function| function.name().to_lowercase()).collect();
        let ours: HashSet<_> = ours.into_iter().filter(|name| self.catalog.knows(name, false)).collect();
        let tables: Vec<_> = tables.into_iter().map(|table| names::Table::of(&self.catalog, table)).collect();
        let changed = functions.iter().filter(|function| self.catalog.changes_result(function));
        let changed: Vec<_> = changed.map(|function| function.name().to_owned()).collect();
        let library = self.with_connection(|connection| {
            self.catalog.publish(name, functions, kept, pool, |registrations| {
                let shared = connection.transaction(|| {
                    let names = Names::of(connection, called.iter())?;
                    let is_ours = |name: &str| ours.contains(name);
                    let shared = names::take(connection, &names, &others, is_ours, permissions)?;
                    names::take_tables(connection, &names, &tables, permissions)?;
                    self.register(connection, &names, registrations)?;
                    if !permissions.outdate {
                        names::tell_apart(connection, &changed)?;
                    }
                    also(connection)?;
                    Ok(shared)
                })?;
                lock(&self.shared_names).extend(shared);
                Ok(())
            })
        })?;
        // Users do not edit the files of definitions, and a cache may be cleaned.
        if let Some(files) = files.filter(|_| !definition::is_one(Path::new(&library.name))) {
            let (files, replace) = (Watched::new(files), permissions.replace);
            lock(&self.watched).insert(library.name.clone(), WatchedLibrary { files, replace, allowed });
        }
        Ok(library)
    }

    fn register(
        &self,
        connection: &Connection,
        names: &Names,
        functions: &[Registration<AnyZygote>],
    ) -> Result<(), Error> {
        // DuckDB keeps the first table function of a name, so others are not registered again.
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

    /// Ends the functions of a name. DuckDB keeps the name, and calls of it fail with an error that
    /// says why.
    pub(crate) fn drop_function(&self, name: &str) -> Result<Vec<Arc<Function>>, Error> {
        let _one_at_a_time = lock(&self.loading);
        // Without external access, the functions could not be loaded again.
        self.may_load()?;
        let defined = self.forget_definitions(name)?;
        let dropped = self.catalog.forget(name);
        if dropped.is_empty() && !defined {
            return Err(self.with_connection(|connection| {
                let otherwise = "FROM crosslane_functions() lists what can be dropped";
                Ok(names::unknown(connection, "function", name, &self.catalog.names(), otherwise))
            })?);
        }
        Ok(dropped)
    }

    /// Names of functions whose earlier registrations DuckDB should forget, and can.
    pub(crate) fn outdated(&self) -> Vec<String> {
        let mut names = self.catalog.outdated();
        let (shared, aggregates) = (lock(&self.shared_names), lock(&self.aggregates));
        names.retain(|name| !shared.contains(name) && !aggregates.contains_key(name));
        names
    }

    /// Registers the functions of a name again after DuckDB has forgotten them.
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
