//! The server: libraries, listeners and connections.

use crate::address::Address;
use crate::budget::Budget;
use crate::connection::{self, Connection};
use crate::offer::{Offer, Seal};
use crate::stream::{Listener, Stream};
use crate::wire::{self, PROTOCOL, Tell};
use crate::workers::{Watcher, Workers, lock};
use crosslane::stats::Counter;
use crosslane::{Error, Function, FunctionSpec, Library};
use crosslane_process::Zygote;
use crosslane_sched::{Interest, Io, Scheduler, Shutdown, sleep};
use rustls::ServerConfig;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// How long who accepts waits after an error, such as having no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// How often who waits for connections to end looks at them.
const GLANCE: Duration = Duration::from_millis(5);
/// Why a connection is ended that nobody uses just now.
pub(crate) const ENDING: &str = "the server is shutting down";

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub listen: Vec<Address>,
    /// What clients must know; `None` if all may come that reach it.
    pub token: Option<String>,
    /// What it shows at addresses that are encrypted ([`crate::tls::server`]).
    pub tls: Option<Arc<ServerConfig>>,
    /// Workers of each library at most.
    pub workers: usize,
    /// Threads that watch sockets.
    pub threads: usize,
    /// Connections at most.
    pub connections: usize,
    /// The most bytes of a message.
    pub largest: usize,
    /// The most bytes of messages that wait in the server, of all connections together.
    pub waiting: usize,
    /// For how long bytes may wait for a client that sends or reads slowly, where other clients have no room for theirs.
    pub slow: Duration,
    /// For how long after the last call or reply the thread that waits for calls polls for more before it sleeps. Zero: it sleeps at once.
    pub spin: Duration,
}

/// A library, and what tells its text from any other.
#[derive(Debug)]
pub struct Served {
    /// The library.
    pub library: Library<Zygote>,
    /// As its guest says it ([`crosslane_process::Loaded`]).
    pub text: Option<String>,
}

/// What all connections use.
pub(crate) struct Shared {
    pub(crate) offers: Vec<Offer>,
    pub(crate) workers: Vec<Arc<Workers>>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) seal: Seal,
    pub(crate) token: Option<String>,
    /// The first message to a client, as it travels.
    pub(crate) welcome: Vec<u8>,
    pub(crate) largest: usize,
    /// What waits of all connections.
    pub(crate) budget: Arc<Budget>,
    /// Connections that were refused because there were too many, or the server was draining.
    pub(crate) refused: Counter,
    /// Connections that were ended because of what the client did.
    pub(crate) violations: Counter,
    draining: AtomicBool,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    pub(crate) most_connections: usize,
    /// Counts connections.
    next: AtomicU64,
}

impl Shared {
    /// Why no more connections are taken.
    fn refusal(&self) -> Option<String> {
        if self.is_draining() {
            return Some(ENDING.into());
        }
        let most = self.most_connections;
        (lock(&self.connections).len() >= most).then(|| format!("the server has {most} connections already"))
    }

    /// The next connection's number.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Keeps a connection until [`Shared::leave`].
    pub(crate) fn join(&self, number: u64, connection: &Arc<Connection>) {
        lock(&self.connections).insert(number, Arc::clone(connection));
    }

    pub(crate) fn leave(&self, number: u64) {
        let connection = lock(&self.connections).remove(&number);
        drop(connection);
    }

    /// Ends the connection with the most bytes that wait for its client, of those that are slow. If there is none, and room is needed for an
    /// answer, that with the most answers.
    pub(crate) fn make_room(&self, for_answer: bool) {
        let connections = self.connections();
        let outboxes = || connections.iter().map(|connection| connection.outbox());
        let slow = outboxes().filter(|outbox| outbox.account.is_slow());
        let mut ended = slow.max_by_key(|outbox| outbox.account.delayed());
        if ended.is_none() && for_answer {
            ended = outboxes().max_by_key(|outbox| outbox.account.unread());
        }
        if let Some(outbox) = ended {
            outbox.give_up();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// How many connections were taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.next.load(Relaxed)
    }

    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        lock(&self.connections).values().cloned().collect()
    }
}

