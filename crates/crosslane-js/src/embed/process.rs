//! Contexts in processes of their own, which run JavaScript on the V8 of Node's program.
//!
//! Each context has a process, the host (`host/context.rs`), and two sockets to it:
//!
//! - **Requests** ([`wire`]). The program sends a request, and waits for its end. Meanwhile the host asks
//!   for what [`Host`] has. So a function of the program runs on the thread that waits, and may send
//!   further requests, which the host answers first.
//! - **Signals.** Any thread sends a [`Signal`] to end what runs. It has the number of the outermost
//!   request, so it cannot end a later one. A request that does not end in time ends with its process.
//!
//! A process that ends costs its context, and nothing else. A fork of the program may not use the
//! context: it has the same sockets. It may start contexts of its own. A fork may also have copied the
//! host's ends of the sockets. So the program also waits for the end of the process itself.

use super::wire::{self, FromHost, Signal, ToHost, Way};
use crate::isolate::{Host, LARGEST_OBJECTS, Reason, Thrown};
use crosslane::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{
    Pid, PidfdFlags, Signal as Kill, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal,
    waitid,
};
use std::hint;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a request may go on after it was to end at once.
const LONGEST_END: Duration = Duration::from_secs(2);
/// The bytes of a value that a context may send beyond its limit of memory.
const SLACK: usize = 64 << 20;
/// The variables of the environment that the host gets, and the beginnings of their names.
const VARIABLES: [&str; 6] = ["PATH", "CROSSLANE_NODE", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_"];

/// Why there is no context or snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The process does not start, or refuses.
    #[error("{0}")]
    Refused(String),
    /// The script of a snapshot threw.
    #[error(transparent)]
    Thrown(#[from] Thrown),
}

/// Ends what a context runs. Any thread may use it.
#[derive(Debug)]
pub struct Ender {
    signals: UnixStream,
    /// The process. Its number could be another's: the program may wait for any child.
    process: OwnedFd,
    /// The number of the outermost request.
    request: AtomicU64,
    /// How many requests are in each other now.
    depth: AtomicUsize,
    /// Since when a request was to end at once, and why.
    late: Mutex<Option<(Instant, Reason)>>,
}

impl Ender {
    /// Ends the request that runs now. With `stack`, V8 notes the stack first. V8 can do this only at a
    /// check, so call this again without `stack` after some time. Returns false if no request runs.
    pub fn end(&self, reason: Reason, stack: bool) -> bool {
        if self.depth.load(Relaxed) == 0 {
            return false;
        }
        let way = if stack { Way::AtCheck } else { Way::AtOnce };
        let since = (!stack).then(|| self.late().get_or_insert((Instant::now(), reason)).0);
        if since.is_some_and(|since| since.elapsed() >= LONGEST_END) {
            self.kill();
        }
        let signal = Signal { request: self.request.load(Relaxed), reason: reason as u8, way };
        // It fails if the process is gone, or has not read many earlier ones.
        let _ = (&self.signals).write(&signal.bytes());
        true
    }

    fn late(&self) -> MutexGuard<'_, Option<(Instant, Reason)>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self) {
        // It fails if the process has ended.
        let _ = pidfd_send_signal(&self.process, Kill::KILL);
    }

    /// A request begins. It lasts until the result is dropped.
    fn begin(&self) -> Begun<'_> {
        *self.late() = None;
        if self.depth.fetch_add(1, Relaxed) == 0 {
            self.request.fetch_add(1, Relaxed);
        }
        Begun(self)
    }
}

/// A request, and those in which it is.
struct Begun<'a>(&'a Ender);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.depth.fetch_sub(1, Relaxed);
    }
}

/// The process of a context.
#[derive(Debug)]
pub struct Process {
    requests: UnixStream,
    ender: Arc<Ender>,
    /// Why the process is gone.
    gone: Mutex<Option<Thrown>>,
    /// The most bytes of a value.
    most: u64,
    /// The program that started it.
    program: u32,
}

