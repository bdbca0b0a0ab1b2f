//! The fork server: a process that has imported modules, and forks zygotes that have them, too.
//!
//! ```text
//! engine ── reaper ── fork server ── reaper ── zygote ── lanes
//! ```
//!
//! A zygote whose first request is [`Request::Zygote`] is a fork server. For each such request it
//! imports modules and forks. The fork gets the control socket and the log that came with the
//! request, and starts as any zygote does. Before that, it greets the engine, which learns its
//! process id from the kernel. The fork server runs no code of users. Its forks end when it does.

use super::control::replace_control_socket;
use super::guest::Guest;
use super::signals::Signals;
use crosslane_process::control::{ControlSocket, Request};
use rustix::process::Signal;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Serves as a fork server, from its first request on. Returns true in a zygote that it has forked,
/// with the zygote's own control socket in place of the fork server's. Returns false when the engine
/// has closed the socket.
///
/// # Errors
/// In a zygote, if it cannot start. In the fork server, if there are no more processes or
/// descriptors, or the engine broke the protocol.
pub(crate) fn serve(
    guest: &mut impl Guest,
    control: &ControlSocket,
    first: (Vec<String>, Vec<OwnedFd>),
) -> io::Result<bool> {
    // Ctrl-C ends calls, and not this process. The kernel reaps the zygotes.
    let signals = Signals::ignore(&[libc::SIGINT, libc::SIGCHLD]);
    let mut next = Some(first);
    while let Some((modules, descriptors)) = next {
        let Ok([theirs, log]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(io::Error::other("the process has too few descriptors left"));
        };
        print_to(&log)?;
        guest.import(&modules)?;
        guest.flush();
        // A fork does not have these threads, so the zygote must import their modules itself.
        let has_threads = guest.lost_threads().map_or(true, |lost| !lost.is_empty());
        let server = rustix::process::getpid();
        if guest.fork()? == 0 {
            signals.give_back();
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(server) {
                return Ok(false);
            }
            replace_control_socket(&theirs, has_threads)?;
            control.greet()?;
            return if has_threads { Err(begin_again(guest)) } else { Ok(true) };
        }
        // The log must end with its zygote.
        drop(log);
        print_to(&File::options().read(true).write(true).open("/dev/null")?.into())?;
        drop(theirs);
        next = match control.receive()? {
            Some((Request::Zygote { modules }, descriptors)) => Some((modules, descriptors)),
            _ => None,
        };
    }
    Ok(false)
}

fn print_to(log: &OwnedFd) -> io::Result<()> {
    rustix::stdio::dup2_stdout(log)?;
    rustix::stdio::dup2_stderr(log)?;
    Ok(())
}

/// Starts this process's program anew. Returns only if that is not possible.
fn begin_again(guest: &impl Guest) -> io::Error {
    match guest.command().split_first() {
        Some((program, arguments)) => Command::new(program).args(arguments).exec(),
        None => io::ErrorKind::NotFound.into(),
    }
}
