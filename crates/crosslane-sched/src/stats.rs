//! Statistics. Each worker counts its own work.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread writes and all threads may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds one. Only one thread at a time calls this, so no read-modify-write is needed.
    pub(crate) fn count(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of a worker. Their alignment keeps two workers from writing to the same cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) runs: Counter,
    pub(crate) foreground: Counter,
    pub(crate) steals: Counter,
    pub(crate) priority_hits: Counter,
    pub(crate) dispatches: Counter,
    pub(crate) parks: Counter,
    pub(crate) wakes: Counter,
}

/// Statistics of the threads for calls that block ([`spawn_blocking`](crate::spawn_blocking)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockingStats {
    /// How many threads there are.
    pub threads: usize,
    /// How many of the threads are idle.
    pub idle: usize,
    /// How many calls wait for a thread.
    pub waiting: usize,
    /// How many calls have ended.
    pub runs: u64,
}

/// Statistics of one worker since the start of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// How often it ran a task until the task waited or ended.
    pub runs: u64,
    /// How many of these runs were started in the foreground.
    pub foreground: u64,
    /// How often it took tasks from another worker's queue.
    pub steals: u64,
    /// How often it took a dispatcher from the dispatcher's own queue. Another worker had left the
    /// dispatcher there.
    pub priority_hits: u64,
    /// How many events of dispatchers it handled.
    pub dispatches: u64,
    /// How often it slept.
    pub parks: u64,
    /// How often a thread woke it for added work.
    pub wakes: u64,
}

impl Counters {
    pub(crate) fn read(&self) -> WorkerStats {
        WorkerStats {
            runs: self.runs.get(),
            foreground: self.foreground.get(),
            steals: self.steals.get(),
            priority_hits: self.priority_hits.get(),
            dispatches: self.dispatches.get(),
            parks: self.parks.get(),
            wakes: self.wakes.get(),
        }
    }
}
