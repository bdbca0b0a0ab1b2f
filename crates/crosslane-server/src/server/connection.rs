//! A client's connection: one task reads it, and one writes what could not be written at once.
//!
//! All that waits has a limit. What a client sends waits in its routes. While a route has no room,
//! the connection is not read, and the client's own writes wait. What the client does not read
//! waits in the [`Outbox`]. If the outbox is full, the lanes are stalled and their workers wait. A
//! client that takes nothing for [`SILENT`] loses its connection. The bytes that wait on all
//! connections together have a limit, too ([`super::budget`]).

use super::budget::{Account, Held};
use super::connections::{ENDING, OpenConnection, RELOADED};
use super::offer::Offer;
use super::outbox::{Outbox, PIECE, Task, gathered};
use super::route::Route;
use super::served::Violation;
use super::shared::Shared;
use crosslane::lock;
use crosslane_remote::context::TraceContext;
use crosslane_remote::stream::Stream;
use crosslane_remote::wire::{Ask, CONTROL, Decoder, LONGEST_HELLO, PROTOCOL, TooLong};
use crosslane_sched::{Interest, Io, timeout};
use event_listener::EventListener;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tracing::{debug, warn};

/// How long a client may take to send its greeting, to send the rest of a message, or to read on.
const SILENT: Duration = Duration::from_secs(30);
/// How often the server checks a client that it does not read. It checks whether the client is
/// still there. If the client waits for room in the budget, it also looks for a slow connection to
/// end.
const LOOK: Duration = Duration::from_secs(1);
/// The most lanes of a connection.
pub(crate) const MOST_LANES: usize = 64;

/// A connection and its lanes.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    /// The functions that the client calls; empty before the welcome.
    offer: OnceLock<Arc<Offer>>,
    /// Whether the client waits for a newer offer.
    watches: AtomicBool,
    outbox: Arc<Outbox>,
    routes: Mutex<HashMap<u32, Arc<Route>>>,
}

/// Registers a connection of a client, and how the client is connected. It counts from now on.
pub(crate) fn open(shared: &Arc<Shared>, stream: Io<Stream>, client: &'static str) -> Guard {
    let number = shared.connections.number();
    let outbox = Outbox::new(Arc::new(stream), number, client, &shared.connections);
    let connection = Arc::new(Connection {
        shared: Arc::clone(shared),
        offer: OnceLock::new(),
        watches: AtomicBool::new(false),
        outbox,
        routes: Mutex::default(),
    });
    shared.connections.join(number, connection.clone());
    Guard(connection, number)
}

/// Serves a client until it goes, or the server ends the connection.
pub(crate) async fn serve(guard: Guard, peer: String) {
    let Guard(connection, number) = &guard;
    debug!(connection = number, peer, "connection opened");
    let outbox = &connection.outbox;
    drop(crosslane_sched::spawn(write(Arc::clone(connection))));
    let outcome = connection.read(&outbox.stream).await;
    let violation = match outcome {
        Err(Ended::Violation(violation)) => Some(violation),
        _ => outbox.broken.get().cloned(),
    };
    if let Some(violation) = violation {
        connection.shared.violations.add(1);
        warn!(connection = number, peer, why = violation.0, "connection ended");
        outbox.refuse(&violation);
    }
    if outbox.refused.load(Relaxed) {
        // The client is told why before it ends.
        let _ = timeout(Duration::from_secs(1), connection.is_written()).await;
    }
}

/// Closes a connection when its task ends, for whatever reason.
pub(crate) struct Guard(Arc<Connection>, u64);

impl Drop for Guard {
    fn drop(&mut self) {
        let Self(connection, number) = self;
        let routes = std::mem::take(&mut *lock(&connection.routes));
        routes.into_values().for_each(|route| route.close());
        connection.outbox.close();
        connection.shared.connections.leave(*number);
        debug!(connection = number, "connection closed");
    }
}

/// Why a connection is not read any more.
enum Ended {
    /// The client has gone, or the server has ended the connection already.
    Gone,
    Violation(Violation),
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Ended::Gone
    }
}

impl From<Violation> for Ended {
    fn from(violation: Violation) -> Self {
        Ended::Violation(violation)
    }
}

