//! The engine's side of a zygote: starts it, loads a library, asks for lanes, and ends it.

use super::connections;
use super::fork_server::{ForkServer, NoFork};
use super::reaper;
use super::root::{FAREWELL, Program, Root, boot_error};
use crate::control::{self, Answer, GLANCE, Request, Silence};
use crate::files::Files;
use crate::identity::{self, Process};
use crate::lane::{Home, LaneOptions, ProcessLane, append_output, how_it_ended};
use crate::poll::is_ready;
use crate::source::Source;
use crate::warden::memory::{self, Bell, Watched};
use crate::warden::{LaneRecord, NewLane, UNREAD, Warden};
use crosslane::lane::Stuck;
use crosslane::pool::Stop;
use crosslane::{Error, Failure, Function, Sandbox, TypeNames, shortened};
use crosslane_ring::Ends;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a fork may take.
const BOOT: Duration = Duration::from_secs(30);
/// How much longer than its limit the engine waits for a load. A guest may use this time to report
/// where it was.
const EXPLANATION: Duration = Duration::from_millis(500);
/// No wait.
const NOW: Duration = Duration::ZERO;
/// How many times longer a guest spins than the engine, which has its own work between two batches.
const GUEST_SPIN: u32 = 3;
/// The error if there are no more host lanes.
const ENDED_THREAD: &str = "the thread that makes its lanes has ended; was it killed?";
/// How often a wait for an answer checks whether it should go on.
const TICK: Duration = Duration::from_millis(10);
/// The error of a wait whose result is not needed any more.
const UNNEEDED: &str = "its library was unloaded, or loaded again";
/// The error if a library would load a library.
const LOADING: &str = "this file is being loaded as a library of functions, and would load itself without end; put what \
                       loads functions where only the main program comes to";
/// The error if functions of the engine's own program are to be in a sandbox.
const THREADS: &str = "functions that run in the threads of this program cannot be in a sandbox; register them before \
                       the setting sandbox is on";
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

/// The reason why no answer came.
enum NoAnswer {
    Silence(Silence),
    Late,
    /// The pool is being closed.
    Unneeded,
}

#[derive(Debug)]
struct Running {
    /// The zygote's process; `None` if the zygote is a thread of this process.
    root: Option<Root>,
    control: Arc<UnixStream>,
    answers: mpsc::Receiver<Result<Answer, Silence>>,
    lanes: mpsc::Sender<NewLane>,
    /// The record of what the zygote printed last.
    record: Arc<LaneRecord>,
    bell: Arc<Bell>,
    /// The memory limits of the functions, if any function has one.
    limits: Option<Arc<[Option<u64>]>>,
    warden: Option<JoinHandle<()>>,
    engine: u32,
    /// Whether the zygote did not answer correctly, and was killed.
    lost: bool,
    /// How long a lane may take to greet its engine.
    boot: Duration,
}

