//! The connections of a library whose sandbox lists hosts: the engine makes them
//! ([`crosslane_sandbox::broker`]).

use crate::external;
use crate::warden::log;
use crosslane::{Net, Sandbox};
use crosslane_sandbox::broker::Broker;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Starts the thread that makes the connections. Returns the socket over which the library's process
/// asks for that ([`ask`]); `None` if its sandbox lists no hosts. The thread ends when the library has no
/// processes.
pub(super) fn begin(library: &str, sandbox: Option<&Sandbox>) -> io::Result<Option<OwnedFd>> {
    let Some(Sandbox { net: net @ Net::Hosts(hosts), .. }) = sandbox else { return Ok(None) };
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The log's thread must not have the broker's descriptors, so it starts before that reports something.
    log::print(b"");
    let (hosts, library, listed) = (hosts.clone(), library.to_owned(), net.to_string());
    let thread = std::thread::Builder::new().name("crosslane-broker".into());
    thread.spawn(move || {
        let Ok(listener) = received(&ours) else { return };
        // The broker will have a table of descriptors without this one.
        drop(ours);
        let report = move |what: &str| {
            let what = what.escape_debug();
            log::say(&format!("{library}: refused: {what}; allow_net lists {listed}"));
        };
        Broker::new(listener, hosts, Box::new(report)).serve();
    })?;
    Ok(Some(theirs))
}

/// Waits for the descriptor that the library's process sends. If the process ends before, there is an
/// error.
fn received(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    loop {
        let waited = rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], None);
        match waited.and_then(|_| external::receive(socket.as_fd())) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            received => return received,
        }
    }
}

/// Asks the engine, at the other end of this socket, to make the connections of this process.
///
/// # Errors
/// If the engine has ended.
pub fn ask(engine: Option<OwnedFd>, listener: OwnedFd) -> io::Result<()> {
    let engine = engine.ok_or_else(|| io::Error::other("it sent no socket"))?;
    Ok(external::send(engine.as_fd(), listener.as_fd(), SendFlags::empty())?)
}