fn ended<T>(what: impl Into<String>) -> Result<T, Ended> {
    Err(Ended::Violation(Violation(what.into())))
}

impl Connection {
    async fn read(self: &Arc<Self>, stream: &Io<Stream>) -> Result<(), Ended> {
        let mut decoder = Decoder::new(LONGEST_HELLO);
        let mut piece = vec![0; PIECE];
        let hello = async {
            loop {
                if let Some((lane, bytes)) =
                    decoder.message().map_err(|error| Violation(error.to_string()))?
                {
                    return self.welcome(lane, bytes);
                }
                let length = receive(stream, &mut piece).await?;
                decoder.push(&piece[..length]);
            }
        };
        match timeout(SILENT, hello).await {
            Ok(welcome) => welcome?,
            Err(_) => return ended("it did not say who it is"),
        }
        decoder.admit(self.shared.largest);
        // Room for a message of which only a part has come.
        let mut held = None;
        let long = |error: TooLong| Violation(error.to_string());
        loop {
            while let Some((length, _)) = decoder.due().map_err(long)? {
                let room = match held.take() {
                    Some(held) => held,
                    None => self.hold(length, stream).await?,
                };
                let Some((lane, bytes)) = decoder.message().map_err(long)? else {
                    held = Some(room);
                    break;
                };
                if lane == CONTROL {
                    self.control(bytes)?;
                    continue;
                }
                let route = self.route(lane)?;
                gathered(|| route.take(bytes, room.complete()))?;
                self.room(&route, stream).await?;
            }
            let length = if decoder.is_within() {
                match timeout(SILENT, receive(stream, &mut piece)).await {
                    Ok(length) => length?,
                    Err(_) => return ended("it did not send the rest of a message"),
                }
            } else {
                receive(stream, &mut piece).await?
            };
            decoder.push(&piece[..length]);
        }
    }

    /// Waits until there is room for a message. Meanwhile its client is not read.
    async fn hold(&self, length: usize, stream: &Io<Stream>) -> Result<Held, Ended> {
        let account = &self.outbox.account;
        loop {
            if let Some(held) = account.hold(length) {
                return Ok(held);
            }
            let listener: EventListener = account.budget().freed.listen();
            if let Some(held) = account.hold(length) {
                return Ok(held);
            }
            if timeout(LOOK.min(account.budget().slow()), listener).await.is_err() {
                self.shared.connections.make_room(false);
                if stream.get_ref().is_closed() {
                    return Err(Ended::Gone);
                }
            }
            if self.outbox.is_over() {
                return Err(Ended::Gone);
            }
        }
    }

    /// Waits until the client may send more. The next message may be answered at once, so the
    /// outbox must have room, too.
    async fn room(&self, route: &Route, stream: &Io<Stream>) -> Result<(), Ended> {
        let has_room = || route.has_room() && self.outbox.has_room();
        loop {
            if self.outbox.is_over() {
                return Err(Ended::Gone);
            }
            if has_room() {
                return Ok(());
            }
            let listener: EventListener = self.outbox.room.listen();
            if has_room() || self.outbox.is_over() {
                continue;
            }
            // Meanwhile nothing is read, and perhaps nothing is written. So only this check finds
            // that the client has gone.
            if timeout(LOOK, listener).await.is_err() && stream.get_ref().is_closed() {
                return Err(Ended::Gone);
            }
        }
    }

    fn welcome(&self, lane: u32, bytes: &[u8]) -> Result<(), Ended> {
        let hello = (lane == CONTROL).then(|| serde_json::from_slice(bytes).ok()).flatten();
        let Some(Ask::Hello { protocol, token, text, watches }) = hello else {
            return ended("this is a server of crosslane, and that was no greeting of a client");
        };
        if protocol != PROTOCOL {
            return ended(format!(
                "it speaks version {protocol} of the protocol, and this server {PROTOCOL}"
            ));
        }
        if let Some(due) = &self.shared.token {
            let given = token.unwrap_or_default();
            if !bool::from(given.as_bytes().ct_eq(due.as_bytes())) {
                return ended(if given.is_empty() { "it needs a token" } else { "its token is another" });
            }
        }
        self.watches.store(watches, Relaxed);
        let offer = self.shared.offers.find(text.as_ref(), |offer| drop(self.offer.set(Arc::clone(offer))));
        self.outbox.write(&[&offer.welcome]);
        Ok(())
    }

