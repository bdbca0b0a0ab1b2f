//! A trace that a person starts on the server's page, or a program by HTTP.
//!
//! There is one trace at a time. It ends after [`LONGEST`] by itself, and what it has recorded is
//! freed after [`KEPT`]. A trace shows arguments and texts of exceptions. So not every client that may
//! see the page may have one (`service`).

mod chrome;
mod page;
mod peer;

pub(super) use peer::is_own;

use crosslane::lock;
use crosslane::trace::{Event, EventKind, Subject, Trace};
use hyper::body::Bytes;
use serde::Serialize;
use std::mem::replace;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use tracing::info;

/// How long a trace may last.
const LONGEST: Duration = Duration::from_secs(600);
/// How long a trace that has ended is kept.
const KEPT: Duration = Duration::from_secs(600);

/// Starts and ends traces, and keeps the last one for a while. To start, to end and to show a trace may
/// take a while, and belongs on a thread that may block.
pub(super) struct Recorder {
    trace: Arc<Trace>,
    /// Held while a trace starts or ends.
    changing: Mutex<()>,
    /// Held for a moment only.
    phase: Mutex<Phase>,
}

enum Phase {
    Off,
    On(Instant),
    Ended(Instant, Arc<Recording>),
}

/// What the page shows of the trace.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    on: bool,
    /// Seconds since the start or the end.
    seconds: u64,
    events: usize,
    dropped: u64,
    /// Whether there is a trace to look at.
    is_kept: bool,
}

/// A trace that has ended.
struct Recording {
    events: Vec<Event<Subject>>,
    dropped: u64,
    /// When it started, in nanoseconds of [`crosslane::stats::now`].
    started: u64,
    ended: SystemTime,
    page: OnceLock<Bytes>,
    chrome: OnceLock<Bytes>,
}

/// The forms in which a trace can be had.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// The page.
    Page,
    /// JSON for Chrome and Perfetto.
    Chrome,
}

impl Recorder {
    pub(super) fn new(trace: Arc<Trace>) -> Self {
        Self { trace, changing: Mutex::default(), phase: Mutex::new(Phase::Off) }
    }

    /// Starts a trace. False if there is one already.
    pub(super) fn start(&self) -> bool {
        let _one_at_a_time = lock(&self.changing);
        if matches!(*lock(&self.phase), Phase::On(_)) {
            return false;
        }
        // The trace before is freed first.
        self.enter(Phase::Off);
        let has_started = self.trace.start();
        if has_started {
            self.enter(Phase::On(Instant::now()));
        }
        has_started
    }

    /// Ends the trace. False if there is none.
    pub(super) fn end(&self) -> bool {
        let _one_at_a_time = lock(&self.changing);
        let is_on = matches!(*lock(&self.phase), Phase::On(_));
        if is_on {
            let recording = Arc::new(self.stop());
            self.enter(Phase::Ended(Instant::now(), recording));
        }
        is_on
    }

    fn enter(&self, phase: Phase) {
        let before = replace(&mut *lock(&self.phase), phase);
        // To free a trace takes a while.
        drop(before);
    }

    fn stop(&self) -> Recording {
        self.trace.stop();
        let dropped = self.trace.status().dropped;
        let mut events = self.trace.events();
        let started = self.trace.started();
        self.trace.forget();
        // A load of a file belongs to no client.
        events.iter_mut().filter(|event| event.kind == EventKind::Load).for_each(|event| event.thread = 0);
        info!(events = events.len(), "trace ended");
        let (page, chrome) = (OnceLock::new(), OnceLock::new());
        Recording { events, dropped, started, ended: SystemTime::now(), page, chrome }
    }

    /// Whether [`Self::tick`] has something to do.
    pub(super) fn is_due(&self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&self, now: Instant) -> bool {
        match &*lock(&self.phase) {
            Phase::Off => false,
            Phase::On(since) => now.saturating_duration_since(*since) >= LONGEST,
            Phase::Ended(since, _) => now.saturating_duration_since(*since) >= KEPT,
        }
    }

    /// Ends a trace that lasts too long, and forgets one that was kept long enough.
    pub(super) fn tick(&self) {
        self.tick_at(Instant::now());
    }

    fn tick_at(&self, now: Instant) {
        let _one_at_a_time = lock(&self.changing);
        if !self.is_due_at(now) {
            return;
        }
        let is_on = matches!(*lock(&self.phase), Phase::On(_));
        let next = if is_on { Phase::Ended(now, Arc::new(self.stop())) } else { Phase::Off };
        self.enter(next);
    }

    /// What the page shows.
    pub(super) fn seen(&self) -> Seen {
        match &*lock(&self.phase) {
            Phase::Off => Seen { on: false, seconds: 0, events: 0, dropped: 0, is_kept: false },
            Phase::On(since) => {
                let status = self.trace.status();
                let (events, dropped) = (status.events, status.dropped);
                Seen { on: true, seconds: since.elapsed().as_secs(), events, dropped, is_kept: false }
            }
            Phase::Ended(since, recording) => Seen {
                on: false,
                seconds: since.elapsed().as_secs(),
                events: recording.events.len(),
                dropped: recording.dropped,
                is_kept: true,
            },
        }
    }

    /// The last trace, if it has ended and is kept.
    pub(super) fn text(&self, form: Form) -> Option<Bytes> {
        let phase = lock(&self.phase);
        let Phase::Ended(_, recording) = &*phase else { return None };
        let recording = Arc::clone(recording);
        drop(phase);
        let made = match form {
            Form::Page => recording.page.get_or_init(|| page::text(&recording).into()),
            Form::Chrome => recording.chrome.get_or_init(|| chrome::text(&recording).into()),
        };
        Some(made.clone())
    }
}

impl Recording {
    /// The time from the start of the trace to an event, in nanoseconds.
    fn start(&self, event: &Event<Subject>) -> u64 {
        event.start.saturating_sub(self.started)
    }
}

/// Whether a worker did it, and not the server for a client.
fn is_of_worker(event: &Event<Subject>) -> bool {
    event.lane != 0 && !matches!(event.kind, EventKind::Wait | EventKind::CopyIn | EventKind::CopyOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> Recorder {
        Recorder::new(Arc::default())
    }

    #[test]
    fn there_is_one_trace_at_a_time() {
        let recorder = recorder();
        assert!(recorder.text(Form::Page).is_none() && !recorder.end());
        assert!(recorder.start() && !recorder.start());
        assert!(recorder.text(Form::Page).is_none() && recorder.seen().on);
        assert!(recorder.end() && !recorder.end());
        assert!(recorder.text(Form::Page).is_some() && recorder.text(Form::Chrome).is_some());
        assert!(recorder.start(), "another trace replaces the last one");
        assert!(recorder.text(Form::Page).is_none());
    }

    #[test]
    fn a_trace_that_nobody_ends_or_fetches_is_freed() {
        let recorder = recorder();
        let start = Instant::now();
        assert!(recorder.start());
        recorder.tick_at(start);
        assert!(recorder.seen().on);
        let end = Instant::now() + LONGEST;
        recorder.tick_at(end);
        assert!(!recorder.seen().on && recorder.text(Form::Page).is_some());
        recorder.tick_at(end + KEPT / 2);
        assert!(recorder.seen().is_kept);
        recorder.tick_at(end + KEPT);
        assert!(!recorder.seen().is_kept && recorder.text(Form::Page).is_none());
    }
}
