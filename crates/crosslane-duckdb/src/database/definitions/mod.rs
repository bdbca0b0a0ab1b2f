//! Functions that SQL defines.
//!
//! The function is registered and its definition is written in one transaction of the extension's own
//! connection. So either both are there, or everything is as it was. This happens at once, whatever
//! transaction the caller is in.

mod table;
mod trust;

use self::trust::Trusted;
use super::library::AnyLibrary;
use super::names::Permissions;
use super::state::Database;
use crate::signals::Asker;
use crosslane::ddl::{self, Definition, Statement, Value};
use crosslane::{Error, Function, TypeNames, lock};
use crosslane_process::definition;
use std::path::PathBuf;
use std::sync::Arc;

/// A row of the table of definitions.
pub(crate) struct Kept {
    pub(crate) function: String,
    signature: String,
    language: String,
    /// Empty for a new row.
    created: String,
    pub(crate) text: String,
    /// The definition, or why it cannot be understood.
    definition: Result<Definition, Error>,
}

impl Kept {
    /// Why the definition cannot be understood.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.definition.as_ref().err()
    }

    /// Whether its function has this name, which a definition of `new` takes.
    fn is_taken_by(&self, new: &Definition) -> bool {
        let takes_the_same =
            |own: &Definition| !is_overload(new) || own.signature.takes_the_same(&new.signature);
        is_same_name(&self.function, &new.signature.name)
            && self.definition.as_ref().is_ok_and(takes_the_same)
    }
}

/// The outcome of a restore for one definition.
pub(crate) struct Restored {
    pub(crate) kept: Kept,
    /// Why its function was not loaded.
    pub(crate) error: Option<Error>,
}

