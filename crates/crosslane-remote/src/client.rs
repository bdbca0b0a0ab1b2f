//! The client: it offers a server's functions as a library. The library's lanes are connections to
//! the server.
//!
//! Each lane has its own connection ([`crate::lane`]). So an engine calls remote functions as it
//! calls those of its own machine. It also detects late and lost calls in the same way.
//!
//! If a connection is lost, its lane ends. The next lane makes a new connection. If the server then
//! has other functions, or a different source text of them, the zygote's `boot` returns an error.
//! Then the user of the engine must attach again.
//!
//! A server may load its files again while it runs. Then its clients keep the connection on which
//! they asked for the functions ([`Watch`]). The server ends this connection when it has other
//! functions. The client then asks again, and attaches again if they are other ones. Its next uses
//! call the new functions. Uses that run go on with the lanes of the zygote that they have. New lanes
//! of that zygote ask the server for the functions that the zygote knows.

use crate::address::{Address, NoAddress};
use crate::lane::{LaneOptions, RemoteLane};
use crate::stream::Stream;
use crate::wait::{Lost, Wait};
use crate::wire::{self, Ask, CONTROL, LONGEST_CONTROL, PREFIX, PROTOCOL, Tell, read_prefix};
use crosslane::pool::{self, Stop};
use crosslane::{Error, Failure, Function, FunctionSpec};
use rustix::event::PollFlags;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit for connecting and for the answer to the greeting. All addresses share it.
const GREETING: Duration = Duration::from_secs(10);

/// The pause after the end of a [`Watch`] without other functions, before the next end counts.
const PAUSE: Duration = Duration::from_secs(1);

/// The addresses of a server, and the token that lets a client in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The addresses. If there are several, their servers must have the same functions, and lanes
    /// are spread among them. Servers that cannot be reached are skipped.
    pub addresses: Vec<Address>,
    /// The token that the server's administrator has given the client.
    pub token: Option<String>,
}

impl Remote {
    /// Parses addresses that are separated by commas.
    ///
    /// # Errors
    /// If one of them is not an address.
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
#[derive(Debug, Clone)]
pub struct Catalog {
    /// All functions, by their places in the server's list.
    pub functions: Vec<FunctionSpec>,
    text: Option<String>,
    /// The most bytes of a message that the server takes.
    pub takes: usize,
    /// Whether the server loads its files again when they change.
    reloads: bool,
    /// Whether the server takes trace contexts.
    contexts: bool,
}

impl Catalog {
    /// Whether the other catalog has the same functions.
    fn is_same(&self, other: &Self) -> bool {
        self.functions == other.functions && self.text == other.text
    }
}

/// A connection that a server ends when it has other functions.
#[derive(Debug)]
pub struct Watch {
    stream: Stream,
    catalog: Catalog,
    /// When its end is looked at.
    from: Instant,
}

impl Watch {
    /// Whether the connection has ended. The server may have other functions, or may have ended. Or
    /// something between ends connections that are idle. In the first second after the last end, the
    /// answer is no.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.from && self.stream.has_news()
    }

    /// Connects again. Returns `None` if the server has other functions, or will not say when it has.
    /// It gives up when `stop` is set.
    ///
    /// # Errors
    /// [`Error::Load`] if no server can be reached, or no server lets this client in.
    pub fn renewed(&self, remote: &Remote, stop: &Stop) -> Result<Option<Self>, Error> {
        let reach = Reach::Network(remote.clone());
        let connected = connect(&reach, 0, &mut Lost::default(), None, stop);
        let Connected { stream, catalog, .. } =
            connected.map_err(|why| unreachable(&remote.to_string(), why))?;
        let is_same = catalog.reloads && catalog.is_same(&self.catalog);
        Ok(is_same.then(|| Self { stream, catalog, from: Instant::now() + PAUSE }))
    }
}

/// The error for servers that cannot be reached.
fn unreachable(name: &str, message: String) -> Error {
    let failure = Failure { class: "ConnectionError".into(), message, ..Failure::default() };
    Error::Load { library: name.to_owned(), failure: Box::new(failure) }
}

/// What a client tells a server in its greeting.
#[derive(Debug, Clone, Copy, Default)]
struct Greeting<'a> {
    token: Option<&'a String>,
    /// The functions that the client knows.
    known: Option<&'a Catalog>,
    /// Whether the connection is to be a [`Watch`].
    watches: bool,
}

/// A function that connects to a server in this process.
pub type Dial = Box<dyn Fn() -> io::Result<Stream> + Send>;

/// The ways to reach a server.
enum Reach {
    Network(Remote),
    /// The server is in this process. The client sends this token.
    Within(Dial, Option<String>),
}

