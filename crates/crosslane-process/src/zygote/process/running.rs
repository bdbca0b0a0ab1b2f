//! A zygote's process that runs: what the engine asks it, and what it answers.

use super::{Loaded, Origin, ZygoteOptions};
use crate::control::{self, Answer, GLANCE, Request, Silence};
use crate::identity::{self, Process};
use crate::lane::{Home, LaneOptions, ProcessLane, append_output, how_it_ended};
use crate::poll::is_ready;
use crate::source::Source;
use crate::warden::bounds::{Bounds, Library};
use crate::warden::memory;
use crate::warden::observed::{Bell, Memory, Observed};
use crate::warden::{LaneRecord, NewLane, UNREAD, Warden};
use crate::zygote::connections;
use crate::zygote::fork_server::{ForkServer, NoFork};
use crate::zygote::reaper;
use crate::zygote::root::{FAREWELL, Root, boot_error};
use crosslane::pool::Stop;
use crosslane::{Error, Failure, Function, Sandbox, shortened};
use crosslane_ring::Ends;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
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
/// The reason why no answer came.
enum NoAnswer {
    Silence(Silence),
    Late,
    /// The pool is being closed.
    Unneeded,
}

#[derive(Debug)]
pub(super) struct Running {
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
    /// The library, if it is in a sandbox, for the warden.
    library: Option<Arc<Library>>,
    warden: Option<JoinHandle<()>>,
    engine: u32,
    /// Whether the zygote did not answer correctly, and was killed.
    pub(super) lost: bool,
    /// How long a lane may take to greet its engine.
    boot: Duration,
}

impl Running {
    pub(super) fn start(options: &ZygoteOptions, stop: &Stop) -> Result<(Self, Loaded), Error> {
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
        let name = options.source.name();
        let library = match &root {
            Some(root) if options.sandbox.as_ref().is_some_and(|sandbox| !sandbox.recorded) => {
                let root = Process::open(root.id()).map_err(|error| Error::Boot(error.to_string()))?;
                Some(Arc::new(Library::new(name.clone(), root)))
            }
            _ => None,
        };
        let warden = Warden {
            control: Arc::clone(&control),
            answers: answer_sender,
            lanes: lane_receiver,
            bell: bell_theirs,
            rung: Arc::clone(&bell),
            log: Some(log),
            zygote: Arc::clone(&record),
            bounds: root.as_ref().map(|root| Bounds::new(name, root.id(), library.clone())),
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
            library,
            warden: Some(warden),
            engine,
            lost: false,
            boot: BOOT,
        };
        let loaded = running.load(options, stop)?;
        running.library.iter().for_each(|library| library.begins_or_ends());
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
                if let Some(why) = self.library.as_ref().and_then(|library| library.why_it_ended()) {
                    return Err(Error::Boot(format!("{library} was not loaded: {why}")));
                }
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
    pub(super) fn ended(&mut self) -> bool {
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

    /// Makes a lane with these environment variables, for one function if that has own lanes.
    pub(super) fn fork(
        &mut self,
        id: u64,
        function: Option<&Function>,
        environment: &BTreeMap<String, String>,
        options: &ZygoteOptions,
        stop: &Stop,
    ) -> Result<ProcessLane, Error> {
        self.library.iter().for_each(|library| library.begins_or_ends());
        self.bell.work_begins();
        let made = self.make(id, function, environment, options, stop);
        self.library.iter().for_each(|library| library.begins_or_ends());
        made
    }

    fn make(
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
            Some(_) => Home::Own,
        };
        let own = function.and_then(|function| function.spec.own_sandbox.as_ref());
        if let (Home::Own, true) = (&home, options.sandbox.is_some() || own.is_some()) {
            memory::give_counts(&socket, &process).inspect_err(|_| end_lane())?;
        }
        // A file that is recorded has no sandbox, nor have its functions.
        let is_recorded = options.sandbox.as_ref().is_some_and(|sandbox| sandbox.recorded);
        let sandbox = own.or(options.sandbox.as_ref()).filter(|_| !is_recorded);
        self.observe(&record, &process, &home, ends.size() as u64, sandbox);
        let ZygoteOptions { spin, largest_batch: largest, stuck, .. } = *options;
        Ok(ProcessLane::new(ends, socket, process, record, home, LaneOptions { spin, largest, stuck }))
    }

    /// Lets the warden look at the worker of a lane, if there is something to look at. `lane` is the size of
    /// the lane's memory in bytes.
    fn observe(
        &self,
        record: &LaneRecord,
        process: &Arc<Process>,
        home: &Home,
        lane: u64,
        sandbox: Option<&Sandbox>,
    ) {
        let Some(root) = &self.root else { return };
        let is_own = matches!(home, Home::Own);
        let memory = self
            .limits
            .as_ref()
            .filter(|_| is_own)
            .map(|limits| Memory::new(Arc::clone(limits), process.pid, root.id(), lane));
        if memory.is_some() || sandbox.is_some() {
            let (process, bell) = (Arc::clone(process), Arc::clone(&self.bell));
            let observed = Observed::new(process, bell, memory, sandbox.filter(|_| is_own));
            let _ = record.observed.set(observed);
            // The warden may sleep until it knows that there is something to look at.
            self.bell.ring();
        }
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
