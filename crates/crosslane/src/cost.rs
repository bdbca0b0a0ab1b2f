//! The measured cost of a function per batch and per row, and the size of slices that follows from
//! it.
//!
//! Each slice costs a round trip, which is short in a ring and longer to a server. Slices also
//! occupy idle lanes. A function that does some work once per batch, as vectorized functions do,
//! repeats this work for each slice. So a batch is sliced only in two cases: the work for its
//! remaining rows justifies that cost ([`WORTH_SLICING`], [`WORTH_REPEATING`]), or several lanes
//! share the batch already.
//!
//! A slice should be long enough to hide its round trip. It should be short enough that the whole
//! batch does not wait for the slowest lane. The first slice of an unmeasured function has one row.
//! No slice has more than eight times the rows measured so far. So a function that takes a second
//! per row does not get 2,048 rows at once.
//!
//! The two costs are a line through the latest batches, by least squares ([`Line`]). One average
//! per row would add the cost of a batch to the cost of its rows. Short slices would then look
//! expensive, and would be cut into even shorter slices.

use crate::lane::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The least work of a batch that is sliced, in round trips.
const WORTH_SLICING: u32 = 30;
/// The least work of a slice, in round trips.
const SHORTEST: u32 = 5;
/// The least work of a batch that is sliced, in costs of a batch without its rows. It is added to
/// [`WORTH_SLICING`].
const WORTH_REPEATING: u32 = 4;
/// The least work of a slice, in costs of a batch without its rows. It is added to [`SHORTEST`].
const SHORTEST_REPEATING: u32 = 2;
/// The longest work of a slice, unless its least work is longer.
const LONGEST: Duration = Duration::from_millis(20);
/// The slices per lane, so that a lane that finishes early gets another slice.
const BALANCE: u64 = 2;
/// A slice has at most this many times the rows measured so far.
const GROWTH: u64 = 8;
/// The longest time of a batch in nanoseconds (a month). A longer time that a guest reports is cut
/// to this.
const MOST: u64 = 30 * 86_400 * 1_000_000_000;
/// After this number of rows, the measured costs come from several batches.
const SETTLED: u64 = 512;
/// After this number of rows, rows are not counted any more.
const ENOUGH: u64 = 1 << 20;
/// A new average or cost is stored only if its difference to the old one exceeds the old one
/// divided by this number.
const NOTICEABLE: u64 = 16;
/// The same divisor for costs after [`ENOUGH`] rows.
const NOTICEABLE_OF_KNOWN: u64 = 4;
/// The factor for the weight of the earlier batches when a new batch is added.
const KEPT: f64 = 0.75;
/// The lengths of batches must differ by this part of their average. Otherwise they do not show the
/// cost of a batch without its rows.
const DIFFERENT: f64 = 0.25;

/// Stores an average if it differs enough from the old one.
fn note(average: &AtomicU64, old: u64, new: u64) {
    if new.abs_diff(old) > old / NOTICEABLE {
        average.store(new, Relaxed);
    }
}

/// The measured cost of a function. All workers read it for every batch, so it is written only when
/// it has changed enough.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    /// The cost of a row, in picoseconds.
    per_row: AtomicU64,
    /// The cost of a batch without its rows, in picoseconds.
    per_batch: AtomicU64,
    measured: AtomicU64,
    latest: Mutex<Line>,
    pub(crate) arguments: Width,
    pub(crate) results: Width,
}

/// Sums for a line by least squares through the rows and times (in picoseconds) of batches. Older
/// batches have less weight.
#[derive(Debug, Default)]
struct Line {
    count: f64,
    rows: f64,
    time: f64,
    rows_by_rows: f64,
    rows_by_time: f64,
    /// The rows and the time of the last batch.
    last: (f64, f64),
}

impl Line {
    /// Adds a batch, and multiplies the weight of the earlier batches by `kept`.
    fn add(&mut self, rows: f64, time: f64, kept: f64) {
        self.count = kept * self.count + 1.0;
        self.rows = kept * self.rows + rows;
        self.time = kept * self.time + time;
        self.rows_by_rows = kept * self.rows_by_rows + rows * rows;
        self.rows_by_time = kept * self.rows_by_time + rows * time;
        self.last = (rows, time);
    }

