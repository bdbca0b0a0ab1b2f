//! The reaper: the parent process of a zygote that forks. All processes that a library's file or
//! functions start end with the reaper.
//!
//! ```text
//! engine ── reaper (its own session, subreaper) ── zygote ── lanes ── what functions start
//! ```
//!
//! A process whose parent ends becomes a child of the reaper, whatever session or group it has put
//! itself into. The reaper waits for the end of the zygote, the end of the engine, or SIGTERM. Then
//! it kills its children, and the processes that become its children by that, until none remain. It
//! ends as the zygote ended. It has a session of its own. So it survives a signal to the engine's
//! group, and the closing of the engine's terminal. It holds no descriptor of the zygote.
//!
//! If the reaper itself is killed with SIGKILL, the kernel kills the zygote and its lanes. It does
//! not kill the processes that these have started.

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How long the reaper tries to kill the remaining processes. A process of another user cannot be
/// killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// The name in process lists.
const NAME: &std::ffi::CStr = c"crosslane-reap";

/// The environment variable with the process id of the zygote that this process is, or descends
/// from. While a lane loads the file itself, the variable has the id of that lane.
pub const ZYGOTE: &str = "CROSSLANE_ZYGOTE";

/// Whether this process is a zygote, in which a library must load no library: it could load itself.
pub(crate) fn is_zygote() -> bool {
    std::env::var(ZYGOTE).is_ok_and(|pid| pid == std::process::id().to_string())
}

/// Makes this process the reaper of a child that `fork` makes (with the language's own means).
/// Returns only in that child. A zygote must call this as early as possible, and before it has
/// threads: the reaper keeps the memory that the process has now.
///
/// # Errors
/// If the engine has ended, or `fork` failed.
pub fn supervise<E: From<io::Error>>(fork: impl FnOnce() -> Result<i32, E>) -> Result<(), E> {
    let system = |error: rustix::io::Errno| E::from(error.into());
    let engine =
        rustix::process::getppid().ok_or_else(|| E::from(io::Error::other("the engine has ended")))?;
    let engine = rustix::process::pidfd_open(engine, PidfdFlags::empty()).map_err(system)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(system)?;
    let (ready, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(system)?;
    let this = rustix::process::getpid();
    let child = fork()?;
    if child != 0 {
        drop(ready);
        reap(child, &engine, tell);
    }
    drop((engine, tell));
    // SAFETY: the zygote has no other threads yet.
    unsafe { std::env::set_var(ZYGOTE, std::process::id().to_string()) };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(system)?;
    // Until the reaper is ready, it has no session of its own. A kill of its group would then kill
    // the reaper, together with the processes that this process has started.
    let told = rustix::io::read(&ready, &mut [0; 1]).map_err(system)?;
    if told == 0 || rustix::process::getppid() != Some(this) {
        return Err(io::Error::other("the reaper has ended").into());
    }
    Ok(())
}

/// A child that has ended and is not reaped: its process id, exit code and signal.
pub fn ended_child() -> Option<(i32, Option<i32>, Option<i32>)> {
    // SAFETY: the structure is plain data, filled by the call.
    let info = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_ALL, 0, &raw mut info, options) != 0 {
            return None;
        }
        info
    };
    // SAFETY: these fields belong to what waitid fills in.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    match pid {
        0 => None,
        _ if info.si_code == libc::CLD_EXITED => Some((pid, Some(status), None)),
        _ => Some((pid, None, Some(status))),
    }
}

/// The loop of the reaper. It ignores errors where it can only go on.
fn reap(zygote: i32, engine: &OwnedFd, tell: OwnedFd) -> ! {
    let signals = signals();
    let _ = rustix::process::setsid();
    let _ = rustix::process::set_parent_process_death_signal(None);
    // SAFETY: the name is a C string that lives as long as the program.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    let keep =
        [Some(engine.as_raw_fd()), Some(tell.as_raw_fd()), signals.as_ref().ok().map(AsRawFd::as_raw_fd)];
    close_all_but(&keep);
    let _ = rustix::io::write(&tell, b"r");
    drop(tell);
    let mut status = None;
    while let (None, Ok(signals)) = (status, &signals) {
        let mut fds = [PollFd::new(engine, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        let polled = rustix::event::poll(&mut fds, None);
        if !matches!(polled, Ok(_) | Err(rustix::io::Errno::INTR)) || !fds[0].revents().is_empty() {
            break;
        }
        if !fds[1].revents().is_empty() && next_signal(signals) == Some(libc::SIGTERM) {
            break;
        }
        while let Ok(Some((pid, ended))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid.as_raw_nonzero().get() == zygote {
                status = Some(ended);
            }
        }
    }
    end_children(zygote, &mut status);
    leave_as(status)
}

/// The signals that the reaper handles, as a descriptor. All other signals are ignored until it
/// ends.
fn signals() -> io::Result<OwnedFd> {
    // SAFETY: signal sets are plain memory that the calls initialise; they touch nothing else.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigaddset(&mut set, libc::SIGTERM);
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn next_signal(signals: &OwnedFd) -> Option<i32> {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    rustix::io::read(signals, &mut info).ok()?;
    // The number is the first field.
    let (number, _) = info.split_first_chunk()?;
    Some(i32::from_ne_bytes(*number))
}

/// Closes all other descriptors: the zygote's control socket and log must end when the zygote does.
fn close_all_but(keep: &[Option<RawFd>]) {
    let names = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<RawFd> = names.filter_map(|name| name.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| !keep.contains(&Some(*fd))) {
        // SAFETY: this process returns to no code that might use the descriptor.
        unsafe { libc::close(fd) };
    }
}

/// Kills all children, and their children, which become this process's own when their parents die.
fn end_children(zygote: i32, status: &mut Option<WaitStatus>) {
    let begin = Instant::now();
    let list = format!("/proc/self/task/{}/children", std::process::id());
    while begin.elapsed() < PATIENCE {
        let children = fs::read_to_string(&list).unwrap_or_default();
        let children: Vec<_> =
            children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect();
        for child in &children {
            let _ = rustix::process::kill_process(*child, Signal::KILL);
        }
        // No more than these are reaped before the next are killed. Processes that start others and end
        // at once could keep this process from killing for ever.
        for _ in 0..=children.len() {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, ended))) if pid.as_raw_nonzero().get() == zygote => *status = Some(ended),
                Ok(Some(_)) => {}
                Ok(None) => {
                    std::thread::sleep(Duration::from_micros(200));
                    break;
                }
                // There are no children.
                Err(_) => return,
            }
        }
    }
}

/// Ends this process in the way that the zygote ended, so that the engine sees it.
fn leave_as(status: Option<WaitStatus>) -> ! {
    let code = status.and_then(|status| status.exit_status());
    let signal = status.map_or(Some(libc::SIGKILL), |status| status.terminating_signal());
    // SAFETY: these calls have no memory requirements except for the set, which is initialised.
    // This process is a copy of the interpreter, and must not run any code of it.
    unsafe {
        if let Some(signal) = signal {
            // The zygote may have dumped a core already. One core is enough.
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(libc::getpid(), signal);
            let mut set = std::mem::zeroed();
            libc::sigfillset(&mut set);
            libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        }
        libc::_exit(code.unwrap_or(1))
    }
}
