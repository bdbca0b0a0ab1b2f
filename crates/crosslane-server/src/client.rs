//! The client: the functions of a server, as a library whose zygote is a thread of this process.
//!
//! Each lane has a connection of its own and two threads, one for each direction. They pass messages on between the lane's rings
//! and the socket, and look at none of them but for its length; a reply is read from the socket into the ring. So an
//! engine calls remote functions as it calls those of this machine, and finds out in the same ways that one is late or lost.
//!
//! A connection that is lost ends its lane. The next lane connects anew; if the server has other functions by then, or another text of
//! them, it is refused, and the engine's user attaches again.

use crate::address::{Address, NoAddress};
use crate::stream::Stream;
use crate::wire::{self, Ask, CONTROL, LONGEST_CONTROL, PREFIX, PROTOCOL, Tell};
use crosslane::batch::Header;
use crosslane::{Error, Failure, FunctionSpec};
use crosslane_process::control::{ControlSocket, Report, Request};
use crosslane_process::relay::{Relay, Replies, Requests};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to answer a greeting.
const GREETING: Duration = Duration::from_secs(10);
/// The number of the only lane of a connection.
const LANE: u32 = 0;

/// A server's functions.
#[derive(Debug)]
struct Catalog {
    functions: Vec<FunctionSpec>,
    text: Option<String>,
    server: String,
    largest: usize,
}

impl Catalog {
    fn is(&self, other: &Self) -> bool {
        self.functions == other.functions && self.text == other.text
    }
}

/// Where a server is, and how a client shows that it may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Where: several are servers with the same functions, among which lanes are spread. One that cannot be reached is left out.
    pub addresses: Vec<Address>,
    /// What the server's administrator has given the client.
    pub token: Option<String>,
}

impl Remote {
    /// From addresses with commas between them.
    ///
    /// # Errors
    /// If one of them is none.
    pub fn new(addresses: &str, token: Option<String>) -> Result<Self, NoAddress> {
        let addresses = addresses.split(',').map(|address| address.trim().parse());
        Ok(Self { addresses: addresses.collect::<Result<_, _>>()?, token })
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(Address::to_string).collect();
        f.write_str(&addresses.join(", "))
    }
}

/// The control socket of a zygote that makes lanes to a server: for [`crosslane_process::Origin::thread`]. The zygote's thread ends when
/// the socket does.
///
/// # Errors
/// [`Error::Boot`] if there is no thread or socket for it.
pub fn attach(remote: Remote) -> Result<UnixStream, Error> {
    let boot = |error: io::Error| Error::Boot(format!("{remote}: {error}"));
    let (ours, theirs) = UnixStream::pair().map_err(boot)?;
    let zygote = Attached { remote: remote.clone(), turn: 0 };
    thread::Builder::new()
        .name("crosslane-attach".into())
        .spawn(move || zygote.serve(&ControlSocket::new(theirs)))
        .map_err(boot)?;
    Ok(ours)
}

/// The zygote of a server's functions.
struct Attached {
    remote: Remote,
    /// Counts connections: each begins with another server.
    turn: usize,
}

impl Attached {
    /// The life of the zygote.
    fn serve(mut self, control: &ControlSocket) {
        let mut loaded = None;
        let mut lanes: HashMap<u64, Arc<Relay>> = HashMap::new();
        // The engine ends all lanes before it ends the zygote.
        while let Ok(Some((request, fds))) = control.receive() {
            let sent = match request {
                Request::Load { .. } => match self.connect(None) {
                    Ok(Connected { catalog, .. }) => {
                        let functions = serde_json::to_value(&catalog.functions).unwrap_or_default();
                        let (runtime, text) = (catalog.server.clone(), catalog.text.clone());
                        loaded = Some(catalog);
                        control.send(&Report::Loaded { functions, runtime, text, reloads: false })
                    }
                    Err(message) => {
                        let failure =
                            Failure { class: "ConnectionError".into(), message, ..Failure::default() };
                        control.send(&Report::Failed { failure })
                    }
                },
                Request::Fork { lane, spin_microseconds } => {
                    lanes.retain(|_, relay| !relay.has_ended());
                    let spin = Duration::from_micros(spin_microseconds);
                    let made = match (&loaded, <[OwnedFd; 3]>::try_from(fds)) {
                        (Some(loaded), Ok([memory, socket, _log])) => self.lane(loaded, memory, socket, spin),
                        _ => Err("a lane without its descriptors".into()),
                    };
                    match made {
                        Ok(relay) => {
                            lanes.insert(lane, relay);
                            control.send(&Report::Forked { lane })
                        }
                        Err(message) => control.send(&Report::Unforked { lane, message }),
                    }
                }
                Request::Unfork { lane } => {
                    if let Some(relay) = lanes.remove(&lane) {
                        relay.end("it was not needed");
                    }
                    Ok(())
                }
            };
            if sent.is_err() {
                break;
            }
        }
        lanes.values().for_each(|relay| relay.end("its library was unloaded"));
    }