impl Process {
    /// Starts `host`, the program `crosslane-js`, for a context with this limit of memory.
    ///
    /// # Errors
    /// If the program cannot be started, or there are no more descriptors.
    fn start(host: &Path, memory: usize) -> io::Result<Self> {
        let ((requests, of_host), (signals, signals_of_host)) = (UnixStream::pair()?, UnixStream::pair()?);
        let program = std::process::id();
        let mut command = Command::new(host);
        command.args(["context", &program.to_string()]);
        let is_needed = |name: &str| {
            VARIABLES.iter().any(|known| name == *known || known.ends_with('_') && name.starts_with(known))
        };
        command.env_clear();
        command.envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_needed)));
        command.stdin(Stdio::from(OwnedFd::from(of_host)));
        command.stdout(Stdio::from(OwnedFd::from(signals_of_host)));
        let mut child = command.spawn()?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).inspect_err(|_| {
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        signals.set_nonblocking(true)?;
        let (request, depth, late) = (AtomicU64::new(0), AtomicUsize::new(0), Mutex::new(None));
        let ender = Arc::new(Ender { signals, process, request, depth, late });
        Ok(Self { requests, ender, gone: Mutex::new(None), most: (memory + SLACK) as u64, program })
    }

    /// Boots a context, from the bytes of a snapshot, or without one. `memory` is the limit of the heap and
    /// the array buffers together, in bytes. `host` is the path of `crosslane-js`. `started` gets what ends
    /// the boot.
    ///
    /// # Errors
    /// [`Failed::Refused`].
    pub fn boot(
        host: &Path,
        snapshot: &[u8],
        program: &dyn Host,
        memory: usize,
        started: impl FnOnce(&Arc<Ender>),
    ) -> Result<Self, Failed> {
        let process = Self::start(host, memory).map_err(|error| unstarted(host, &error))?;
        let begun = process.ender.begin();
        started(&process.ender);
        process.create(&ToHost::Boot { memory }, &[snapshot], program)?;
        drop(begun);
        Ok(process)
    }

    /// Makes a snapshot, of the heap of the snapshot `cold` or of an empty one, after a script has run.
    /// `started` gets what ends the script. Returns its bytes.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn build(
        host: &Path,
        cold: &[u8],
        (source, name): (&str, &str),
        program: &dyn Host,
        started: impl FnOnce(&Arc<Ender>),
    ) -> Result<Vec<u8>, Failed> {
        let process = Self::start(host, LARGEST_OBJECTS).map_err(|error| unstarted(host, &error))?;
        let message = ToHost::Build { cold: cold.len(), name: name.into() };
        let _begun = process.ender.begin();
        started(&process.ender);
        process.create(&message, &[cold, source.as_bytes()], program)
    }

    fn create(&self, message: &ToHost, parts: &[&[u8]], program: &dyn Host) -> Result<Vec<u8>, Failed> {
        match self.exchange(message, parts, program) {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(Answer::Thrown(thrown))) => Err(thrown.into()),
            Ok(Err(Answer::Refused(why))) => Err(Failed::Refused(why)),
            Err(_) => match self.lost() {
                Thrown::Ended(Reason::Lost, why) => Err(Failed::Refused(why)),
                thrown => Err(thrown.into()),
            },
        }
    }

    /// Returns what ends the context's requests.
    pub fn ender(&self) -> &Arc<Ender> {
        &self.ender
    }

    /// Returns whether this program may use the context. A fork of the program that started it may not.
    pub fn is_here(&self) -> bool {
        self.program == std::process::id()
    }

    /// Runs a script. Returns the encoded value. The functions of `program` are called meanwhile.
    ///
    /// # Errors
    /// The error that the code threw, or the reason why the code was ended.
    pub fn eval(&self, source: &str, name: &str, program: &dyn Host) -> Result<Vec<u8>, Thrown> {
        self.request(&ToHost::Eval { name: name.into() }, source.as_bytes(), program)
    }

    /// Calls a function by its path with an encoded array. Returns the encoded value.
    ///
    /// # Errors
    /// As [`Process::eval`].
    pub fn invoke(&self, path: &str, arguments: &[u8], program: &dyn Host) -> Result<Vec<u8>, Thrown> {
        self.request(&ToHost::Invoke { path: path.into() }, arguments, program)
    }

    /// Makes a function at a path that calls the program's function `number`.
    ///
    /// # Errors
    /// If the path leads through a value that is not an object.
    pub fn attach(&self, path: &str, number: u32, program: &dyn Host) -> Result<(), Thrown> {
        self.request(&ToHost::Attach { path: path.into(), number }, &[], program).map(drop)
    }

    /// Frees all garbage at once.
    ///
    /// # Errors
    /// Why the request was ended.
    pub fn collect(&self, program: &dyn Host) -> Result<(), Thrown> {
        self.request(&ToHost::Collect, &[], program).map(drop)
    }

    /// Returns V8's statistics of its heap as an encoded object.
    ///
    /// # Errors
    /// Why the request was ended.
    pub fn heap_stats(&self, program: &dyn Host) -> Result<Vec<u8>, Thrown> {
        self.request(&ToHost::HeapStats, &[], program)
    }

    /// Returns the bytes of the heap and of array buffers, with garbage.
    ///
    /// # Errors
    /// Why the request was ended.
    pub fn memory(&self, program: &dyn Host) -> Result<usize, Thrown> {
        let bytes = self.request(&ToHost::Memory, &[], program)?;
        let bytes = bytes.try_into().map(u64::from_le_bytes);
        bytes.map(|bytes| bytes as usize).map_err(|_| self.lose("it has sent no number".into()))
    }

    fn request(&self, message: &ToHost, bytes: &[u8], program: &dyn Host) -> Result<Vec<u8>, Thrown> {
        if let Some(gone) = &*self.gone() {
            return Err(match gone {
                Thrown::Ended(Reason::Lost, why) => Thrown::Ended(Reason::Lost, why.clone()),
                why => Thrown::Ended(Reason::Lost, format!("the process of the context has ended: {why}")),
            });
        }
        match self.exchange(message, &[bytes], program) {
            Ok(outcome) => {
                // The request around it has all of its time to end.
                *self.ender.late() = None;
                outcome.map_err(|answer| match answer {
                    Answer::Thrown(thrown) => thrown,
                    Answer::Refused(why) => self.lose(why),
                })
            }
            // What the process sends next would be the rest of the value.
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                Err(self.lose_with(Thrown::Ended(Reason::NoMemory, String::new())))
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(Thrown::Exception(Failure {
                class: "RangeError".into(),
                message: "a name or path of more than a million bytes".into(),
                ..Failure::default()
            })),
            Err(_) => Err(self.lost()),
        }
    }

    /// Sends a request and answers what the host asks, until the request is done.
    fn exchange(
        &self,
        message: &ToHost,
        parts: &[&[u8]],
        program: &dyn Host,
    ) -> io::Result<Result<Vec<u8>, Answer>> {
        let _begun = self.ender.begin();
        wire::send(self.line(), message, parts)?;
        // Whether the script around the program's function must end.
        let over = || program.confirm(Reason::Closed);
        loop {
            let (message, bytes) = wire::receive(self.line(), self.most)?;
            match message {
                FromHost::Done => return Ok(Ok(bytes)),
                FromHost::Raised(failure) => {
                    return Ok(Err(Answer::Thrown(Thrown::Exception(failure.bounded()))));
                }
                FromHost::Ended { reason, stack } => {
                    return Ok(Err(Answer::Thrown(Thrown::Ended(Reason::of(reason), stack))));
                }
                FromHost::Refused { why } => return Ok(Err(Answer::Refused(why))),
                FromHost::Call { number } => {
                    let (failed, answer) = match program.call(number, &bytes) {
                        Ok(value) => (false, value),
                        Err(told) => (true, told.into_bytes()),
                    };
                    wire::send(self.line(), &ToHost::Answer { failed, over: over() }, &[&answer])?;
                }
                FromHost::Print { error } => {
                    program.print(error, &String::from_utf8_lossy(&bytes));
                    wire::send(self.line(), &ToHost::Answer { failed: false, over: over() }, &[])?;
                }
                FromHost::Confirm { reason } => {
                    let over = program.confirm(Reason::of(reason));
                    wire::send(self.line(), &ToHost::Confirmed { over }, &[])?;
                }
                FromHost::Fatal { reason, what } => {
                    return Ok(Err(Answer::Thrown(self.lose_with(Thrown::Ended(Reason::of(reason), what)))));
                }
            }
        }
    }

    fn gone(&self) -> MutexGuard<'_, Option<Thrown>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the process, and notes why it is gone. The first reason counts.
    fn lose_with(&self, thrown: Thrown) -> Thrown {
        self.ender.kill();
        self.gone().get_or_insert(thrown).clone()
    }

    fn line(&self) -> Line<'_> {
        Line { stream: &self.requests, process: self.ender.process.as_fd() }
    }

    /// Whether the process runs.
    pub fn is_alive(&self) -> bool {
        let mut ends = [PollFd::new(&self.ender.process, PollFlags::IN)];
        self.gone().is_none() && poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
    }

    fn lose(&self, why: String) -> Thrown {
        self.lose_with(Thrown::Ended(Reason::Lost, why))
    }

    /// Ends the process, and waits for its end. `None` if the program has waited for it itself.
    fn end(&self) -> Option<WaitIdStatus> {
        self.ender.kill();
        waitid(WaitId::PidFd(self.ender.process.as_fd()), WaitIdOptions::EXITED).ok().flatten()
    }

    /// Finds out why the process has ended: by its last words, by a signal of ours, or by its status.
    fn lost(&self) -> Thrown {
        let late = self.ender.late().filter(|(since, _)| since.elapsed() >= LONGEST_END);
        let status = self.end();
        let mut words = [0; 1 << 12];
        // A fork of the program may have the other end, so the socket may have no end.
        let length = (&self.ender.signals).read(&mut words).unwrap_or(0);
        let words = String::from_utf8_lossy(&words[..length]);
        if let Some(reason) = words.strip_prefix('!').and_then(|reason| reason.trim().parse().ok()) {
            return self.lose_with(Thrown::Ended(Reason::of(reason), String::new()));
        }
        if let Some((_, reason)) = late {
            return self.lose_with(Thrown::Ended(reason, String::new()));
        }
        let how = status.map_or(String::new(), |status| {
            match (status.terminating_signal(), status.exit_status()) {
                (Some(signal), _) => format!(": signal: {signal}"),
                (None, code) => format!(": exit status: {}", code.unwrap_or_default()),
            }
        });
        self.lose(match words.trim() {
            "" => format!("the process of the context has ended{how}"),
            words => words.into(),
        })
    }
}

