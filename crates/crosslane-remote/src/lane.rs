//! A lane over a connection to a server.
//!
//! The engine's thread writes its batches to the socket itself. It waits for the socket as it would
//! wait for a ring. It reads replies when it collects them. There is no other thread between the
//! engine and the server, with one exception. If the socket has no room, a thread sends the rest
//! and then ends. So the engine does not wait. Replies that the engine does not collect stay in the
//! socket, and the server waits. The engine does not spin while it waits. A reply takes long, and
//! the server may need the core.
//!
//! # What has begun
//! If the lane is lost, calls that have not begun are sent again. A call has begun when the
//! function was called for it. If the server loses its worker, it sends the worker's progress and
//! then the end of the lane. Calls after that progress have not begun. If the connection is lost,
//! or the server ends it, every call that was sent and not answered may have begun. A message
//! counts as sent only if all of it was sent.
//!
//! The engine does not trust the server. It limits the length of the server's messages and replies.
//! [`Exchanges`] checks the order of the replies. The engine reads batches with the same checks as
//! those of a ring.

use crate::context::{self, TraceContext};
use crate::stream::Stream;
use crate::wire::{self, Ask, CONTROL, PREFIX, Tell, prefix, read_prefix};
use crosslane::batch::{self, CANCEL, Encode, Header, LAST, Plan};
use crosslane::lane::{Lane, LaneError, Stuck, Waiter, plan_batch};
use crosslane::stats::now;
use crosslane::{Address as Target, Exchanges, Part};
use crosslane_process::Aligned;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Ends of a pause that differ by no more nanoseconds are the same.
const SAME_REST: u64 = 100_000_000;

/// The number of the only lane of a connection.
const LANE: u32 = 0;
/// The most bytes that one read into the inbox takes.
const PIECE: usize = 64 << 10;
/// The most bytes of a message in which the server tells about the lane.
const LONGEST_WORDS: usize = 1 << 20;
/// The most bytes of a batch of several rows. Larger batches are cut, so that arguments and results
/// travel at the same time.
const SLICE: usize = 256 << 10;
/// The time of a round trip to a server on the same machine. To other machines it takes longer.
const ROUND_TRIP: Duration = Duration::from_micros(150);
/// The most exchanges in flight.
const MOST_IN_FLIGHT: usize = 64;
/// Why a lane ends, if the server does not give a reason.
const CLOSED: &str = "it closed the connection";
/// Why a fork of the engine cannot use its parent's lanes.
const FORK: &str = "it is the lane of the process that this is a fork of";

/// How an engine uses lanes to a server.
#[derive(Debug, Clone, Copy)]
pub struct LaneOptions {
    /// The most bytes of a batch, in either direction.
    pub largest: usize,
    /// The reaction to calls that make no progress.
    pub stuck: Stuck,
}

/// Messages that the socket had no room for.
#[derive(Debug, Default)]
struct Rest {
    /// Each message has the offset of its first byte that was not sent.
    messages: VecDeque<(Aligned, usize)>,
    /// Whether a thread is sending them.
    has_sender: bool,
}

/// The sending side of a connection.
#[derive(Debug)]
struct Outbox {
    stream: Stream,
    rest: Mutex<Rest>,
}

impl Outbox {
    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, or gives it to a thread that sends it. Returns false if the connection is
    /// lost and the message was not sent as a whole. If the connection is lost later, the next read
    /// reports it.
    ///
    /// # Errors
    /// If the system starts no thread.
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