    fn control(&self, bytes: &[u8]) -> Result<(), Ended> {
        match serde_json::from_slice(bytes) {
            Ok(Ask::Close { lane }) => {
                let route = lock(&self.routes).remove(&lane);
                if let Some(route) = route {
                    route.close();
                }
                Ok(())
            }
            Ok(Ask::Context { lane, traceparent, tracestate }) => {
                self.route(lane)?.set_context(TraceContext::new(&traceparent, &tracestate));
                Ok(())
            }
            Ok(Ask::Hello { .. }) => ended("a second greeting"),
            Err(error) => ended(format!("a message that cannot be read: {error}")),
        }
    }

    fn route(&self, lane: u32) -> Result<Arc<Route>, Ended> {
        let Some(offer) = self.offer.get() else { return ended("a call before the greeting") };
        let mut routes = lock(&self.routes);
        let count = routes.len();
        match routes.entry(lane) {
            Place::Occupied(route) => Ok(Arc::clone(route.get())),
            Place::Vacant(_) if count >= MOST_LANES => {
                ended(format!("more than {MOST_LANES} lanes on a connection"))
            }
            Place::Vacant(place) => {
                let route = Route::new(lane, Arc::clone(offer), Arc::clone(&self.outbox));
                Ok(Arc::clone(place.insert(route)))
            }
        }
    }

    /// Whether it has the offer with this number.
    fn has(&self, number: u64) -> bool {
        self.offer.get().is_some_and(|offer| offer.number == number)
    }

    /// Waits until nothing is left to write.
    async fn is_written(&self) {
        loop {
            if !matches!(self.outbox.task(), Task::Write) {
                return;
            }
            crosslane_sched::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl OpenConnection for Connection {
    fn account(&self) -> &Account {
        &self.outbox.account
    }

    fn give_up(&self) {
        self.outbox.give_up();
    }

    fn end_if_idle(&self) {
        if lock(&self.routes).values().all(|route| route.is_idle()) {
            self.outbox.refuse(&ENDING);
        }
    }

    fn end_if_it_watches(&self, newest: u64) {
        let is_old = self.offer.get().is_some_and(|offer| offer.number < newest);
        if is_old && self.watches.load(Relaxed) {
            self.outbox.refuse(&RELOADED);
        }
    }

    fn end_if_it_has(&self, offer: u64) {
        if self.has(offer) {
            self.outbox.refuse(&RELOADED);
        }
    }

    fn count(&self, offer: u64, waiting: &mut [u32], flying: &mut [u32]) {
        if !self.has(offer) {
            return;
        }
        lock(&self.routes).values().for_each(|route| route.count(waiting, flying));
    }
}

/// Reads the bytes that are there. The end of the stream is an error.
async fn receive(stream: &Io<Stream>, piece: &mut [u8]) -> io::Result<usize> {
    let received = stream.with(Interest::Read, |stream| stream.receive(piece)).await?;
    if received == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(received) }
}

/// Writes what could not be written at once. When there is room again, it resumes stalled lanes.
async fn write(connection: Arc<Connection>) {
    let outbox = &connection.outbox;
    loop {
        let listener: EventListener = outbox.work.listen();
        match outbox.task() {
            Task::End => return,
            Task::Close => return outbox.close(),
            Task::Wait => {
                listener.await;
                continue;
            }
            Task::Write => drop(listener),
        }
        let flushed = outbox.stream.with(Interest::Write, |stream| outbox.flush(stream));
        match timeout(SILENT, flushed).await {
            Ok(Ok(())) => {}
            // The task that reads the connection finds the end.
            Ok(Err(_)) | Err(_) => return outbox.close(),
        }
        if outbox.has_room() {
            outbox.room.notify(usize::MAX);
            let routes: Vec<_> = lock(&connection.routes).values().cloned().collect();
            routes.iter().for_each(Route::resume);
        }
    }
}
