//! Busy polling: before the worker that waits for events sleeps, it looks for a moment, again and again.
//!
//! It looks at its sockets, and at a [`BusyPoll`] beside them: something that has ways of its own to wake a thread, but costs less while
//! somebody looks anyway. What comes within that moment needs no wake, which may take longer than its whole handler.
//!
//! # Who polls
//! One worker of a group at a time has the [`Turn`]. Each worker that has polled calls [`BusyPoll::rest`] before it sleeps, whether it has the
//! turn then or not, so nobody relies on a worker that sleeps. It only looks while it counts as idle. What it finds it handles like an
//! event, and does not look meanwhile. If that takes long, or the worker has no processor, the group's monitor rests for it.
//!
//! # Others who need the processor
//! Who polls yields between two looks. If it does not run again within [`CROWDED`], others compute on its processor; then it is better to
//! sleep, because the kernel lets a thread that wakes go before those that compute, and one that yields behind them. So nobody polls for
//! a [`PAUSE`], which is doubled as long as that happens again soon.

use crate::stats::Counter;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Something at which idle workers look ([`Builder::busy_poll`](crate::Builder::busy_poll)).
pub trait BusyPoll: Send + Sync {
    /// Whether there is something to handle. One thread at a time calls it, again and again, and it takes a microsecond at most.
    fn look(&self) -> bool;

    /// Handles what there is. Others may do so at the same time. Tasks that it wakes run behind it on the same worker. A panic of it is
    /// reported like that of a task, and ends nothing.
    fn handle(&self);

    /// Nobody looks now: what comes from here on must wake somebody. Any thread may call it at any time, also beside [`BusyPoll::look`].
    fn rest(&self);
}

/// A yield that takes longer shows that others compute.
const CROWDED: Duration = Duration::from_millis(1);
/// For how long nobody polls then: at first, and at most.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
/// It is doubled if the processor was crowded again before so many times as long had passed.
const SOON: u32 = 4;

/// What is polled, and for how long.
#[derive(Clone)]
pub(crate) struct Polled {
    /// For how long after the last event.
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
    /// How often somebody has looked. Only who has the turn counts.
    pub(crate) looks: Counter,
    start: Instant,
    /// When the last pause has ended, or will end, and how long it is: in nanoseconds, the first since the start.
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

    /// The turn to poll, unless another worker has it, or others need the processors.
    pub(crate) fn begin(&self) -> Option<Turn<'_>> {
        let begun = self.now();
        let is_mine = !self.pauses(begun) && !self.is_taken.swap(true, Ordering::Acquire);
        is_mine.then(|| Turn { busy: self, begun })
    }

    /// Whether nobody polls now because others need the processors.
    fn pauses(&self, now: Duration) -> bool {
        nanoseconds(now) < self.resumes.load(Ordering::Relaxed)
    }

    pub(crate) fn source(&self) -> &dyn BusyPoll {
        &*self.polled.source
    }

    /// Others computed for so long, until now: nobody polls for a while.
    fn give_way(&self, computed: Duration, now: Duration) {
        let (pause, resumed) = (self.pause.load(Ordering::Relaxed), self.resumes.load(Ordering::Relaxed));
        let begun = nanoseconds(now.saturating_sub(computed));
        let is_soon = begun.saturating_sub(resumed) < pause.saturating_mul(SOON.into());
        let next = if is_soon { (2 * pause).min(nanoseconds(LONGEST)) } else { nanoseconds(PAUSE) };
        self.pause.store(next, Ordering::Relaxed);
        self.resumes.store(nanoseconds(now).saturating_add(next), Ordering::Relaxed);
    }
}

/// What the worker has that polls.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    busy: &'a Busy,
    begun: Duration,
}

impl Turn<'_> {
    /// Looks once. Whether there is something.
    pub(crate) fn look(&self) -> bool {
        self.busy.looks.count();
        self.busy.source().look()
    }

    /// Lets others have the processor. False if it is time to sleep.
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
            self.busy.give_way(computed, after);
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
    fn who_finds_nothing_stops_when_the_time_is_over() {
        let busy = busy();
        let turn = busy.begin().unwrap();
        assert!(!turn.look() && !turn.goes_on());
        assert_eq!(busy.looks.get(), 1);
    }

    #[test]
    fn pauses_become_longer_while_others_compute_and_short_again_after_a_quiet_time() {
        let busy = busy();
        let mut now = Duration::from_secs(100);
        let mut crowded = |after: Duration| {
            now += after;
            busy.give_way(CROWDED, now);
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
    fn nobody_polls_in_a_pause() {
        let (busy, now) = (busy(), Duration::from_secs(100));
        busy.give_way(CROWDED, now);
        assert!(busy.pauses(now) && busy.pauses(now + PAUSE / 2) && !busy.pauses(now + PAUSE));
        assert!(busy.begin().is_none(), "the pause is in the future");
    }
}
