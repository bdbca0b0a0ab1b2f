//! Loads files again that have changed since they were loaded.

use super::library::AnyLibrary;
use super::publish::Permissions;
use super::state::{Database, lock};
use super::watched::Folder;
use crate::signals::Asker;
use crosslane::Error;
use std::path::PathBuf;
use std::sync::Arc;

/// A library whose files had changed, as it is now, or the reason why it stays as it was.
pub(crate) struct Reloaded {
    pub(crate) library: String,
    pub(crate) outcome: Result<Arc<AnyLibrary>, Error>,
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
            if !self.should_reload(&library, only_new) {
                continue;
            }
            // Checked late, because a watch asks often, and in vain most of the time.
            self.may_load()?;
            let folder = Folder::of(&library);
            let outcome = self.load_files(&[PathBuf::from(&library)], permissions, asker);
            let outcome = outcome.map(|mut libraries| libraries.remove(0));
            if let (Err(_), Some(watched)) = (&outcome, lock(&self.watched).get_mut(&library)) {
                watched.failed = Some(folder);
            }
            reloaded.push(Reloaded { library, outcome });
        }
        Ok(reloaded)
    }

    fn should_reload(&self, library: &str, only_new: bool) -> bool {
        let watched = lock(&self.watched);
        let Some(watched) = watched.get(library) else { return false };
        let failed_before = || watched.failed.as_ref().is_some_and(|failed| *failed == Folder::of(library));
        watched.files.have_changed() && !(only_new && failed_before())
    }
}
