//! A client's connection: one task reads it, one writes what could not be written at once.
//!
//! Nothing is kept without bound. What a client sends waits in its routes, which say when they have room; meanwhile the connection is not
//! read, and the client's own writes wait. What it does not read waits in the [`Outbox`] until that is full; then its lanes are
//! stalled, and their workers wait. A client that takes nothing for [`SILENT`] loses its connection. What waits of all connections
//! together has a limit, too ([`crate::budget`]).

use crate::budget::{Account, Held};
use crate::offer::Violation;
use crate::route::Route;
use crate::server::{ENDING, Shared};
use crate::stream::Stream;
use crate::wire::{self, Ask, CONTROL, Decoder, LONGEST_HELLO, PROTOCOL, Tell, TooLong, prefix};
use crate::workers::lock;
use crosslane_sched::{Interest, Io, timeout};
use event_listener::{Event, EventListener};
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::fmt::Display;
use std::io::{self, IoSlice};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tracing::{debug, warn};

/// How long a client may take to say who it is, and to send the rest of a message, or to read on.
const SILENT: Duration = Duration::from_secs(30);
/// How often a client that is not read is looked at, whether it is still there, and others are asked to make room for it.
const LOOK: Duration = Duration::from_secs(1);
/// How many bytes may wait for a client that does not read, beside what is just being sent.
const MOST_WAITING: usize = 1 << 20;
/// How much is read at once, and is gathered at most.
pub(crate) const PIECE: usize = 64 << 10;
/// Lanes of a connection.
pub(crate) const MOST_LANES: usize = 64;

/// A longer message is not worth a copy: it is sent at once, unless shorter ones were gathered before it.
const SHORT: usize = 4 << 10;

thread_local! {
    /// The outboxes with messages that this thread sends in a moment, if it gathers them.
    static GATHERED: RefCell<Option<Vec<Arc<Outbox>>>> = const { RefCell::new(None) };
}

/// Sends the short messages of lanes that `body` has for clients when it has ended, those of a connection together. A send takes longer
/// than many a call, and meanwhile its worker could have the next one already.
pub(crate) fn gathered<R>(body: impl FnOnce() -> R) -> R {
    /// Sends them however `body` ends.
    struct Gathering;

    impl Drop for Gathering {
        fn drop(&mut self) {
            send_gathered();
            GATHERED.set(None);
        }
    }

    if GATHERED.with_borrow(Option::is_some) {
        return body();
    }
    GATHERED.set(Some(Vec::new()));
    let gathering = Gathering;
    let done = body();
    drop(gathering);
    done
}

/// Sends what this thread has gathered until now.
pub(crate) fn send_gathered() {
    let outboxes = GATHERED.with_borrow_mut(|gathered| gathered.as_mut().map(std::mem::take));
    outboxes.into_iter().flatten().for_each(|outbox| outbox.send_gathered());
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    start: usize,
    /// Whether a thread that gathers messages will send these.
    is_gathered: bool,
    /// Nothing more is sent.
    closed: bool,
}

impl Waiting {
    fn has_room(&self) -> bool {
        self.closed || self.bytes.len() - self.start < MOST_WAITING
    }
}

/// Where the server's messages to a client go.
pub(crate) struct Outbox {
    stream: Arc<Io<Stream>>,
    shared: Arc<Shared>,
    pub(crate) account: Arc<Account>,
    /// The connection's number.
    pub(crate) number: u64,
    waiting: Mutex<Waiting>,
    /// Told when there is something to write, or the end.
    work: Event,
    /// Told when more may be taken of the client, or the end.
    pub(crate) room: Event,
    /// Whether the connection is to end when all is written.
    refused: AtomicBool,
    /// What was found wrong by who does not read the connection.
    broken: OnceLock<Violation>,
}

/// What is to be done for an outbox.
enum Task {
    Wait,
    Write,
    Close,
    End,
}