/// A zygote that makes lanes to a server.
pub struct RemoteZygote {
    reach: Reach,
    options: LaneOptions,
    stop: Stop,
    /// The server's functions when it was attached.
    catalog: Catalog,
    /// Says when the server has other functions, if it loads files again.
    watch: Option<Watch>,
    /// The number of attempts to make a lane. Each attempt starts with another server.
    turn: usize,
    /// Which addresses were just lost.
    lost: Lost,
    next_lane: u64,
}

/// A connection on which the server has answered the greeting.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub stream: Stream,
    /// The server's functions.
    pub catalog: Catalog,
    /// The beginning of error messages, which names the server.
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
    /// [`Error::Load`] if no server can be reached, or no server lets this client in.
    pub fn attach(
        remote: Remote,
        options: LaneOptions,
        stop: Stop,
    ) -> Result<(Self, Vec<Arc<Function>>), Error> {
        let name = remote.to_string();
        Self::start(Reach::Network(remote), &name, options, stop)
    }

    /// Asks a server in this process for its functions. It gives up when `stop` is set.
    ///
    /// # Errors
    /// [`Error::Load`] if the server does not let this client in.
    pub fn within(
        dial: Dial,
        token: Option<String>,
        options: LaneOptions,
        stop: Stop,
    ) -> Result<(Self, Vec<Arc<Function>>), Error> {
        let (mut zygote, functions) = Self::start(Reach::Within(dial, token), "this server", options, stop)?;
        // The process knows itself when it has other functions.
        zygote.watch = None;
        Ok((zygote, functions))
    }

    fn start(
        reach: Reach,
        name: &str,
        options: LaneOptions,
        stop: Stop,
    ) -> Result<(Self, Vec<Arc<Function>>), Error> {
        let mut lost = Lost::default();
        let connected = connect(&reach, 0, &mut lost, None, &stop);
        let Connected { stream, catalog, .. } = connected.map_err(|why| unreachable(name, why))?;
        let is_within = matches!(reach, Reach::Within(..));
        let specs = catalog.functions.iter().cloned().map(|spec| of_client(spec, is_within));
        let functions = Function::all(specs.collect(), name)?;
        let watch = catalog.reloads.then(|| Watch { stream, catalog: catalog.clone(), from: Instant::now() });
        Ok((Self { reach, options, stop, catalog, watch, turn: 0, lost, next_lane: 1 }, functions))
    }

    /// Takes the connection that says when the server has other functions. Returns `None` if the
    /// server does not load its files again.
    pub fn take_watch(&mut self) -> Option<Watch> {
        self.watch.take()
    }
}

impl pool::Zygote for RemoteZygote {
    type Lane = RemoteLane;

    fn boot(&mut self) -> Result<RemoteLane, Error> {
        self.turn += 1;
        let connected = connect(&self.reach, self.turn, &mut self.lost, Some(&self.catalog), &self.stop);
        let Connected { stream, catalog, from } = connected.map_err(Error::Boot)?;
        let id = self.next_lane;
        self.next_lane += 1;
        let mut lane = RemoteLane::new(id, from, stream, catalog.takes, self.options);
        if catalog.contexts {
            lane.send_contexts();
        }
        Ok(lane)
    }
}

/// A function as a client calls it. A server keeps results (`memoize`, `cache`) for all clients. A client
/// keeps them, too, unless it is in the server's process.
fn of_client(mut spec: FunctionSpec, is_within: bool) -> FunctionSpec {
    spec.kept_by_server = spec.memoize.is_some() || spec.cache.is_some();
    if is_within {
        (spec.memoize, spec.cache, spec.ttl) = (None, None, None);
    }
    spec
}

/// Connects to the first server that answers and has the known functions. All addresses share one
/// time limit.
fn connect(
    reach: &Reach,
    turn: usize,
    lost: &mut Lost,
    known: Option<&Catalog>,
    stop: &Stop,
) -> Result<Connected, String> {
    let wait = Wait::new(GREETING, stop);
    let greeting = |token| Greeting { token, known, watches: known.is_none() };
    let changed = |server: &str| {
        format!(
            "the functions of {server} have changed since they were attached; attach again, or make a new client"
        )
    };
    let is_known = |found: &Catalog| known.is_none_or(|known| known.is_same(found));
    let remote = match reach {
        Reach::Network(remote) => remote,
        Reach::Within(dial, token) => {
            let stream = dial().map_err(|error| error.to_string())?;
            let connected = converse(stream, None, greeting(token.as_ref()), wait)?;
            return if is_known(&connected.catalog) { Ok(connected) } else { Err(changed("this server")) };
        }
    };
    let mut failed = String::new();
    let count = remote.addresses.len();
    let order = lost.order(count, turn, Instant::now());
    for (tried, place) in order.into_iter().enumerate() {
        // Without time, the remaining addresses are not tried and not noted as lost.
        if tried > 0 && wait.left().is_err() {
            break;
        }
        let address = &remote.addresses[place];
        let share = wait.share(count - tried);
        // One host name may stand for several servers. After every address had one turn, the next
        // server of each name is tried first.
        match greet_within(share, address, turn / count, greeting(remote.token.as_ref())) {
            Ok(connected) => {
                lost.note(place, None);
                if is_known(&connected.catalog) {
                    return Ok(connected);
                }
                failed = changed(&address.to_string());
            }
            Err(error) => {
                lost.note(place, Some(Instant::now()));
                failed = error;
            }
        }
    }
    Err(failed)
}

