//! The files that `crosslane serve` serves. With `--watch`, they are loaded again when they change.

use crosslane::pool::{Common, Pool, PoolOptions};
use crosslane::trace::{Trace, Tracer};
use crosslane::{Error, Library, Settings};
use crosslane_process::{Files, Looks, Origin, Source, Watched, Zygote, ZygoteOptions, guests};
use crosslane_server::server::ServedLibrary;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tracing::{info, warn};

/// How files are loaded.
pub(crate) struct Loading {
    pub(crate) settings: Settings,
    /// Whether a file runs in a sandbox, also if neither it nor the settings say so.
    pub(crate) is_sandboxed: bool,
    /// The warm workers of each file, if the settings do not say how many.
    pub(crate) workers: usize,
    /// Set when the server ends: files are not loaded any more.
    pub(crate) ends: Arc<AtomicBool>,
    /// Where all libraries record what happens.
    pub(crate) trace: Arc<Trace>,
}

/// A file that was loaded.
pub(crate) struct LoadedFile {
    /// The path as the user has given it. It may be a symbolic link, which a deployment changes.
    given: PathBuf,
    /// The file that was loaded.
    path: PathBuf,
    pub(crate) served: ServedLibrary,
    /// `None` if its guest does not say what it has read.
    watched: Option<Watched>,
}

impl LoadedFile {
    /// How the files look now, if the file should be loaded again.
    fn change(&self) -> Option<Looks> {
        self.watched.as_ref()?.change(|| self.difference())
    }

    /// How the files look now, if they are not what was loaded.
    fn difference(&self) -> Option<Looks> {
        let watched = self.watched.as_ref()?;
        match self.given.canonicalize() {
            Ok(now) if now != self.path => Some(watched.looks(&now)),
            _ => watched.difference(&self.path),
        }
    }

    /// Notes what a load has left ([`Watched::settle`]).
    fn settle(&mut self, before: &Looks, restless: u32) {
        let difference = self.difference();
        if let Some(watched) = &mut self.watched {
            watched.settle(before, restless, difference);
        }
    }
}

impl Loading {
    /// Loads a file for the first time.
    pub(crate) fn first(&self, path: &Path) -> Result<LoadedFile, Error> {
        self.load(path, 1)
    }

    fn load(&self, given: &Path, version: u32) -> Result<LoadedFile, Error> {
        let path =
            given.canonicalize().map_err(|error| Error::Engine(format!("{}: {error}", given.display())))?;
        let source = Source::File { path: path.clone() };
        let name = source.name();
        let mut settings = guests::settings_of(&source, self.settings.clone())?;
        if self.is_sandboxed && settings.sandbox().is_none() {
            settings.set("sandbox", "on")?;
        }
        // The terminal's Ctrl-C reaches this program, too.
        let origin = Origin::Process(guests::program(&source, &settings)?);
        let options = ZygoteOptions::new(origin, source, &settings);
        let warm = if settings.warm_lanes == 0 { self.workers } else { settings.warm_lanes };
        let pool = PoolOptions { warm, idle_timeout: settings.idle_timeout };
        let ends = || self.ends.load(Relaxed);
        let common = Common { tracer: Tracer::new(&self.trace, &name), ..Common::default() };
        let (pool, loaded) = Pool::start_unless(pool, common, ends, move |stop| {
            let (zygote, loaded) = Zygote::start(options, stop)?;
            zygote.open_caches()?;
            Ok((zygote, loaded))
        })?;
        let text = loaded.files.as_ref().map(Files::hash);
        let library = Arc::new(Library { name, version, functions: loaded.functions, pool });
        let watched = loaded.files.map(Watched::new);
        Ok(LoadedFile { given: given.to_owned(), path, served: ServedLibrary { library, text }, watched })
    }

    /// Loads a file again, and waits for the first worker.
    fn again(&self, last: &LoadedFile) -> Result<LoadedFile, Error> {
        let loaded = self.load(&last.given, last.served.library.version + 1)?;
        match loaded.served.library.pool.check_out(|| self.ends.load(Relaxed))? {
            Some(lane) => lane.give_back(),
            None => return Err(Error::Boot("the server is shutting down".into())),
        }
        Ok(loaded)
    }

    /// Loads the files again that have changed. `offer` offers the functions of all files to clients. A
    /// file that cannot be loaded, or whose functions cannot be offered, stays as it was.
    pub(crate) fn again_if_changed(
        &self,
        files: &mut [LoadedFile],
        offer: impl Fn(Vec<ServedLibrary>) -> Result<(), Error>,
    ) {
        for at in 0..files.len() {
            let last = &files[at];
            let Some(before) = last.change() else { continue };
            let loaded = self.again(last).and_then(|loaded| {
                let others = files.iter().enumerate().map(|(other, file)| match other == at {
                    true => loaded.served.clone(),
                    false => file.served.clone(),
                });
                offer(others.collect())?;
                Ok(loaded)
            });
            let file = &mut files[at];
            let restless = file.watched.as_ref().map_or(0, Watched::restless);
            let name = file.served.library.name.clone();
            match loaded {
                Ok(loaded) => {
                    *file = loaded;
                    info!(file = name, version = file.served.library.version, "loaded again");
                }
                Err(_) if self.ends.load(Relaxed) => return,
                Err(error) => {
                    warn!(file = name, why = error.to_string(), "not loaded again");
                }
            }
            file.settle(&before, restless);
        }
    }
}