    /// Restarts with one batch. It also keeps the batch before it, if that one had fewer rows and
    /// took less time.
    fn begin(&mut self, rows: f64, time: f64) {
        let (fewer, shorter) = self.last;
        *self = Self::default();
        // Otherwise the batch before it includes one-time costs, such as imports and cold caches.
        if fewer < rows && shorter < time {
            self.add(fewer, shorter, 0.0);
        }
        self.add(rows, time, 1.0);
    }

    /// The costs of a batch and of a row. If the batches have too similar lengths, the known cost
    /// of a batch is used.
    fn costs(&self, known_per_batch: f64) -> (f64, f64) {
        let (rows, time) = (self.rows / self.count, self.time / self.count);
        let variance = self.rows_by_rows / self.count - rows * rows;
        let per_row = if variance > (DIFFERENT * rows).powi(2) {
            (self.rows_by_time / self.count - rows * time) / variance
        } else {
            (time - known_per_batch) / rows
        };
        let per_row = per_row.clamp(0.0, time / rows);
        (time - per_row * rows, per_row)
    }
}

/// The moving average of a row's bytes in batches of one direction. It is 0 until a batch is too
/// large for its lane.
#[derive(Debug, Default)]
pub(crate) struct Width(AtomicU64);

impl Width {
    /// The width of `rest` rows, if the first `rows` have `bytes` bytes. It is 0 if all of them fit
    /// into a lane that holds `most` bytes.
    pub(crate) fn of(rows: usize, bytes: usize, rest: usize, most: usize) -> Self {
        let width = bytes.div_ceil(rows.max(1)).max(1);
        Self(AtomicU64::new(if width.saturating_mul(rest) > most { width as u64 } else { 0 }))
    }

    /// Learns from a batch of `bytes` bytes, for a lane whose own memory holds `most` bytes.
    pub(crate) fn weigh(&self, rows: usize, bytes: usize, most: usize) {
        let old = self.0.load(Relaxed);
        if rows == 0 || (old == 0 && bytes <= most) {
            return;
        }
        // A wider row is sent alone in any case. With a larger average, narrow rows would take
        // longer to reduce it.
        let fresh = (bytes / rows).min(most / 2).max(1) as u64;
        // A single huge row must not change the average much.
        let average = if old == 0 { fresh } else { (old + fresh.min(2 * old)).div_ceil(2) };
        note(&self.0, old, average);
    }

    /// The number of rows to send at once. They fill at most half of the lane's own memory. `rest`
    /// is the number of all remaining rows. Slices that are cut for this reason have equal lengths.
    pub(crate) fn fitting(&self, rows: usize, rest: usize, most: usize) -> usize {
        let fitting = match self.0.load(Relaxed) as usize {
            0 => return rows,
            bytes => (most / 2 / bytes).max(1),
        };
        if rows <= fitting { rows } else { rest.div_ceil(rest.div_ceil(fitting)) }
    }
}

/// The costs of a function's entries. The cost of a row differs between entries.
#[derive(Debug, Default)]
pub(crate) struct Costs([Cost; Entry::COUNT]);

impl Costs {
    pub(crate) fn of(&self, entry: Entry) -> &Cost {
        &self.0[entry as usize - 1]
    }
}

/// How to cut the remaining rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advice {
    /// The rows of the next slice.
    pub(crate) rows: usize,
    /// The number of lanes whose use is worth its cost.
    pub(crate) lanes: usize,
    /// Whether to wait for the reply before the next cut.
    pub(crate) probe: bool,
}

