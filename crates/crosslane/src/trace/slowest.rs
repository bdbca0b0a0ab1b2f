//! Which calls are among the slowest of a trace so far.

use crate::lock;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many calls count as the slowest.
pub(super) const SLOWEST: usize = 10;

/// The durations of the slowest calls so far, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Slowest {
    durations: Mutex<BinaryHeap<Reverse<u64>>>,
    /// The shortest of them, if there are [`SLOWEST`] already.
    bar: AtomicU64,
}

impl Slowest {
    /// Whether a call is among the slowest so far. Most calls are not, and only read a number.
    pub(super) fn admits(&self, duration: u64) -> bool {
        if duration <= self.bar.load(Relaxed) {
            return false;
        }
        let mut durations = lock(&self.durations);
        durations.push(Reverse(duration));
        if durations.len() > SLOWEST {
            durations.pop();
        }
        if let Some(Reverse(shortest)) = durations.peek().filter(|_| durations.len() == SLOWEST) {
            self.bar.store(*shortest, Relaxed);
        }
        true
    }

    /// Forgets all calls.
    pub(super) fn clear(&self) {
        lock(&self.durations).clear();
        self.bar.store(0, Relaxed);
    }
}
