//! Loads files again that have changed since they were loaded.

use super::library::AnyLibrary;
use super::names::Permissions;
use super::state::{Database, lock};
use super::watched::Looks;
use crate::signals::Asker;
use crosslane::{Error, Sandbox};
use std::path::PathBuf;
use std::sync::Arc;

/// A library whose files had changed, as it is now, or the reason why it stays as it was.
pub(crate) struct Reloaded {
    pub(crate) library: String,
    pub(crate) outcome: Result<Arc<AnyLibrary>, Error>,
}

/// A library that should be loaded again.
struct Reload {
    /// How its files look.
    looks: Looks,
    /// Whether it may take names.
    replace: bool,
    /// The sandbox of the settings that it was loaded with.
    allowed: Option<Sandbox>,
}

impl Database {
    /// Loads the libraries again whose files have changed. A library that cannot be loaded stays as it
    /// was, and the others are loaded. If `only_new`, a library that failed is tried again when a file
    /// of its folder has changed since.
    ///
    /// # Errors
    /// If files may not be loaded.
    pub(crate) fn reload(
        self: &Arc<Self>,
        only_new: bool,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Vec<Reloaded>, Error> {
        let loaded: Vec<_> = self.catalog.libraries().iter().map(|library| library.name.clone()).collect();
        lock(&self.watched).retain(|library, _| loaded.contains(library));
        let mut reloaded = Vec::new();
        for library in loaded {
            let Some(Reload { looks, replace, allowed }) = self.should_reload(&library, only_new) else {
                continue;
            };
            // Checked late, because a watch asks often, and in vain most of the time.
            self.may_load()?;
            let permissions = Permissions { replace: replace || permissions.replace, ..permissions };
            let outcome = self.load_again(&library, allowed, permissions, asker);
            if let (Err(_), Some(watched)) = (&outcome, lock(&self.watched).get_mut(&library)) {
                watched.failed = Some(looks);
            }
            reloaded.push(Reloaded { library, outcome });
        }
        Ok(reloaded)
    }

    /// Loads a file again. Its functions that were dropped or replaced since stay so.
    fn load_again(
        self: &Arc<Self>,
        library: &str,
        allowed: Option<Sandbox>,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Arc<AnyLibrary>, Error> {
        // The settings of the sandbox stay those that it was loaded with, whatever they are now.
        let settings = self.settings().with_sandbox(allowed);
        let mut ready = self.prepare_files(&[PathBuf::from(library)], &settings, asker, true).remove(0)?;
        let _one_at_a_time = lock(&self.loading);
        let libraries = self.catalog.libraries();
        if let Some(old) = libraries.iter().find(|old| old.name == library) {
            let is_gone = |name: &str| {
                let mut named =
                    old.functions.iter().filter(|one| one.name().eq_ignore_ascii_case(name)).peekable();
                named.peek().is_some() && named.all(|one| !self.catalog.is_current(old, one))
            };
            ready.functions.retain(|function| !is_gone(function.name()));
        }
        self.publish(ready, permissions)
    }

    /// How a library is to be loaded again, if it should be.
    fn should_reload(&self, library: &str, only_new: bool) -> Option<Reload> {
        let watched = lock(&self.watched);
        let watched = watched.get(library).filter(|watched| watched.files.have_changed())?;
        let looks = watched.looks(library);
        let failed_before = watched.failed.as_ref().is_some_and(|failed| *failed == looks);
        let (replace, allowed) = (watched.replace, watched.allowed.clone());
        (!(only_new && failed_before)).then_some(Reload { looks, replace, allowed })
    }
}
