//! The engine's side of a zygote: starts it, loads a library, asks for lanes, and ends it.

mod running;

use super::fork_server::ForkServer;
use super::root::Program;
use crate::files::Files;
use crate::lane::ProcessLane;
use crate::source::Source;
use crosslane::lane::Stuck;
use crosslane::pool::Stop;
use crosslane::{Error, Function, Sandbox, Settings, TypeNames};
use running::Running;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Where a zygote runs.
#[derive(Debug, Clone)]
pub enum Origin {
    /// In a process that the engine starts.
    Process(Program),
    /// In a fork of a process that has imported these modules.
    Fork {
        /// That process.
        server: Arc<ForkServer>,
        /// The names of the modules. What does not exist is left out.
        modules: Vec<String>,
    },
    /// In a thread of this process, at the other end of a control socket. Its lanes are host lanes.
    Thread(Arc<Mutex<Option<UnixStream>>>),
}

impl Origin {
    /// A thread of this process that serves the other end of the socket.
    pub fn thread(socket: UnixStream) -> Self {
        Origin::Thread(Arc::new(Mutex::new(Some(socket))))
    }
}

/// How to start a zygote.
#[derive(Clone)]
pub struct ZygoteOptions {
    /// Where it runs.
    pub origin: Origin,
    /// The functions to load.
    pub source: Source,
    /// The database's own types, which signatures may name.
    pub types: TypeNames,
    /// How long loading may take.
    pub load_timeout: Duration,
    /// Bytes of each ring of new lanes.
    pub ring_size: usize,
    /// The most bytes of a batch of new lanes, in each direction.
    pub largest_batch: usize,
    /// How long a waiting engine thread spins.
    pub spin: Duration,
    /// What the engine does about calls that make no progress.
    pub stuck: Stuck,
    /// What the functions may do. `None` if they may do everything that the engine's user may.
    pub sandbox: Option<Sandbox>,
    /// Called when a Ctrl-C in the terminal reached the zygote.
    pub on_interrupt: Arc<dyn Fn(u64) + Send + Sync>,
}

impl ZygoteOptions {
    /// Options as the settings say, without types of a database. A Ctrl-C has no effect.
    pub fn new(origin: Origin, source: Source, settings: &Settings) -> Self {
        Self {
            origin,
            source,
            types: TypeNames::default(),
            load_timeout: settings.load_timeout,
            ring_size: settings.ring_size,
            largest_batch: settings.largest_batch,
            spin: settings.spin,
            stuck: settings.stuck(),
            sandbox: settings.sandbox(),
            on_interrupt: Arc::new(|_| {}),
        }
    }
}

impl std::fmt::Debug for ZygoteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZygoteOptions")
            .field("origin", &self.origin)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// What a loaded library reports about itself.
#[derive(Debug)]
pub struct Loaded {
    /// Its functions.
    pub functions: Vec<Arc<Function>>,
    /// The guest, such as `Python 3.11.7`.
    pub runtime: String,
    /// The files that were run, if the guest reports them.
    pub files: Option<Files>,
    /// Whether each lane loads the library itself.
    reloads: bool,
}

impl Loaded {
    /// Whether another zygote has loaded the same functions from the same files.
    fn is_what_was_loaded(&self, functions: &[Arc<Function>], files: &Option<Files>) -> bool {
        let same = |(ours, theirs): (&Arc<Function>, &Arc<Function>)| ours.spec == theirs.spec;
        self.files == *files
            && self.functions.len() == functions.len()
            && self.functions.iter().zip(functions).all(same)
    }
}

/// The zygote's process, which is started again if it ends.
#[derive(Debug)]
pub(super) struct Parent {
    options: ZygoteOptions,
    stop: Stop,
    running: Running,
    next_lane: u64,
    /// What its first process loaded. A file may change until another process is needed.
    functions: Vec<Arc<Function>>,
    files: Option<Files>,
}

impl Parent {
    /// Starts the process and waits until it has loaded its library, as [`super::Zygote::start`]
    /// does.
    pub(super) fn start(options: ZygoteOptions, stop: Stop) -> Result<(Self, Loaded), Error> {
        options.source.check()?;
        let (running, loaded) = Running::start(&options, &stop)?;
        let (functions, files) = (loaded.functions.clone(), loaded.files.clone());
        Ok((Self { options, stop, running, next_lane: 1, functions, files }, loaded))
    }

    pub(super) fn functions(&self) -> &[Arc<Function>] {
        &self.functions
    }

    pub(super) fn files(&self) -> Option<&Files> {
        self.files.as_ref()
    }

    pub(super) fn source(&self) -> &Source {
        &self.options.source
    }

    /// How long a load or a set-up may take.
    pub(super) fn load_timeout(&self) -> Duration {
        self.options.load_timeout
    }

    /// Whether it is a thread of this process.
    pub(super) fn is_thread(&self) -> bool {
        matches!(self.options.origin, Origin::Thread(_))
    }

    /// Starts the zygote again. It must load the same functions.
    fn restart(&mut self) -> Result<(), Error> {
        let (running, loaded) = Running::start(&self.options, &self.stop)?;
        if !loaded.is_what_was_loaded(&self.functions, &self.files) {
            let name = self.options.source.name();
            let how = match &self.options.source {
                Source::File { .. } => {
                    format!("load it again: CALL crosslane_load('{}')", name.replace('\'', "''"))
                }
                Source::Thread { .. } | Source::Pickle { .. } => "register it again".to_owned(),
            };
            return Err(Error::Boot(format!(
                "{name} has changed since it was loaded, and the process that had loaded it has ended; {how}"
            )));
        }
        self.running = running;
        Ok(())
    }

    /// Makes a lane with these environment variables, for one function if that has own lanes. If the
    /// process died, this starts it again.
    pub(super) fn boot(
        &mut self,
        function: Option<u32>,
        environment: &BTreeMap<String, String>,
    ) -> Result<ProcessLane, Error> {
        if self.running.ended() {
            self.restart()?;
        }
        let booted = self.fork(function, environment);
        // A dying zygote may take the request and not answer.
        if booted.is_err() && self.running.lost {
            self.restart()?;
            return self.fork(function, environment);
        }
        booted
    }

    fn fork(
        &mut self,
        function: Option<u32>,
        environment: &BTreeMap<String, String>,
    ) -> Result<ProcessLane, Error> {
        let id = self.next_lane;
        self.next_lane += 1;
        let function = function.and_then(|index| self.functions.iter().find(|one| one.index == index));
        self.running.fork(id, function.map(|it| &**it), environment, &self.options, &self.stop)
    }
}
