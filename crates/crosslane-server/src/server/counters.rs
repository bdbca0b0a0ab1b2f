//! What the calls of a function cost at the server. The counters cost a call next to nothing: no
//! lock, and no memory after the first call.

use crosslane::stats::Counter;
use histogram::AtomicHistogram;
use std::sync::OnceLock;
use std::time::Duration;

/// The number of buckets for each power of two, as a power of two: 5 means 32. So a latency is
/// known to 3 %.
const PRECISION: u8 = 5;
/// The longest latency, as a power of two in nanoseconds: 18 minutes. Longer latencies count as
/// this long.
const LONGEST: u8 = 40;

/// Counters of a function that [`crosslane::stats`] does not have.
#[derive(Debug, Default)]
pub(crate) struct FunctionCounters {
    /// Calls that ended with an error, or with their worker.
    pub(crate) failures: Counter,
    /// Bytes of batches that workers were given.
    pub(crate) received: Counter,
    /// Bytes of their replies.
    pub(crate) sent: Counter,
    /// The sum of all latencies, in nanoseconds.
    pub(crate) took: Counter,
    latencies: OnceLock<AtomicHistogram>,
}

impl FunctionCounters {
    /// Counts a call that has ended, with the time since it came.
    pub(crate) fn record(&self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.took.add(nanoseconds);
        let histogram = self.latencies.get_or_init(|| {
            AtomicHistogram::new(PRECISION, LONGEST).expect("a histogram of a size that is allowed")
        });
        let counted = histogram.increment(nanoseconds.min((1 << LONGEST) - 1));
        debug_assert!(counted.is_ok(), "a latency within the histogram");
    }

    /// How many calls took how long, in nanoseconds; `None` before the first call.
    pub(crate) fn latencies(&self) -> Option<histogram::Histogram> {
        self.latencies.get().map(AtomicHistogram::load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_any_length_are_counted() {
        let counters = FunctionCounters::default();
        assert!(counters.latencies().is_none());
        for latency in [Duration::ZERO, Duration::from_micros(100), Duration::MAX] {
            counters.record(latency);
        }
        let latencies = counters.latencies().unwrap();
        let ends: Vec<_> =
            latencies.iter().filter(|bucket| bucket.count() > 0).map(|bucket| bucket.end()).collect();
        assert_eq!((ends.len(), ends[0], ends[2]), (3, 0, (1 << LONGEST) - 1));
        assert!((100_000..103_200).contains(&ends[1]), "{ends:?}");
    }
}
