//! The server as a whole: how it starts to listen, takes connections, and ends.

use super::budget::Budget;
use super::connection;
use super::connections::Connections;
use super::offer::{Making, Offer, Offers, ServedLibrary};
use super::shared::Shared;
use super::spans::Spans;
use super::workers::{Watcher, Workers};
use crate::address::Address;
use crosslane::Error;
use crosslane::stats::Counter;
use crosslane_remote::stream::{Listener, Stream};
use crosslane_remote::wire::{self, Tell};
use crosslane_sched::{Interest, Io, Scheduler, Shutdown, sleep};
use rustls::ServerConfig;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// How long the task that accepts connections waits after an error, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a shutdown checks whether connections have ended.
const GLANCE: Duration = Duration::from_millis(5);
/// How a server behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub listen: Vec<Address>,
    /// The token that clients must send; `None` if all clients that reach the server may use it.
    pub token: Option<String>,
    /// The TLS configuration of the addresses that are encrypted ([`crate::tls::server`]).
    pub tls: Option<Arc<ServerConfig>>,
    /// The most workers of each library that are not held.
    pub workers: usize,
    /// The number of threads that watch sockets.
    pub threads: usize,
    /// The most connections.
    pub connections: usize,
    /// The most bytes of a message.
    pub largest: usize,
    /// Whether the server may offer other functions later ([`Server::offer`]). Its clients then keep a
    /// connection on which they get to know.
    pub reloads: bool,
    /// The most bytes of messages that wait in the server, for all connections together.
    pub waiting: usize,
    /// How long bytes may wait for a slow client while other clients have no room for theirs. A
    /// slow client is one that sends or reads slowly.
    pub slow: Duration,
    /// How long the thread that waits for calls polls after the last call or reply, before it
    /// sleeps. Zero: it sleeps at once.
    pub spin: Duration,
    /// Who makes spans of calls, if anyone does.
    pub spans: Option<Arc<dyn Spans>>,
}

/// A server that runs until it is shut down or dropped.
pub struct Server {
    scheduler: Option<Scheduler>,
    shared: Arc<Shared>,
    making: Making,
    addresses: Vec<Address>,
    /// The sockets' files. They are removed when the server ends.
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
    /// [`Error::Engine`] in these cases:
    /// - It cannot listen, or the system has no random numbers, threads or other resources for it.
    /// - Two functions have the same name.
    /// - Other machines could call functions without a token.
    /// - [`Options::waiting`] is less than [`Options::largest`].
    pub fn start(options: Options, libraries: Vec<ServedLibrary>) -> Result<Self, Error> {
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
        let making = Making {
            workers: options.workers,
            largest: options.largest,
            reloads: options.reloads,
            spans: options.spans,
            watcher: Arc::clone(&watcher),
            handle: handle.clone(),
        };
        let offer = Offer::new(libraries, None, &making)?;
        let shared = Arc::new(Shared {
            offers: Offers::new(offer),
            token: options.token,
            largest: options.largest,
            refused: Counter::default(),
            violations: Counter::default(),
            connections: Arc::new(Connections::new(
                options.connections,
                Budget::new(options.waiting, options.slow),
            )),
        });
        let looks = Arc::clone(&shared);
        let look = move || looks.offers.all().iter().for_each(|offer| offer.look());
        let watching = watcher.start(look);
        let mut server = Self {
            scheduler: Some(scheduler),
            shared,
            making,
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

    /// The addresses where it listens, with the ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The state that the HTTP listener shows.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Offers the functions of these libraries from now on. Calls finish with the functions that they
    /// began with. Clients that wait for other functions get to know.
    ///
    /// # Errors
    /// [`Error::Engine`] if two functions have the same name. Then the server offers what it offered.
    pub fn offer(&self, libraries: Vec<ServedLibrary>) -> Result<(), Error> {
        let last = self.shared.offers.newest();
        let offer = Arc::new(Offer::new(libraries, Some(&last), &self.making)?);
        let outlived = self.shared.offers.add(Arc::clone(&offer));
        // The new offer may have the same libraries.
        last.workers.iter().for_each(Workers::let_go);
        drop(last);
        for connection in self.shared.connections.all() {
            connection.end_if_it_watches(offer.number);
            outlived.iter().for_each(|old| connection.end_if_it_has(old.number));
        }
        Ok(())
    }

    /// Ends the workers of functions that were offered before and that no client has any more. It waits
    /// for their ends.
    pub fn end_unused(&self) {
        for offer in self.shared.offers.take_unused() {
            offer.close();
        }
    }

    /// How many connections are open, and how many calls wait for a worker.
    pub fn load(&self) -> (usize, usize) {
        let offers = self.shared.offers.all();
        let waiting = offers.iter().flat_map(|offer| &offer.workers).map(|workers| workers.waiting()).sum();
        (self.shared.connections.all().len(), waiting)
    }

    /// The functions of which results were reused until now: their names, the rows of their calls, and the
    /// rows without a call.
    pub fn reused(&self) -> Vec<(String, u64, u64)> {
        let offer = self.shared.offers.newest();
        let counted = offer.functions.iter().map(|served| {
            let totals = served.function.stats.totals();
            (served.function.name().to_owned(), totals.rows.get(), totals.reused.get())
        });
        counted.filter(|(.., reused)| *reused > 0).collect()
    }

    /// Shuts the server down. It takes no more connections, and ends those on which nothing is in
    /// flight. After `limit` it ends all. Returns whether all that was in flight has ended before.
    pub fn shut_down(mut self, limit: Duration) -> bool {
        self.end(limit)
    }

    fn end(&mut self, limit: Duration) -> bool {
        let Some(scheduler) = self.scheduler.take() else { return true };
        self.shared.connections.drain();
        let until = Instant::now().checked_add(limit);
        let drained = loop {
            let connections = self.shared.connections.all();
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
        // No route waits for a new worker any more.
        self.shared.offers.all().iter().for_each(|offer| offer.close());
        // The scheduler cancels its tasks, which closes their connections.
        let Shutdown { .. } = scheduler.shut_down(Duration::ZERO);
        self.shared.offers.all().iter().for_each(|offer| offer.close());
        self.making.watcher.stop();
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        drained
    }
}

/// Functions for a listener that speaks another protocol.
#[cfg(feature = "flight")]
impl Server {
    /// How many connections there may be, and the most bytes of a message.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.shared.connections.most, self.shared.largest)
    }

    /// The token that clients must send.
    pub(crate) fn token(&self) -> Option<&String> {
        self.shared.token.as_ref()
    }

    /// A function that connects to this server from within its process.
    pub(crate) fn dial(&self) -> Option<crate::client::Dial> {
        let (shared, handle) = (Arc::clone(&self.shared), self.scheduler.as_ref()?.handle().clone());
        Some(Box::new(move || {
            if let Some(why) = shared.connections.refusal() {
                return Err(io::Error::other(why));
            }
            let (ours, theirs) = Stream::pair()?;
            let peer = "the Flight listener of this server".to_owned();
            let place = connection::open(&shared, handle.io(theirs)?, "flight");
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
            Ok((stream, peer)) => match shared.connections.refusal() {
                None => match Io::new(stream) {
                    Ok(stream) => {
                        let kind = stream.get_ref().kind();
                        let place = connection::open(&shared, stream, kind);
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

/// Tells a client why it is not served, if the socket takes the message at once.
fn refuse(stream: &Stream, why: String) {
    if let Ok(framed) = wire::control(&Tell::Refused { message: why }) {
        let _ = stream.send(&[io::IoSlice::new(&framed)]);
    }
}
