//! The zygote: loads one library, then forks a lane whenever the engine asks for one.
//!
//! # Protocol
//! The engine starts it with a control socket as descriptor 3 (`docs/protocol.md`). It makes the process that the engine
//! has started the reaper of a child and goes on in that. It answers the load; then one loop waits for the socket and
//! for a pipe, into which the handlers of SIGCHLD and SIGINT write. When the socket ends, it kills its lanes and ends.
//!
//! # Threads
//! A fork has only the thread that called it. If the library has started others, the zygote starts itself anew with
//! `exec`, with nothing loaded, and has each lane load the library ([`Guest::command`]).
//!
//! # Lanes
//! A lane has its own process group, so that what a function starts ends with it; SIGKILL at the zygote's death; its
//! output in the log pipe; the signal handlers that were there before the zygote's; and a score that makes the system
//! end it before the database when memory runs out.
//!
//! # Streams
//! A file may close its process's standard streams. They are open again when it is loaded, lest the next pipe takes the
//! number of one.

use crate::Declared;
use crosslane::{Failure, TypeNames};
use crosslane_process::control::{self, ControlSocket, Report, Request};
use crosslane_process::{Source, reaper};
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, FdFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The descriptor of the control socket.
const CONTROL: RawFd = 3;
/// The word behind which a zygote that starts anew finds what it has to know.
const ANEW: &str = "anew";
/// The word behind which the name of a file follows that is only looked at.
const CHECK: &str = "check";
/// So many names of threads are shown.
const MOST_NAMES: usize = 8;
/// Lanes give way before the database does when the system runs out of memory.
const OOM_SCORE: &[u8] = b"800";

/// What a library says of itself.
#[derive(Debug)]
pub struct Loaded {
    /// Its functions: a list of what `docs/protocol.md` says of each, in the order of their indices.
    pub functions: serde_json::Value,
    /// What tells the text that was run from any other ([`control::text`]); `None` if it cannot change.
    pub text: Option<String>,
}

impl Loaded {
    /// The functions of files that were read.
    pub fn new<Callee>(functions: &[Declared<Callee>], files: &[String]) -> Self {
        let specs: Vec<_> = functions.iter().map(|function| &function.spec).collect();
        let read: Vec<_> =
            files.iter().map(|file| (file.as_bytes(), fs::read(file).unwrap_or_default())).collect();
        let text = control::text(read.iter().map(|(file, text)| (*file, &text[..])));
        Self { functions: serde_json::to_value(specs).unwrap_or_default(), text: Some(text) }
    }
}

/// A language whose libraries can be loaded, and forked.
pub trait Guest {
    /// What the language calls its fork.
    const FORK: &'static str = "fork";
    /// The signals that the zygote handles. If a language must hear of ended children itself, SIGCHLD is not one of them,
    /// and the language's own handler rings the bell.
    const SIGNALS: &'static [libc::c_int] = &[libc::SIGCHLD, libc::SIGINT];

    /// The language and its version, such as `Lua 5.4.4`.
    fn runtime(&self) -> String;

    /// Loads a library, whose serialised functions, if it has such, are in the descriptor.
    ///
    /// # Errors
    /// Why it cannot be loaded, as the engine's users should read it.
    fn load(&mut self, source: &Source, pickles: Option<&OwnedFd>) -> Result<Loaded, Failure>;

    /// Serves the calls of one lane until its engine closes it: [`crate::serve`], over the lane of these descriptors.
    ///
    /// # Errors
    /// If the engine is gone or broke the protocol.
    fn serve(&mut self, memory: OwnedFd, socket: OwnedFd, spin: Duration) -> io::Result<()>;

