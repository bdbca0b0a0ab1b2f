//! Loads functions: from files, from programs that hand them over, from threads of this process,
//! and from servers.

use super::library::AnyLibrary;
use super::names::Permissions;
use super::pickled::Pickled;
use super::publish::Ready;
use super::state::{Database, cores, pool_options};
use super::watched::WatchedServer;
use crate::signals::Asker;
use crosslane::pool::{Common, Pool, Stop};
use crosslane::stats::now;
use crosslane::trace::Tracer;
use crosslane::{Error, Function, Sandbox, Settings, TypeNames, lock};
use crosslane_process::{Files, Origin, Source, Zygote, ZygoteOptions, guests};
use crosslane_remote::{AnyZygote, LaneOptions, Remote, RemoteZygote};
use std::env;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// The environment variable with the token for servers.
const TOKEN: &str = "CROSSLANE_TOKEN";

/// The library of the functions that programs handed over.
const REGISTERED: &str = "registered functions";

/// The functions of a library, and the files that were run for it.
type Loaded = (Vec<Arc<Function>>, Option<Files>);

impl Database {
    /// Loads files in parallel, and registers their functions in the order of the files: of two
    /// functions with the same name, the last one counts. If a file cannot be loaded, none is; the
    /// error is that of the first such file.
    pub(crate) fn load_files(
        self: &Arc<Self>,
        paths: &[PathBuf],
        allowed: &[(&str, String)],
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Vec<Arc<AnyLibrary>>, Error> {
        // Checked first, so that an error does not even tell whether a file exists.
        self.may_load()?;
        let settings = self.settings_with(allowed)?;
        let ready =
            self.prepare_files(paths, &settings, asker, true).into_iter().collect::<Result<Vec<_>, _>>()?;
        let _one_at_a_time = lock(&self.loading);
        ready.into_iter().map(|ready| self.publish(ready, permissions)).collect()
    }

    /// Starts the libraries of files in parallel. Returns them in the order of the files. If `all_or_none`,
    /// files after one that failed are not loaded, and the result ends with the failure.
    pub(super) fn prepare_files(
        &self,
        paths: &[PathBuf],
        settings: &Settings,
        asker: Asker,
        all_or_none: bool,
    ) -> Vec<Result<Ready, Error>> {
        let types = self.known_types();
        let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let results = Mutex::new(Vec::new());
        let load = || loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(path) = paths.get(index).filter(|_| index < failed.load(Relaxed)) else { return };
            let ready = file(path).and_then(|source| {
                let own = guests::settings_or_recording_of(&source, settings.clone())?;
                let origin = Origin::Process(guests::program(&source, &own)?);
                // Files after one that failed are not loaded.
                let should_end = |begun| asker.should_end(begun) || failed.load(Relaxed) < index;
                let ready = self.prepare(origin, source, &own, types.clone(), should_end)?;
                Ok(Ready { allowed: settings.sandbox(), ..ready })
            });
            if ready.is_err() && all_or_none {
                failed.fetch_min(index, Relaxed);
            }
            lock(&results).push((index, ready));
        };
        std::thread::scope(|scope| {
            // A guest reads its file and compiles it, so a few more threads than processors keep
            // these busy.
            for _ in 1..paths.len().min(2 * cores()) {
                // Without further threads, this thread loads all files.
                let _ = std::thread::Builder::new().spawn_scoped(scope, load);
            }
            load();
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, ready)| ready).collect()
    }

    /// Registers a function that a program has serialised. It replaces functions of the same name,
    /// except overloads. All such functions are one library.
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
        // A function that a file has replaced since stays replaced.
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
        let settings = self.settings();
        let sandbox = library.and_then(|library| sandbox_of(library));
        if !pickles.is_empty() && sandbox != settings.sandbox() {
            return Err(Error::Setting(
                "the registered functions of a program have the same sandbox, and the others were registered with other \
                 settings: change them back, or drop the other functions (CALL crosslane_drop('NAME'))"
                    .into(),
            ));
        }
        let before: usize = pickles.iter().map(|other| other.signatures.len()).sum();
        pickles.push(pickled);
        let sources = pickles.iter().map(|pickled| pickled.bytes.clone()).collect();
        let source = Source::Pickle { name: REGISTERED.into(), pickles: sources, by_name: true };
        self.may_load()?;
        let origin = Origin::Process(guests::program(&source, &settings)?);
        let types = self.known_types();
        let mut ready = self.prepare(origin, source, &settings, types, |begun| asker.should_end(begun))?;
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

