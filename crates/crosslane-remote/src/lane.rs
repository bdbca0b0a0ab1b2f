//! A lane over a connection to a server.
//!
//! The engine's thread writes its batches to the socket itself, waits for the socket as it would for a ring, and reads replies when it
//! collects them. No thread stands between the engine and the server. What the socket has no room for is sent by a thread that ends
//! when all is sent, because the engine may have other things to do than to wait. Replies that the engine does not collect stay in
//! the socket, and the server waits. A wait does not spin: the reply is far, and the server may need the core.
//!
//! # What has begun
//! A call that the function was not called for is sent again when the lane is lost, so it must be known which these are. If the server has
//! lost its worker, it tells the worker's progress and then the end of the lane: what is behind that progress has not begun. If the
//! connection is lost, or the server ends it, all that was sent and not answered may have begun. A message that could not be sent as a
//! whole was not sent.
//!
//! What the server sends is not trusted. Its words and its replies are bounded, [`Exchanges`] checks whose turn it is, and the engine
//! reads batches as it reads those of a ring.

use crate::stream::Stream;
use crate::wire::{CONTROL, PREFIX, Tell, prefix, read_prefix};
use crosslane::batch::{self, CANCEL, Encode, Header, LAST, Plan};
use crosslane::lane::{Lane, LaneError, Stuck, Waiter, plan_batch};
use crosslane::{Address as Target, Exchanges};
use crosslane_process::Aligned;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The number of the only lane of a connection.
const LANE: u32 = 0;
/// How much is read at once.
const PIECE: usize = 64 << 10;
/// The most bytes of what the server says of the lane.
const LONGEST_WORDS: usize = 1 << 20;
/// Batches of several rows are cut so that they are no longer. Then both directions move at once.
const SLICE: usize = 256 << 10;
/// To a server on the same machine. To others it is longer.
const ROUND_TRIP: Duration = Duration::from_micros(150);
/// The most exchanges in flight.
const MOST_IN_FLIGHT: usize = 64;
/// Why a lane ends of which the server says nothing.
const CLOSED: &str = "it closed the connection";
/// Why a fork of the engine cannot use its parent's lanes.
const FORK: &str = "it is the lane of the process that this is a fork of";

/// How an engine uses lanes to a server.
#[derive(Debug, Clone, Copy)]
pub struct LaneOptions {
    /// Bytes that a batch may have, either way.
    pub largest: usize,
    /// What is done about calls that make no progress.
    pub stuck: Stuck,
}

/// What was not sent at once.
#[derive(Debug, Default)]
struct Rest {
    /// Each with the place of its first byte that was not sent.
    messages: VecDeque<(Aligned, usize)>,
    /// Whether a thread sends it.
    has_sender: bool,
}

/// Where the engine's messages go.
#[derive(Debug)]
struct Outbox {
    stream: Stream,
    rest: Mutex<Rest>,
}

impl Outbox {
    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, or has it sent. False if the connection is lost, and the message was not sent as a whole. If it is lost later,
    /// who reads finds out.
    ///
    /// # Errors
    /// If there is no thread for it.
    fn send(self: &Arc<Self>, message: &mut Aligned) -> io::Result<bool> {
        let mut rest = self.rest();
        let mut sent = 0;
        if !rest.has_sender {
            match self.stream.send_some(message.bytes()) {
                Ok(count) => sent = count,
                Err(_) => {
                    self.stream.shut_down();
                    return Ok(false);
                }
            }
            if sent == message.bytes().len() && !self.stream.is_pending() {
                return Ok(true);
            }
        }
        rest.messages.push_back((std::mem::take(message), sent));
        if !rest.has_sender {
            let this = Arc::clone(self);
            thread::Builder::new().name("crosslane-send".into()).spawn(move || this.send_rest())?;
            rest.has_sender = true;
        }
        Ok(true)
    }

    /// Sends what is left.
    fn send_rest(&self) {
        loop {
            let mut rest = self.rest();
            let Some((message, sent)) = rest.messages.pop_front() else {
                rest.has_sender = false;
                return;
            };
            drop(rest);
            if self.stream.send_all(&message.bytes()[sent..]).is_err() {
                self.stream.shut_down();
                self.rest().messages.clear();
            }
        }
    }
}

