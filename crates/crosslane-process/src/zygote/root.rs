//! The process that an engine starts, or has started, for a zygote: the reaper, or the zygote
//! itself.

use crate::identity::Process;
use crosslane::{Error, Net, Sandbox};
use crosslane_sandbox::{broker, recorder};
use rustix::process::Signal;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The descriptor on which a zygote finds its control socket.
const CONTROL_FD: i32 = 3;
/// The variable that tells numerical libraries (OpenBLAS, MKL, OpenMP, Arrow) how many threads to
/// use, and its value unless the engine's environment has one. Without it, each library uses all
/// processors, although there is a lane for each processor. PySpark's workers have the same
/// default.
const LIBRARY_THREADS: (&str, &str) = ("OMP_NUM_THREADS", "1");
/// The variables of the engine's environment that processes in a sandbox have, too, by the beginnings
/// of their names: where programs, packages and their settings are, how many threads they use, and
/// which language and time zone people have.
const KNOWN: [&str; 24] = [
    "PATH=",
    "HOME=",
    "USER=",
    "LOGNAME=",
    "TMPDIR=",
    "TZ",
    "LANG",
    "LC_",
    "LD_LIBRARY_PATH=",
    "PYTHON",
    "VIRTUAL_ENV=",
    "XDG_CACHE_HOME=",
    "RUBY",
    "GEM_HOME=",
    "GEM_PATH=",
    "BUNDLE_GEMFILE=",
    "BUNDLE_PATH=",
    "LUA_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "ARROW_",
    "CROSSLANE_PROFILE=",
    "CROSSLANE_JS_IMPORTS=",
];
/// How long the process may take to end everything below it.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the process may take to end after its control socket was closed.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);
/// How often a wait looks whether the process has ended.
const TICK: Duration = Duration::from_millis(1);

/// How to start a zygote's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The interpreter and its arguments.
    pub command: Vec<String>,
    /// The variables that are added to the engine's environment.
    pub environment: Vec<(String, String)>,
    /// Advice for the error if it does not start.
    pub advice: &'static str,
}

impl Program {
    /// Starts the process. Its output goes to `log`. Returns the engine's end of the control socket,
    /// too. The kernel kills the process when the calling thread ends. If the process will enter a
    /// sandbox that forbids something, it has only those variables of the engine's environment that it may
    /// have.
    pub(super) fn start(
        &self,
        log: OwnedFd,
        sandbox: Option<&Sandbox>,
    ) -> Result<(Child, UnixStream), Error> {
        let (ours, theirs) = UnixStream::pair().map_err(boot_error("socket pair"))?;
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Error::Boot("no interpreter".into()));
        };
        let mut command = Command::new(program);
        let stdout = log.try_clone().map_err(boot_error("log"))?;
        if let Some(sandbox) = sandbox {
            if sandbox.recorded {
                // No file needs that Python keeps its modules compiled.
                command.env("PYTHONDONTWRITEBYTECODE", "1");
            } else {
                command.env_clear().envs(variables(sandbox));
            }
            if sandbox.recorded || matches!(sandbox.net, Net::Hosts(_)) {
                command.env(broker::RESOLVER.0, broker::RESOLVER.1);
            }
        }
        command.env_remove(recorder::VARIABLE);
        command.args(arguments).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(stdout).stderr(log);
        if std::env::var_os(LIBRARY_THREADS.0).is_none() {
            command.env(LIBRARY_THREADS.0, LIBRARY_THREADS.1);
        }
        let descriptor = theirs.as_raw_fd();
        // SAFETY: the closure runs in the forked child and makes only async-signal-safe calls.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // If the engine's program ignores SIGCHLD, the zygote would inherit that, and would
                // not see how its children end.
                libc::signal(libc::SIGCHLD, libc::SIG_DFL);
                // Lanes may write their stacks on SIGQUIT. A JVM blocks this signal in its threads,
                // because its users send it to see the JVM's own stacks.
                libc::signal(libc::SIGQUIT, libc::SIG_IGN);
                let mut quit = std::mem::zeroed();
                libc::sigemptyset(&raw mut quit);
                libc::sigaddset(&raw mut quit, libc::SIGQUIT);
                libc::sigprocmask(libc::SIG_UNBLOCK, &raw const quit, std::ptr::null_mut());
                // A dup2 of a descriptor onto itself would leave the close-on-exec flag set.
                if descriptor == CONTROL_FD {
                    if libc::fcntl(CONTROL_FD, libc::F_SETFD, 0) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                } else if libc::dup2(descriptor, CONTROL_FD) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // The engine's program may have descriptors without this flag. An older kernel leaves
                // them as they are.
                let rest = (CONTROL_FD + 1) as libc::c_uint;
                libc::syscall(libc::SYS_close_range, rest, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
                Ok(())
            });
        }
        let child = command.spawn().map_err(|error| Error::Boot(format!("{program}: {error}")))?;
        Ok((child, ours))
    }

    /// The error for a process that has ended too early.
    pub(super) fn ended(&self, library: &str, how: &str, printed: &str) -> Error {
        let (command, advice) = (self.command.join(" "), self.advice);
        Error::Boot(format!("`{command}` ended before it had loaded {library} ({how}); {advice}\n{printed}"))
    }
}

