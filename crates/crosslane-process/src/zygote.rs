//! The engine's side of a zygote: start it, load a library, ask for lanes, end it.

use crate::control::{self, Answer, Request};
use crate::lane::{Home, ProcessLane};
use crate::warden::{LaneRecord, NewLane, Warden};
use crosslane::pool;
use crosslane::{Error, Failure, Function};
use crosslane_ring::Region;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a fork may take.
const BOOT: Duration = Duration::from_secs(30);
/// How much longer than it may take a load is waited for: a guest that can says where it was.
const EXPLANATION: Duration = Duration::from_millis(500);
/// How long a zygote may take to end after its socket was closed.
const FAREWELL: Duration = Duration::from_secs(2);
/// A guest spins so much longer than the engine, which has work of its own between two batches.
const GUEST_SPIN: u32 = 3;
/// Why there are no more host lanes.
const ENDED_THREAD: &str = "the thread that makes its lanes has ended; was it killed?";
/// The descriptor on which a zygote finds its control socket.
const CONTROL_FD: i32 = 3;

/// Where the functions of a library come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    /// A file of the guest's language.
    File {
        /// The absolute path.
        path: PathBuf,
    },
    /// Functions of the engine's own process, called on threads of it.
    Thread {
        /// What to call the library.
        name: String,
    },
    /// A function that the host program serialised (for Python: by cloudpickle).
    Pickle {
        /// What to call the library.
        name: String,
        /// The serialised function; sent as base16.
        #[serde(serialize_with = "to_base16", deserialize_with = "from_base16")]
        bytes: Vec<u8>,
    },
}

fn to_base16<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn from_base16<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or_default());
    pairs.map(|pair| u8::from_str_radix(pair, 16)).collect::<Result<_, _>>().map_err(de::Error::custom)
}

impl Source {
    /// The library's name.
    pub fn name(&self) -> String {
        match self {
            Source::File { path } => path.display().to_string(),
            Source::Thread { name } | Source::Pickle { name, .. } => name.clone(),
        }
    }
}

/// Where a zygote runs.
#[derive(Debug, Clone)]
pub enum Origin {
    /// In a process, which the engine starts with these words.
    Process {
        /// The interpreter and its arguments.
        command: Vec<String>,
        /// What to look at if it does not start, for the error.
        advice: &'static str,
    },
    /// In a thread of this very process, at the other end of a control socket: its lanes are host lanes.
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
    /// What to load.
    pub source: Source,
    /// How long loading may take.
    pub load_timeout: Duration,
    /// Bytes of each ring of new lanes.
    pub ring_size: usize,
    /// How long a waiting engine thread spins.
    pub spin: Duration,
    /// Called when the terminal's Ctrl-C reached the zygote.
    pub on_interrupt: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for ZygoteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZygoteOptions")
            .field("origin", &self.origin)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// What a loaded library says of itself.
#[derive(Debug)]
pub struct Loaded {
    /// Its functions.
    pub functions: Vec<Arc<Function>>,
    /// The guest, such as `Python 3.11.7`.
    pub runtime: String,
}

/// The parent process of the lanes of one library.
#[derive(Debug)]
pub struct Zygote {
    options: ZygoteOptions,
    running: Running,
    next_lane: u64,
}

impl Zygote {
    /// Starts a zygote and waits until it has loaded its library. To be called on a thread that lives
    /// as long as the zygote should: when that thread ends, the kernel kills the zygote.
    ///
    /// # Errors
    /// [`Error::Boot`] if the interpreter does not start, [`Error::Load`] if the library does not load.
    pub fn start(options: ZygoteOptions) -> Result<(Self, Loaded), Error> {
        let (running, loaded) = Running::start(&options)?;
        Ok((Self { options, running, next_lane: 1 }, loaded))
    }
}

impl Zygote {
    fn fork(&mut self) -> Result<ProcessLane, Error> {
        let id = self.next_lane;
        self.next_lane += 1;
        self.running.fork(id, &self.options)
    }
}

impl pool::Zygote for Zygote {
    type Lane = ProcessLane;

