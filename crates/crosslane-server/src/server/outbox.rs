//! The server's messages to a client: they wait here until the client's socket has room for them.
//!
//! A thread that has a message writes as much of it as the socket takes. The rest waits here, and
//! the connection's writer sends it. A thread that handles several replies gathers short messages
//! ([`gathered`]). It sends those of one connection together.

use super::budget::Account;
use super::connections::Connections;
use super::served::Violation;
use crosslane::lock;
use crosslane_remote::stream::Stream;
use crosslane_remote::wire::{self, Tell, prefix};
use crosslane_sched::Io;
use event_listener::Event;
use std::cell::RefCell;
use std::fmt::Display;
use std::io::{self, IoSlice};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// How many bytes may wait for a client that does not read, beside those that are being sent.
const MOST_WAITING: usize = 1 << 20;
/// The most bytes that are read at once, and that are gathered.
pub(crate) const PIECE: usize = 64 << 10;
/// The longest message that is gathered. A longer one is not worth a copy: it is sent at once,
/// unless gathered messages wait before it.
const SHORT: usize = 4 << 10;

thread_local! {
    /// The outboxes whose messages this thread sends soon; `None` if it does not gather messages.
    static GATHERED: RefCell<Option<Vec<Arc<Outbox>>>> = const { RefCell::new(None) };
}

/// Runs `body`, and then sends the short messages that `body` wrote for lanes. Messages of one
/// connection are sent together. A send takes longer than many calls, so workers get their next
/// calls before the send.
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

/// Sends the messages that this thread has gathered until now.
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

/// The messages of the server to one client.
pub(crate) struct Outbox {
    pub(super) stream: Arc<Io<Stream>>,
    connections: Arc<Connections>,
    pub(crate) account: Arc<Account>,
    /// The connection's number.
    pub(crate) number: u64,
    /// How the client is connected.
    pub(crate) client: &'static str,
    waiting: Mutex<Waiting>,
    /// Notified when there is something to write, and at the end.
    pub(super) work: Event,
    /// Notified when the client may send more, and at the end.
    pub(crate) room: Event,
    /// Whether the connection ends when all is written.
    pub(super) refused: AtomicBool,
    /// Why the connection was ended, if another thread than its reader found the reason.
    pub(super) broken: OnceLock<Violation>,
}

/// What the writer of an outbox has to do.
pub(super) enum Task {
    Wait,
    Write,
    Close,
    End,
}

