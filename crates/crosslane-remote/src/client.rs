//! The client: a server's functions as a library, whose lanes are connections to the server.
//!
//! Each lane has a connection of its own ([`crate::lane`]). So an engine calls remote functions as it calls those of this machine, and finds
//! out in the same ways that one is late or lost.
//!
//! A connection that is lost ends its lane. The next lane connects anew. If the server has other functions by then, or another text of
//! them, there is an error, and the engine's user attaches again.

use crate::address::{Address, NoAddress};
use crate::lane::{LaneOptions, RemoteLane};
use crate::stream::Stream;
use crate::wire::{self, Ask, CONTROL, LONGEST_CONTROL, PREFIX, PROTOCOL, Tell, read_prefix};
use crosslane::pool::{self, Stop};
use crosslane::{Error, Failure, Function, FunctionSpec};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a server may take to be reached, and to answer a greeting.
const GREETING: Duration = Duration::from_secs(10);
/// How often a wait for a server looks whether it is still needed.
const TICK: Duration = Duration::from_millis(10);

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

/// A server's functions.
#[derive(Debug)]
pub struct Catalog {
    /// All functions, by their places in the server's list.
    pub functions: Vec<FunctionSpec>,
    text: Option<String>,
    /// The most bytes of a message that the server takes.
    pub takes: usize,
}

/// Connects to a server of this process.
pub type Dial = Box<dyn Fn() -> io::Result<Stream> + Send>;

/// How a server is reached.
enum Reach {
    Network(Remote),
    /// It is in this process, and lets in who has this token.
    Within(Dial, Option<String>),
}

/// What makes lanes to a server.
pub struct RemoteZygote {
    reach: Reach,
    options: LaneOptions,
    stop: Stop,
    /// What the server had when it was attached.
    catalog: Catalog,
    /// Counts connections: each begins with another server.
    turn: usize,
    next_lane: u64,
}

/// A connection on which the server has greeted back.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub stream: Stream,
    /// What the server offers.
    pub catalog: Catalog,
    /// Where errors come from, as the beginning of their text.
    from: String,
}

impl fmt::Debug for RemoteZygote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteZygote").field("catalog", &self.catalog).finish_non_exhaustive()
    }
}

impl RemoteZygote {
    /// Asks a server for its functions. It gives up when `stop` is set.
    ///
    /// # Errors
    /// [`Error::Load`] if no server can be reached, or none lets this client in.
    pub fn attach(
        remote: Remote,
        options: LaneOptions,
        stop: Stop,
    ) -> Result<(Self, Vec<Arc<Function>>), Error> {
        let name = remote.to_string();
        Self::start(Reach::Network(remote), &name, options, stop)
    }

    /// The same for a server of this process.
    ///
    /// # Errors
    /// [`Error::Load`] if the server does not let this client in.
    pub fn within(
        dial: Dial,
        token: Option<String>,
        options: LaneOptions,
        stop: Stop,
    ) -> Result<(Self, Vec<Arc<Function>>), Error> {
        Self::start(Reach::Within(dial, token), "this server", options, stop)
    }

    fn start(
        reach: Reach,
        name: &str,
        options: LaneOptions,
        stop: Stop,
    ) -> Result<(Self, Vec<Arc<Function>>), Error> {
        let connected = connect(&reach, 0, None, &stop).map_err(|message| Error::Load {
            library: name.to_owned(),
            failure: Box::new(Failure { class: "ConnectionError".into(), message, ..Failure::default() }),
        })?;
        let catalog = connected.catalog;
        let functions = Function::all(catalog.functions.clone(), name)?;
        Ok((Self { reach, options, stop, catalog, turn: 0, next_lane: 1 }, functions))
    }
}

impl pool::Zygote for RemoteZygote {
    type Lane = RemoteLane;

    fn boot(&mut self) -> Result<RemoteLane, Error> {
        self.turn += 1;
        let connected = connect(&self.reach, self.turn, Some(&self.catalog), &self.stop);
        let Connected { stream, catalog, from } = connected.map_err(Error::Boot)?;
        let id = self.next_lane;
        self.next_lane += 1;
        Ok(RemoteLane::new(id, from, stream, catalog.takes, self.options))
    }
}