    fn boot(&mut self) -> Result<ProcessLane, Error> {
        if self.running.ended() {
            self.running = Running::start(&self.options)?.0;
        }
        let booted = self.fork();
        // A zygote that is just dying takes the request and does not answer.
        if booted.is_err() && self.running.lost {
            self.running = Running::start(&self.options)?.0;
            return self.fork();
        }
        booted
    }
}

#[derive(Debug)]
struct Running {
    /// Its process, unless it is a thread of this one.
    child: Option<Child>,
    control: Arc<UnixStream>,
    answers: mpsc::Receiver<Answer>,
    lanes: mpsc::Sender<NewLane>,
    /// Keeps what the zygote printed last.
    record: Arc<LaneRecord>,
    bell: Option<UnixStream>,
    warden: Option<JoinHandle<()>>,
    engine: u32,
    /// Whether it did not answer as it should, and was killed.
    lost: bool,
}

/// The exceptions to "descriptors are closed on exec" are set between fork and exec; a concurrent spawn
/// by another thread must not inherit them.
static SPAWN: Mutex<()> = Mutex::new(());

fn boot_error(what: &str) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::Boot(format!("{what}: {error}"))
}

/// Starts the zygote's process; what it prints goes to `log`.
fn spawn(command: &[String], log: OwnedFd) -> Result<(Child, UnixStream), Error> {
    let (ours, theirs) = UnixStream::pair().map_err(boot_error("socket pair"))?;
    let Some((program, arguments)) = command.split_first() else {
        return Err(Error::Boot("no interpreter".into()));
    };
    let mut command = Command::new(program);
    let stdout = log.try_clone().map_err(boot_error("log"))?;
    command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(log);
    let descriptor = theirs.as_raw_fd();
    // SAFETY: the closure runs in the forked child and makes only async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // dup2 onto itself would leave the close-on-exec flag.
            if descriptor == CONTROL_FD {
                if libc::fcntl(CONTROL_FD, libc::F_SETFD, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            } else if libc::dup2(descriptor, CONTROL_FD) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let _guard = SPAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn().map_err(|error| Error::Boot(format!("{program}: {error}")))?;
    Ok((child, ours))
}

impl Running {
    fn start(options: &ZygoteOptions) -> Result<(Self, Loaded), Error> {
        let (log, log_theirs) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::Boot(e.to_string()))?;
        nonblocking(&log)?;
        let (child, ours) = match &options.origin {
            Origin::Process { command, .. } => {
                let (child, ours) = spawn(command, log_theirs)?;
                (Some(child), ours)
            }
            Origin::Thread(socket) => {
                let socket = socket.lock().unwrap_or_else(PoisonError::into_inner).take();
                (None, socket.ok_or_else(|| Error::Boot(ENDED_THREAD.into()))?)
            }
        };
        let control = Arc::new(ours);
        let (answer_sender, answers) = mpsc::channel();
        let (lanes, lane_receiver) = mpsc::channel();
        let (bell, bell_theirs) = UnixStream::pair().map_err(boot_error("socket pair"))?;
        let record = LaneRecord::new(0);
        let warden = Warden {
            control: Arc::clone(&control),
            answers: answer_sender,
            lanes: lane_receiver,
            bell: bell_theirs,
            log,
            zygote: Arc::clone(&record),
            on_interrupt: Arc::clone(&options.on_interrupt),
        };
        let warden = std::thread::Builder::new()
            .name("crosslane-warden".into())
            .spawn(move || warden.run())
            .map_err(boot_error("warden"))?;
        let engine = std::process::id();
        let bell = Some(bell);
        let mut running =
            Self { child, control, answers, lanes, record, bell, warden: Some(warden), engine, lost: false };
        let loaded = running.load(options)?;
        Ok((running, loaded))
    }

    fn load(&mut self, options: &ZygoteOptions) -> Result<Loaded, Error> {
        let library = options.source.name();
        // A zygote that ended at once is explained below.
        let seconds = options.load_timeout.as_secs_f64();
        let request = Request::Load { source: options.source.clone(), seconds };
        let _ = control::send(&self.control, &request, &[]);
        match self.answers.recv_timeout(options.load_timeout + EXPLANATION) {
            Ok(Answer::Loaded { functions, runtime }) => {
                let functions = functions
                    .into_iter()
                    .zip(0..)
                    .map(|(spec, index)| {
                        let place = format!("{}:{}", spec.file, spec.line);
                        Function::new(index, spec).map(Arc::new).map_err(|error| Error::Load {
                            library: library.clone(),
                            failure: Box::new(Failure {
                                class: "SignatureError".into(),
                                message: error.to_string(),
                                traceback: format!("  at {place}"),
                                ..Failure::default()
                            }),
                        })
                    })
                    .collect::<Result<_, _>>()?;
                Ok(Loaded { functions, runtime })
            }
            Ok(Answer::Failed { failure }) if failure == Failure::default() => {
                let (Some(child), Origin::Process { command, advice }) = (&mut self.child, &options.origin)
                else {
                    return Err(Error::Boot(ENDED_THREAD.into()));
                };
                let status = child.wait().map(|status| status.to_string()).unwrap_or_default();
                let (command, printed) = (command.join(" "), self.record.tail());
                Err(Error::Boot(format!(
                    "`{command}` ended before it had loaded {library} ({status}); {advice}\n{printed}"
                )))
            }
            Ok(Answer::Failed { failure }) => Err(Error::Load { library, failure: Box::new(failure) }),
            Ok(answer) => Err(Error::Boot(format!("the zygote answered {answer:?}"))),
            Err(_) => Err(Error::Boot(format!(
                "{library} was not loaded within {} s; the setting load_timeout changes this limit",
                options.load_timeout.as_secs_f64()
            ))),
        }
    }

    fn ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => {
                let mut control = [PollFd::new(&*self.control, PollFlags::RDHUP)];
                !matches!(rustix::event::poll(&mut control, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
            }
        }
    }

    fn give_up(&mut self, why: String) -> Error {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
        self.lost = true;
        Error::Boot(why)
    }

    fn fork(&mut self, id: u64, options: &ZygoteOptions) -> Result<ProcessLane, Error> {
        let system = |error: rustix::io::Errno| Error::Boot(error.to_string());
        let (region, memory) =
            Region::create(options.ring_size).map_err(|error| Error::Boot(error.to_string()))?;
        let (socket, socket_theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(system)?;
        let (log, log_theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        nonblocking(&log)?;
        let record = LaneRecord::new(id);
        // The warden hears of the lane before the lane can die.
        let _ = self.lanes.send((Arc::clone(&record), log));
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, b"l");
        }
        let spin_microseconds = (options.spin * GUEST_SPIN).as_micros() as u64;
        let request = Request::Fork { lane: id, spin_microseconds };
        let fds = [memory.as_fd(), socket_theirs.as_fd(), log_theirs.as_fd()];
        control::send(&self.control, &request, &fds)
            .map_err(|error| self.give_up(format!("the zygote ended ({error})")))?;
        drop((memory, socket_theirs, log_theirs));
        let pid = loop {
            match self.answers.recv_timeout(BOOT) {
                Ok(Answer::Forked { lane, pid }) if lane == id => break pid,
                Ok(Answer::Unforked { lane, message }) if lane == id => return Err(Error::Boot(message)),
                // An answer to a fork that was given up.
                Ok(Answer::Forked { .. } | Answer::Unforked { .. }) => {}
                Ok(answer) => {
                    return Err(self.give_up(format!("the zygote ended or broke the protocol ({answer:?})")));
                }
                Err(_) => {
                    return Err(
                        self.give_up(format!("the zygote made no worker within {} s", BOOT.as_secs()))
                    );
                }
            }
        };
        let process = Pid::from_raw(pid)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|error| Error::Boot(format!("a worker ended at once ({error}): {}", record.tail())))?;
        let home = match &self.child {
            None => Home::Here,
            Some(child) if child.id() as i32 == pid => Home::Zygote(Arc::clone(&self.record)),
            Some(_) => Home::Own,
        };
        Ok(ProcessLane::new(region.engine(), socket, process, pid, record, home, options.spin))
    }
}

fn nonblocking(fd: &OwnedFd) -> Result<(), Error> {
    rustix::io::ioctl_fionbio(fd, true).map_err(|error| Error::Boot(error.to_string()))
}

impl Drop for Running {
    fn drop(&mut self) {
        // A fork of the engine has copies of the descriptors, but no warden and no children.
        if self.engine != std::process::id() {
            return;
        }
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        let patience = Instant::now();
        while !self.ended() {
            if patience.elapsed() > FAREWELL {
                if let Some(child) = &mut self.child {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.bell = None;
        if let Some(warden) = self.warden.take() {
            let _ = warden.join();
        }
    }
}
