//! Lets the thread that watches calls sleep while there are no calls. This thread is "the watch".
//! It goes to sleep `QUIET` after the last call, and the next call wakes it.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long the watch goes on after the last call. So calls in a row do not wake it each time.
const QUIET: Duration = Duration::from_secs(1);

/// No call has begun since the watch checked last.
const NONE: u8 = 0;
/// A call has begun since then.
const BEGUN: u8 = 1;
/// No call has begun, and the watch sleeps.
const ASLEEP: u8 = 2;

/// The state that calls and their watch share.
#[derive(Debug, Default)]
pub struct Attention(AtomicU8);

impl Attention {
    /// Makes the state of a watch that does not sleep.
    pub const fn new() -> Self {
        Self(AtomicU8::new(NONE))
    }

    /// Notes that a call has begun. Returns whether the caller must wake the watch. Before this,
    /// the caller must make the `at_work` of [`Attention::is_due`] return true for the call.
    #[inline]
    #[must_use]
    pub fn begin(&self) -> bool {
        self.0.load(SeqCst) != BEGUN && self.0.swap(BEGUN, SeqCst) == ASLEEP
    }

    /// Returns whether the watch must check again soon. If not, the watch must sleep until a call
    /// wakes it. `last` is the time of the last call; only the watch uses it.
    pub fn is_due(&self, last: &mut Instant, at_work: impl FnOnce() -> bool) -> bool {
        // The order matters. If a call begins after the first check, either the last check fails,
        // or the call sees that the watch sleeps.
        if self.0.swap(NONE, SeqCst) == BEGUN || at_work() {
            *last = Instant::now();
            return true;
        }
        last.elapsed() < QUIET || self.0.compare_exchange(NONE, ASLEEP, SeqCst, SeqCst).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_sleeps_after_a_time_without_calls_and_is_woken_once() {
        let attention = Attention::new();
        let long_ago = Instant::now().checked_sub(QUIET * 2).expect("the machine has run for so long");
        let mut last = long_ago;
        assert!(attention.is_due(&mut last, || true));
        assert!(last > long_ago);
        assert!(attention.is_due(&mut last, || false), "a moment ago there was one");
        last = long_ago;
        assert!(!attention.is_due(&mut last, || false));
        assert!(attention.begin(), "it sleeps");
        assert!(!attention.begin(), "it was woken");
        assert!(attention.is_due(&mut last, || false));
        last = long_ago;
        // A call begins during the check.
        assert!(attention.is_due(&mut last, || attention.begin()));
        assert!(attention.is_due(&mut last, || false));
    }
}