impl Outbox {
    pub(super) fn new(
        stream: Arc<Io<Stream>>,
        number: u64,
        client: &'static str,
        connections: &Arc<Connections>,
    ) -> Arc<Self> {
        Arc::new(Self {
            stream,
            connections: Arc::clone(connections),
            account: Account::new(&connections.budget),
            number,
            client,
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

    /// Sends a message of a lane, in parts. What cannot be written at once is written later.
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

    /// If this thread gathers messages, it sends the messages that are written from now on. This
    /// does not hold if the connection's writer still has bytes to send.
    fn gather(self: &Arc<Self>) {
        GATHERED.with_borrow_mut(|gathered| {
            let Some(gathered) = gathered else { return };
            let mut waiting = lock(&self.waiting);
            waiting.is_gathered |= waiting.bytes.is_empty() && !waiting.closed;
            // Each thread that adds messages also sends them, because another thread may be
            // delayed.
            if waiting.is_gathered && !gathered.iter().any(|outbox| Arc::ptr_eq(outbox, self)) {
                gathered.push(Arc::clone(self));
            }
        });
    }

    /// Sends what was gathered. The writer sends the rest.
    fn send_gathered(&self) {
        let mut waiting = lock(&self.waiting);
        if waiting.is_gathered {
            self.flush_gathered(&mut waiting);
            self.settle(waiting);
        }
    }

    /// Sends as much as the socket takes. If the outbox is full, lanes may be stalled. Then the
    /// writer sends instead, because it resumes stalled lanes.
    fn flush_gathered(&self, waiting: &mut Waiting) {
        waiting.is_gathered = false;
        if waiting.has_room() {
            // The next write finds an error again.
            let _ = self.flush_some(waiting, self.stream.get_ref());
        }
    }

    pub(super) fn write(&self, parts: &[&[u8]]) {
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            return;
        }
        let mut sent = 0;
        if waiting.bytes.is_empty() && !waiting.is_gathered {
            let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            // The next write finds an error again.
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

    /// Wakes the writer if something is left to send. If the budget has no room for that, a
    /// connection is ended to make room.
    fn settle(&self, waiting: MutexGuard<'_, Waiting>) {
        let is_left = !waiting.bytes.is_empty();
        drop(waiting);
        if is_left || self.stream.get_ref().is_pending() {
            self.work.notify(1);
        }
        if is_left && !self.account.fits() {
            self.connections.make_room(true);
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

    /// `rest` is how much longer the worker pauses, and `held` is the exchange that waits for the
    /// `rate` of its function.
    pub(crate) fn tell_progress(
        &self,
        lane: u32,
        (exchange, row): (u64, u32),
        rest: Duration,
        held: Option<u64>,
    ) {
        let (exchange, held) = (exchange as u32, held.map(|held| held as u32));
        self.tell(&Tell::Progress { lane, exchange, row, rest: rest.as_millis() as u64, held });
    }

    /// Ends the connection, and tells the client why.
    pub(crate) fn refuse(&self, why: &impl Display) {
        if self.refused.load(Relaxed) {
            return;
        }
        // The message is written before `refused` is set. The writer ends the connection as soon as
        // `refused` is set and nothing is left to write.
        self.tell(&Tell::Refused { message: why.to_string() });
        self.refused.store(true, Release);
        self.work.notify(1);
        self.room.notify(usize::MAX);
    }

    /// Ends the connection for a violation that its reader has not found.
    pub(crate) fn break_off(&self, violation: Violation) {
        let _ = self.broken.set(violation.clone());
        self.refuse(&violation);
    }

    /// Ends the connection to make room. The client is told why, unless the message had to wait
    /// behind unread bytes.
    pub(crate) fn give_up(&self) {
        let most = self.account.budget().most();
        let why = format!(
            "more than {most} bytes wait in the server, and most of those that wait for their client are this one's: it \
             reads or sends too slowly; the server's --waiting-bytes says how many there may be"
        );
        let _ = self.broken.set(Violation(why.clone()));
        if lock(&self.waiting).bytes.is_empty() { self.refuse(&why) } else { self.close() }
    }

    /// Whether the server takes nothing more from the client.
    pub(super) fn is_over(&self) -> bool {
        self.refused.load(Acquire) || lock(&self.waiting).closed
    }

    /// Shuts the socket down, and discards what waits. Tasks that wait for the client find the end.
    pub(super) fn close(&self) {
        let mut waiting = lock(&self.waiting);
        let left = std::mem::replace(&mut *waiting, Waiting { closed: true, ..Waiting::default() });
        drop(waiting);
        self.account.give_back(left.bytes.len());
        self.stream.get_ref().shut_down();
        self.work.notify(usize::MAX);
        self.room.notify(usize::MAX);
    }

    /// What the writer has to do now.
    pub(super) fn task(&self) -> Task {
        let waiting = lock(&self.waiting);
        match waiting.bytes.is_empty() && !self.stream.get_ref().is_pending() {
            _ if waiting.closed => Task::End,
            false => Task::Write,
            true if self.refused.load(Acquire) => Task::Close,
            true => Task::Wait,
        }
    }

    /// Writes as much as it can of all that waits. It is an error if nothing can be written now.
    pub(super) fn flush(&self, stream: &Stream) -> io::Result<()> {
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
        // Few bytes do not keep much memory.
        waiting.bytes.shrink_to(PIECE);
        Ok(())
    }
}