    /// Makes the language's own standard streams anew if the file has closed them. Their descriptors are open.
    ///
    /// # Errors
    /// If what the file has put in their place keeps it from that.
    fn open_streams(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// The names of the threads that the library has started, and that a fork would miss.
    ///
    /// # Errors
    /// If the library keeps that from being found out.
    fn lost_threads(&mut self) -> Result<Vec<String>, Failure> {
        Ok(other_threads())
    }

    /// The words that start this zygote; more follow, and go to [`main`] or [`live`].
    fn command(&self) -> Vec<OsString> {
        vec!["/proc/self/exe".into()]
    }

    /// Prepares for forks, once: what all lanes share. A byte that is written to the bell ends a wait.
    ///
    /// # Errors
    /// If it cannot be done.
    fn settle(&mut self, _bell: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Waits until one of the descriptors can be read, or a signal has come, and says which can be. A language that
    /// has a lock gives it up here, and one that runs handlers of signals later runs them.
    ///
    /// # Errors
    /// What a handler of the library raised.
    fn wait(&mut self, fds: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
        readable(fds)
    }

    /// Forks: 0 in the child.
    ///
    /// # Errors
    /// If there is none.
    fn fork(&mut self) -> io::Result<i32> {
        // SAFETY: the process has no other threads, or those are of no use to its lanes.
        match unsafe { libc::fork() } {
            pid if pid < 0 => Err(io::Error::last_os_error()),
            pid => Ok(pid),
        }
    }

    /// Makes a fork a lane of its own: what it prints goes to its own log now, and its library is loaded.
    ///
    /// # Errors
    /// If the library keeps it from that.
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Says in the log why a lane ends, and which exit code it ends with.
    fn explain(&mut self, error: io::Error) -> i32 {
        say(error);
        1
    }

    /// Writes what streams still hold.
    fn flush(&mut self) {
        let _ = io::stdout().flush();
        // SAFETY: a null pointer stands for all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
    }
}

/// What a zygote that starts anew has to know.
#[derive(Debug, Serialize, Deserialize)]
struct Anew {
    source: Source,
    types: TypeNames,
    /// The descriptor of the serialised functions.
    pickles: Option<i32>,
    /// What tells what was loaded from anything else.
    loaded: String,
}

/// The life of a guest's program: without arguments a zygote; `check FILE` says what a file declares, as JSON in the last
/// line; `version` which runtime this is.
pub fn main(mut guest: impl Guest) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] | [ANEW | CHECK, _] => live(&mut guest, &arguments),
        ["version"] => {
            println!("{}", guest.runtime());
            Ok(())
        }
        _ => Err(io::Error::other("use: with a control socket as descriptor 3, or: check FILE, or: version")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

/// The life of a zygote whose process is a language's own program, with the words that follow those of
/// [`Guest::command`]; or `check FILE`, as [`main`].
///
/// # Errors
/// If the engine broke the protocol, or the library keeps the zygote from its work.
pub fn live(guest: &mut impl Guest, arguments: &[String]) -> io::Result<()> {
    let lived = match arguments {
        [word, descriptor] if word == ANEW => read_anew(descriptor).and_then(|anew| run_anew(guest, anew)),
        [word, path] if word == CHECK => check(guest, path.into()),
        _ => run(guest),
    };
    match lived {
        // The engine has ended: nobody listens.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(())
        }
        lived => lived,
    }
}

/// What the log says of the threads of a library that a fork would miss.
pub fn note(lost: &[String]) -> String {
    let mut counts = BTreeMap::new();
    for name in lost {
        *counts.entry(name).or_insert(0) += 1;
    }
    let more = (counts.len() > MOST_NAMES).then(|| "...".to_owned());
    let names = counts.into_iter().take(MOST_NAMES).map(|(name, count)| match count {
        1 => name.clone(),
        _ => format!("{name} ({count})"),
    });
    let names: Vec<_> = names.chain(more).collect();
    format!(
        "its top level starts threads, which a fork would not have: {}. So each worker loads the file itself, which \
         takes longer, and shares no memory with the others. Better start them when a function is first called",
        names.join(", ")
    )
}

/// Waits until one of the descriptors can be read, or a signal has come.
///
/// # Errors
/// If there is no memory.
pub fn readable(fds: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match rustix::event::poll(&mut fds, None) {
        Ok(_) => Ok(fds.map(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; 2]),
        Err(error) => Err(error.into()),
    }
}

/// Writes a line to the log, if that is still there.
fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "crosslane: {line}");
}

fn run(guest: &mut impl Guest) -> io::Result<()> {
    // From here on this is a child of the process that the engine started, which sees to it that nothing is left.
    reaper::supervise(|| guest.fork())?;
    let control = control_socket()?;
    let Some((Request::Load { source, types, .. }, descriptors)) = control.receive()? else { return Ok(()) };
    types.clone().know();
    let pickles = descriptors.into_iter().next();
    let environment: Vec<_> = std::env::vars_os().filter(|(name, _)| name != reaper::ZYGOTE).collect();
    let folder = std::env::current_dir();
    let loaded = load(guest, &source, pickles.as_ref());
    let (loaded, lost) = match loaded.and_then(|loaded| Ok((loaded, guest.lost_threads()?))) {
        Ok(loaded) => loaded,
        Err(failure) => return control.send(&Report::Failed { failure }),
    };
    let text = loaded.text.clone();
    let what = identity(&loaded);
    let (functions, runtime) = (loaded.functions, guest.runtime());
    control.send(&Report::Loaded { functions, runtime, text, reloads: !lost.is_empty() })?;
    if !lost.is_empty() {
        say(format_args!("{}: {}.", source.name(), note(&lost)));
        start_anew(guest, source, types, pickles.as_ref(), what, environment, folder.ok());
        // Forks may do.
    }
    drop(pickles);
    Zygote::new(control, None)?.serve(guest)
}