/// What is being received.
#[derive(Debug, Clone, Copy)]
enum Incoming {
    /// What stands before a message.
    Prefix,
    /// A message of so many bytes, of which some were read, and the first are kept.
    Message { lane: u32, length: usize, kept: usize, read: usize },
}

/// What has come.
#[derive(Debug)]
enum Came {
    /// A reply, or the beginning of one that nobody wants.
    Reply,
    /// A reply of so many bytes, which were thrown away.
    Unkept(usize),
    /// What the server says of the lane.
    Words,
}

/// A lane to a server. Dropping it ends its connection.
pub struct RemoteLane {
    id: u64,
    /// Where errors come from, as the beginning of their text.
    from: String,
    outbox: Arc<Outbox>,
    options: LaneOptions,
    /// The most bytes of a message that the server takes.
    takes: usize,
    exchanges: Exchanges,
    /// That of the last batch sent, whose memory is used again.
    plan: Plan,
    outgoing: Aligned,
    inbox: Box<[u8]>,
    /// Where in the inbox is what was not looked at.
    unread: Range<usize>,
    incoming: Incoming,
    message: Aligned,
    reply: Aligned,
    progress: (u32, u32),
    /// Whether the server has told that the lane's worker was lost, and before that how far it was.
    told: bool,
    /// Why the connection has ended.
    ended: Option<String>,
    engine: u32,
}

impl fmt::Debug for RemoteLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteLane").field("id", &self.id).field("from", &self.from).finish_non_exhaustive()
    }
}

impl RemoteLane {
    /// The lane of a connection on which the server has greeted back, and takes messages of so many bytes.
    pub fn new(id: u64, from: String, stream: Stream, takes: usize, options: LaneOptions) -> Self {
        Self {
            id,
            from,
            outbox: Arc::new(Outbox { stream, rest: Mutex::default() }),
            options,
            takes,
            exchanges: Exchanges::default(),
            plan: Plan::default(),
            outgoing: Aligned::default(),
            inbox: vec![0; PIECE].into_boxed_slice(),
            unread: 0..0,
            incoming: Incoming::Prefix,
            message: Aligned::default(),
            reply: Aligned::default(),
            progress: (0, 0),
            told: false,
            ended: None,
            engine: std::process::id(),
        }
    }

    /// The end of the connection. What was noted first is why.
    fn end(&mut self, why: impl Into<String>) -> LaneError {
        let why = self.ended.get_or_insert_with(|| why.into());
        LaneError::Died(format!("{}{why}", self.from))
    }

    /// The connection is of no use to a fork of the engine, whose parent uses it.
    fn is_of_parent(&self) -> bool {
        self.engine != std::process::id()
    }

    /// Reads more into the inbox. False if there is nothing.
    fn fill(&mut self) -> Result<bool, LaneError> {
        let there = self.unread.len();
        self.inbox.copy_within(self.unread.clone(), 0);
        self.unread = 0..there;
        let received = receive(&self.outbox.stream, &mut self.inbox[there..]);
        let received = received.map_err(|why| self.end(why))?;
        self.unread.end += received.unwrap_or(0);
        Ok(received.is_some())
    }

    /// Reads until a message is complete. `None` if there is nothing more.
    fn read(&mut self) -> Result<Option<Came>, LaneError> {
        loop {
            match self.incoming {
                Incoming::Prefix => {
                    if let Some(found) = self.inbox[self.unread.clone()].first_chunk::<PREFIX>() {
                        let (length, lane) = read_prefix(*found);
                        self.unread.start += PREFIX;
                        self.begin(length, lane)?;
                    } else if !self.fill()? {
                        return Ok(None);
                    }
                }
                Incoming::Message { lane, length, kept, read } if read == length => {
                    self.incoming = Incoming::Prefix;
                    return Ok(Some(match lane {
                        CONTROL => Came::Words,
                        _ if kept == 0 => Came::Unkept(length),
                        _ => {
                            std::mem::swap(&mut self.message, &mut self.reply);
                            Came::Reply
                        }
                    }));
                }
                Incoming::Message { lane, length, kept, read } => {
                    let wanted = kept.saturating_sub(read);
                    let more = if self.unread.is_empty() && wanted >= PIECE {
                        // Much is read to where it stays.
                        let into = &mut self.message.bytes_mut()[read..];
                        receive(&self.outbox.stream, into).map_err(|why| self.end(why))?
                    } else if self.unread.is_empty() && !self.fill()? {
                        None
                    } else {
                        let more = self.unread.len().min(length - read);
                        let (from, wanted) = (self.unread.start, wanted.min(more));
                        self.message.bytes_mut()[read.min(kept)..][..wanted]
                            .copy_from_slice(&self.inbox[from..][..wanted]);
                        self.unread.start += more;
                        Some(more)
                    };
                    let Some(more) = more else { return Ok(None) };
                    self.incoming = Incoming::Message { lane, length, kept, read: read + more };
                }
            }
        }
    }

