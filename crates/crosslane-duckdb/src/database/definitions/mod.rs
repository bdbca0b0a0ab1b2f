//! Functions that SQL defines, and their table in the database.
//!
//! A definition is loaded first and written into the table then, so the table has nothing that
//! cannot be loaded. Both happen at once, whatever transaction the caller is in.

mod trust;

use self::trust::Trusted;
use super::connection::Connection;
use super::library::AnyLibrary;
use super::names::quoted;
use super::publish::Permissions;
use super::state::{Database, lock};
use crate::signals::Asker;
use crosslane::ddl::Definition;
use crosslane::{Error, TypeNames};
use crosslane_process::definition;
use std::path::PathBuf;
use std::sync::Arc;

/// The table of definitions, below the name of a database.
const TABLE: &str = "crosslane.definitions";

/// A definition that the database file has.
pub(crate) struct Kept {
    pub(crate) function: String,
    pub(crate) definition: String,
    /// The reason why its function was not loaded.
    pub(crate) error: Option<Error>,
}

impl Database {
    /// Defines a function. Returns nothing if there was one, and the definition leaves it alone.
    ///
    /// # Errors
    /// If the definition cannot be understood, its name is taken, or it cannot be loaded or kept.
    pub(crate) fn create(
        self: &Arc<Self>,
        text: &str,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Option<Arc<AnyLibrary>>, Error> {
        self.may_load()?;
        let text = text.trim().trim_end_matches(';').trim_end();
        let types = self.known_types();
        let (definition, path) = parse(text, &types)?;
        let name = definition.signature.name.as_str();
        let overload = definition.options.iter().any(|(option, _)| option == "overload");
        let exists = self.catalog.names().iter().any(|known| known.eq_ignore_ascii_case(name));
        if exists && definition.if_not_exists {
            return Ok(None);
        }
        if exists && !definition.or_replace && !overload {
            return Err(Error::Declaration(format!(
                "there is a function {name}; write CREATE OR REPLACE FUNCTION {name}(...) to replace it"
            )));
        }
        let kept = !definition.temporary;
        if kept && self.is_read_only()? {
            return Err(Error::Declaration(format!(
                "the database is read-only and cannot keep the function; write CREATE TEMP FUNCTION {name}(...)"
            )));
        }
        let permissions = Permissions { replace: definition.or_replace, ..permissions };
        let library = self.load_files(&[path], permissions, asker)?.remove(0);
        let stored = self.store(&definition, kept.then_some(text), overload, &types);
        if let Err(error) = stored {
            self.catalog.forget(name);
            return Err(error);
        }
        Ok(Some(library))
    }

    /// Writes a definition into the table, in place of those that it replaces. A temporary one only
    /// takes their place.
    fn store(
        &self,
        definition: &Definition,
        text: Option<&str>,
        overload: bool,
        types: &TypeNames,
    ) -> Result<(), Error> {
        let replaced: Vec<_> = self
            .definitions()?
            .into_iter()
            .filter(|other| other.function.eq_ignore_ascii_case(&definition.signature.name))
            .filter(|other| {
                let other = types.within(|| Definition::parse(&other.definition));
                !overload || other.is_ok_and(|other| other.signature.takes_the_same(&definition.signature))
            })
            .map(|other| quoted(&other.definition, '\''))
            .collect();
        if let Some(text) = text {
            trust::trust([text])?;
        }
        self.with_connection(|connection| {
            connection.transaction(|| {
                let table = qualified(connection);
                if !replaced.is_empty() {
                    let list = replaced.join(", ");
                    connection.run(&format!("DELETE FROM {table} WHERE definition IN ({list})"))?;
                }
                let Some(text) = text else { return Ok(()) };
                let schema = table.trim_end_matches(".definitions");
                connection.run(&format!("CREATE SCHEMA IF NOT EXISTS {schema}"))?;
                connection.run(&format!(
                    "CREATE TABLE IF NOT EXISTS {table} (function VARCHAR, signature VARCHAR, language VARCHAR, definition \
                     VARCHAR, created TIMESTAMP)"
                ))?;
                let Definition { signature, language, .. } = definition;
                let values = [&signature.name, &signature.to_string(), language, text].map(|value| quoted(value, '\''));
                // As a clock in UTC, since it has no time zone.
                let now = "now() AT TIME ZONE 'UTC'";
                Ok(connection.run(&format!("INSERT INTO {table} VALUES ({}, {now})", values.join(", ")))?)
            })
        })
    }

    /// The definitions in the table, the oldest first.
    pub(crate) fn definitions(&self) -> Result<Vec<Kept>, Error> {
        let texts = self.with_connection(|connection| {
            // A view of this name could do anything.
            let there = format!(
                "SELECT count(*)::BIGINT FROM duckdb_tables() WHERE database_name = {} AND \
                 schema_name || '.' || table_name = '{TABLE}'",
                quoted(connection.database(), '\'')
            );
            if connection.number(&there)? == 0 {
                return Ok(Vec::new());
            }
            let table = qualified(connection);
            let query = format!(
                "SELECT concat_ws(chr(31), replace(function, chr(31), ''), definition) FROM {table} ORDER BY created, rowid"
            );
            Ok(connection.texts(&query)?)
        })?;
        let kept = |text: String| {
            let (function, definition) = text.split_once('\u{1f}')?;
            Some(Kept { function: function.to_owned(), definition: definition.to_owned(), error: None })
        };
        Ok(texts.into_iter().filter_map(kept).collect())
    }

    /// Loads the definitions that this user trusts. The others, and those that cannot be loaded, have
    /// the reason as their error.
    pub(crate) fn restore(
        self: &Arc<Self>,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Vec<Kept>, Error> {
        let mut kept = self.definitions()?;
        if kept.is_empty() {
            return Ok(kept);
        }
        self.may_load()?;
        let (trusted, types) = (Trusted::read(), self.known_types());
        let mut ready: Vec<(usize, PathBuf, Permissions)> = Vec::new();
        for (at, one) in kept.iter_mut().enumerate() {
            if !trusted.has(&one.definition) {
                one.error = Some(Error::Declaration(
                    "nobody has trusted them here. Read them (FROM crosslane.definitions). If you trust all, CALL \
                     crosslane_trust() and CALL crosslane_restore(), or run `crosslane trust FILE` in a shell"
                        .into(),
                ));
                continue;
            }
            match parse(&one.definition, &types) {
                Ok((definition, path)) => {
                    ready.push((at, path, Permissions { replace: definition.or_replace, ..permissions }));
                }
                Err(error) => one.error = Some(error),
            }
        }
        let paths: Vec<_> = ready.iter().map(|(_, path, _)| path.clone()).collect();
        let prepared = self.prepare_files(&paths, asker, false);
        let _one_at_a_time = lock(&self.loading);
        for ((at, _, permissions), outcome) in ready.into_iter().zip(prepared) {
            let loaded = outcome.and_then(|ready| self.publish(ready, permissions));
            kept[at].error = loaded.err();
        }
        Ok(kept)
    }

    /// Trusts the definitions that the database has now.
    pub(crate) fn trust(&self) -> Result<Vec<Kept>, Error> {
        self.may_load()?;
        let kept = self.definitions()?;
        trust::trust(kept.iter().map(|one| one.definition.as_str()))?;
        Ok(kept)
    }

    /// Removes the definitions of a name from the table. Returns whether there were any.
    pub(super) fn forget_definitions(&self, name: &str) -> Result<bool, Error> {
        let mut kept = self.definitions()?;
        kept.retain(|one| one.function.eq_ignore_ascii_case(name));
        if !kept.is_empty() && self.is_read_only()? {
            return Err(Error::Declaration(format!(
                "the database is read-only and keeps its definition of {name}"
            )));
        }
        if !kept.is_empty() {
            self.with_connection(|connection| {
                let (table, name) = (qualified(connection), quoted(&name.to_lowercase(), '\''));
                Ok(connection.run(&format!("DELETE FROM {table} WHERE lower(function) = {name}"))?)
            })?;
        }
        Ok(!kept.is_empty())
    }

    fn is_read_only(&self) -> Result<bool, Error> {
        self.with_connection(|connection| {
            let database = quoted(connection.database(), '\'');
            let query = format!(
                "SELECT count(*)::BIGINT FROM duckdb_databases() WHERE database_name = {database} AND readonly"
            );
            Ok(connection.number(&query)? != 0)
        })
    }
}

/// The definition of a text, and the file with its function.
fn parse(text: &str, types: &TypeNames) -> Result<(Definition, PathBuf), Error> {
    let definition =
        types.within(|| Definition::parse(text)).map_err(|error| Error::Declaration(error.to_string()))?;
    let path = definition::file(&definition)
        .map_err(|what| Error::Declaration(format!("function {}: {what}", definition.signature.name)))?;
    Ok((definition, path))
}

/// The table's name, with that of the database whose file was opened.
fn qualified(connection: &Connection) -> String {
    format!("{}.{TABLE}", quoted(connection.database(), '"'))
}
