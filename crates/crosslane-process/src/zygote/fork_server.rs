//! The engine's side of a fork server: one process that has imported modules, and forks the zygotes
//! of many libraries.
//!
//! A library whose functions need large modules takes most of its load for their import, and its
//! zygote most of its memory. Zygotes of one fork server share both.
//!
//! # Protocol
//! One thread of the engine owns the process: the kernel kills the process when that thread ends.
//! The thread starts the process for the first zygote, and again if it has ended. It makes one
//! zygote after the other. A new zygote greets the engine on its own control socket, so the kernel
//! tells its process id. When the process ends, all its zygotes end.

use super::root::{FAREWELL, Program, Root, boot_error};
use crate::control::{self, GLANCE, Request};
use crate::identity::{self, Process};
use crosslane::Error;
use crosslane::pool::Stop;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a wait for the thread checks whether it should go on.
const TICK: Duration = Duration::from_millis(10);

/// A process that forks zygotes. A drop ends it, and all its zygotes.
#[derive(Debug)]
pub struct ForkServer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    engine: u32,
    pub(super) program: Program,
}

/// Why there is no zygote.
pub(super) enum NoFork {
    /// The process of the fork server has ended in this way.
    Ended(String),
    /// The zygote was not there in time.
    Late,
    /// The zygote is not needed any more.
    Unneeded,
    /// Something else.
    Failed(Error),
}

impl From<Error> for NoFork {
    fn from(error: Error) -> Self {
        NoFork::Failed(error)
    }
}

type Forked = Result<(Root, UnixStream), NoFork>;

#[derive(Debug)]
struct Job {
    modules: Vec<String>,
    log: OwnedFd,
    deadline: Instant,
    stop: Stop,
    answer: mpsc::Sender<Forked>,
}

impl ForkServer {
    /// A fork server that starts this program when it is needed.
    ///
    /// # Errors
    /// [`Error::Boot`] if there are no more threads.
    pub fn new(program: Program) -> Result<Arc<Self>, Error> {
        let (jobs, received) = mpsc::channel();
        let mut server = Server { program: program.clone(), process: None };
        let thread = std::thread::Builder::new()
            .name("crosslane-fork".into())
            .spawn(move || {
                for Job { modules, log, deadline, stop, answer } in received {
                    let is_needed = !stop.is_set() && Instant::now() < deadline;
                    let forked = match is_needed {
                        true => server.fork(modules, log, deadline, &stop),
                        false => Err(NoFork::Late),
                    };
                    let _ = answer.send(forked);
                }
            })
            .map_err(boot_error("fork server"))?;
        let engine = std::process::id();
        Ok(Arc::new(Self { jobs: Some(jobs), thread: Some(thread), engine, program }))
    }

    /// A new zygote that has imported these modules, and the engine's end of its control socket. The
    /// output of the zygote and of the imports goes to `log`.
    pub(super) fn fork(
        &self,
        modules: Vec<String>,
        log: OwnedFd,
        deadline: Instant,
        stop: &Stop,
    ) -> Result<(Root, UnixStream), NoFork> {
        let (answer, answered) = mpsc::channel();
        let job = Job { modules, log, deadline, stop: stop.clone(), answer };
        // A failure is found by the receiver.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        loop {
            // The thread may be busy with other jobs. A zygote that comes too late ends, because no
            // thread has its socket.
            match answered.recv_timeout(TICK) {
                Ok(forked) => return forked,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Boot("the thread of the fork server has ended".into()).into());
                }
                Err(RecvTimeoutError::Timeout) if stop.is_set() => return Err(NoFork::Unneeded),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => return Err(NoFork::Late),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        self.jobs = None;
        // A fork of the engine does not have the thread.
        if let Some(thread) = self.thread.take().filter(|_| self.engine == std::process::id()) {
            let _ = thread.join();
        }
    }
}

/// What the thread owns.
struct Server {
    program: Program,
    process: Option<Serving>,
}

/// The running process, and the engine's end of its control socket.
struct Serving(Root, UnixStream);

impl Server {
    fn fork(&mut self, modules: Vec<String>, log: OwnedFd, deadline: Instant, stop: &Stop) -> Forked {
        if self.process.as_mut().is_some_and(|Serving(root, _)| root.has_ended()) {
            self.process = None;
        }
        let Serving(root, socket) = match &mut self.process {
            Some(serving) => serving,
            none => {
                let (child, socket) =
                    self.program.start(log.try_clone().map_err(boot_error("log"))?, None)?;
                none.insert(Serving(Root::Child(child), socket))
            }
        };
        let (ours, theirs) = UnixStream::pair().map_err(boot_error("socket pair"))?;
        identity::expect(ours.as_fd()).map_err(|errno| boot_error("socket pair")(errno.into()))?;
        let go_on = || !stop.is_set() && Instant::now() < deadline;
        let request = Request::Zygote { modules };
        // The code below handles a process that has ended, or does not read.
        let _ = control::send(socket, &request, &[theirs.as_fd(), log.as_fd()], go_on);
        drop((theirs, log));
        let why = loop {
            let _ = rustix::event::poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&GLANCE));
            match identity::sender(ours.as_fd()) {
                Ok((sender, _)) => match Process::below(sender, root.id()) {
                    Ok(process) => return Ok((Root::Forked(process), ours)),
                    Err(errno) => return Err(boot_error("the zygote")(errno.into()).into()),
                },
                // The fork server goes on. It will find that the new zygote's socket is closed.
                Err(Errno::AGAIN | Errno::INTR) if stop.is_set() => return Err(NoFork::Unneeded),
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() >= deadline => break NoFork::Late,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => {
                    root.wait(FAREWELL);
                    let how =
                        root.status().map_or_else(|| "it closed its socket".into(), |how| how.to_string());
                    break NoFork::Ended(how);
                }
            }
        };
        self.process = None;
        Err(why)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let Serving(root, socket) = self;
        let _ = socket.shutdown(Shutdown::Both);
        root.wait(FAREWELL);
        root.end();
    }
}