impl Cost {
    /// Learns from a reply. Concurrent updates can get lost, which is acceptable for an estimate.
    pub(crate) fn learn(&self, rows: usize, guest: u64) {
        if rows == 0 {
            return;
        }
        // The guest reports this time, so it can be any number.
        let time = guest.min(MOST) * 1000;
        let measured = self.measured.load(Relaxed);
        if measured < ENOUGH {
            self.measured.fetch_add(rows as u64, Relaxed);
        }
        let expected = self.expected(rows);
        let noticeable = if measured < ENOUGH { NOTICEABLE } else { NOTICEABLE_OF_KNOWN };
        // The expected cost is 0 while another thread is about to store the first costs.
        let is_settled = measured >= SETTLED && expected > 0;
        if is_settled && time.abs_diff(expected) <= expected / noticeable {
            return;
        }
        let Ok(mut latest) = self.latest.try_lock() else { return };
        // While few rows are measured, the latest slice is the longest one and shows most. Later, a
        // single slice that the system interrupted must not change much.
        let known_per_batch = if is_settled {
            latest.add(rows as f64, time.min(expected.saturating_mul(2)) as f64, KEPT);
            self.per_batch.load(Relaxed) as f64
        } else {
            latest.begin(rows as f64, time as f64);
            0.0
        };
        let (per_batch, per_row) = latest.costs(known_per_batch);
        self.per_batch.store(per_batch as u64, Relaxed);
        self.per_row.store((per_row as u64).max(1), Relaxed);
    }

    /// The expected cost of one batch of `rows` rows, in picoseconds.
    fn expected(&self, rows: usize) -> u64 {
        let per_row = self.per_row.load(Relaxed);
        per_row.saturating_mul(rows as u64).saturating_add(self.per_batch.load(Relaxed))
    }

    /// The expected time for `rows` rows, if the cost is known.
    pub(crate) fn estimate(&self, rows: usize) -> Option<Duration> {
        let is_known = self.per_row.load(Relaxed) > 0;
        is_known.then(|| Duration::from_nanos(self.expected(rows) / 1000))
    }

