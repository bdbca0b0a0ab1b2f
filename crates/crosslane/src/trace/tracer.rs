//! What a pool has of its engine's trace.

use super::event::{Event, EventKind};
use super::recording::{Named, Trace};
use crate::stats::{LaneStats, now};
use std::sync::Arc;

/// The trace of an engine instance, with the name of one library.
#[derive(Debug, Clone)]
pub struct Tracer {
    trace: Arc<Trace>,
    library: Arc<str>,
}

impl Default for Tracer {
    /// A tracer of a trace that is never started.
    fn default() -> Self {
        Self::new(&Arc::default(), "")
    }
}

/// The number that the system has given to this thread.
fn thread() -> i32 {
    thread_local!(static ID: i32 = rustix::thread::gettid().as_raw_nonzero().get());
    // A thread that is ending may have lost it.
    ID.try_with(|id| *id).unwrap_or_default()
}

/// An event of this thread.
pub(super) fn event(
    kind: EventKind,
    lane: Option<&LaneStats>,
    (start, end): (u64, u64),
    rows: usize,
) -> Event<()> {
    let (lane, process) = lane.map_or((0, 0), |lane| (lane.id, lane.process));
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    Event { kind, subject: (), lane, process, thread: thread(), start, end, rows, detail: None }
}

impl Tracer {
    /// The trace, for the library of this name.
    pub fn new(trace: &Arc<Trace>, library: &str) -> Self {
        Self { trace: Arc::clone(trace), library: library.into() }
    }

    /// Whether events are recorded now.
    pub(crate) fn is_on(&self) -> bool {
        self.trace.is_on()
    }

    /// Whether a call of this duration is among the slowest so far.
    pub(super) fn is_slow(&self, duration: u64) -> bool {
        self.trace.slowest.admits(duration)
    }

    /// Records something that began at a moment and ends now, and that concerns the whole library.
    pub(crate) fn ended(&self, kind: EventKind, start: u64, lane: Option<&LaneStats>) {
        if self.is_on() {
            self.add(None, [event(kind, lane, (start, now()), 0)]);
        }
    }

    pub(super) fn add(&self, function: Option<Named<'_>>, events: impl IntoIterator<Item = Event<()>>) {
        self.trace.add(&self.library, function, events);
    }
}
