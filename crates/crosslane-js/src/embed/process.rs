//! Contexts in processes of their own, which run JavaScript on the V8 of Node's program.
//!
//! Each context has a process, the host (`host/context.rs`), and two sockets to it:
//!
//! - **Requests** ([`wire`]). The program sends a request, and waits for its end. Meanwhile the host asks
//!   for what [`Host`] has. So a function of the program runs on the thread that waits, and may send
//!   further requests, which the host answers first.
//! - **Signals.** Any thread sends a [`Signal`] to end what runs. It has the number of the outermost
//!   request, so it cannot end a later one. A host that does not end a request in time ends itself.
//!
//! A process that ends costs its context, and nothing else. A fork of the program may not use the
//! context: it has the same sockets. It may start contexts of its own.

use super::wire::{self, FromHost, Signal, ToHost, Way};
use crate::isolate::{Host, LARGEST_OBJECTS, Reason, Thrown};
use rustix::process::{Pid, PidfdFlags, Signal as Kill, pidfd_open, pidfd_send_signal};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a request may go on after it was to end at once.
const LONGEST_END: Duration = Duration::from_secs(2);
/// How many bytes of a value there are for each byte of memory.
const WIDEST: u64 = 4;

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
    /// The number of the outermost request.
    request: AtomicU64,
    /// The request that was to end at once, since when, and why.
    late: Mutex<Option<(u64, Instant, Reason)>>,
}

impl Ender {
    /// Ends the request that runs now, if there is one. With `stack`, V8 notes the stack first. V8 can do
    /// this only at a check, so call this again without `stack` after some time.
    pub fn end(&self, reason: Reason, stack: bool) {
        let request = self.request.load(Relaxed);
        let way = if stack { Way::AtCheck } else { self.hard(request, reason) };
        let signal = Signal { request, reason: reason as u8, way };
        // It fails if the process is gone, or has not read many earlier ones.
        let _ = (&self.signals).write(&signal.bytes());
    }

    fn hard(&self, request: u64, reason: Reason) -> Way {
        let mut late = self.late();
        match *late {
            Some((known, since, _)) if known == request && since.elapsed() >= LONGEST_END => Way::WithProcess,
            Some((known, ..)) if known == request => Way::AtOnce,
            _ => {
                *late = Some((request, Instant::now(), reason));
                Way::AtOnce
            }
        }
    }

    fn late(&self) -> MutexGuard<'_, Option<(u64, Instant, Reason)>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process of a context.
#[derive(Debug)]
pub struct Process {
    requests: UnixStream,
    ender: Arc<Ender>,
    child: Mutex<Child>,
    /// The child. The program may wait for any child, and then its number may be another process's.
    killable: OwnedFd,
    /// How many requests are in each other now.
    depth: AtomicUsize,
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
        command.stdin(Stdio::from(OwnedFd::from(of_host)));
        command.stdout(Stdio::from(OwnedFd::from(signals_of_host)));
        let mut child = command.spawn()?;
        let Ok(killable) = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) else {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(io::Error::last_os_error());
        };
        signals.set_nonblocking(true)?;
        let ender = Ender { signals, request: AtomicU64::new(0), late: Mutex::new(None) };
        Ok(Self {
            requests,
            ender: Arc::new(ender),
            child: Mutex::new(child),
            killable,
            depth: AtomicUsize::new(0),
            gone: Mutex::new(None),
            most: (memory as u64).saturating_mul(WIDEST).saturating_add(LARGEST_OBJECTS as u64),
            program,
        })
    }

    /// Boots a context, from the bytes of a snapshot, or without one. `memory` is the limit of the heap and
    /// the array buffers together, in bytes. `host` is the path of `crosslane-js`.
    ///
    /// # Errors
    /// [`Failed::Refused`].
    pub fn boot(host: &Path, snapshot: &[u8], program: &dyn Host, memory: usize) -> Result<Self, Failed> {
        let started = Self::start(host, memory).map_err(|error| unstarted(host, &error))?;
        started.create(&ToHost::Boot { memory }, &[snapshot], program)?;
        Ok(started)
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
        let _begun = process.begin();
        started(process.ender());
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
            Ok(outcome) => outcome.map_err(|answer| match answer {
                Answer::Thrown(thrown) => thrown,
                Answer::Refused(why) => self.lose(why),
            }),
            // The process is as good as gone: what it sends next is the rest of the value.
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                Err(self.lose_with(Thrown::Ended(Reason::NoMemory, String::new())))
            }
            Err(_) => Err(self.lost()),
        }
    }

    /// A request begins. It lasts until the result is dropped.
    fn begin(&self) -> Begun<'_> {
        if self.depth.fetch_add(1, Relaxed) == 0 {
            self.ender.request.fetch_add(1, Relaxed);
        }
        Begun(&self.depth)
    }

    /// Sends a request and answers what the host asks, until the request is done.
    fn exchange(
        &self,
        message: &ToHost,
        parts: &[&[u8]],
        program: &dyn Host,
    ) -> io::Result<Result<Vec<u8>, Answer>> {
        let _begun = self.begin();
        wire::send(&self.requests, message, parts)?;
        loop {
            let (message, bytes) = wire::receive(&self.requests, self.most)?;
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
                    wire::send(&self.requests, &ToHost::Answer { failed }, &[&answer])?;
                }
                FromHost::Print { error } => program.print(error, &String::from_utf8_lossy(&bytes)),
                FromHost::Confirm { reason } => {
                    let over = program.confirm(Reason::of(reason));
                    wire::send(&self.requests, &ToHost::Confirmed { over }, &[])?;
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

    /// Notes why the process is gone. The first reason counts.
    fn lose_with(&self, thrown: Thrown) -> Thrown {
        self.gone().get_or_insert(thrown).clone()
    }

    fn lose(&self, why: String) -> Thrown {
        self.lose_with(Thrown::Ended(Reason::Lost, why))
    }

    /// Ends the process. Returns how it has ended, unless the program has waited for it itself.
    fn kill(&self) -> io::Result<ExitStatus> {
        // It fails if the process has ended.
        let _ = pidfd_send_signal(&self.killable, Kill::KILL);
        self.child.lock().unwrap_or_else(PoisonError::into_inner).wait()
    }

    /// Finds out why the process has ended: by its last words, by a signal of ours, or by its status.
    fn lost(&self) -> Thrown {
        let mut words = String::new();
        let _ = self.ender.signals.set_nonblocking(false);
        // A process that is not gone has closed its end of the requests, or has sent what is no message.
        let status = self.kill();
        let _ = (&self.ender.signals).take(1 << 16).read_to_string(&mut words);
        let request = self.ender.request.load(Relaxed);
        let late =
            self.ender.late().filter(|(late, since, _)| *late == request && since.elapsed() >= LONGEST_END);
        if let Some(reason) = words.strip_prefix('!').and_then(|reason| reason.trim().parse().ok()) {
            return self.lose_with(Thrown::Ended(Reason::of(reason), String::new()));
        }
        if let Some((.., reason)) = late {
            return self.lose_with(Thrown::Ended(reason, String::new()));
        }
        let words = words.trim();
        self.lose(match status {
            _ if !words.is_empty() => words.into(),
            Ok(status) => format!("the process of the context has ended: {status}"),
            Err(_) => "the process of the context has ended".into(),
        })
    }
}

/// A request, and those in which it is.
struct Begun<'a>(&'a AtomicUsize);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
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
        // A fork of the program has the same sockets, and the child is not its own.
        if self.is_here() {
            let _ = self.kill();
        }
    }
}