/// Connects to a server and greets it.
///
/// # Errors
/// A sentence that says why there is no connection.
pub fn greet(address: &Address, token: Option<&String>, stop: &Stop) -> Result<Connected, String> {
    greet_within(Wait::new(GREETING, stop), address, 0, Greeting { token, ..Greeting::default() })
}

/// Connects to a server and greets it within the time of `wait`. If a name has several servers,
/// each `turn` starts with another one.
fn greet_within(
    wait: Wait<'_>,
    address: &Address,
    turn: usize,
    greeting: Greeting<'_>,
) -> Result<Connected, String> {
    let stream = Stream::connect(address, turn, wait);
    let stream = stream.map_err(|error| format!("cannot connect to {address}: {error}"))?;
    converse(stream, Some(address), greeting, wait)
}

/// Greets a server. A server without an address is in this process.
fn converse(
    stream: Stream,
    address: Option<&Address>,
    greeting: Greeting<'_>,
    wait: Wait<'_>,
) -> Result<Connected, String> {
    let from = address.map_or_else(String::new, |address| format!("the server at {address}: "));
    let address = address.map_or_else(|| "this process".into(), Address::to_string);
    let failed = |what: &'static str| {
        let address = &address;
        move |error: io::Error| format!("{what} {address}: {error}")
    };
    let Greeting { token, known, watches } = greeting;
    let text = known.and_then(|known| known.text.clone());
    let hello = Ask::Hello { protocol: PROTOCOL, token: token.cloned(), text, watches };
    let hello = wire::control(&hello).map_err(failed("cannot greet"))?;
    // A server that cannot serve sends the reason before it reads, and then closes the connection.
    // So errors are ignored here.
    let _ = stream.send_some(&hello);
    let silent = "no server of crosslane answered at";
    let mut prefix = [0; PREFIX];
    receive(&stream, &mut prefix, wait).map_err(failed(silent))?;
    let (length, lane) = read_prefix(prefix);
    if lane != CONTROL || length > LONGEST_CONTROL {
        return Err(format!("what answered at {address} is no server of crosslane"));
    }
    let mut text = vec![0; length];
    receive(&stream, &mut text, wait).map_err(failed(silent))?;
    match serde_json::from_slice(&text) {
        Ok(Tell::Welcome { protocol: PROTOCOL, functions, text, largest, reloads, contexts, .. }) => {
            let catalog = Catalog { functions, text, takes: largest, reloads, contexts };
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

/// Fills the buffer.
fn receive(stream: &Stream, mut buffer: &mut [u8], wait: Wait<'_>) -> io::Result<()> {
    while !buffer.is_empty() {
        match stream.receive(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => buffer = &mut buffer[length..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait.ready(stream.as_fd(), PollFlags::IN)?
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    #[test]
    fn a_server_that_takes_no_connections_is_not_waited_for_without_end() {
        let path = std::env::temp_dir().join(format!("crosslane-full-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        // The listener's queue has no room after the next connection.
        rustix::net::listen(&listener, 0).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        let stop = Stop::default();
        let wait = Wait::new(Duration::from_millis(20), &stop);
        let error = greet_within(wait, &Address::Unix(path.clone()), 0, Greeting::default());
        let error = error.err().unwrap();
        assert!(error.contains("cannot connect to") && error.contains("timed out"), "{error}");
        drop(waiting);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_address_that_was_lost_is_noted_until_it_answers() {
        let path = |name| std::env::temp_dir().join(format!("crosslane-{name}-{}", std::process::id()));
        let paths = [path("lost"), path("there")];
        let listener = UnixListener::bind(&paths[1]).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let welcome = Tell::Welcome {
                protocol: PROTOCOL,
                server: String::new(),
                functions: Vec::new(),
                text: None,
                largest: 1,
                reloads: false,
                contexts: false,
            };
            stream.write_all(&wire::control(&welcome).unwrap()).unwrap();
        });
        let addresses = paths.iter().cloned().map(Address::Unix).collect();
        let reach = Reach::Network(Remote { addresses, token: None });
        let (mut lost, stop) = (Lost::default(), Stop::default());
        connect(&reach, 0, &mut lost, None, &stop).unwrap();
        server.join().unwrap();
        assert_eq!(lost.order(2, 0, Instant::now()), [1, 0]);
        // No server listens at these addresses any more.
        assert!(connect(&reach, 0, &mut lost, None, &stop).is_err());
        assert_eq!(lost.order(2, 0, Instant::now()), [0, 1]);
        std::fs::remove_file(&paths[1]).unwrap();
    }
}