/// A server that runs until it is shut down or dropped.
pub struct Server {
    scheduler: Option<Scheduler>,
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    /// The sockets' files, which go with the server.
    files: Files,
    watcher: Option<thread::JoinHandle<()>>,
}

/// Files that are removed when they are dropped.
#[derive(Default)]
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens, and serves the functions of these libraries.
    ///
    /// # Errors
    /// [`Error::Engine`] if it cannot listen, two functions have the same name, or other machines could call functions without a
    /// token.
    pub fn start(options: Options, libraries: Vec<Served>) -> Result<Self, Error> {
        let system = |what: String| move |error: io::Error| Error::Engine(format!("{what}: {error}"));
        if options.waiting < options.largest {
            return Err(Error::Engine(format!(
                "--waiting-bytes {} is less than one message may have, which is --largest-batch {}",
                options.waiting, options.largest
            )));
        }
        let (mut listeners, mut files) = (Vec::new(), Files::default());
        for address in &options.listen {
            let listener = Listener::bind(address, options.tls.as_ref())
                .map_err(system(format!("cannot listen at {address}")))?;
            if let Address::Unix(path) = address {
                files.0.push(path.clone());
            }
            if options.token.is_none() && !listener.is_local() {
                return Err(Error::Engine(format!(
                    "everybody who reaches {address} could call the functions: give the server a token, or listen at 127.0.0.1 \
                     or a Unix socket"
                )));
            }
            let address = listener.address(address).map_err(system(address.to_string()))?;
            listeners.push((listener, address));
        }
        let watcher = Watcher::new();
        let mut scheduler = Scheduler::builder().workers(options.threads);
        if !options.spin.is_zero() {
            scheduler = scheduler.busy_poll(options.spin, watcher.clone());
        }
        let scheduler = scheduler.start().map_err(system("no scheduler".into()))?;
        let handle = scheduler.handle().clone();
        let (mut offers, mut workers, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for (index, Served { library, text }) in libraries.into_iter().enumerate() {
            offers.extend(library.functions.iter().map(|function| Offer::new(Arc::clone(function), index)));
            texts.push(text);
            let library = Arc::new(library);
            workers.push(Workers::new(
                library,
                index,
                options.workers.max(1),
                Arc::clone(&watcher),
                handle.clone(),
            ));
        }
        let mut named: Vec<_> = offers.iter().map(|offer| &offer.function).collect();
        named.sort_by_key(|function| function.name().to_lowercase());
        let same = |pair: &&[&Arc<Function>]| pair[0].name().to_lowercase() == pair[1].name().to_lowercase();
        if let Some([one, other]) = named.windows(2).find(same) {
            let place = |function: &Function| format!("{}:{}", function.spec.file, function.spec.line);
            return Err(Error::Engine(format!(
                "{} and {} have the same name ({} and {}), by which clients call: a server has no overloads. Rename one of them",
                one.signature,
                other.signature,
                place(one),
                place(other)
            )));
        }
        // Workers are set up here, and not by clients.
        let specs = offers.iter().map(|offer| FunctionSpec { set_up: false, ..offer.function.spec.clone() });
        let texts: Option<Vec<String>> = texts.into_iter().collect();
        let welcome = wire::control(&Tell::Welcome {
            protocol: PROTOCOL,
            server: concat!("crosslane ", env!("CARGO_PKG_VERSION")).into(),
            functions: specs.collect(),
            text: texts.map(|texts| texts.join(" ")),
            largest: options.largest,
        });
        let shared = Arc::new(Shared {
            offers,
            workers,
            watcher: Arc::clone(&watcher),
            seal: Seal::new().map_err(system("no random numbers".into()))?,
            token: options.token,
            welcome: welcome.map_err(system("the functions".into()))?,
            largest: options.largest,
            budget: Budget::new(options.waiting, options.slow),
            refused: Counter::default(),
            violations: Counter::default(),
            draining: AtomicBool::new(false),
            connections: Mutex::default(),
            next: AtomicU64::new(0),
            most_connections: options.connections,
        });
        let looks = Arc::clone(&shared);
        let watching = watcher.start(move || looks.workers.iter().for_each(Workers::look));
        let mut server = Self {
            scheduler: Some(scheduler),
            shared,
            addresses: Vec::new(),
            files,
            watcher: Some(watching.map_err(system("no thread".into()))?),
        };
        for (listener, address) in listeners {
            server.addresses.push(address.clone());
            let listener = handle.io(listener).map_err(system(address.to_string()))?;
            drop(handle.spawn(accept(listener, Arc::clone(&server.shared))));
        }
        Ok(server)
    }

    /// Where it listens: with the ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What doors other than listeners look at.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The connections that are open, and the calls that wait for a worker.
    pub fn load(&self) -> (usize, usize) {
        let waiting = self.shared.workers.iter().map(|workers| workers.waiting()).sum();
        (self.shared.connections().len(), waiting)
    }

    /// Takes no more connections, ends those on which nothing is in flight, and all of them after `limit`. Returns whether all that was in
    /// flight has ended before.
    pub fn shut_down(mut self, limit: Duration) -> bool {
        self.end(limit)
    }

    fn end(&mut self, limit: Duration) -> bool {
        let Some(scheduler) = self.scheduler.take() else { return true };
        self.shared.draining.store(true, Relaxed);
        let until = Instant::now().checked_add(limit);
        let drained = loop {
            let connections = self.shared.connections();
            if connections.is_empty() {
                break true;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                break false;
            }
            connections.iter().for_each(|connection| connection.end_if_idle());
            thread::sleep(GLANCE);
        };
        self.files = Files::default();
        // Nobody waits for a new worker any more.
        self.shared.workers.iter().for_each(Workers::close);
        // Tasks that are cancelled close their connections.
        let Shutdown { .. } = scheduler.shut_down(Duration::ZERO);
        self.shared.workers.iter().for_each(Workers::close);
        self.shared.watcher.stop();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        drained
    }
}