/// What the process that became this one has left for it in a file in memory.
fn read_anew(descriptor: &str) -> io::Result<Anew> {
    let descriptor = descriptor.parse().map_err(io::Error::other)?;
    // SAFETY: the process that became this one left the descriptor open for it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    serde_json::from_reader(io::BufReader::new(file)).map_err(io::Error::other)
}

fn run_anew(guest: &mut impl Guest, anew: Anew) -> io::Result<()> {
    anew.types.know();
    // SAFETY: the process that became this one left the descriptor open for it.
    let pickles = anew.pickles.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
    if let Some(pickles) = &pickles {
        rustix::io::fcntl_setfd(pickles, FdFlags::CLOEXEC)?;
    }
    Zygote::new(control_socket()?, Some((anew.source, pickles, anew.loaded)))?.serve(guest)
}

/// Loads a library, and opens the standard streams again that its file has closed.
fn load(guest: &mut impl Guest, source: &Source, pickles: Option<&OwnedFd>) -> Result<Loaded, Failure> {
    let streams = [0, 1, 2].map(|number| {
        // SAFETY: it is only copied, and a number that stands for nothing is an error.
        let stream = unsafe { BorrowedFd::borrow_raw(number) };
        (number, rustix::io::fcntl_dupfd_cloexec(stream, CONTROL + 1))
    });
    let loaded = guest.load(source, pickles);
    for (number, saved) in streams {
        if let Ok(saved) = saved {
            // SAFETY: these numbers are the standard streams', whatever the file has put there.
            unsafe { libc::dup2(saved.as_raw_fd(), number) };
        }
    }
    let opened = guest.open_streams();
    let loaded = loaded?;
    opened.map(|()| loaded)
}

fn control_socket() -> io::Result<ControlSocket> {
    // SAFETY: the engine started this process with the socket as this descriptor, which nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(CONTROL) };
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(ControlSocket::new(UnixStream::from(socket)))
}

/// What tells what was loaded from anything else.
fn identity(loaded: &Loaded) -> String {
    let functions = loaded.functions.to_string();
    let text = loaded.text.as_deref().unwrap_or_default();
    control::text([(&b"functions"[..], functions.as_bytes()), (b"text", text.as_bytes())])
}

/// Becomes a zygote that has loaded nothing, and has the lanes load it: all that was loaded here is gone. Returns only if
/// that is not possible.
fn start_anew(
    guest: &mut impl Guest,
    source: Source,
    types: TypeNames,
    pickles: Option<&OwnedFd>,
    loaded: String,
    environment: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
) {
    guest.flush();
    let words = guest.command();
    let Some((program, arguments)) = words.split_first() else { return };
    let anew = Anew { source, types, pickles: pickles.map(AsRawFd::as_raw_fd), loaded };
    // The types of a database may be more than a program's argument can hold.
    let file = match left(&anew) {
        Ok(file) => file,
        Err(error) => return say(format_args!("the zygote cannot start itself anew: {error}")),
    };
    // SAFETY: the descriptor is the control socket, which stays open.
    let control = unsafe { BorrowedFd::borrow_raw(CONTROL) };
    let inherit = |flags: FdFlags| {
        for kept in [Some(control), pickles.map(AsFd::as_fd), Some(file.as_fd())].into_iter().flatten() {
            let _ = rustix::io::fcntl_setfd(kept, flags);
        }
    };
    inherit(FdFlags::empty());
    let mut command = Command::new(program);
    command.args(arguments).arg(ANEW).arg(file.as_raw_fd().to_string()).env_clear().envs(environment);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    say(format_args!("the zygote cannot start itself anew: {}", command.exec()));
    inherit(FdFlags::CLOEXEC);
}

/// A file in memory for the process that this one becomes.
fn left(anew: &Anew) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("anew", rustix::fs::MemfdFlags::CLOEXEC)?);
    serde_json::to_writer(&file, anew)?;
    file.rewind()?;
    Ok(file)
}

/// Prints what a file declares, or why it cannot be loaded, as JSON in a line of its own. What the file itself prints goes
/// to stderr.
fn check(guest: &mut impl Guest, path: PathBuf) -> io::Result<()> {
    let mut answer = File::from(rustix::io::dup(rustix::stdio::stdout())?);
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let path = fs::canonicalize(&path).unwrap_or(path);
    let loaded = load(guest, &Source::File { path }, None);
    let json = match loaded.and_then(|loaded| Ok((loaded, guest.lost_threads()?))) {
        Ok((loaded, lost)) => serde_json::json!({ "functions": loaded.functions, "lost": lost }),
        Err(failure) => serde_json::json!({ "failure": failure }),
    };
    guest.flush();
    writeln!(answer, "{json}")
}