    /// Begins to receive a message.
    fn begin(&mut self, length: usize, lane: u32) -> Result<(), LaneError> {
        let kept = match lane {
            CONTROL if length <= LONGEST_WORDS => length,
            LANE if length < size_of::<Header>() => return Err(self.end("it sent half a header")),
            // Of what is thrown away only the header is looked at.
            LANE if self.exchanges.is_cancelled() => size_of::<Header>(),
            LANE if length > self.options.largest => 0,
            LANE => length,
            _ => return Err(self.end("it sent what is no message of a lane")),
        };
        // What there is no memory for is thrown away, too.
        let kept = self.message.resize(kept).map_or(0, |bytes| bytes.len());
        self.incoming = Incoming::Message { lane, length, kept, read: 0 };
        Ok(())
    }

    /// Takes what the server says of the lane.
    fn hear(&mut self) -> Result<(), LaneError> {
        match serde_json::from_slice(self.message.bytes()) {
            Ok(Tell::Progress { exchange, row, .. }) => {
                self.progress = (exchange, row);
                Ok(())
            }
            Ok(Tell::Ended { message, .. }) => {
                self.told = self.ended.is_none();
                Err(self.end(message))
            }
            Ok(Tell::Refused { message }) => Err(self.end(message)),
            Ok(Tell::Welcome { .. }) => Err(self.end("it greeted twice")),
            Err(error) => Err(self.end(format!("what it said cannot be read: {error}"))),
        }
    }

    fn unkept(&mut self, length: usize) -> LaneError {
        self.exchanges.unreadable();
        let largest = self.options.largest;
        if length > largest {
            LaneError::large_reply(length as u64, largest)
        } else {
            LaneError::no_memory(length as u64)
        }
    }

    /// Why a message was not sent. What the server has answered before can still be collected.
    fn unsent(&mut self) -> LaneError {
        match self.exchanges.in_flight() {
            0 => self.last_words(),
            _ => LaneError::Died(format!("{}{CLOSED}", self.from)),
        }
    }

    /// Whether the server has closed the connection, and nothing that it has sent is left.
    fn is_over(&self) -> bool {
        let stream = &self.outbox.stream;
        // What an idle lane is sent before is the reason.
        stream.is_closed()
            && (self.exchanges.in_flight() == 0 || self.unread.is_empty() && stream.is_at_end())
    }

    /// Reads what the server has said before it closed the connection.
    fn last_words(&mut self) -> LaneError {
        loop {
            match self.read() {
                Ok(Some(Came::Words)) => match self.hear() {
                    Ok(()) => {}
                    Err(error) => return error,
                },
                Ok(Some(Came::Reply | Came::Unkept(_))) => {}
                Ok(None) => return self.end(CLOSED),
                Err(error) => return error,
            }
        }
    }
}

/// What there is to read; `None` if there is nothing now.
fn receive(stream: &Stream, buffer: &mut [u8]) -> Result<Option<usize>, String> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, UnexpectedEof, WouldBlock};
    loop {
        match stream.receive(buffer) {
            Ok(0) => return Err(CLOSED.into()),
            Ok(length) => return Ok(Some(length)),
            Err(error) => match error.kind() {
                WouldBlock => return Ok(None),
                Interrupted => {}
                BrokenPipe | ConnectionReset | UnexpectedEof => return Err(CLOSED.into()),
                _ => return Err(error.to_string()),
            },
        }
    }
}

impl Lane for RemoteLane {
    fn id(&self) -> u64 {
        self.id
    }

    /// None of this machine.
    fn process(&self) -> i32 {
        0
    }

    fn most(&self) -> usize {
        SLICE
    }

