//! A trace: its switch, and the buffers of its events.

use super::event::{Event, Subject};
use super::slowest::Slowest;
use crate::lock;
use crate::pool::per_thread::PerThread;
use crate::stats::{FunctionStats, now};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The most events of a trace. They take 16 MiB.
pub const MOST_EVENTS: usize = 1 << 18;
/// The most events of a trace that keep their texts: each has up to 300 bytes.
pub(super) const MOST_TEXTS: usize = 10_000;
/// For how many events a thread reserves room at once.
pub(super) const PORTION: usize = 256;

/// The events of one engine instance.
#[derive(Debug)]
pub struct Trace {
    on: AtomicBool,
    /// Held while the trace starts.
    starting: Mutex<()>,
    /// When it started.
    started: AtomicU64,
    most: usize,
    /// For how many events there is room that no thread has reserved.
    room: AtomicUsize,
    /// How many more events may keep their texts.
    texts: AtomicUsize,
    buffers: PerThread<Mutex<Buffer>>,
    pub(super) slowest: Slowest,
}

/// The state of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Whether it records events now.
    pub on: bool,
    /// The events that it has.
    pub events: usize,
    /// The events for which it had no room.
    pub dropped: u64,
}

/// The events that the threads of one part have recorded.
#[derive(Debug, Default)]
struct Buffer {
    /// The events, in pieces of a fixed size, so that no thread has to copy them while it records.
    pieces: Vec<Vec<Event<u32>>>,
    /// For how many more events this buffer has reserved room.
    reserved: usize,
    /// The events that found no room.
    dropped: u64,
    subjects: Vec<Known>,
    /// The numbers of the subjects, by the address of what each keeps alive.
    numbers: HashMap<usize, u32>,
}

/// A function's name and its statistics, which no other function shares.
pub(super) type Named<'a> = (&'a str, &'a Arc<FunctionStats>);

/// A subject, with what keeps its address from being used again.
#[derive(Debug)]
struct Known {
    subject: Subject,
    _stats: Option<Arc<FunctionStats>>,
}

impl Default for Trace {
    fn default() -> Self {
        Self::with_room(MOST_EVENTS)
    }
}

impl Trace {
    /// A trace that is off, for at most `most` events.
    pub(super) fn with_room(most: usize) -> Self {
        Self {
            on: AtomicBool::new(false),
            starting: Mutex::default(),
            started: AtomicU64::new(0),
            most,
            room: AtomicUsize::new(0),
            texts: AtomicUsize::new(0),
            buffers: PerThread::default(),
            slowest: Slowest::default(),
        }
    }

    /// Whether events are recorded now.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Forgets all events and records new ones. False, and nothing happens, if it records already.
    pub fn start(&self) -> bool {
        let _one_at_a_time = lock(&self.starting);
        if self.is_on() {
            return false;
        }
        self.empty(self.most);
        self.on.store(true, Relaxed);
        true
    }

    /// Frees all events, if the trace is off.
    pub fn forget(&self) {
        let _one_at_a_time = lock(&self.starting);
        if !self.is_on() {
            self.empty(0);
        }
    }

    /// Drops all events. From now on there is room for `room` events that begin later.
    fn empty(&self, room: usize) {
        self.started.store(now(), Relaxed);
        self.room.store(room, Relaxed);
        self.texts.store(MOST_TEXTS, Relaxed);
        self.buffers.all().for_each(|buffer| *lock(buffer) = Buffer::default());
        self.slowest.clear();
    }

    /// Records no more events, and keeps those that it has.
    pub fn stop(&self) {
        self.on.store(false, Relaxed);
    }

    /// When it started, in nanoseconds of [`now`].
    pub fn started(&self) -> u64 {
        self.started.load(Relaxed)
    }

    /// The state now.
    pub fn status(&self) -> Status {
        let (mut events, mut dropped) = (0, 0);
        for buffer in self.buffers.all() {
            let buffer = lock(buffer);
            events += buffer.pieces.iter().map(Vec::len).sum::<usize>();
            dropped += buffer.dropped;
        }
        Status { on: self.is_on(), events, dropped }
    }

    /// The events so far, in the order in which they began.
    pub fn events(&self) -> Vec<Event<Subject>> {
        let mut events = Vec::new();
        for buffer in self.buffers.all() {
            let buffer = lock(buffer);
            events.extend(buffer.pieces.iter().flatten().map(|event| Event {
                subject: buffer.subjects[event.subject as usize].subject.clone(),
                kind: event.kind,
                lane: event.lane,
                process: event.process,
                thread: event.thread,
                start: event.start,
                end: event.end,
                rows: event.rows,
                detail: event.detail.clone(),
            }));
        }
        events.sort_by_key(|event| event.start);
        events
    }

    /// Adds events of this thread.
    pub(super) fn add(
        &self,
        library: &Arc<str>,
        function: Option<Named<'_>>,
        events: impl IntoIterator<Item = Event<()>>,
    ) {
        let mut buffer = lock(self.buffers.here());
        let buffer = &mut *buffer;
        let started = self.started();
        let subject = buffer.number(library, function);
        for event in events.into_iter().filter(|event| event.start >= started) {
            if buffer.reserved == 0 {
                buffer.reserved = self.reserve();
                if buffer.reserved > 0 {
                    let piece = Vec::with_capacity(buffer.reserved);
                    buffer.pieces.push(piece);
                }
            }
            let Some(piece) = buffer.pieces.last_mut().filter(|_| buffer.reserved > 0) else {
                buffer.dropped += 1;
                continue;
            };
            let Event { kind, lane, process, thread, start, end, rows, detail, .. } = event;
            let detail = detail.filter(|_| self.keeps_another_text());
            piece.push(Event { kind, subject, lane, process, thread, start, end, rows, detail });
            buffer.reserved -= 1;
        }
    }

    /// Whether there is room for the text of one more event.
    fn keeps_another_text(&self) -> bool {
        self.texts.fetch_update(Relaxed, Relaxed, |texts| texts.checked_sub(1)).is_ok()
    }

    /// Reserves room for a portion of events, or for what is left.
    fn reserve(&self) -> usize {
        // If there is no room, threads only read the counter.
        if self.room.load(Relaxed) == 0 {
            return 0;
        }
        let taken = self.room.fetch_update(Relaxed, Relaxed, |room| Some(room - room.min(PORTION)));
        taken.map_or(0, |room| room.min(PORTION))
    }
}

impl Buffer {
    /// The number of a subject in this buffer.
    fn number(&mut self, library: &Arc<str>, function: Option<Named<'_>>) -> u32 {
        let address = match function {
            Some((_, stats)) => Arc::as_ptr(stats).addr(),
            None => library.as_ptr().addr(),
        };
        let Self { numbers, subjects, .. } = self;
        *numbers.entry(address).or_insert_with(|| {
            let (library, name) = (Arc::clone(library), function.map(|(name, _)| name.into()));
            let stats = function.map(|(_, stats)| Arc::clone(stats));
            subjects.push(Known { subject: Subject { library, function: name }, _stats: stats });
            subjects.len() as u32 - 1
        })
    }
}