/// The names of the threads of this process beside the one that asks.
fn other_threads() -> Vec<String> {
    let this = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = tasks.filter(|task| *task.file_name() != *this);
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    others.map(|task| name(task).trim_end().to_owned()).collect()
}

/// What signal handlers write to, and when SIGINT came.
static BELL: AtomicI32 = AtomicI32::new(-1);
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(number: libc::c_int) {
    if number == libc::SIGINT {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the place is valid, and the call may be made in a signal handler.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        INTERRUPTED.store(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64, Relaxed);
    }
    // SAFETY: one byte of a constant is written, to a pipe that does not block; errno is put back, for what was
    // interrupted.
    unsafe {
        let error = *libc::__errno_location();
        libc::write(BELL.load(Relaxed), b".".as_ptr().cast(), 1);
        *libc::__errno_location() = error;
    }
}

/// The handlers that were there before the zygote's.
struct Signals(Vec<(libc::c_int, libc::sigaction)>);

impl Signals {
    fn take(numbers: &[libc::c_int]) -> Self {
        let handler: extern "C" fn(libc::c_int) = on_signal;
        let take = |number| {
            // SAFETY: both structures are plain data, and valid; the handler makes only calls that handlers may make.
            unsafe {
                let mut ours: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                ours.sa_sigaction = handler as usize;
                ours.sa_flags = libc::SA_RESTART;
                libc::sigaction(number, &raw const ours, &raw mut before);
                (number, before)
            }
        };
        Self(numbers.iter().copied().map(take).collect())
    }

    /// Puts them back, in a lane.
    fn give_back(&self) {
        for (number, before) in &self.0 {
            // SAFETY: the structure is what the kernel gave for this signal.
            unsafe { libc::sigaction(*number, before, std::ptr::null_mut()) };
        }
    }
}

struct Zygote {
    control: ControlSocket,
    /// What each lane loads itself, because a fork of what was loaded here would miss threads.
    reloaded: Option<(Source, Option<OwnedFd>, String)>,
    /// The numbers of the living lanes by their process ids.
    lanes: HashMap<i32, u64>,
    pid: Pid,
    wakeup: OwnedFd,
    bell: OwnedFd,
}