/// A connection to the first server that answers, with the functions that others had.
fn connect(reach: &Reach, turn: usize, known: Option<&Catalog>, stop: &Stop) -> Result<Connected, String> {
    let remote = match reach {
        Reach::Network(remote) => remote,
        Reach::Within(dial, token) => {
            let stream = dial().map_err(|error| error.to_string())?;
            return converse(stream, None, token.as_ref(), Instant::now() + GREETING, stop);
        }
    };
    let mut failed = String::new();
    let count = remote.addresses.len();
    for offset in 0..count {
        let address = &remote.addresses[(turn + offset) % count];
        // Servers behind one name take turns when all addresses had one.
        match greet(address, turn / count, remote.token.as_ref(), stop) {
            Ok(connected) => {
                let Catalog { functions, text, .. } = &connected.catalog;
                if known.is_none_or(|known| known.functions == *functions && known.text == *text) {
                    return Ok(connected);
                }
                failed = format!(
                    "the functions of {address} have changed since they were attached; attach again, or make a new client"
                );
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Connects to a server and greets it. Of several with one name another comes first each `turn`.
///
/// # Errors
/// A sentence that says why there is no connection.
pub fn greet(
    address: &Address,
    turn: usize,
    token: Option<&String>,
    stop: &Stop,
) -> Result<Connected, String> {
    greet_within(GREETING, address, turn, token, stop)
}

/// The same, for as long as a server may take.
fn greet_within(
    limit: Duration,
    address: &Address,
    turn: usize,
    token: Option<&String>,
    stop: &Stop,
) -> Result<Connected, String> {
    let until = Instant::now() + limit;
    let wait = |socket: BorrowedFd<'_>, interest| await_socket(socket, interest, until, stop);
    let stream = Stream::connect(address, turn, limit, &wait);
    let stream = stream.map_err(|error| format!("cannot connect to {address}: {error}"))?;
    converse(stream, Some(address), token, until, stop)
}

/// Greets a server, which is in this process if it has no address.
fn converse(
    stream: Stream,
    address: Option<&Address>,
    token: Option<&String>,
    until: Instant,
    stop: &Stop,
) -> Result<Connected, String> {
    let from = address.map_or_else(String::new, |address| format!("the server at {address}: "));
    let address = address.map_or_else(|| "its own door".into(), Address::to_string);
    let failed = |what: &'static str| {
        let address = &address;
        move |error: io::Error| format!("{what} {address}: {error}")
    };
    let wait = |socket: BorrowedFd<'_>, interest| await_socket(socket, interest, until, stop);
    let hello = Ask::Hello { protocol: PROTOCOL, token: token.cloned() };
    let hello = wire::control(&hello).map_err(failed("cannot greet"))?;
    // A server that cannot serve says so before it reads, and closes.
    let _ = stream.send_some(&hello);
    let silent = "no server of crosslane answered at";
    let mut prefix = [0; PREFIX];
    receive(&stream, &mut prefix, &wait).map_err(failed(silent))?;
    let (length, lane) = read_prefix(prefix);
    if lane != CONTROL || length > LONGEST_CONTROL {
        return Err(format!("what answered at {address} is no server of crosslane"));
    }
    let mut text = vec![0; length];
    receive(&stream, &mut text, &wait).map_err(failed(silent))?;
    match serde_json::from_slice(&text) {
        Ok(Tell::Welcome { protocol: PROTOCOL, functions, text, largest, .. }) => {
            let catalog = Catalog { functions, text, takes: largest };
            Ok(Connected { stream, catalog, from })
        }
        Ok(Tell::Welcome { protocol, .. }) => Err(format!(
            "the server at {address} speaks version {protocol} of the protocol, and this is {PROTOCOL}"
        )),
        Ok(Tell::Refused { message }) => Err(format!("the server at {address} refused: {message}")),
        Ok(_) => Err(format!("the server at {address} answered out of turn")),
        Err(error) => Err(format!("what answered at {address} is no server of crosslane: {error}")),
    }
}

/// Waits until a socket is ready, as long as there is time, and who waits needs it.
fn await_socket(socket: BorrowedFd<'_>, interest: PollFlags, until: Instant, stop: &Stop) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        if stop.is_set() {
            return Err(io::Error::other("it is not needed any more"));
        }
        let tick = left.min(TICK);
        let tick = Timespec { tv_sec: 0, tv_nsec: tick.subsec_nanos().into() };
        match rustix::event::poll(&mut [PollFd::new(&socket, interest)], Some(&tick)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Fills the buffer.
fn receive(
    stream: &Stream,
    mut buffer: &mut [u8],
    wait: &impl Fn(BorrowedFd<'_>, PollFlags) -> io::Result<()>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        match stream.receive(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => buffer = &mut buffer[length..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(stream.as_fd(), PollFlags::IN)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_server_that_takes_no_connections_is_not_waited_for_without_end() {
        let path = std::env::temp_dir().join(format!("crosslane-full-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        // Its line is full.
        rustix::net::listen(&listener, 0).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        let limit = Duration::from_millis(20);
        let error = greet_within(limit, &Address::Unix(path.clone()), 0, None, &Stop::default());
        let error = error.err().unwrap();
        assert!(error.contains("cannot connect to") && error.contains("timed out"), "{error}");
        drop(waiting);
        std::fs::remove_file(path).unwrap();
    }
}
