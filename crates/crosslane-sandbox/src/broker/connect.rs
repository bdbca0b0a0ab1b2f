//! The thread of the engine that makes the connections of a library.

use super::hosts::{Hosts, NAME_SERVER};
use super::listener::{Call, Listener};
use super::names::Asker;
use crosslane::Host;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

/// The most callers that wait for hosts at once: each has a descriptor of the engine.
const MOST_WAITING: usize = 64;
/// The most connections over which names are asked for.
const MOST_ASKERS: usize = 64;
/// The flag of `pidfd_open(2)` for a thread, from Linux 6.9 on.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
/// How often callers that wait are looked at.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Makes the connections of a library.
#[derive(Debug)]
pub struct Broker {
    listener: Listener,
    hosts: Arc<Hosts>,
    waiting: Vec<Waiting>,
    askers: Vec<Asker>,
    /// Whether the engine may take descriptors of other processes. Containers may forbid it.
    takes_sockets: bool,
}

impl Broker {
    /// A broker for the owner of this descriptor, which [`crate::enter`] has handed over. `report` gets what was
    /// refused, such as `the name evil.example`, once each.
    pub fn new(listener: OwnedFd, hosts: Vec<Host>, report: Box<dyn Fn(&str) + Send + Sync>) -> Self {
        let hosts = Arc::new(Hosts::new(hosts, report));
        let (waiting, askers) = (Vec::new(), Vec::new());
        Self { listener: Listener(listener), hosts, waiting, askers, takes_sockets: true }
    }

    /// Makes connections until no process can ask for one any more.
    pub fn serve(mut self) {
        if !own_descriptors(&self.listener) {
            return;
        }
        self.listener.wake_at_once();
        loop {
            let listener = std::iter::once(self.listener.poll());
            let sockets = self.waiting.iter().map(|one| PollFd::new(&one.socket.socket, PollFlags::OUT));
            let askers = self.askers.iter().map(Asker::poll);
            let mut polled: Vec<_> = listener.chain(sockets).chain(askers).collect();
            // Callers may end without a call that would tell so.
            let patience = (polled.len() > 1).then_some(&TICK);
            match rustix::event::poll(&mut polled, patience) {
                Err(Errno::INTR) => continue,
                // The kernel has no room for so many descriptors. All callers get ENOSYS.
                Err(_) => return,
                Ok(_) => {}
            }
            let mut ready = polled.iter().map(PollFd::revents);
            let Some(has_call) = ready.next().and_then(Listener::has_call) else { return };
            let ready: Vec<_> = ready.map(|ready| !ready.is_empty()).collect();
            let (sockets, askers) = ready.split_at(self.waiting.len());
            self.answer_ready(sockets);
            let mut askers = askers.iter();
            self.askers.retain_mut(|one| match askers.next() {
                Some(true) => one.answer(&self.hosts),
                _ => !one.is_overdue(),
            });
            self.forget_ended();
            if has_call && let Ok(call) = self.listener.receive() {
                match self.connect(&call) {
                    Ok(Progress::Waits) => {}
                    Ok(Progress::Done) => self.listener.answer(call.id(), Ok(())),
                    Err(error) => self.listener.answer(call.id(), Err(error)),
                }
            }
        }
    }

    /// Answers the callers whose sockets are ready.
    fn answer_ready(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        let listener = &self.listener;
        self.waiting.retain_mut(|one| {
            if !ready.next().is_some_and(|ready| *ready) {
                return true;
            }
            let outcome = match connected(&one.socket.socket, one.to) {
                // The caller has shut its socket down, so that it is ready for ever.
                Err(Errno::ALREADY | Errno::INPROGRESS) => Err(Errno::CONNABORTED),
                outcome => outcome,
            };
            // The caller goes on at once.
            one.socket.block();
            listener.answer(one.id, outcome);
            false
        });
    }

