//! Busy polling: before the worker that waits for events sleeps, it polls for a short time.
//!
//! It polls its sockets and a [`BusyPoll`] source. A source can wake a thread by itself, but costs
//! less while a thread polls it. Work that comes within the polling time needs no wake. A wake may
//! take longer than the whole handler.
//!
//! # Which worker polls
//! One worker of a group at a time has the [`Turn`]. Each worker that has polled calls
//! [`BusyPoll::rest`] before it sleeps, with or without the turn, so the source never relies on a
//! sleeping worker. A worker polls only while it counts as idle. It handles new work like an event,
//! and does not poll during that. If that takes long, or the worker gets no processor, the group's
//! monitor calls `rest` for it.
//!
//! # Other threads that need the processor
//! The polling worker yields between two polls. If it does not run again within [`CROWDED`], other
//! threads compute on its processor. Then it is better to sleep. The kernel runs a thread that
//! wakes before threads that compute, but it runs a thread that yields after them. So no worker
//! polls for a [`PAUSE`]. The pause doubles each time this happens again soon.

use crate::stats::Counter;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A source of work that idle workers poll ([`Builder::busy_poll`](crate::Builder::busy_poll)).
pub trait BusyPoll: Send + Sync {
    /// Returns whether there is work to handle. One thread at a time calls this in a loop, so it
    /// must take at most a microsecond.
    fn look(&self) -> bool;

    /// Handles the work. Several threads may call this at the same time. Tasks that it wakes run
    /// after it on the same worker. The panic hook reports its panic like that of a task, and the
    /// worker goes on.
    fn handle(&self);

    /// Tells the source that no thread polls from now on. So new work must wake a thread. Any
    /// thread may call this at any time, also during [`BusyPoll::look`].
    fn rest(&self);
}

/// A yield that takes longer shows that other threads compute.
const CROWDED: Duration = Duration::from_millis(1);
/// The first pause and the longest pause. No worker polls in a pause.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
/// The pause doubles if the processor was crowded again within this many pauses.
const SOON: u32 = 4;

/// The polled source, and the polling time.
#[derive(Clone)]
pub(crate) struct Polled {
    /// How long a worker polls after the last event.
    pub(crate) time: Duration,
    pub(crate) source: Arc<dyn BusyPoll>,
}

impl fmt::Debug for Polled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polled").field("time", &self.time).finish_non_exhaustive()
    }
}

/// The busy polling of a group.
#[derive(Debug)]
pub(crate) struct Busy {
    polled: Polled,
    is_taken: AtomicBool,
    /// The number of polls. Only the worker with the turn counts.
    pub(crate) looks: Counter,
    start: Instant,
    /// When the last pause ends, in nanoseconds since `start`, and its length in nanoseconds.
    resumes: AtomicU64,
    pause: AtomicU64,
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

impl Busy {
    pub(crate) fn new(polled: Polled) -> Self {
        Busy {
            polled,
            is_taken: AtomicBool::new(false),
            looks: Counter::default(),
            start: Instant::now(),
            resumes: AtomicU64::new(0),
            pause: AtomicU64::new(0),
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the turn to poll. `None` if another worker has it, or if there is a pause.
    pub(crate) fn begin(&self) -> Option<Turn<'_>> {
        let begun = self.now();
        let is_mine = !self.pauses(begun) && !self.is_taken.swap(true, Ordering::Acquire);
        is_mine.then(|| Turn { busy: self, begun })
    }

    /// Returns whether there is a pause, because other threads need the processors.
    fn pauses(&self, now: Duration) -> bool {
        nanoseconds(now) < self.resumes.load(Ordering::Relaxed)
    }

    pub(crate) fn source(&self) -> &dyn BusyPoll {
        &*self.polled.source
    }

    /// Begins a pause. Other threads have computed for the time `computed`, until `now`.
    fn begin_pause(&self, computed: Duration, now: Duration) {
        let (pause, resumed) = (self.pause.load(Ordering::Relaxed), self.resumes.load(Ordering::Relaxed));
        let begun = nanoseconds(now.saturating_sub(computed));
        let is_soon = begun.saturating_sub(resumed) < pause.saturating_mul(SOON.into());
        let next = if is_soon { (2 * pause).min(nanoseconds(LONGEST)) } else { nanoseconds(PAUSE) };
        self.pause.store(next, Ordering::Relaxed);
        self.resumes.store(nanoseconds(now).saturating_add(next), Ordering::Relaxed);
    }
}

/// The turn of the worker that polls.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    busy: &'a Busy,
    begun: Duration,
}

impl Turn<'_> {
    /// Polls the source once. Returns whether there is work to handle.
    pub(crate) fn look(&self) -> bool {
        self.busy.looks.count();
        self.busy.source().look()
    }

    /// Yields the processor. Returns false if the worker should sleep now.
    pub(crate) fn goes_on(&self) -> bool {
        let before = self.busy.now();
        if before.saturating_sub(self.begun) >= self.busy.polled.time {
            return false;
        }
        thread::yield_now();
        let after = self.busy.now();
        let computed = after.saturating_sub(before);
        let is_crowded = computed > CROWDED;
        if is_crowded {
            self.busy.begin_pause(computed, after);
        }
        !is_crowded
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.busy.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Nothing;

    impl BusyPoll for Nothing {
        fn look(&self) -> bool {
            false
        }
        fn handle(&self) {}
        fn rest(&self) {}
    }

    fn busy() -> Busy {
        Busy::new(Polled { time: Duration::ZERO, source: Arc::new(Nothing) })
    }

    #[test]
    fn one_worker_polls_at_a_time() {
        let busy = busy();
        let turn = busy.begin().unwrap();
        assert!(busy.begin().is_none());
        drop(turn);
        assert!(busy.begin().is_some());
    }

    #[test]
    fn a_worker_that_finds_nothing_stops_when_the_time_is_over() {
        let busy = busy();
        let turn = busy.begin().unwrap();
        assert!(!turn.look() && !turn.goes_on());
        assert_eq!(busy.looks.get(), 1);
    }

    #[test]
    fn pauses_grow_while_others_compute_and_are_short_again_after_a_quiet_time() {
        let busy = busy();
        let mut now = Duration::from_secs(100);
        let mut crowded = |after: Duration| {
            now += after;
            busy.begin_pause(CROWDED, now);
            let pause = Duration::from_nanos(busy.pause.load(Ordering::Relaxed));
            assert_eq!(busy.resumes.load(Ordering::Relaxed), nanoseconds(now + pause));
            now += pause;
            pause
        };
        assert_eq!(crowded(Duration::ZERO), PAUSE);
        assert_eq!(crowded(2 * PAUSE), 2 * PAUSE);
        for _ in 0..10 {
            crowded(PAUSE);
        }
        assert_eq!(crowded(PAUSE), LONGEST);
        assert_eq!(crowded(SOON * LONGEST + 2 * CROWDED), PAUSE);
    }

    #[test]
    fn no_worker_polls_in_a_pause() {
        let (busy, now) = (busy(), Duration::from_secs(100));
        busy.begin_pause(CROWDED, now);
        assert!(busy.pauses(now) && busy.pauses(now + PAUSE / 2) && !busy.pauses(now + PAUSE));
        assert!(busy.begin().is_none(), "the pause is in the future");
    }
}
