//! What the engine does for a library while it runs: it makes the connections of a sandbox that lists
//! hosts ([`crosslane_sandbox::broker`]), or records what the library touches
//! ([`crosslane_sandbox::recorder`]).

use super::root::must_be_allowed;
use crate::external;
use crate::warden::log;
use crosslane::{Host, Net, Sandbox};
use crosslane_sandbox::broker::Broker;
use crosslane_sandbox::recorder::{Order, Recorder};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Starts the thread that does it. Returns the socket over which the library's process asks for that
/// ([`ask`]); `None` if its sandbox needs no such thread. The thread ends when the library has no
/// processes.
pub(super) fn begin(library: &str, sandbox: Option<&Sandbox>) -> io::Result<Option<OwnedFd>> {
    let work: Box<dyn FnOnce(OwnedFd) + Send> = match sandbox {
        Some(Sandbox { recorded: true, .. }) => Box::new(|ours| drop(record(ours))),
        Some(Sandbox { net: net @ Net::Hosts(hosts), .. }) => {
            let (hosts, library, listed) = (hosts.clone(), library.to_owned(), net.to_string());
            Box::new(|ours| drop(connect(ours, hosts, library, listed)))
        }
        _ => return Ok(None),
    };
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The log's thread must not have the broker's descriptors, so it starts before that reports something.
    log::print(b"");
    std::thread::Builder::new().name("crosslane-broker".into()).spawn(move || work(ours))?;
    Ok(Some(theirs))
}

fn connect(ours: OwnedFd, hosts: Vec<Host>, library: String, listed: String) -> io::Result<()> {
    let listener = received(&ours)?;
    // The broker will have a table of descriptors without this one.
    drop(ours);
    let report = move |what: &str| {
        let what = what.escape_debug();
        log::say(&format!("{library}: refused: {what}; allow_net lists {listed}"));
    };
    Broker::new(listener, hosts, Box::new(report)).serve();
    Ok(())
}

fn record(ours: OwnedFd) -> io::Result<()> {
    let runtime = serde_json::from_reader(File::from(received(&ours)?))?;
    let listener = received(&ours)?;
    drop(ours);
    let order = Order::given().ok_or(io::ErrorKind::NotFound)?;
    Recorder::new(listener, runtime, order.notes, must_be_allowed).serve();
    Ok(())
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

/// Sends a descriptor that the thread needs to the engine, at the other end of this socket.
///
/// # Errors
/// If the engine has ended.
pub fn ask(engine: Option<&OwnedFd>, descriptor: OwnedFd) -> io::Result<()> {
    let engine = engine.ok_or_else(|| io::Error::other("it sent no socket"))?;
    Ok(external::send(engine.as_fd(), descriptor.as_fd(), SendFlags::empty())?)
}