    /// Forgets callers that have ended, and those whose waits have: by a signal, or by their own limit.
    fn forget_ended(&mut self) {
        let listener = &self.listener;
        self.waiting.retain_mut(|one| {
            if one.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                one.socket.block();
                // This is the kernel's own answer.
                listener.answer(one.id, Err(Errno::INPROGRESS));
                return false;
            }
            listener.is_waiting(one.id)
        });
    }

    /// Connects a caller's socket, or begins to.
    fn connect(&mut self, call: &Call) -> Result<Progress, Errno> {
        let to = call.address()?;
        if to.port() == 0 {
            // No program listens at port 0, so this call is the probe.
            return Err(Errno::ACCESS);
        }
        if !self.hosts.allows(to) {
            if to.port() == NAME_SERVER {
                self.connect_to_names(call)?;
                return Ok(Progress::Done);
            }
            self.hosts.refused(&to.to_string());
            return Err(Errno::ACCESS);
        }
        let socket = self.socket(call, to)?;
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        if flags.contains(OFlags::NONBLOCK) {
            return rustix::net::connect(&socket, &to).map(|()| Progress::Done);
        }
        if self.waiting.len() >= MOST_WAITING {
            return Err(Errno::AGAIN);
        }
        rustix::fs::fcntl_setfl(&socket, flags | OFlags::NONBLOCK)?;
        let socket = Blocking { socket, is_changed: true };
        let begun = match rustix::net::connect(&socket.socket, &to) {
            // A connection to this machine is complete when the first call has returned.
            Err(Errno::INPROGRESS) => connected(&socket.socket, to),
            outcome => outcome,
        };
        match begun {
            Err(Errno::INPROGRESS | Errno::ALREADY) => {
                let limit = sockopt::socket_timeout(&socket.socket, Timeout::Send)?;
                let deadline = limit.map(|limit| Instant::now() + limit);
                self.waiting.push(Waiting { id: call.id(), socket, to, deadline });
                Ok(Progress::Waits)
            }
            outcome => outcome.map(|()| Progress::Done),
        }
    }

    /// The caller's socket for TCP. If it cannot be had, another one takes its place.
    fn socket(&mut self, call: &Call, to: SocketAddr) -> Result<OwnedFd, Errno> {
        if self.takes_sockets {
            match take_socket(call) {
                Err(Errno::PERM | Errno::NOSYS) => self.takes_sockets = false,
                taken => {
                    let socket = taken?;
                    // The process may have ended, and another may have its number.
                    let is_callers = self.listener.is_waiting(call.id());
                    return if is_callers && is_tcp(&socket)? { Ok(socket) } else { Err(Errno::ACCESS) };
                }
            }
        }
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let theirs = call.flags();
        let mut flags = SocketFlags::CLOEXEC;
        flags.set(SocketFlags::NONBLOCK, theirs.contains(OFlags::NONBLOCK));
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        self.listener.give(call, socket.as_fd(), theirs)?;
        Ok(socket)
    }

    /// Gives the caller a connection to this engine in place of one to its name server.
    fn connect_to_names(&mut self, call: &Call) -> Result<(), Errno> {
        // The threads that resolve names have the hosts, too.
        if self.askers.len() + Arc::strong_count(&self.hosts) > MOST_ASKERS {
            return Err(Errno::AGAIN);
        }
        self.askers.push(Asker::new(connect_to_here(&self.listener, call)?));
        Ok(())
    }
}

/// Gives the caller a connection to this engine in place of its socket. Returns the engine's end.
pub(crate) fn connect_to_here(listener: &Listener, call: &Call) -> Result<UnixStream, Errno> {
    let flags = match take_socket(call) {
        Ok(socket) => rustix::fs::fcntl_getfl(&socket)? | OFlags::CLOEXEC,
        Err(_) => call.flags(),
    };
    let error = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
    let (ours, theirs) = UnixStream::pair().map_err(error)?;
    theirs.set_nonblocking(flags.contains(OFlags::NONBLOCK)).map_err(error)?;
    listener.give(call, theirs.as_fd(), flags)?;
    Ok(ours)
}

/// How a connection that was begun has ended: a second call says so.
fn connected(socket: &OwnedFd, to: SocketAddr) -> Result<(), Errno> {
    match rustix::net::connect(socket, &to) {
        Err(Errno::ISCONN) => Ok(()),
        outcome => outcome,
    }
}

/// How far a connection is.
enum Progress {
    Done,
    /// The caller is among those that wait.
    Waits,
}

/// A caller that waits for its host.
#[derive(Debug)]
struct Waiting {
    id: u64,
    socket: Blocking,
    to: SocketAddr,
    /// The end of the caller's own limit, SO_SNDTIMEO.
    deadline: Option<Instant>,
}

/// A socket that blocks in the caller's process, and does not block until [`Blocking::block`].
#[derive(Debug)]
struct Blocking {
    socket: OwnedFd,
    is_changed: bool,
}

impl Blocking {
    /// Makes it block again, once: from then on, the flags are the caller's.
    fn block(&mut self) {
        if std::mem::take(&mut self.is_changed)
            && let Ok(flags) = rustix::fs::fcntl_getfl(&self.socket)
        {
            // Without this, the caller's next call fails with EAGAIN.
            let _ = rustix::fs::fcntl_setfl(&self.socket, flags - OFlags::NONBLOCK);
        }
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.block();
    }
}

/// A descriptor of the caller's socket.
pub(crate) fn take_socket(call: &Call) -> Result<OwnedFd, Errno> {
    let thread = Pid::from_raw(call.thread() as i32).ok_or(Errno::SRCH)?;
    let caller = match rustix::process::pidfd_open(thread, PIDFD_THREAD) {
        // Before Linux 6.9 only a whole process can be asked for.
        Err(Errno::INVAL) => rustix::process::pidfd_open(call.process()?, PidfdFlags::empty()),
        opened => opened,
    };
    rustix::process::pidfd_getfd(caller?, call.socket(), PidfdGetfdFlags::empty())
}

/// Gives this thread, and those that it starts, a table of descriptors of its own, with the listener and
/// the standard streams. Returns whether that was possible.
///
/// A guest may make the broker open and close any file that it has itself. If the engine's table were
/// shared, such a close would free the engine's locks on the file (`fcntl(2)`).
pub(crate) fn own_descriptors(listener: &Listener) -> bool {
    let listener = listener.as_fd().as_raw_fd() as libc::c_uint;
    let close = |first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint| {
        // SAFETY: the first call makes the table this thread's own. What else is in it belongs to other
        // threads, which have it in their own table.
        first > last || unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } == 0
    };
    let first = libc::STDERR_FILENO as libc::c_uint + 1;
    // Containers allow this call and not `unshare`.
    close(listener + 1, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE as libc::c_uint)
        && close(first, listener.saturating_sub(1), 0)
}

/// Whether a socket connects to one host and stays with it.
fn is_tcp(socket: &OwnedFd) -> Result<bool, Errno> {
    let is_internet = [AddressFamily::INET, AddressFamily::INET6].contains(&sockopt::socket_domain(socket)?);
    Ok(is_internet && sockopt::socket_protocol(socket)? == Some(ipproto::TCP))
}