/// The requests' socket. Waits end with the process, too.
struct Line<'a> {
    stream: &'a UnixStream,
    process: BorrowedFd<'a>,
}

impl Line<'_> {
    /// Does something that would block, when it does not any more.
    fn ready(&self, flags: PollFlags, mut work: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
        let since = Instant::now();
        loop {
            match work() {
                Err(Errno::AGAIN) if since.elapsed() < wire::SPIN => {
                    hint::spin_loop();
                    continue;
                }
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                done => return Ok(done?),
            }
            let mut events =
                [PollFd::new(self.stream, flags), PollFd::from_borrowed_fd(self.process, PollFlags::IN)];
            match poll(&mut events, None) {
                Err(Errno::INTR) => {}
                polled => _ = polled?,
            }
            // What the process has sent before its end is taken first.
            if events[0].revents().is_empty() && !events[1].revents().is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Read for Line<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.ready(PollFlags::IN, || Ok(recv(self.stream, &mut *bytes, RecvFlags::DONTWAIT)?.0))
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.ready(PollFlags::OUT, || send(self.stream, bytes, flags))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a request failed.
enum Answer {
    Thrown(Thrown),
    Refused(String),
}

fn unstarted(host: &Path, error: &io::Error) -> Failed {
    Failed::Refused(format!("{} does not start: {error}", host.display()))
}

impl Drop for Process {
    fn drop(&mut self) {
        // A fork of the program has the same sockets, and the process is not its own.
        if self.is_here() {
            self.end();
        }
    }
}