impl Zygote {
    fn new(control: ControlSocket, reloaded: Option<(Source, Option<OwnedFd>, String)>) -> io::Result<Self> {
        let (wakeup, bell) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { control, reloaded, lanes: HashMap::new(), pid: rustix::process::getpid(), wakeup, bell })
    }

    /// Forks a lane per request until the engine closes the socket.
    fn serve<G: Guest>(mut self, guest: &mut G) -> io::Result<()> {
        guest.settle(self.bell.as_fd())?;
        BELL.store(self.bell.as_raw_fd(), Relaxed);
        let signals = Signals::take(G::SIGNALS);
        let served = loop {
            match self.turn(guest, &signals) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        for pid in self.lanes.keys() {
            kill_group(*pid);
        }
        for pid in self.lanes.keys() {
            let _ = rustix::process::waitpid(Pid::from_raw(*pid), rustix::process::WaitOptions::empty());
        }
        signals.give_back();
        // The language's handlers may ring as long as the process lives: the numbers must not become those of other files.
        std::mem::forget((self.wakeup, self.bell));
        served
    }

    /// Waits for something to do, and does it. False when the engine has closed the socket.
    fn turn(&mut self, guest: &mut impl Guest, signals: &Signals) -> io::Result<bool> {
        let [asked, woken] = guest.wait([self.control.as_fd(), self.wakeup.as_fd()])?;
        if woken {
            let _ = rustix::io::read(&self.wakeup, &mut [0; 4096]);
            match INTERRUPTED.swap(0, Relaxed) {
                0 => {}
                at => self.control.send(&Report::Interrupted { at })?,
            }
            self.reap()?;
        }
        if !asked {
            return Ok(true);
        }
        let Some((request, descriptors)) = self.control.receive()? else { return Ok(false) };
        match request {
            Request::Fork { lane, spin_microseconds } => {
                let spin = Duration::from_micros(spin_microseconds);
                let made = match <[OwnedFd; 3]>::try_from(descriptors) {
                    Ok(descriptors) => self.fork(guest, signals, spin, descriptors),
                    Err(_) => Err("the process has too few descriptors left".to_owned()),
                };
                match made {
                    Ok(pid) => {
                        self.lanes.insert(pid, lane);
                        self.control.send(&Report::Forked { lane })?;
                    }
                    Err(message) => self.control.send(&Report::Unforked { lane, message })?,
                }
            }
            // It is reported as any other.
            Request::Unfork { lane } => {
                self.lanes
                    .iter()
                    .filter(|(_, number)| **number == lane)
                    .for_each(|(pid, _)| kill_group(*pid));
            }
            Request::Load { .. } => {}
        }
        Ok(true)
    }

    /// Reports every lane that ended.
    fn reap(&mut self) -> io::Result<()> {
        while let Some((pid, code, signal)) = reaper::ended_child() {
            let lane = self.lanes.remove(&pid);
            if lane.is_some() {
                // While it is not reaped its group is still its own.
                kill_group(pid);
            }
            let _ = rustix::process::waitpid(Pid::from_raw(pid), rustix::process::WaitOptions::empty());
            if let Some(lane) = lane {
                self.control.send(&Report::Exited { lane, code, signal })?;
            }
        }
        Ok(())
    }

    fn fork<G: Guest>(
        &mut self,
        guest: &mut G,
        signals: &Signals,
        spin: Duration,
        descriptors: [OwnedFd; 3],
    ) -> Result<i32, String> {
        guest.flush();
        let forked = guest.fork();
        let is_fork = rustix::process::getpid() != self.pid;
        match forked {
            Ok(_) if is_fork => {
                let lived = catch_unwind(AssertUnwindSafe(|| self.live(guest, signals, spin, descriptors)));
                let status = match lived {
                    Ok(Ok(status)) => status,
                    Ok(Err(error)) => guest.explain(error),
                    // The hook has told of it.
                    Err(_) => 1,
                };
                let _ = catch_unwind(AssertUnwindSafe(|| guest.flush()));
                // SAFETY: nothing of the zygote, of which this is a copy, is to be cleaned up.
                unsafe { libc::_exit(status) }
            }
            Err(error) if is_fork => {
                let status = guest.explain(error);
                // SAFETY: as above.
                unsafe { libc::_exit(status) }
            }
            // A library may have put something else in the place of the language's fork.
            Ok(pid) if !is_child(pid) => {
                let fork = G::FORK;
                Err(format!("{fork} made no child, but answered {pid}"))
            }
            Ok(pid) => Ok(pid),
            Err(error) => Err(format!("fork: {error}")),
        }
    }

    /// The life of a lane. Returns its exit code.
    fn live(
        &mut self,
        guest: &mut impl Guest,
        signals: &Signals,
        spin: Duration,
        descriptors: [OwnedFd; 3],
    ) -> io::Result<i32> {
        let [memory, socket, log] = descriptors;
        rustix::process::setpgid(None, None)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid() != Some(self.pid) {
            return Ok(0);
        }
        signals.give_back();
        // The zygote's: this process must not keep them open.
        for descriptor in [self.control.as_fd(), self.wakeup.as_fd(), self.bell.as_fd()] {
            // SAFETY: they are not used again; the process ends without dropping what owns them.
            unsafe { libc::close(descriptor.as_raw_fd()) };
        }
        rustix::stdio::dup2_stdout(&log)?;
        rustix::stdio::dup2_stderr(&log)?;
        drop(log);
        let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
        if let Some((source, pickles, loaded)) = &self.reloaded {
            // As in a zygote, the file must load no library: it could be itself.
            // SAFETY: the process has one thread.
            unsafe { std::env::set_var(reaper::ZYGOTE, std::process::id().to_string()) };
            let again = load(guest, source, pickles.as_ref());
            // SAFETY: a library that has started threads is not to change the environment, from C, at the same time.
            unsafe { std::env::remove_var(reaper::ZYGOTE) };
            match again {
                Ok(again) if identity(&again) == *loaded => {}
                Ok(_) => {
                    say(format_args!("{} has changed since it was loaded; load it again", source.name()));
                    return Ok(1);
                }
                Err(failure) => {
                    say(failure);
                    return Ok(1);
                }
            }
        }
        guest.begin()?;
        guest.serve(memory, socket, spin)?;
        Ok(0)
    }
}

fn is_child(pid: i32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Pid::from_raw(pid).is_some_and(|pid| {
        pid.as_raw_nonzero().get() > 0 && rustix::process::waitid(WaitId::Pid(pid), options).is_ok()
    })
}

fn kill_group(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    if rustix::process::kill_process_group(pid, Signal::KILL).is_err() {
        // It had no time to make its group.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}
