//! Counts what happens to the calls of a function, and records it if a trace is on.

use super::event::{Event, EventKind};
use super::tracer::{Tracer, event};
use crate::batch::Header;
use crate::error::{Failure, beginning};
use crate::function::{Function, Library};
use crate::pool::Zygote;
use crate::stats::{Counters, LaneStats, Times, now};

/// The shortest wait for a lane that is recorded, in nanoseconds. A thread takes an idle lane in less.
const SHORTEST_WAIT: u64 = 10_000;
/// The most bytes of the text of an event.
const LONGEST_DETAIL: usize = 300;

/// Where a call reports what happens to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log<'a> {
    function: &'a Function,
    tracer: &'a Tracer,
    /// What events name as their thread, if it is not this one.
    thread: Option<i32>,
}

impl<Z: Zygote> Library<Z> {
    /// Where calls of this function report what happens to them.
    pub(crate) fn log<'a>(&'a self, function: &'a Function) -> Log<'a> {
        Log { function, tracer: self.pool.tracer(), thread: None }
    }
}

/// The beginning of a text.
pub(super) fn shortened(text: String) -> Box<str> {
    beginning(text, LONGEST_DETAIL).into()
}

impl<'a> Log<'a> {
    /// The same, for events that name another thread.
    pub(super) fn of_thread(self, thread: i32) -> Self {
        Self { thread: Some(thread), ..self }
    }

    /// The counters of this thread.
    pub(crate) fn counters(&self) -> &Counters {
        self.function.stats.here()
    }

    /// Whether events are recorded now.
    pub(crate) fn is_on(self) -> bool {
        self.tracer.is_on()
    }

    pub(super) fn add(self, events: impl IntoIterator<Item = Event<()>>) {
        let named = |event: Event<()>| Event { thread: self.thread.unwrap_or(event.thread), ..event };
        let function = Some((self.function.name(), &self.function.stats));
        self.tracer.add(function, events.into_iter().map(named));
    }

    /// Whether a call of this duration is among the slowest so far.
    pub(super) fn is_slow(self, duration: u64) -> bool {
        self.tracer.is_slow(duration)
    }

    pub(super) fn now(self, kind: EventKind, lane: Option<&LaneStats>, count: usize) {
        if self.is_on() {
            let now = now();
            self.add([event(kind, lane, (now, now), count)]);
        }
    }

    /// Records that this thread waited for a lane, unless the lane was there at once.
    pub(crate) fn waited(self, start: u64, lane: &LaneStats) {
        self.waited_until(now(), start, lane);
    }

    pub(super) fn waited_until(self, end: u64, start: u64, lane: &LaneStats) {
        if end.saturating_sub(start) >= SHORTEST_WAIT {
            self.add([event(EventKind::Wait, Some(lane), (start, end), 0)]);
        }
    }

    /// Counts a slice for a borrowed lane.
    pub(crate) fn fanned_out(self, lane: &LaneStats, rows: usize) {
        self.counters().fanned_out.add(1);
        self.now(EventKind::FanOut, Some(lane), rows);
    }

    /// Counts another try of a batch.
    pub(crate) fn retried(self) {
        self.counters().retries.add(1);
        self.now(EventKind::Retry, None, 1);
    }

    /// Counts a lane that ended during a call.
    pub(crate) fn lost(self, lane: Option<&LaneStats>) {
        self.counters().deaths.add(1);
        self.now(EventKind::LaneLost, lane, 0);
    }

    /// Counts the reply to a slice of `rows` rows. `arguments` shows the first arguments.
    pub(crate) fn replied(
        self,
        lane: &LaneStats,
        header: &Header,
        rows: usize,
        times: Times,
        arguments: impl FnOnce() -> String,
    ) {
        self.counters().record(header, rows, times);
        lane.record(header, rows);
        if self.is_on() {
            let copy_in = (times.submitting, times.submitted);
            let copy_out = (times.collected, times.delivered);
            let mut function = event(EventKind::Function, Some(lane), times.guest(header.worked), rows);
            if self.is_slow(header.worked) {
                function.detail = Some(shortened(arguments()));
            }
            self.add([
                event(EventKind::CopyIn, Some(lane), copy_in, rows),
                function,
                event(EventKind::CopyOut, Some(lane), copy_out, rows),
            ]);
            self.troubles(lane, header);
        }
    }

    /// Records the failure of a slice.
    pub(crate) fn failed(self, lane: &LaneStats, header: &Header, failure: &Failure) {
        if self.is_on() {
            let end = now();
            let start = end.saturating_sub(header.worked);
            let mut exception = event(EventKind::Exception, Some(lane), (end, end), 1);
            exception.detail = Some(shortened(format!("{}: {}", failure.class, failure.message)));
            self.add([event(EventKind::Function, Some(lane), (start, end), 0), exception]);
        }
    }

    /// Counts the arguments that were written for a scan or a stream.
    pub(crate) fn sent(self, lane: &LaneStats, rows: usize, start: u64) {
        let end = now();
        self.counters().copy_in.add(end - start);
        if self.is_on() {
            self.add([event(EventKind::CopyIn, Some(lane), (start, end), rows)]);
        }
    }

    /// Counts a batch of results that a scan or a stream has received.
    pub(crate) fn received(self, lane: &LaneStats, header: &Header) {
        let (counters, rows) = (self.counters(), header.rows as usize);
        counters.guest.add(header.worked);
        counters.errors.add(u64::from(header.errors));
        counters.retries.add(u64::from(header.retries));
        lane.record(header, rows);
        if self.is_on() {
            let end = now();
            let start = end.saturating_sub(header.worked);
            self.add([event(EventKind::Function, Some(lane), (start, end), rows)]);
            self.troubles(lane, header);
        }
    }

    /// Counts the results of a scan or a stream that were checked.
    pub(crate) fn checked(self, lane: &LaneStats, rows: usize, bytes: usize, start: u64) {
        let (counters, end) = (self.counters(), now());
        counters.rows.add(rows as u64);
        counters.bytes_out.add(bytes as u64);
        counters.copy_out.add(end - start);
        if self.is_on() {
            self.add([event(EventKind::CopyOut, Some(lane), (start, end), rows)]);
        }
    }

    /// Records the exceptions and the retries that a guest reports.
    pub(super) fn troubles(self, lane: &LaneStats, header: &Header) {
        let counts = [(EventKind::Exception, header.errors), (EventKind::Retry, header.retries)];
        for (kind, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            self.now(kind, Some(lane), count as usize);
        }
    }
}
