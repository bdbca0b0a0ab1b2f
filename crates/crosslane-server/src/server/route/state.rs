//! What a route knows of its lane: the messages that wait, the exchanges in flight, and the worker.

use super::partly::Partly;
use crate::server::budget::Held;
use crate::server::served::States;
use crate::server::spans::Record;
use crate::server::workers::Slot;
use crosslane::batch::Frame;
use crosslane::lane::rest_until;
use crosslane::{Entry, Failure, Part};
use crosslane_remote::context::TraceContext;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// How much of a lane may wait in the server, in messages and bytes. While more waits, the
/// connection is not read.
const MOST_QUEUED: (usize, usize) = (64, 1 << 20);

/// An entry of a route's queue. Entries are handled in order.
pub(super) enum Item {
    Batch {
        message: Arc<Frame>,
        exchange: u64,
        served: usize,
        entry: Entry,
        part: Part,
        came: Instant,
        /// The calls that its function's `rate` has not counted yet.
        calls: usize,
        context: Option<Arc<TraceContext>>,
        looked: Looked,
        _room: Held,
    },
    /// Answers an exchange with a failure, or with nothing if the client has cancelled it.
    Answer { exchange: u64, served: usize, entry: Entry, failure: Option<Failure> },
}

/// Whether the server has looked for the results of a batch that it keeps.
pub(super) enum Looked {
    /// It looks when the batch is the oldest one.
    Due,
    /// A blocking thread looks.
    Running,
    /// It has looked, or does not need to. `None` if the worker gets what the client has sent, and
    /// nothing is kept.
    Done(Option<Arc<Partly>>),
}

impl Item {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Item::Batch { message, .. } => message.bytes().len(),
            Item::Answer { .. } => 0,
        }
    }
}

/// An exchange that a worker has.
pub(super) struct Flying {
    pub(super) exchange: u64,
    /// Its number in the worker's lane.
    pub(super) local: u64,
    pub(super) served: usize,
    pub(super) entry: Entry,
    /// The rows of its first batch.
    pub(super) rows: usize,
    /// If its function keeps results: which rows the worker has, and the results of the others.
    pub(super) partly: Option<Arc<Partly>>,
    /// When its first batch came.
    pub(super) came: Instant,
    /// When the worker got it.
    pub(super) since: Instant,
    /// The first arguments, if a trace is on.
    pub(super) arguments: Option<Box<str>>,
    /// What its span says, if anyone makes spans.
    pub(super) record: Option<Box<Record>>,
}

/// A worker's progress at the last look.
pub(super) struct Seen {
    pub(super) progress: (u32, u32),
    /// The time until which the lane pauses, as [`crosslane::lane::Lane::rests_until`] says.
    pub(super) rests_until: u64,
    /// Whether the client knows.
    pub(super) told: bool,
    /// Since when it makes no progress and does not pause.
    pub(super) since: Instant,
}

impl Seen {
    /// A progress that is new.
    pub(super) fn now(progress: (u32, u32), rests_until: u64) -> Self {
        Self { progress, rests_until, told: false, since: Instant::now() + rest_until(rests_until) }
    }
}

pub(super) struct State {
    pub(super) queue: VecDeque<Item>,
    pub(super) bytes: usize,
    pub(super) slot: Option<Arc<Slot>>,
    /// The library, while the route waits for one of its workers.
    pub(super) waiting: Option<usize>,
    pub(super) flying: VecDeque<Flying>,
    /// The last exchange that the client has opened, its function and its entry.
    pub(super) opened: (u64, usize, Entry),
    /// Whether the client still has to send the last batch of that exchange.
    pub(super) sending: bool,
    /// The last exchange that has ended.
    pub(super) ended: u64,
    pub(super) seen: Seen,
    /// Why the server killed the worker, until a look finds its end.
    pub(super) late: Option<String>,
    /// The exchange at the front of the queue, while it waits for the `rate` of its function.
    pub(super) held: Option<u64>,
    /// Whether the next tick of the watcher tries it again.
    pub(super) is_retried: bool,
    /// Whether the results of the oldest exchange are being kept. It is answered then.
    pub(super) is_keeping: bool,
    /// Whether the oldest batch is answered when the client has read more.
    pub(super) waits_for_room: bool,
    /// The states that the worker keeps for the client beyond an exchange.
    pub(super) states: States,
    pub(super) closed: bool,
    /// The context of the exchanges that the client opens now.
    pub(super) context: Option<Arc<TraceContext>>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
            slot: None,
            waiting: None,
            flying: VecDeque::new(),
            opened: (0, 0, Entry::Call),
            sending: false,
            ended: 0,
            seen: Seen { progress: (0, 0), rests_until: 0, told: true, since: Instant::now() },
            late: None,
            held: None,
            is_retried: false,
            is_keeping: false,
            waits_for_room: false,
            states: States::default(),
            closed: false,
            context: None,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        let (messages, bytes) = MOST_QUEUED;
        self.closed || self.queue.len() < messages && self.bytes < bytes
    }

    pub(super) fn forget_front(&mut self) {
        let bytes = self.queue.pop_front().map_or(0, |item| item.bytes());
        self.bytes -= bytes;
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.queue.clear();
        self.bytes = 0;
        self.flying.clear();
    }
}