    /// How to cut `rest` rows for at most `width` lanes. `sharing` is the number of lanes at work.
    /// `concurrency` is the number of rows that one lane runs at once. `round_trip` is the time for
    /// a batch without rows.
    pub(crate) fn advise(
        &self,
        rest: usize,
        width: usize,
        sharing: usize,
        concurrency: usize,
        round_trip: Duration,
    ) -> Advice {
        let whole = Advice { rows: rest, lanes: 1, probe: false };
        if width < 2 || rest < 2 {
            return whole;
        }
        let measured = self.measured.load(Relaxed);
        let careful = (measured * GROWTH).max(concurrency as u64) as usize;
        if careful < rest {
            return Advice { rows: careful.max(1), lanes: 1, probe: true };
        }
        let per_row = self.per_row.load(Relaxed).max(1);
        let per_batch = Duration::from_nanos(self.per_batch.load(Relaxed) / 1000);
        let rows_in = |time: Duration| ((time.as_nanos() as u64).saturating_mul(1000) / per_row).max(1);
        let shortest = (SHORTEST * round_trip).min(LONGEST) + SHORTEST_REPEATING * per_batch;
        let mut width = width;
        if (rest as u64) < rows_in(WORTH_SLICING * round_trip + WORTH_REPEATING * per_batch) {
            if sharing < 2 || concurrency > 1 {
                return whole;
            }
            // So little work justifies no further lane. The lanes that share the batch should still
            // finish at the same time.
            width = width.min(sharing);
        }
        let most = (rest as u64).div_ceil(rows_in(shortest).max(4 * concurrency as u64 - 3)) as usize;
        let lanes = width.min(most).max(1);
        // Each slice ends with an incomplete wave of concurrent rows. So rows that wait at the same
        // time stay in one slice.
        let parts = if concurrency > 1 { lanes as u64 } else { lanes as u64 * BALANCE };
        let rows = (rest as u64).div_ceil(parts);
        let rows = if concurrency > 1 {
            rows
        } else {
            rows.clamp(rows_in(shortest), rows_in(LONGEST.max(shortest)))
        };
        Advice { rows: (rows as usize).min(rest), lanes, probe: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: Duration = crate::lane::ROUND_TRIP;

    fn measured(per_row_nanoseconds: u64) -> Cost {
        let cost = Cost::default();
        cost.learn(4096, 4096 * per_row_nanoseconds);
        cost
    }

    #[test]
    fn a_cheap_function_is_never_sliced() {
        assert_eq!(measured(50).advise(2048, 8, 0, 1, NEAR), Advice { rows: 2048, lanes: 1, probe: false });
    }

    #[test]
    fn an_expensive_function_uses_every_lane() {
        let advice = measured(20_000).advise(2048, 2, 0, 1, NEAR);
        assert_eq!((advice.lanes, advice.probe), (2, false));
        assert!((64..=512).contains(&advice.rows), "{advice:?}");
        assert_eq!(
            measured(1_000_000_000).advise(5, 8, 0, 1, NEAR),
            Advice { rows: 1, lanes: 5, probe: false }
        );
    }

    #[test]
    fn what_is_worth_slicing_depends_on_the_way() {
        let (cost, far) = (measured(1_200), Duration::from_micros(150));
        let near = cost.advise(2048, 2, 0, 1, NEAR);
        assert_eq!((near.lanes, near.rows), (2, 512));
        assert_eq!(cost.advise(2048, 2, 0, 1, far), Advice { rows: 2048, lanes: 1, probe: false });
        assert_eq!(measured(20_000).advise(2048, 4, 0, 1, far).lanes, 4);
        // A slice takes at most 20 ms, however long the round trip is.
        let farther = measured(200_000).advise(2048, 4, 0, 1, Duration::from_millis(10));
        assert_eq!(farther, Advice { rows: 100, lanes: 4, probe: false });
    }

    #[test]
    fn neither_a_slow_start_nor_a_hiccup_makes_a_function_expensive() {
        let cost = Cost::default();
        for rows in [1, 8, 72, 648] {
            cost.learn(rows, 60_000 + 50 * rows as u64);
        }
        assert_eq!(cost.advise(1319, 8, 0, 1, NEAR).lanes, 1);
        (0..5).for_each(|_| cost.learn(2048, 2048 * 50));
        cost.learn(2048, 10_000_000);
        assert_eq!(cost.advise(2048, 8, 0, 1, NEAR).lanes, 1);
    }

    #[test]
    fn what_says_nothing_new_is_not_written() {
        let cost = measured(1_000);
        (0..ENOUGH / 4096).for_each(|_| cost.learn(4096, 4096 * 1_050));
        let known = (cost.per_row.load(Relaxed), cost.measured.load(Relaxed));
        cost.learn(4096, 4096 * 1_200);
        assert_eq!(known, (1_000_000, cost.measured.load(Relaxed)));
        (0..50).for_each(|_| cost.learn(4096, 4096 * 2_000));
        assert!((1_600_000..=2_000_000).contains(&cost.per_row.load(Relaxed)));
    }

    /// Calls a function of these nanoseconds per batch and per row with 2,048 rows, in the advised
    /// slices.
    fn call(cost: &Cost, per_batch: u64, per_row: u64) {
        let mut rest = 2048;
        while rest > 0 {
            let rows = cost.advise(rest, 2, 0, 1, NEAR).rows;
            cost.learn(rows, per_batch + per_row * rows as u64);
            rest -= rows;
        }
    }

    fn called(per_batch: u64, per_row: u64) -> Cost {
        let cost = Cost::default();
        (0..20).for_each(|_| call(&cost, per_batch, per_row));
        cost
    }

    #[test]
    fn what_a_batch_costs_by_itself_is_no_reason_to_cut_it() {
        for per_batch in [300_000, 1_000_000, 100_000_000] {
            let cost = called(per_batch, 20);
            assert_eq!(cost.advise(2048, 8, 0, 1, NEAR).rows, 2048, "{per_batch}: {cost:?}");
            assert_eq!(cost.estimate(2048).unwrap().as_micros() as u64 / 10, (per_batch + 40_960) / 10_000);
        }
        // If the rows cost more than that, lanes share them, in slices that repeat the cost of a
        // batch as seldom as possible.
        let advice = called(1_000_000, 20_000).advise(2048, 2, 0, 1, NEAR);
        assert_eq!((advice.lanes, advice.rows), (2, 512));
        let advice = called(10_000_000, 20_000).advise(2048, 2, 0, 1, NEAR);
        assert_eq!((advice.lanes, advice.rows), (2, 1005));
    }

    #[test]
    fn batches_that_were_taken_for_expensive_become_whole_again() {
        let cost = Cost::default();
        // While the machine was paused, a batch without a cost of its own looked expensive.
        [1, 8, 72, 648].into_iter().for_each(|rows| cost.learn(rows, 20_000_000 * rows as u64));
        for _ in 0..3 {
            call(&cost, 300_000, 20);
        }
        assert_eq!(cost.advise(2048, 2, 0, 1, NEAR).rows, 2048, "{cost:?}");
    }

    #[test]
    fn an_unknown_function_is_approached_carefully() {
        let cost = Cost::default();
        assert_eq!(cost.advise(2048, 2, 0, 1, NEAR), Advice { rows: 1, lanes: 1, probe: true });
        cost.learn(1, 1_000);
        assert_eq!(cost.advise(2047, 2, 0, 1, NEAR).rows, 8);
    }

    #[test]
    fn the_first_costs_are_learnt_though_another_thread_has_counted_its_rows() {
        let cost = Cost::default();
        cost.measured.store(4096, Relaxed);
        cost.learn(4096, 4096 * 20_000);
        assert_eq!(cost.estimate(2048), Some(Duration::from_nanos(2048 * 20_000)));
    }

    #[test]
    fn a_guest_that_lies_about_its_time_does_no_harm() {
        let cost = Cost::default();
        (0..10).for_each(|_| cost.learn(1, u64::MAX));
        assert_eq!(cost.advise(5, 8, 0, 1, NEAR).rows, 1);
    }

    /// The slice for 2,048 rows over a lane that holds `most` bytes.
    fn fitting(width: &Width, most: usize) -> usize {
        width.fitting(2048, 2048, most)
    }

    #[test]
    fn wide_rows_are_cut_and_narrow_ones_are_not_even_counted() {
        let width = Width::default();
        width.weigh(2048, 500_000, 500_000);
        assert_eq!((fitting(&width, 500_000), width.0.load(Relaxed)), (2048, 0));
        width.weigh(2048, 2_048_000, 500_000);
        // 250 rows would fit. Nine slices of almost equal length are better.
        assert_eq!(fitting(&width, 500_000), 228);
        assert_eq!(width.fitting(200, 2048, 500_000), 200, "what fits is as long as it should be");
        assert_eq!(fitting(&width, usize::MAX), 2048);
    }

    #[test]
    fn narrow_rows_win_back_what_wide_ones_took() {
        let width = Width::default();
        width.weigh(2048, 2_048_000, 500_000);
        let slices = (0..20).take_while(|_| {
            let rows = fitting(&width, 500_000);
            width.weigh(rows, rows * 10, 500_000);
            rows < 2048
        });
        assert!((1..6).contains(&slices.count()));
        // The average also adapts from narrow rows to wide rows.
        (0..20).for_each(|_| width.weigh(100, 100_000, 500_000));
        assert!((228..=256).contains(&fitting(&width, 500_000)));
    }

    #[test]
    fn a_single_huge_row_does_not_make_later_slices_tiny() {
        let width = Width::default();
        width.weigh(2048, 1_024_000, 500_000);
        let before = fitting(&width, 500_000);
        width.weigh(1, 1 << 30, 500_000);
        assert!(fitting(&width, 500_000) > before / 2);
        // The width alone decides, even if nothing else is known.
        let width = Width::default();
        width.weigh(1, 1 << 30, 500_000);
        let mut rows = 0;
        for _ in 0..12 {
            let slice = fitting(&width, 500_000);
            width.weigh(slice, slice * 10, 500_000);
            rows += slice;
        }
        assert!(rows > 2048, "{rows}");
    }

    #[test]
    fn lanes_that_share_a_batch_share_its_end() {
        let cost = measured(1_000);
        // 400 us of work justify no further lane.
        assert_eq!(cost.advise(400, 8, 1, 1, NEAR), Advice { rows: 400, lanes: 1, probe: false });
        assert_eq!(cost.advise(500, 8, 2, 1, NEAR), Advice { rows: 125, lanes: 2, probe: false });
        assert_eq!(cost.advise(300, 8, 2, 1, NEAR).rows, 100);
        assert_eq!(cost.advise(80, 8, 2, 1, NEAR).rows, 80);
        // Rows that wait at the same time stay in one slice.
        assert_eq!(cost.advise(400, 8, 2, 64, NEAR).rows, 400);
    }

    #[test]
    fn waiting_rows_stay_together() {
        let advice = measured(20_000).advise(2048, 2, 0, 64, NEAR);
        assert_eq!((advice.lanes, advice.rows), (2, 1024));
    }
}