/// For a door that speaks another protocol.
#[cfg(feature = "flight")]
impl Server {
    /// How many connections there may be, and the most bytes of a message.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.shared.most_connections, self.shared.largest)
    }

    /// What clients must know.
    pub(crate) fn token(&self) -> Option<&String> {
        self.shared.token.as_ref()
    }

    /// What connects to this server from within its process.
    pub(crate) fn dial(&self) -> Option<crate::client::Dial> {
        let (shared, handle) = (Arc::clone(&self.shared), self.scheduler.as_ref()?.handle().clone());
        Some(Box::new(move || {
            if let Some(why) = shared.refusal() {
                return Err(io::Error::other(why));
            }
            let (ours, theirs) = Stream::pair()?;
            let peer = "a door of this server".to_owned();
            let place = connection::open(&shared, handle.io(theirs)?);
            drop(handle.spawn(connection::serve(place, peer)));
            Ok(ours)
        }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// Takes connections until the scheduler ends.
async fn accept(listener: Io<Listener>, shared: Arc<Shared>) {
    loop {
        match listener.with(Interest::Read, Listener::accept).await {
            Ok((stream, peer)) => match shared.refusal() {
                None => match Io::new(stream) {
                    Ok(stream) => {
                        let place = connection::open(&shared, stream);
                        drop(crosslane_sched::spawn(connection::serve(place, peer)));
                    }
                    Err(error) => warn!(peer, why = error.to_string(), "connection not taken"),
                },
                Some(why) => {
                    shared.refused.add(1);
                    debug!(peer, why, "connection refused");
                    refuse(&stream, why);
                }
            },
            Err(error) => {
                warn!(why = error.to_string(), "connection not taken");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Tells a client why it cannot be served, if it can be told at once.
fn refuse(stream: &Stream, why: String) {
    if let Ok(framed) = wire::control(&Tell::Refused { message: why }) {
        let _ = stream.send(&[io::IoSlice::new(&framed)]);
    }
}