/// Whether a definition can go on.
enum Name {
    Free,
    /// There is such a function, and the definition leaves it alone.
    LeftAlone,
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
        let types = self.known_types();
        // Without comments around it, and without a semicolon.
        let text = match ddl::statements(text)[..] {
            [Statement::Create(statement)] => statement,
            _ => text.trim(),
        };
        let definition = types
            .within(|| Definition::parse(text))
            .map_err(|error| Error::Declaration(error.to_string()))?;
        if let Name::LeftAlone = self.check(&definition, &types)? {
            return Ok(None);
        }
        let path = file(&definition)?;
        let permissions = Permissions { replace: definition.or_replace, ..permissions };
        let ready = self.prepare_files(&[path], &self.settings(), asker, true).remove(0)?;
        let _one_at_a_time = lock(&self.loading);
        // Another thread may have defined it meanwhile.
        if let Name::LeftAlone = self.check(&definition, &types)? {
            return Ok(None);
        }
        let library = self.publish_with(ready, permissions, |connection| {
            if definition.temporary {
                return Ok(());
            }
            let mut rows = table::read(connection, &types)?;
            rows.retain(|kept| !kept.is_taken_by(&definition));
            rows.push(Kept {
                function: definition.signature.name.clone(),
                signature: definition.signature.to_string(),
                language: definition.language.clone(),
                created: String::new(),
                text: text.to_owned(),
                definition: Ok(definition.clone()),
            });
            trust::trust([text])?;
            table::write(connection, &rows)
        })?;
        Ok(Some(library))
    }

    /// Checks that a definition may take its name.
    fn check(&self, new: &Definition, types: &TypeNames) -> Result<Name, Error> {
        let name = &new.signature.name;
        let is_loaded = self.catalog.libraries().iter().any(|library| {
            let is_taken = |function: &Function| {
                is_same_name(function.name(), name)
                    && (!is_overload(new) || function.signature.takes_the_same(&new.signature))
            };
            library.functions.iter().any(|one| is_taken(one) && self.catalog.is_current(library, one))
        });
        let (read_only, kept) = self.with_connection(|connection| {
            Ok((table::is_read_only(connection)?, table::read(connection, types)?))
        })?;
        let is_kept = !new.temporary && kept.iter().any(|kept| kept.is_taken_by(new));
        if is_loaded && new.if_not_exists {
            return Ok(Name::LeftAlone);
        }
        let taken = match (is_loaded, is_kept) {
            _ if new.or_replace => None,
            (true, _) => Some(format!("there is a function {name}")),
            (false, true) => Some(format!(
                "the database keeps a definition of {name} that is not loaded (CALL crosslane_restore() says why)"
            )),
            (false, false) => None,
        };
        if let Some(taken) = taken {
            return Err(Error::Declaration(format!(
                "{taken}; write CREATE OR REPLACE FUNCTION {name}(...) to replace it"
            )));
        }
        if !new.temporary && read_only {
            return Err(Error::Declaration(format!(
                "the database is read-only and cannot keep the function; write CREATE TEMP FUNCTION {name}(...)"
            )));
        }
        Ok(Name::Free)
    }

    /// The definitions that the database keeps, the oldest first.
    pub(crate) fn definitions(&self) -> Result<Vec<Kept>, Error> {
        let types = self.known_types();
        self.with_connection(|connection| table::read(connection, &types))
    }

    /// Loads the definitions that this user trusts. The others, and those that cannot be loaded, have
    /// the reason as their error. No macro of the database is dropped.
    pub(crate) fn restore(
        self: &Arc<Self>,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Vec<Restored>, Error> {
        let kept = self.definitions()?;
        if kept.is_empty() {
            return Ok(Vec::new());
        }
        self.may_load()?;
        let trusted = Trusted::read();
        let found = kept.into_iter().map(|kept| {
            let parsed = kept.definition.as_ref().map_err(Clone::clone);
            let path = parsed.and_then(|definition| match trusted.has(&kept.text) {
                true => file(definition),
                false => Err(Error::Declaration(
                    "nobody has trusted them here. Read them (FROM crosslane_definitions()). If you trust all, CALL \
                     crosslane_trust() and CALL crosslane_restore(), or run `crosslane trust FILE` in a shell"
                        .into(),
                )),
            });
            (kept, path)
        });
        let found: Vec<_> = found.collect();
        let paths: Vec<PathBuf> = found.iter().filter_map(|(_, path)| path.as_ref().ok().cloned()).collect();
        let mut prepared = self.prepare_files(&paths, &self.settings(), asker, false).into_iter();
        let _one_at_a_time = lock(&self.loading);
        let restored = found.into_iter().map(|(kept, path)| {
            let replace = kept.definition.as_ref().is_ok_and(|definition| definition.or_replace);
            let permissions = Permissions { replace, keep_macros: true, ..permissions };
            let unprepared = || Err(Error::Engine("it was not loaded".into()));
            let loaded = path.and_then(|_| prepared.next().unwrap_or_else(unprepared));
            let error = loaded.and_then(|ready| self.publish(ready, permissions)).err();
            Restored { kept, error }
        });
        Ok(restored.collect())
    }

    /// Trusts the definitions that the database has now.
    pub(crate) fn trust(&self) -> Result<Vec<Kept>, Error> {
        self.may_load()?;
        let mut kept = self.definitions()?;
        kept.retain(|one| one.definition.is_ok());
        trust::trust(kept.iter().map(|one| one.text.as_str()))?;
        Ok(kept)
    }

    /// Removes the definitions of a name from the table. Returns whether there were any.
    pub(super) fn forget_definitions(&self, name: &str) -> Result<bool, Error> {
        let types = self.known_types();
        self.with_connection(|connection| {
            let (gone, rest): (Vec<_>, Vec<_>) = table::read(connection, &types)?
                .into_iter()
                .partition(|kept| is_same_name(&kept.function, name));
            if gone.is_empty() {
                return Ok(false);
            }
            if table::is_read_only(connection)? {
                return Err(Error::Declaration(format!(
                    "the database is read-only and keeps its definition of {name}"
                )));
            }
            connection.transaction(|| table::write(connection, &rest))?;
            Ok(true)
        })
    }
}

/// Whether SQL takes two names for the same.
fn is_same_name(one: &str, other: &str) -> bool {
    one.to_lowercase() == other.to_lowercase()
}

fn is_overload(definition: &Definition) -> bool {
    definition.options.iter().any(|(name, value)| name == "overload" && *value == Value::Boolean(true))
}

/// The file of a definition's function.
fn file(definition: &Definition) -> Result<PathBuf, Error> {
    definition::file(definition)
        .map_err(|what| Error::Declaration(format!("function {}: {what}", definition.signature.name)))
}