impl Outbox {
    fn new(stream: Arc<Io<Stream>>, number: u64, shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            stream,
            shared: Arc::clone(shared),
            account: Account::new(&shared.budget),
            number,
            waiting: Mutex::default(),
            work: Event::new(),
            room: Event::new(),
            refused: AtomicBool::new(false),
            broken: OnceLock::new(),
        })
    }

    /// Whether more may be sent now.
    pub(crate) fn has_room(&self) -> bool {
        lock(&self.waiting).has_room()
    }

    /// Sends a message of a lane, in parts; what cannot be written at once is written later.
    pub(crate) fn send(self: &Arc<Self>, lane: u32, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum();
        let prefix = prefix(lane, length);
        let mut all = vec![&prefix[..]];
        all.extend(parts);
        if length <= SHORT {
            self.gather();
        }
        self.write(&all);
    }

    /// If this thread gathers messages, it sends what is written from now on, unless others wait before it.
    fn gather(self: &Arc<Self>) {
        GATHERED.with_borrow_mut(|gathered| {
            let Some(gathered) = gathered else { return };
            let mut waiting = lock(&self.waiting);
            waiting.is_gathered |= waiting.bytes.is_empty() && !waiting.closed;
            // Each thread that adds something sends it: the other one may be held up.
            if waiting.is_gathered && !gathered.iter().any(|outbox| Arc::ptr_eq(outbox, self)) {
                gathered.push(Arc::clone(self));
            }
        });
    }

    /// Sends what was gathered, or has it sent.
    fn send_gathered(&self) {
        let mut waiting = lock(&self.waiting);
        if waiting.is_gathered {
            self.flush_gathered(&mut waiting);
            self.settle(waiting);
        }
    }

    /// Sends what it can. If there is no room for more, lanes may be stalled: then this is left to the writer, which lets them go on.
    fn flush_gathered(&self, waiting: &mut Waiting) {
        waiting.is_gathered = false;
        if waiting.has_room() {
            // An error is found again by who writes later.
            let _ = self.flush_some(waiting, self.stream.get_ref());
        }
    }

    fn write(&self, parts: &[&[u8]]) {
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            return;
        }
        let mut sent = 0;
        if waiting.bytes.is_empty() && !waiting.is_gathered {
            let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            // An error is found again by who writes later.
            sent = self.stream.get_ref().send(&slices).unwrap_or(0);
        }
        let before = waiting.bytes.len();
        for part in parts {
            let skipped = sent.min(part.len());
            sent -= skipped;
            waiting.bytes.extend_from_slice(&part[skipped..]);
        }
        self.account.keep(waiting.bytes.len() - before);
        if waiting.is_gathered {
            if waiting.bytes.len() < PIECE {
                return;
            }
            self.flush_gathered(&mut waiting);
        }
        self.settle(waiting);
    }

    /// Leaves what could not be sent to the writer, and makes room for it if there is none.
    fn settle(&self, waiting: MutexGuard<'_, Waiting>) {
        let is_left = !waiting.bytes.is_empty();
        drop(waiting);
        if is_left || self.stream.get_ref().is_pending() {
            self.work.notify(1);
        }
        if is_left && !self.account.fits() {
            self.shared.make_room(true);
        }
    }

    fn tell(&self, message: &Tell) {
        if let Ok(framed) = wire::control(message) {
            self.write(&[&framed]);
        }
    }

    pub(crate) fn end_lane(&self, lane: u32, why: &str) {
        self.tell(&Tell::Ended { lane, message: crosslane::shortened(why.to_owned()) });
    }

    pub(crate) fn tell_progress(&self, lane: u32, exchange: u32, row: u32) {
        self.tell(&Tell::Progress { lane, exchange, row });
    }

    /// Ends the connection, and tells the client why.
    pub(crate) fn refuse(&self, why: &impl Display) {
        if self.refused.load(Relaxed) {
            return;
        }
        // First the words: the writer ends the connection as soon as it finds nothing to write after the mark.
        self.tell(&Tell::Refused { message: why.to_string() });
        self.refused.store(true, Release);
        self.work.notify(1);
        self.room.notify(usize::MAX);
    }

    /// Ends the connection for what was found wrong behind its reader's back.
    pub(crate) fn break_off(&self, violation: Violation) {
        let _ = self.broken.set(violation.clone());
        self.refuse(&violation);
    }

    /// Ends the connection to make room. The client is told why, if that need not wait behind what it does not read.
    pub(crate) fn give_up(&self) {
        let most = self.account.budget().most();
        let why = format!(
            "more than {most} bytes wait in the server, and most of those that wait for their client are this one's: it \
             reads or sends too slowly; the server's --waiting-bytes says how many there may be"
        );
        let _ = self.broken.set(Violation(why.clone()));
        if lock(&self.waiting).bytes.is_empty() { self.refuse(&why) } else { self.close() }
    }

    /// Whether nothing more is taken of the client.
    fn is_over(&self) -> bool {
        self.refused.load(Acquire) || lock(&self.waiting).closed
    }

    /// Nothing is sent any more, and who waits for the client finds the end.
    fn close(&self) {
        let mut waiting = lock(&self.waiting);
        let left = std::mem::replace(&mut *waiting, Waiting { closed: true, ..Waiting::default() });
        drop(waiting);
        self.account.give_back(left.bytes.len());
        self.stream.get_ref().shut_down();
        self.work.notify(usize::MAX);
        self.room.notify(usize::MAX);
    }

    /// What its writer has to do.
    fn task(&self) -> Task {
        let waiting = lock(&self.waiting);
        match waiting.bytes.is_empty() && !self.stream.get_ref().is_pending() {
            _ if waiting.closed => Task::End,
            false => Task::Write,
            true if self.refused.load(Acquire) => Task::Close,
            true => Task::Wait,
        }
    }

    /// Writes what it can of all that waits; an error if nothing can be written now.
    fn flush(&self, stream: &Stream) -> io::Result<()> {
        self.flush_some(&mut lock(&self.waiting), stream)
    }

    fn flush_some(&self, waiting: &mut Waiting, stream: &Stream) -> io::Result<()> {
        let begun = waiting.start;
        while waiting.start < waiting.bytes.len() {
            let part = [IoSlice::new(&waiting.bytes[waiting.start..])];
            match stream.send(&part) {
                Ok(sent) => waiting.start += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && waiting.start > begun => {
                    // More may be added before all is written.
                    if waiting.start > waiting.bytes.len() / 2 {
                        let written = std::mem::take(&mut waiting.start);
                        waiting.bytes.drain(..written);
                        self.account.give_back(written);
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        stream.flush()?;
        waiting.start = 0;
        self.account.give_back(waiting.bytes.len());
        waiting.bytes.clear();
        // Much memory is not kept for little.
        waiting.bytes.shrink_to(PIECE);
        Ok(())
    }
}

/// A connection and its lanes.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    routes: Mutex<HashMap<u32, Arc<Route>>>,
}

/// A connection of a client, which counts from now on.
pub(crate) fn open(shared: &Arc<Shared>, stream: Io<Stream>) -> Guard {
    let number = shared.number();
    let outbox = Outbox::new(Arc::new(stream), number, shared);
    let connection = Arc::new(Connection { shared: Arc::clone(shared), outbox, routes: Mutex::default() });
    shared.join(number, &connection);
    Guard(connection, number)
}

/// Serves a client until it goes, or must.
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

/// Closes a connection however its task ends.
pub(crate) struct Guard(Arc<Connection>, u64);

impl Drop for Guard {
    fn drop(&mut self) {
        let Self(connection, number) = self;
        let routes = std::mem::take(&mut *lock(&connection.routes));
        routes.into_values().for_each(|route| route.close());
        connection.outbox.close();
        connection.shared.leave(*number);
        debug!(connection = number, "connection closed");
    }
}

/// Why a connection is not read any more.
enum Ended {
    /// The client has gone, or does not do its part.
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
        // Room for the message of which a part is there.
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
                self.shared.make_room(false);
                if stream.get_ref().is_closed() {
                    return Err(Ended::Gone);
                }
            }
            if self.outbox.is_over() {
                return Err(Ended::Gone);
            }
        }
    }

    /// Waits until more may be taken of the client: what it sends next may be answered at once, so what waits for it counts, too.
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
            // Nothing is read meanwhile, and nothing may be written, so its end would not be found.
            if timeout(LOOK, listener).await.is_err() && stream.get_ref().is_closed() {
                return Err(Ended::Gone);
            }
        }
    }

    fn welcome(&self, lane: u32, bytes: &[u8]) -> Result<(), Ended> {
        let hello = (lane == CONTROL).then(|| serde_json::from_slice(bytes).ok()).flatten();
        let Some(Ask::Hello { protocol, token }) = hello else {
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
        self.outbox.write(&[&self.shared.welcome]);
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
            Ok(Ask::Hello { .. }) => ended("a second greeting"),
            Err(error) => ended(format!("a message that cannot be read: {error}")),
        }
    }

    fn route(&self, lane: u32) -> Result<Arc<Route>, Ended> {
        let mut routes = lock(&self.routes);
        let count = routes.len();
        match routes.entry(lane) {
            Place::Occupied(route) => Ok(Arc::clone(route.get())),
            Place::Vacant(_) if count >= MOST_LANES => {
                ended(format!("more than {MOST_LANES} lanes on a connection"))
            }
            Place::Vacant(place) => {
                let route = Route::new(lane, Arc::clone(&self.shared), Arc::clone(&self.outbox));
                Ok(Arc::clone(place.insert(route)))
            }
        }
    }

    /// What waits for it, or for its client.
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Ends the connection if nothing is in flight on it.
    pub(crate) fn end_if_idle(&self) {
        if lock(&self.routes).values().all(|route| route.is_idle()) {
            self.outbox.refuse(&ENDING);
        }
    }

    /// Counts the exchanges that wait in the server, and those that a worker has, for each offer.
    pub(crate) fn count(&self, waiting: &mut [u32], flying: &mut [u32]) {
        lock(&self.routes).values().for_each(|route| route.count(waiting, flying));
    }

    /// Waits until the client has got all.
    async fn is_written(&self) {
        loop {
            if !matches!(self.outbox.task(), Task::Write) {
                return;
            }
            crosslane_sched::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// What there is; the end is an error.
async fn receive(stream: &Io<Stream>, piece: &mut [u8]) -> io::Result<usize> {
    let received = stream.with(Interest::Read, |stream| stream.receive(piece)).await?;
    if received == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(received) }
}

/// Writes what could not be written at once, and lets stalled lanes go on then.
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
            // Its reader finds the end.
            Ok(Err(_)) | Err(_) => return outbox.close(),
        }
        if outbox.has_room() {
            outbox.room.notify(usize::MAX);
            let routes: Vec<_> = lock(&connection.routes).values().cloned().collect();
            routes.iter().for_each(Route::resume);
        }
    }
}
