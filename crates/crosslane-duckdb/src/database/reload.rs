//! Loads files again that have changed since they were loaded, and attaches servers again that have.

use super::library::AnyLibrary;
use super::names::Permissions;
use super::publish::Ready;
use super::state::Database;
use super::watched::WatchedLibrary;
use crate::signals::Asker;
use crosslane::pool::Stop;
use crosslane::{Error, Sandbox, lock};
use crosslane_process::Looks;
use crosslane_remote::client::{Remote, Watch};
use std::path::{Path, PathBuf};
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
    /// During how many of its last loads a file has changed.
    restless: u32,
    /// Whether it may take names.
    replace: bool,
    /// The sandbox of the settings that it was loaded with.
    allowed: Option<Sandbox>,
}

impl Database {
    /// Loads the libraries again whose files have changed. A library that cannot be loaded stays as it
    /// was, and the others are loaded. If `only_new`, a library that failed is tried again when a file
    /// of its folder has changed since, and one that its own load changes rests
    /// ([`crosslane_process::Watched::settle`]).
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
            let Some(Reload { looks, restless, replace, allowed }) = self.should_reload(&library, only_new)
            else {
                continue;
            };
            // Checked late, because a watch asks often, and in vain most of the time.
            self.may_load()?;
            let permissions = Permissions { replace: replace || permissions.replace, ..permissions };
            let outcome = self.load_again(&library, allowed, permissions, asker);
            // These are other files if the load has succeeded.
            if let Some(WatchedLibrary { files, .. }) = lock(&self.watched).get_mut(&library) {
                let difference = files.difference(Path::new(&library));
                files.settle(&looks, restless, difference);
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
        self.keep_gone(&mut ready);
        self.publish(ready, permissions)
    }

    /// Leaves out the functions that were dropped or replaced since the library was loaded.
    pub(super) fn keep_gone(&self, ready: &mut Ready) {
        let libraries = self.catalog.libraries();
        if let Some(old) = libraries.iter().find(|old| old.name == ready.name) {
            let is_gone = |name: &str| {
                let mut named =
                    old.functions.iter().filter(|one| one.name().eq_ignore_ascii_case(name)).peekable();
                named.peek().is_some() && named.all(|one| !self.catalog.is_current(old, one))
            };
            ready.functions.retain(|function| !is_gone(function.name()));
        }
    }

    /// Asks the servers for their functions that may have other ones, and attaches them again if so. Each
    /// has a thread of its own, because a server may be slow to answer.
    pub(super) fn renew_servers(self: &Arc<Self>) {
        for server in lock(&self.servers).values_mut() {
            if !server.ask() {
                continue;
            }
            let (this, remote, replace) = (Arc::clone(self), server.remote.clone(), server.replace);
            let watch = Arc::clone(&server.watch);
            let asking = std::thread::Builder::new()
                .name("crosslane-attach".into())
                .spawn(move || this.renew_server(remote, &watch, replace));
            if asking.is_err() {
                server.fail();
            }
        }
    }

    fn renew_server(self: &Arc<Self>, remote: Remote, watch: &Arc<Watch>, replace: bool) {
        let name = remote.to_string();
        if !self.catalog.libraries().iter().any(|library| library.name == name) {
            lock(&self.servers).remove(&name);
            return;
        }
        let permissions = Permissions { replace, ..Permissions::default() };
        let renewed = self.may_load().and_then(|()| match watch.renewed(&remote, &Stop::default())? {
            None => self.attach_to(remote, true, permissions, Asker::PROGRAM).map(|_| None),
            same => Ok(same),
        });
        let mut servers = lock(&self.servers);
        // The user may have attached the server again meanwhile.
        let server = servers.get_mut(&name).filter(|server| Arc::ptr_eq(&server.watch, watch));
        let Some(server) = server else { return };
        let error = match renewed {
            Ok(Some(renewed)) => return server.renew(renewed),
            Ok(None) => return,
            Err(error) => error,
        };
        if !server.fail() {
            return;
        }
        drop(servers);
        let told = format!(
            "crosslane: {name} may have other functions now, but was not attached again, and its functions stay as \
             they were. This is tried again: {error}\n"
        );
        crosslane_process::print_to_log(told.as_bytes());
    }

    /// How a library is to be loaded again, if it should be.
    fn should_reload(&self, library: &str, only_new: bool) -> Option<Reload> {
        let watched = lock(&self.watched);
        let WatchedLibrary { files, replace, allowed } = watched.get(library)?;
        let difference = || files.difference(Path::new(library));
        let looks = if only_new { files.change(difference) } else { difference() }?;
        Some(Reload { looks, restless: files.restless(), replace: *replace, allowed: allowed.clone() })
    }
}