impl Running {
    fn start(options: &ZygoteOptions, stop: &Stop) -> Result<(Self, Loaded), Error> {
        if reaper::is_zygote() {
            return Err(Error::Boot(LOADING.into()));
        }
        let (log, log_theirs) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::Boot(e.to_string()))?;
        nonblocking(&log)?;
        let (root, ours) = match &options.origin {
            Origin::Process(program) => {
                let (child, ours) = program.start(log_theirs, options.sandbox.as_ref())?;
                (Some(Root::Child(child)), ours)
            }
            // A fork would have the memory of a process that is in no sandbox.
            Origin::Fork { server, .. } if options.sandbox.is_some() => {
                let (child, ours) = server.program.start(log_theirs, options.sandbox.as_ref())?;
                (Some(Root::Child(child)), ours)
            }
            Origin::Thread(_) if options.sandbox.is_some() => return Err(Error::Setting(THREADS.into())),
            Origin::Fork { server, modules } => {
                let deadline = Instant::now() + options.load_timeout;
                let forked = server.fork(modules.clone(), log_theirs, deadline, stop);
                let (root, ours) = forked.map_err(|why| not_forked(why, options, server, &log))?;
                (Some(root), ours)
            }
            Origin::Thread(socket) => {
                let socket = socket.lock().unwrap_or_else(PoisonError::into_inner).take();
                (None, socket.ok_or_else(|| Error::Boot(ENDED_THREAD.into()))?)
            }
        };
        let control = Arc::new(ours);
        let (answer_sender, answers) = mpsc::sync_channel(UNREAD);
        let (lanes, lane_receiver) = mpsc::channel();
        let (bell, bell_theirs) = UnixStream::pair().map_err(boot_error("socket pair"))?;
        let log = Arc::new(log);
        let (bell, record) = (Arc::new(Bell::new(bell)), LaneRecord::new(0, Arc::downgrade(&log)));
        let warden = Warden {
            control: Arc::clone(&control),
            answers: answer_sender,
            lanes: lane_receiver,
            bell: bell_theirs,
            rung: Arc::clone(&bell),
            log: Some(log),
            zygote: Arc::clone(&record),
            // Functions in a sandbox could claim it, and end the calls of all others. The engine's own
            // handler sees Ctrl-C, too.
            on_interrupt: match options.sandbox {
                Some(_) => Arc::new(|_| {}),
                None => Arc::clone(&options.on_interrupt),
            },
        };
        let warden = std::thread::Builder::new()
            .name("crosslane-warden".into())
            .spawn(move || warden.run())
            .map_err(boot_error("warden"))?;
        let engine = std::process::id();
        let mut running = Self {
            root,
            control,
            answers,
            lanes,
            record,
            bell,
            limits: None,
            warden: Some(warden),
            engine,
            lost: false,
            boot: BOOT,
        };
        let loaded = running.load(options, stop)?;
        running.limits = memory::limits(&loaded.functions);
        if loaded.reloads {
            running.boot = BOOT.max(options.load_timeout);
        }
        Ok((running, loaded))
    }

    /// Waits for the next answer until the deadline, or until the result is not needed any more.
    fn answer(&self, deadline: Instant, stop: &Stop) -> Result<Answer, NoAnswer> {
        loop {
            match self.answers.recv_timeout(TICK) {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(silence)) => return Err(NoAnswer::Silence(silence)),
                Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer::Silence(Silence::Ended)),
                Err(RecvTimeoutError::Timeout) if stop.is_set() => return Err(NoAnswer::Unneeded),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => return Err(NoAnswer::Late),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn load(&mut self, options: &ZygoteOptions, stop: &Stop) -> Result<Loaded, Error> {
        let library = options.source.name();
        let seconds = options.load_timeout.as_secs_f64();
        let deadline = Instant::now() + options.load_timeout + EXPLANATION;
        let types = options.types.clone();
        let sandbox = options.sandbox.clone();
        let request = Request::Load { source: options.source.clone(), seconds, types, sandbox };
        let pickles = options.source.memory().map_err(boot_error("memory for the functions"))?;
        let connections = connections::begin(&library, options.sandbox.as_ref());
        let connections = connections.map_err(boot_error("the thread of connections"))?;
        let descriptors = pickles.iter().map(AsFd::as_fd).chain(connections.iter().map(AsFd::as_fd));
        let descriptors: Vec<_> = descriptors.collect();
        let goes_on = || !stop.is_set() && Instant::now() < deadline;
        // The code below handles a zygote that ended at once, or reads nothing.
        let _ = control::send(&self.control, &request, &descriptors, goes_on);
        drop(connections);
        let answer = self.answer(deadline, stop);
        if let Ok(Answer::Loaded { sandboxed: false, .. }) = answer
            && options.sandbox.is_some()
        {
            return Err(Error::Boot(format!(
                "{library}: its guest knows no sandbox, and ran it without one"
            )));
        }
        if let Ok(Answer::Loaded { functions, runtime, files, reloads, .. }) = answer {
            let mut functions = functions;
            let sandbox = options.sandbox.clone().map(Arc::new);
            functions.iter_mut().for_each(|spec| spec.sandbox.clone_from(&sandbox));
            let functions = options.types.within(|| match options.source {
                Source::Pickle { by_name: false, .. } => Function::each(functions, &library),
                _ => Function::all(functions, &library),
            })?;
            return Ok(Loaded { functions, runtime, files, reloads });
        }
        // The zygote cannot be used any more, and might run for ever.
        let status =
            self.end(if let Err(NoAnswer::Silence(Silence::Ended)) = answer { FAREWELL } else { NOW });
        let printed = self.record.tail(0);
        Err(match answer {
            Ok(Answer::Failed { failure }) => Error::Load { library, failure: Box::new(failure) },
            Ok(_) => Error::Boot(format!("what was to load {library} answered out of turn")),
            Err(NoAnswer::Unneeded) => Error::Boot(UNNEEDED.into()),
            Err(NoAnswer::Late) => late(options),
            Err(NoAnswer::Silence(Silence::Garbled(why))) => Error::Load {
                library,
                failure: Box::new(Failure {
                    class: "ProtocolError".into(),
                    message: format!("what it answered cannot be read: {why}"),
                    ..Failure::default()
                }),
            },
            Err(NoAnswer::Silence(Silence::Ended)) => {
                let program = match &options.origin {
                    Origin::Process(program) => program,
                    Origin::Fork { server, .. } => &server.program,
                    Origin::Thread(_) => return Err(Error::Boot(ENDED_THREAD.into())),
                };
                program.ended(&library, &status.unwrap_or_default(), &printed)
            }
        })
    }

    /// Ends the process if it does not end by itself within `patience`. Returns how it ended.
    fn end(&mut self, patience: Duration) -> Option<String> {
        let root = self.root.as_mut()?;
        let how = if root.wait(patience) {
            root.status()
                .map_or_else(|| "its fork server has seen how".to_owned(), |status| status.to_string())
        } else {
            root.end();
            "it had closed its connection, and was ended".to_owned()
        };
        self.ended();
        Some(how)
    }

    /// Whether the zygote has ended. The kernel reports its status only once, so it is recorded for
    /// the lanes that are its threads, which need it later.
    fn ended(&mut self) -> bool {
        match &mut self.root {
            Some(root) => {
                if let Some(status) = root.status() {
                    self.record.set_ended(status.into());
                }
                root.has_ended()
            }
            None => {
                let mut control = [PollFd::new(&*self.control, PollFlags::RDHUP)];
                is_ready(&mut control)
            }
        }
    }

    fn give_up(&mut self, why: String) -> Error {
        if let Some(root) = &mut self.root {
            root.end();
        }
        self.ended();
        self.lost = true;
        Error::Boot(why)
    }

    fn fork(
        &mut self,
        id: u64,
        function: Option<&Function>,
        environment: &BTreeMap<String, String>,
        options: &ZygoteOptions,
        stop: &Stop,
    ) -> Result<ProcessLane, Error> {
        let system = |error: rustix::io::Errno| Error::Boot(error.to_string());
        let (ends, memory) =
            Ends::create(options.ring_size).map_err(|error| Error::Boot(error.to_string()))?;
        let (socket, socket_theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(system)?;
        identity::expect(socket.as_fd()).map_err(system)?;
        let (log, log_theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        nonblocking(&log)?;
        let log = Arc::new(log);
        let record = LaneRecord::new(id, Arc::downgrade(&log));
        // The warden must know the lane before the lane can die.
        let _ = self.lanes.send((Arc::clone(&record), log));
        self.bell.ring();
        let spin_microseconds = (options.spin * GUEST_SPIN).as_micros() as u64;
        let (environment, index) = (environment.clone(), function.map(|function| function.index));
        let request = Request::Fork { lane: id, spin_microseconds, environment, function: index };
        let fds = [memory.as_fd(), socket_theirs.as_fd(), log_theirs.as_fd()];
        let deadline = Instant::now() + BOOT;
        control::send(&self.control, &request, &fds, || !stop.is_set() && Instant::now() < deadline)
            .map_err(|error| self.give_up(format!("the zygote ended, or does not listen ({error})")))?;
        drop((memory, socket_theirs, log_theirs));
        // A lane that the engine gives up may hang before it greets. If the zygote does not read
        // this request, the next request finds that out.
        let end_lane = || drop(control::send(&self.control, &Request::Unfork { lane: id }, &[], || false));
        loop {
            let why = match self.answer(deadline, stop) {
                Ok(Answer::Forked { lane }) if lane == id => break,
                Ok(Answer::Unforked { lane, message }) if lane == id => {
                    return Err(Error::Boot(shortened(message)));
                }
                // This answers a fork that was given up.
                Ok(Answer::Forked { .. } | Answer::Unforked { .. }) => continue,
                // The zygote ends with its socket. Then its other lanes end with their sockets.
                Err(NoAnswer::Unneeded) => {
                    end_lane();
                    return Err(Error::Boot(UNNEEDED.into()));
                }
                Ok(_) => "the zygote answered out of turn".to_owned(),
                Err(NoAnswer::Silence(Silence::Ended)) => "the zygote ended".to_owned(),
                Err(NoAnswer::Silence(Silence::Garbled(why))) => {
                    format!("the zygote's answer cannot be read: {why}")
                }
                Err(NoAnswer::Late) => format!("the zygote made no worker within {} s", BOOT.as_secs()),
            };
            return Err(self.give_up(why));
        }
        let process = Arc::new(self.meet(&socket, &record, stop).inspect_err(|_| end_lane())?);
        let home = match &self.root {
            None => Home::Here,
            Some(root) if root.id() == process.pid => Home::Zygote(Arc::clone(&self.record)),
            Some(root) => {
                let has_own = function.is_some_and(|function| function.spec.own_sandbox.is_some());
                if options.sandbox.is_some() || has_own {
                    memory::give_counts(&socket, &process).inspect_err(|_| end_lane())?;
                }
                if let Some(limits) = &self.limits {
                    let (bell, limits) = (Arc::clone(&self.bell), Arc::clone(limits));
                    let watched =
                        Watched::new(bell, limits, Arc::clone(&process), root.id(), ends.size() as u64);
                    let _ = record.memory.set(watched);
                }
                Home::Own
            }
        };
        let ZygoteOptions { spin, largest_batch: largest, stuck, .. } = *options;
        Ok(ProcessLane::new(ends, socket, process, record, home, LaneOptions { spin, largest, stuck }))
    }

    /// Waits for the greeting of a lane. The kernel says which process sent it.
    fn meet(&self, socket: &OwnedFd, record: &LaneRecord, stop: &Stop) -> Result<Process, Error> {
        let begun = Instant::now();
        let ended = || {
            let mut text = how_it_ended(record.wait_for_end()) + " before it was ready";
            append_output(&mut text, &record.tail(0));
            Error::Boot(text)
        };
        loop {
            let mut fds = [PollFd::new(socket, PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, Some(&GLANCE));
            match identity::sender(socket.as_fd()) {
                Ok(sender) => {
                    let zygote = self.root.as_ref().map_or_else(|| std::process::id() as i32, Root::id);
                    return identity::lane_of(zygote, sender).map_err(|error| match error {
                        Errno::PERM => Error::Boot("a worker is no process of its zygote".into()),
                        _ => ended(),
                    });
                }
                Err(Errno::AGAIN | Errno::INTR) if stop.is_set() => return Err(Error::Boot(UNNEEDED.into())),
                Err(Errno::AGAIN | Errno::INTR) if begun.elapsed() > self.boot => {
                    let seconds = self.boot.as_secs_f64();
                    return Err(Error::Boot(format!("a worker was not ready within {seconds} s")));
                }
                Err(Errno::AGAIN | Errno::INTR) if record.ended().is_none() => {}
                Err(_) => return Err(ended()),
            }
        }
    }
}

/// The error if a library needs too long.
fn late(options: &ZygoteOptions) -> Error {
    let (library, seconds) = (options.source.name(), options.load_timeout.as_secs_f64());
    Error::Boot(format!(
        "{library} was not loaded within {seconds} s; the setting load_timeout changes this limit"
    ))
}

/// The error if a fork server has made no zygote.
fn not_forked(why: NoFork, options: &ZygoteOptions, server: &ForkServer, log: &OwnedFd) -> Error {
    match why {
        NoFork::Failed(error) => error,
        NoFork::Unneeded => Error::Boot(UNNEEDED.into()),
        NoFork::Late => late(options),
        NoFork::Ended(how) => {
            let mut printed = vec![0; 4096];
            let count = rustix::io::read(log, &mut printed).unwrap_or(0);
            let printed = String::from_utf8_lossy(&printed[..count]);
            server.program.ended(&options.source.name(), &how, &printed)
        }
    }
}

fn nonblocking(fd: &OwnedFd) -> Result<(), Error> {
    rustix::io::ioctl_fionbio(fd, true).map_err(|error| Error::Boot(error.to_string()))
}

impl Drop for Running {
    fn drop(&mut self) {
        // A fork of the engine has copies of the descriptors, but no warden and no child processes.
        if self.engine != std::process::id() {
            return;
        }
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        self.end(FAREWELL);
        self.bell.end();
        if let Some(warden) = self.warden.take() {
            let _ = warden.join();
        }
    }
}
