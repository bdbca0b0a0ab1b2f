//! Statistics of functions, in counters that any thread can increase.

use crate::batch::Header;
use crate::pool::per_thread::PerThread;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of a function's calls. Each thread has its own counters.
#[derive(Debug, Default)]
pub struct FunctionStats(PerThread<Counters>);

/// Counters of calls. Times are in nanoseconds.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it; docs/functions.md lists them for users")]
pub struct Counters {
    /// The slices that were sent to a lane.
    pub calls: Counter,
    pub rows: Counter,
    /// Rows that were evaluated by columns, without a call of the function.
    pub by_columns: Counter,
    /// Rows whose result was known: that of an equal row of the chunk, or one that `memoize` keeps.
    pub reused: Counter,
    /// Rows that became NULL because of `on_error = null`.
    pub errors: Counter,
    pub retries: Counter,
    /// The lanes that ended during a call.
    pub deaths: Counter,
    /// The slices that ran on a lane borrowed from another worker.
    pub fanned_out: Counter,
    pub bytes_out: Counter,
    /// The time for writing the batch into the ring.
    pub copy_in: Counter,
    /// The time from the end of the writing until the engine saw the reply, without the guest's
    /// work. It includes both directions.
    pub travel: Counter,
    /// The time inside the guest.
    pub guest: Counter,
    /// The time for copying the results into the engine.
    pub copy_out: Counter,
}

/// The counters of one lane. Times are in nanoseconds.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LaneStats {
    pub id: u64,
    pub process: i32,
    pub calls: Counter,
    pub rows: Counter,
    /// The time inside the guest.
    pub guest: Counter,
    /// The time that the guest waited for its engine.
    pub waited: Counter,
    /// Whether a caller has the lane now.
    pub(crate) busy: AtomicBool,
}

impl LaneStats {
    /// Whether a caller has the lane now.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    /// Counts a message of the guest for `rows` rows.
    pub(crate) fn record(&self, header: &Header, rows: usize) {
        self.calls.add(1);
        self.rows.add(rows as u64);
        self.guest.add(header.worked);
        self.waited.add(header.waited);
    }
}

/// The engine's times of one slice, in nanoseconds, and the size of its results. The guest's times
/// are in the header of the reply. They are durations, because the clocks of two machines may
/// differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) submitting: u64,
    pub(crate) submitted: u64,
    /// The time when the reply before this one was collected.
    pub(crate) free: u64,
    pub(crate) collected: u64,
    /// The time when the engine had the results.
    pub(crate) delivered: u64,
    /// The bytes of the results.
    pub(crate) bytes: usize,
}

impl Times {
    /// The time from when the guest could begin until the engine saw the reply.
    fn round(&self) -> u64 {
        self.collected.saturating_sub(self.submitted.max(self.free))
    }

    /// When the guest worked for `worked` nanoseconds, if both directions took equally long.
    pub(crate) fn guest(&self, worked: u64) -> (u64, u64) {
        let end = self.collected - self.round().saturating_sub(worked) / 2;
        (end.saturating_sub(worked), end)
    }
}

impl FunctionStats {
    /// The counters of this thread.
    pub fn here(&self) -> &Counters {
        self.0.here()
    }

    /// The sums of all threads' counters.
    pub fn totals(&self) -> Counters {
        let totals = Counters::default();
        let sums = totals.each();
        for counters in self.0.all() {
            sums.iter().zip(counters.each()).for_each(|(sum, counter)| sum.add(counter.get()));
        }
        totals
    }
}

impl Counters {
    fn each(&self) -> [&Counter; 13] {
        #[rustfmt::skip]
        let Self {
            calls, rows, by_columns, reused, errors, retries, deaths, fanned_out, bytes_out, copy_in, travel,
            guest, copy_out,
        } = self;
        [
            calls, rows, by_columns, reused, errors, retries, deaths, fanned_out, bytes_out, copy_in, travel,
            guest, copy_out,
        ]
    }

    /// Counts the reply to a slice of `rows` rows.
    pub(crate) fn record(&self, header: &Header, rows: usize, times: Times) {
        self.calls.add(1);
        self.rows.add(rows as u64);
        self.by_columns.add(u64::from(header.by_columns()));
        self.errors.add(u64::from(header.errors));
        self.retries.add(u64::from(header.retries));
        self.copy_in.add(times.submitted - times.submitting);
        self.travel.add(times.round().saturating_sub(header.worked));
        self.guest.add(header.worked);
        self.bytes_out.add(times.bytes as u64);
        self.copy_out.add(times.delivered - times.collected);
    }
}

/// A moment of the past, in nanoseconds of [`now`].
pub(crate) fn moment(of: Instant) -> u64 {
    now().saturating_sub(of.elapsed().as_nanos() as u64)
}

/// Nanoseconds of the monotonic clock, which all processes of a machine share.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