    /// Sends the remaining messages. Runs in the thread that [`Outbox::send`] starts.
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

/// The part of the stream that is received now.
#[derive(Debug, Clone, Copy)]
enum Incoming {
    /// The prefix of a message.
    Prefix,
    /// A message of `length` bytes, of which `read` were read. Only the first `kept` bytes are
    /// kept.
    Message { lane: u32, length: usize, kept: usize, read: usize },
}

/// A complete message from the server.
#[derive(Debug)]
enum Came {
    /// A reply, or only the header of a reply to a cancelled exchange.
    Reply,
    /// A reply of this many bytes, which were discarded.
    Unkept(usize),
    /// A message in which the server tells about the lane.
    Words,
}

/// A lane to a server. Dropping it ends its connection.
#[derive(Debug)]
pub struct RemoteLane {
    id: u64,
    /// The beginning of error messages, which names the server.
    from: String,
    outbox: Arc<Outbox>,
    options: LaneOptions,
    /// The most bytes of a message that the server takes.
    takes: usize,
    exchanges: Exchanges,
    /// The plan of the last batch. Its memory is used again.
    plan: Plan,
    outgoing: Aligned,
    inbox: Box<[u8]>,
    /// The part of the inbox that was not yet parsed.
    unread: Range<usize>,
    incoming: Incoming,
    message: Aligned,
    reply: Aligned,
    progress: (u32, u32),
    /// The time until which the guest pauses, by the server's report.
    rests_until: u64,
    /// The low half of the number of the exchange that waits in the server, by the server's report.
    held: Option<u32>,
    /// Whether the server has reported the loss of the lane's worker. It sends the worker's
    /// progress before that.
    told: bool,
    /// Why the connection has ended.
    ended: Option<String>,
    engine: u32,
    /// Whether the server takes trace contexts.
    takes_contexts: bool,
    /// The context that the server knows.
    context: Option<Arc<TraceContext>>,
}

impl RemoteLane {
    /// Makes the lane of a connection on which the server has answered the greeting. The server
    /// takes messages of at most `takes` bytes.
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
            rests_until: 0,
            held: None,
            told: false,
            ended: None,
            engine: std::process::id(),
            takes_contexts: false,
            context: None,
        }
    }

    /// Sends trace contexts from now on: the server takes them.
    pub(crate) fn send_contexts(&mut self) {
        self.takes_contexts = true;
    }

    /// Tells the server the context of this thread's calls, if it knows another one. Returns false if
    /// the connection is lost.
    fn tell_context(&mut self) -> io::Result<bool> {
        let context = context::current();
        if context == self.context {
            return Ok(true);
        }
        let text = |part: fn(&TraceContext) -> &str| context.as_deref().map(part).unwrap_or_default().into();
        let (traceparent, tracestate) = (text(TraceContext::parent), text(TraceContext::state));
        let told = wire::control(&Ask::Context { lane: LANE, traceparent, tracestate })?;
        let message = self.outgoing.resize(told.len());
        message.map_err(|error| io::Error::other(error.to_string()))?.copy_from_slice(&told);
        self.context = context;
        self.outbox.send(&mut self.outgoing)
    }

    /// Ends the connection, and returns the error. The first reason is kept.
    fn end(&mut self, why: impl Into<String>) -> LaneError {
        let why = self.ended.get_or_insert_with(|| why.into());
        LaneError::Died(format!("{}{why}", self.from))
    }

    /// Whether this process is a fork of the engine. The engine uses the connection, so the fork
    /// must not.
    fn is_of_parent(&self) -> bool {
        self.engine != std::process::id()
    }

    /// Reads more into the inbox. Returns false if the socket has nothing now.
    fn fill(&mut self) -> Result<bool, LaneError> {
        let there = self.unread.len();
        self.inbox.copy_within(self.unread.clone(), 0);
        self.unread = 0..there;
        let received = receive(&self.outbox.stream, &mut self.inbox[there..]);
        let received = received.map_err(|why| self.end(why))?;
        self.unread.end += received.unwrap_or(0);
        Ok(received.is_some())
    }

    /// Reads until a message is complete. Returns `None` if the socket has nothing more now.
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
                        // A large rest is read directly into the message, without a copy.
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

    /// Begins to receive a message, and decides how many of its bytes are kept.
    fn begin(&mut self, length: usize, lane: u32) -> Result<(), LaneError> {
        let kept = match lane {
            CONTROL if length <= LONGEST_WORDS => length,
            LANE if length < size_of::<Header>() => return Err(self.end("it sent half a header")),
            // A reply to a cancelled exchange is discarded. Only its header is needed.
            LANE if self.exchanges.is_cancelled() => size_of::<Header>(),
            LANE if length > self.options.largest => 0,
            LANE => length,
            _ => return Err(self.end("it sent what is no message of a lane")),
        };
        // Without memory for the message, all of it is discarded.
        let kept = self.message.resize(kept).map_or(0, |bytes| bytes.len());
        self.incoming = Incoming::Message { lane, length, kept, read: 0 };
        Ok(())
    }

    /// Reads a message in which the server tells about the lane.
    fn hear(&mut self) -> Result<(), LaneError> {
        match serde_json::from_slice(self.message.bytes()) {
            Ok(Tell::Progress { exchange, row, rest, held, .. }) => {
                self.progress = (exchange, row);
                self.held = held;
                let until = now().saturating_add(rest.saturating_mul(1_000_000));
                // The same pause may be told again.
                if until.abs_diff(self.rests_until) > SAME_REST {
                    self.rests_until = until;
                }
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

    /// Returns the reason why a message was not sent. Replies that the server sent before can still
    /// be collected.
    fn unsent(&mut self) -> LaneError {
        match self.exchanges.in_flight() {
            0 => self.last_words(),
            _ => LaneError::Died(format!("{}{CLOSED}", self.from)),
        }
    }

    /// Whether the server has closed the connection and no reply is left to read.
    fn is_over(&self) -> bool {
        let stream = &self.outbox.stream;
        // If no exchange is in flight, unread bytes can only give the reason.
        stream.is_closed()
            && (self.exchanges.in_flight() == 0 || self.unread.is_empty() && stream.is_at_end())
    }

    /// Reads the last messages that the server sent before it closed the connection.
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

/// Reads the bytes that the socket has now. Returns `None` if it has none.
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

    /// Returns 0, because the worker is not a process of this machine.
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
        // A server that has closed the connection reads nothing. So a call that is not sent has not
        // begun.
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
        // If a message is still being sent, no other one is needed.
        if in_flight >= MOST_IN_FLIGHT || in_flight > 0 && self.outbox.rest().has_sender {
            return Ok(None);
        }
        let Some(header) = self.exchanges.header(target, rows) else { return Ok(None) };
        if self.takes_contexts && matches!(target.part, Part::Whole | Part::First) {
            match self.tell_context() {
                Ok(true) => {}
                Ok(false) => return Err(self.unsent()),
                Err(error) => return Err(LaneError::System(error.to_string())),
            }
        }
        let plan = &mut self.plan;
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

    fn rests_until(&self) -> u64 {
        self.rests_until
    }

    fn is_held(&self, exchange: u64) -> bool {
        self.held == Some(exchange as u32)
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
        // The inbox may have another message after a collected reply. Fewer bytes than a prefix are
        // no message.
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