    /// A connection to the first server that answers, with the functions that others had.
    fn connect(&mut self, loaded: Option<&Catalog>) -> Result<Connected, String> {
        self.turn += 1;
        let mut failed = String::new();
        let count = self.remote.addresses.len();
        for offset in 0..count {
            let address = &self.remote.addresses[(self.turn + offset) % count];
            // Servers behind one name take turns when all addresses had one.
            let connected = connect(address, self.turn / count, self.remote.token.as_ref());
            match connected {
                Ok(connected) if loaded.is_none_or(|loaded| connected.catalog.is(loaded)) => {
                    return Ok(connected);
                }
                Ok(_) => {
                    failed = format!(
                        "the functions of {address} have changed since they were attached; attach again, or make a new client"
                    );
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Connects, and starts the threads of a lane.
    fn lane(
        &mut self,
        loaded: &Catalog,
        memory: OwnedFd,
        socket: OwnedFd,
        spin: Duration,
    ) -> Result<Arc<Relay>, String> {
        let Connected { stream, catalog, address } = self.connect(Some(loaded))?;
        // SAFETY: they are those of the request, which came once.
        let opened = unsafe { Relay::open(memory, socket, spin) };
        let (relay, requests, replies) = opened.map_err(|error| error.to_string())?;
        let lane = Arc::new(Wire { address, stream, relay: Arc::clone(&relay), largest: catalog.largest });
        let sending = Arc::clone(&lane);
        let threads = thread::Builder::new()
            .name("crosslane-send".into())
            .spawn(move || sending.send(requests))
            .and_then(|_| {
                thread::Builder::new().name("crosslane-receive".into()).spawn(move || lane.receive(replies))
            });
        threads.map_err(|error| {
            relay.end("there is no thread for it");
            error.to_string()
        })?;
        Ok(relay)
    }
}

/// A connection on which the server has greeted back.
struct Connected {
    stream: Stream,
    catalog: Catalog,
    address: Address,
}

fn connect(address: &Address, turn: usize, token: Option<&String>) -> Result<Connected, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what} {address}: {error}");
    let stream = Stream::connect(address, turn).map_err(failed("cannot connect to"))?;
    let hello = Ask::Hello { protocol: PROTOCOL, token: token.cloned() };
    let hello = wire::control(&hello).map_err(failed("cannot greet"))?;
    // A server that cannot serve says so before it reads, and closes.
    let _ = send_all(&stream, &[&hello]);
    let until = Instant::now() + GREETING;
    let mut wait = || match until.checked_duration_since(Instant::now()) {
        Some(left) if readable(&stream, None, left)? => Ok(true),
        _ => Err(io::ErrorKind::TimedOut.into()),
    };
    let silent = "no server of crosslane answered at";
    let mut prefix = [0; PREFIX];
    receive_all(&stream, &mut prefix, &mut wait).map_err(failed(silent))?;
    let (length, lane) = read_prefix(prefix);
    if lane != CONTROL || length > LONGEST_CONTROL {
        return Err(format!("what answered at {address} is no server of crosslane"));
    }
    let mut text = vec![0; length];
    receive_all(&stream, &mut text, &mut wait).map_err(failed(silent))?;
    let address = address.clone();
    match serde_json::from_slice(&text) {
        Ok(Tell::Welcome { protocol: PROTOCOL, server, functions, text, largest }) => {
            Ok(Connected { stream, catalog: Catalog { functions, text, server, largest }, address })
        }
        Ok(Tell::Welcome { protocol, .. }) => Err(format!(
            "the server at {address} speaks version {protocol} of the protocol, and this is {PROTOCOL}"
        )),
        Ok(Tell::Refused { message }) => Err(format!("the server at {address} refused: {message}")),
        Ok(_) => Err(format!("the server at {address} answered out of turn")),
        Err(error) => Err(format!("what answered at {address} is no server of crosslane: {error}")),
    }
}

/// A lane and its connection.
struct Wire {
    address: Address,
    stream: Stream,
    relay: Arc<Relay>,
    /// The most bytes of a message that the server takes.
    largest: usize,
}

impl Wire {
    /// Passes the engine's messages on, until the lane ends.
    fn send(&self, mut requests: Requests) {
        let outcome = loop {
            let passed = requests.next(|message| {
                if message.len() > self.largest {
                    let what = format!(
                        "a batch of {} bytes, more than the {} that it takes (--largest-batch)",
                        message.len(),
                        self.largest
                    );
                    return Err(io::Error::other(what));
                }
                send_all(&self.stream, &[&wire::prefix(LANE, message.len()), message])
            });
            match passed {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match outcome {
            // What it said before its end tells more, and is read by the other thread.
            Err(error) if is_closed(&error) => {}
            Err(error) => self.relay.end(&format!("the server at {}: {error}", self.address)),
            Ok(()) => {}
        }
        if self.relay.has_ended() {
            self.stream.shut_down();
        }
    }

    /// Passes the server's messages on, until the lane or the connection ends.
    fn receive(&self, mut replies: Replies) {
        let why = match self.pass_replies(&mut replies) {
            Ok(why) => why,
            Err(error) if is_closed(&error) => "it closed the connection".into(),
            Err(error) => error.to_string(),
        };
        self.relay.end(&format!("the server at {}: {why}", self.address));
        self.stream.shut_down();
    }

    /// Returns what the server said of the lane's end.
    fn pass_replies(&self, replies: &mut Replies) -> io::Result<String> {
        let mut prefix = [0; PREFIX];
        let mut wait = || self.wait();
        loop {
            receive_all(&self.stream, &mut prefix, &mut wait)?;
            match read_prefix(prefix) {
                (length, CONTROL) if length <= LONGEST_CONTROL => {
                    let mut text = vec![0; length];
                    receive_all(&self.stream, &mut text, &mut wait)?;
                    match serde_json::from_slice(&text)? {
                        Tell::Progress { exchange, row, .. } => replies.progress().set(exchange, row),
                        Tell::Ended { message, .. } => return Ok(message),
                        Tell::Refused { message } => return Ok(message),
                        Tell::Welcome { .. } => return Ok("it greeted twice".into()),
                    }
                }
                (length, LANE) if length >= size_of::<Header>() => {
                    let sent = replies.send(length, |frame| receive_all(&self.stream, frame, &mut wait))?;
                    if !sent {
                        return Ok("the lane has ended".into());
                    }
                }
                _ => return Ok("it sent what is no message of a lane".into()),
            }
        }
    }

    /// Waits for the server; an error if the engine has ended the lane.
    fn wait(&self) -> io::Result<bool> {
        match readable(&self.stream, Some(&self.relay), Duration::from_secs(3600))? {
            true if self.relay.has_ended() => Err(io::ErrorKind::BrokenPipe.into()),
            readable => Ok(readable),
        }
    }
}

fn read_prefix(prefix: [u8; PREFIX]) -> (usize, u32) {
    let [a, b, c, d, lane @ ..] = prefix;
    (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(lane))
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Waits until there is something to read, or the lane has ended.
fn readable(stream: &Stream, relay: Option<&Relay>, limit: Duration) -> io::Result<bool> {
    let mut fds = vec![PollFd::new(stream, PollFlags::IN)];
    // Its end is told without being asked for.
    fds.extend(relay.map(|relay| PollFd::new(relay, PollFlags::empty())));
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match rustix::event::poll(&mut fds, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Fills the buffer. `wait` waits until there is something to read.
fn receive_all(
    stream: &Stream,
    mut buffer: &mut [u8],
    wait: &mut impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        match stream.receive(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => buffer = &mut buffer[length..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => drop(wait()?),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends all. It waits without the stream, from which another thread may read.
fn send_all(stream: &Stream, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    loop {
        let sent = match rest {
            [] => stream.flush(),
            _ => stream.send(rest).map(|length| IoSlice::advance_slices(&mut rest, length)),
        };
        match sent {
            Ok(()) if rest.is_empty() && !stream.is_pending() => return Ok(()),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(stream, PollFlags::OUT)];
                let _ = rustix::event::poll(&mut fds, None);
            }
            Err(error) => return Err(error),
        }
    }
}