    fn submit(
        &mut self,
        target: Target,
        rows: usize,
        arguments: &dyn Encode,
    ) -> Result<Option<u64>, LaneError> {
        if self.is_of_parent() {
            return Err(LaneError::System(FORK.into()));
        }
        // A server that has closed the connection reads nothing: what is not sent to it has not begun.
        if self.exchanges.in_flight() == 0 && !self.lives() {
            return Err(self.last_words());
        }
        let limit = match self.options.largest < self.takes {
            true => (self.options.largest, "the setting largest_batch"),
            false => (self.takes, "the server's option --largest-batch"),
        };
        let plan = &mut self.plan;
        let size = plan_batch(plan, arguments, rows, limit)?;
        let in_flight = self.exchanges.in_flight();
        // A message that is still being sent is enough.
        if in_flight >= MOST_IN_FLIGHT || in_flight > 0 && self.outbox.rest().has_sender {
            return Ok(None);
        }
        let Some(header) = self.exchanges.header(target, rows) else { return Ok(None) };
        let message = self.outgoing.resize(PREFIX + size).map_err(|_| {
            let what = format!("there is no memory for the {size} bytes of the arguments of {rows} row(s)");
            LaneError::TooLarge(what)
        })?;
        let (before, frame) = message.split_at_mut(PREFIX);
        before.copy_from_slice(&prefix(LANE, size));
        arguments.write(&mut plan.start(frame, header));
        match self.outbox.send(&mut self.outgoing) {
            Ok(true) => Ok(Some(self.exchanges.sent(target))),
            Ok(false) => Err(self.unsent()),
            Err(error) => Err(LaneError::System(error.to_string())),
        }
    }

    fn cancel(&mut self) -> Result<(), LaneError> {
        if self.is_of_parent() {
            return Err(LaneError::System(FORK.into()));
        }
        let exchange = self.exchanges.cancel();
        let header = Header { kind: CANCEL, flags: LAST, exchange, ..Header::default() };
        let header = bytemuck::bytes_of(&header);
        let message = self.outgoing.resize(PREFIX + header.len());
        let message = message.map_err(|error| LaneError::System(error.to_string()))?;
        let (before, frame) = message.split_at_mut(PREFIX);
        before.copy_from_slice(&prefix(LANE, header.len()));
        frame.copy_from_slice(header);
        let sent = self.outbox.send(&mut self.outgoing);
        sent.map(|_| ()).map_err(|error| LaneError::System(error.to_string()))
    }

    fn try_collect(&mut self) -> Result<Option<Header>, LaneError> {
        if self.ended.is_some() {
            return Err(self.end(CLOSED));
        }
        loop {
            match self.read()? {
                None => return Ok(None),
                Some(Came::Words) => self.hear()?,
                Some(Came::Unkept(length)) => return Err(self.unkept(length)),
                Some(Came::Reply) => {
                    let header = batch::header(self.reply.bytes());
                    let header = header.map_err(|error| self.end(error.to_string()))?;
                    return Ok(self.exchanges.received(&header)?.then_some(header));
                }
            }
        }
    }

    fn frame(&self) -> &[u8] {
        self.reply.bytes()
    }

    fn in_flight(&self) -> usize {
        self.exchanges.in_flight()
    }

    fn is_cancelled(&self) -> bool {
        self.exchanges.is_cancelled()
    }

    fn progress(&self) -> (u32, u32) {
        self.progress
    }

    fn may_have_begun(&self, exchange: u64) -> bool {
        !self.told || self.says_begun(exchange)
    }

    fn halt(&mut self) -> bool {
        // The server ends its worker when it sees that the lane is gone.
        false
    }

    fn check(&mut self) -> Result<(), LaneError> {
        if self.lives() { Ok(()) } else { Err(self.last_words()) }
    }

    fn stuck(&self) -> Stuck {
        self.options.stuck
    }

    fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    fn lives(&self) -> bool {
        self.ended.is_none() && !self.is_over()
    }

    fn has_news(&self) -> bool {
        // Behind a reply that was collected there may be another. Less than a prefix is nothing yet.
        self.unread.len() >= PREFIX || self.ended.is_some() || self.outbox.stream.has_news()
    }

    fn waiter(&self) -> Waiter<'_> {
        Waiter::Descriptor(self.outbox.stream.as_fd())
    }

    fn round_trip(&self) -> Duration {
        ROUND_TRIP
    }
}

impl Drop for RemoteLane {
    fn drop(&mut self) {
        if !self.is_of_parent() {
            self.outbox.stream.shut_down();
        }
    }
}

#[cfg(test)]
mod tests;
