//! Tells the thread that watches calls whether there are any: without calls for a while, it sleeps
//! until one begins.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long the watch goes on after the last call, so that calls in a row wake nobody.
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
    /// A watch that does not sleep.
    pub const fn new() -> Self {
        Self(AtomicU8::new(NONE))
    }

    /// Notes that a call has begun; [`Attention::is_due`] must see that it is at work. Returns
    /// whether the watch must be woken.
    #[inline]
    #[must_use]
    pub fn begin(&self) -> bool {
        self.0.load(SeqCst) != BEGUN && self.0.swap(BEGUN, SeqCst) == ASLEEP
    }

    /// Whether the watch must check again soon. If not, it must sleep until it is woken. `last`
    /// belongs to the watch: the time of the last call.
    pub fn is_due(&self, last: &mut Instant, at_work: impl FnOnce() -> bool) -> bool {
        // The order matters: a call that begins after the first check makes the last one fail, or
        // finds the watch asleep.
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