/// Whether the name of a variable begins with one of these texts, or is the one before `=`.
fn is_among(name: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|known| match known.strip_suffix('=') {
        Some(whole) => whole == name,
        None => name.starts_with(known),
    })
}

/// Whether a process in a sandbox has a variable of this process's environment only if it is allowed.
pub(super) fn must_be_allowed(name: &str) -> bool {
    !is_among(name, &KNOWN) && std::env::var_os(name).is_some()
}

/// The variables of this process's environment that a process in this sandbox has.
fn variables(sandbox: &Sandbox) -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let is_allowed = |name: &str| sandbox.env.iter().any(|allowed| allowed == name);
        name.to_str().is_some_and(|name| is_allowed(name) || is_among(name, &KNOWN))
    })
}

pub(super) fn boot_error(what: &str) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::Boot(format!("{what}: {error}"))
}

/// A process below which a zygote and its lanes are. It is not ended by a drop.
#[derive(Debug)]
pub(super) enum Root {
    /// The engine has started it.
    Child(Child),
    /// A fork server has made it, and reaps it.
    Forked(Process),
}

impl Root {
    /// Its process id. After its end, the number may belong to another process.
    pub(super) fn id(&self) -> i32 {
        match self {
            Root::Child(child) => child.id() as i32,
            Root::Forked(process) => process.pid,
        }
    }

    pub(super) fn has_ended(&mut self) -> bool {
        match self {
            Root::Child(child) => !matches!(child.try_wait(), Ok(None)),
            Root::Forked(process) => process.has_ended(),
        }
    }

    /// How it ended. None if it lives, or only the fork server knows.
    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        match self {
            Root::Child(child) => child.try_wait().ok()?,
            Root::Forked(_) => None,
        }
    }

    /// Waits for its end, at most so long. Returns whether it has ended.
    pub(super) fn wait(&mut self, patience: Duration) -> bool {
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(TICK);
        }
        true
    }

    /// Ends the process and all processes that it has started. A reaper needs a moment for that.
    pub(super) fn end(&mut self) {
        if self.has_ended() {
            // It may be reaped, so its id may belong to another process.
            return;
        }
        match self {
            Root::Child(child) => {
                // SAFETY: kill has no memory requirements; the child is not reaped yet, so its id is
                // its own.
                unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
            }
            Root::Forked(process) => {
                let _ = rustix::process::pidfd_send_signal(process.as_fd(), Signal::TERM);
            }
        }
        if self.wait(PATIENCE) {
            return;
        }
        match self {
            Root::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Root::Forked(process) => process.kill(),
        }
    }
}