    /// Registers functions that threads of this process run. Their zygote is at the other end of
    /// the socket.
    pub(crate) fn load_threads(
        self: &Arc<Self>,
        name: String,
        socket: UnixStream,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Arc<AnyLibrary>, Error> {
        self.may_load()?;
        let (origin, source) = (Origin::thread(socket), Source::Thread { name });
        let (settings, types) = (self.settings(), self.known_types());
        let ready = self.prepare(origin, source, &settings, types, |begun| asker.should_end(begun))?;
        let _one_at_a_time = lock(&self.loading);
        self.publish(ready, permissions)
    }

    /// Registers the functions of a server. The default token is that of the environment.
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
        self.attach_to(remote, false, permissions, asker)
    }

    /// Registers the functions of a server. If `again`, functions that were dropped or replaced stay so.
    pub(super) fn attach_to(
        self: &Arc<Self>,
        remote: Remote,
        again: bool,
        permissions: Permissions,
        asker: Asker,
    ) -> Result<Arc<AnyLibrary>, Error> {
        let (name, reached) = (remote.to_string(), remote.clone());
        let settings = self.settings();
        let options = LaneOptions { largest: settings.largest_batch, stuck: settings.stuck() };
        let (sender, watch) = mpsc::channel();
        let attach = move |stop| {
            let (mut zygote, functions) = RemoteZygote::attach(reached, options, stop)?;
            // The receiver is gone if the start was given up.
            let _ = sender.send(zygote.take_watch());
            Ok((AnyZygote::Remote(Box::new(zygote)), (functions, None)))
        };
        let mut ready = self.start(name, &settings, |begun| asker.should_end(begun), attach)?;
        let _one_at_a_time = lock(&self.loading);
        if again {
            self.keep_gone(&mut ready);
        }
        let library = self.publish(ready, permissions)?;
        let mut servers = lock(&self.servers);
        match watch.try_recv().ok().flatten() {
            Some(watch) => {
                let server = WatchedServer::new(remote, watch, permissions.replace);
                servers.insert(library.name.clone(), server);
            }
            None => drop(servers.remove(&library.name)),
        }
        Ok(library)
    }

    /// Starts a zygote, which loads the functions of a source, until `should_end` is true for a
    /// wait that begins now.
    fn prepare(
        &self,
        origin: Origin,
        source: Source,
        settings: &Settings,
        types: TypeNames,
        should_end: impl Fn(u64) -> bool,
    ) -> Result<Ready, Error> {
        let name = source.name();
        let groups = Arc::clone(&self.groups);
        let options = ZygoteOptions {
            types,
            // A terminal sends Ctrl-C to the whole process, so it ends the calls of all
            // connections.
            on_interrupt: Arc::new(move |at| groups.cancel_all_before(at)),
            ..ZygoteOptions::new(origin, source, settings)
        };
        self.start(name, settings, should_end, move |stop| {
            let (zygote, loaded) = Zygote::start(options, stop)?;
            zygote.open_caches()?;
            Ok((AnyZygote::Process(Box::new(zygote)), (loaded.functions, loaded.files)))
        })
    }

    /// Starts the pool of a library, until `should_end` is true for a wait that begins now.
    fn start(
        &self,
        name: String,
        settings: &Settings,
        should_end: impl Fn(u64) -> bool,
        start: impl FnOnce(Stop) -> Result<(AnyZygote, Loaded), Error> + Send + 'static,
    ) -> Result<Ready, Error> {
        let begun = now();
        let common = Common {
            warm_limit: Some(Arc::clone(&self.warm_limit)),
            tracer: Tracer::new(&self.trace, &name),
        };
        let (pool, (functions, files)) =
            Pool::start_unless(pool_options(settings), common, || should_end(begun), start)?;
        Ok(Ready { name, functions, kept: 0, pool, files, allowed: None })
    }
}

/// What the functions of a library may do. They are all in the same sandbox.
pub(super) fn sandbox_of(library: &AnyLibrary) -> Option<Sandbox> {
    library.functions.first()?.spec.sandbox.as_deref().cloned()
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
