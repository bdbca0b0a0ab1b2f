//! What a batch and a row of a function cost, and what follows for the size of slices.
//!
//! Slicing costs a round trip per slice, which is short in a ring and longer to a server, and occupies idle lanes. It also repeats
//! what the function does once per batch, as vectorized ones do. So it must pay: a batch is sliced only if the work for its
//! remaining rows is worth that ([`WORTH_SLICING`], [`WORTH_REPEATING`]), or if lanes share it already. A slice should be long
//! enough to hide its round trip, short enough that the slowest lane does not decide, and an unmeasured function is approached
//! carefully: the first slice has one row, and no slice exceeds eight times the rows measured so far, so that a function of a
//! second per row is not sent 2048 of them.
//!
//! The two costs are a line through the latest batches, by least squares ([`Line`]). One average per row would take what a batch
//! costs for the cost of its rows: short slices would look expensive, and be cut into still shorter ones.

use crate::lane::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// In round trips.
const WORTH_SLICING: u32 = 30;
const SHORTEST: u32 = 5;
/// In what a batch costs by itself: the work that is worth slicing, and the least work of a slice.
const WORTH_REPEATING: u32 = 4;
const SHORTEST_REPEATING: u32 = 2;
const LONGEST: Duration = Duration::from_millis(20);
/// Slices per lane, so that a lane that is done early finds more to do.
const BALANCE: u64 = 2;
const GROWTH: u64 = 8;
/// No batch takes longer than this many nanoseconds (a month), whatever its guest says.
const MOST: u64 = 30 * 86_400 * 1_000_000_000;
/// Rows after which the costs are those of several batches.
const SETTLED: u64 = 512;
/// Rows after which no more are counted.
const ENOUGH: u64 = 1 << 20;
/// An average that has changed by less than this part of it stays as it is, and so do costs.
const NOTICEABLE: u64 = 16;
/// The same for costs of which enough is known.
const NOTICEABLE_OF_KNOWN: u64 = 4;
/// What a batch still counts when the next one has come.
const KEPT: f64 = 0.75;
/// By which part of their average the lengths of batches have to differ, so that they tell what a batch costs by itself.
const DIFFERENT: f64 = 0.25;

/// Stores an average where it says something new.
fn note(average: &AtomicU64, old: u64, new: u64) {
    if new.abs_diff(old) > old / NOTICEABLE {
        average.store(new, Relaxed);
    }
}

/// The measured cost of a function. All workers read it for every batch, so it is written only where that says something
/// new.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    /// In picoseconds.
    per_row: AtomicU64,
    /// What a batch costs without its rows, in picoseconds.
    per_batch: AtomicU64,
    measured: AtomicU64,
    latest: Mutex<Line>,
    pub(crate) arguments: Width,
    pub(crate) results: Width,
}

/// A line through the rows and times (in picoseconds) of batches, of which older ones count less: sums for its least squares.
#[derive(Debug, Default)]
struct Line {
    count: f64,
    rows: f64,
    time: f64,
    rows_by_rows: f64,
    rows_by_time: f64,
    /// The rows and the time of the batch that came last.
    last: (f64, f64),
}

impl Line {
    /// Adds a batch, beside which those before it count `kept` of what they did.
    fn add(&mut self, rows: f64, time: f64, kept: f64) {
        self.count = kept * self.count + 1.0;
        self.rows = kept * self.rows + rows;
        self.time = kept * self.time + time;
        self.rows_by_rows = kept * self.rows_by_rows + rows * rows;
        self.rows_by_time = kept * self.rows_by_time + rows * time;
        self.last = (rows, time);
    }

    /// Begins anew with a batch, and with the one before if that was shorter.
    fn begin(&mut self, rows: f64, time: f64) {
        let (fewer, shorter) = self.last;
        *self = Self::default();
        // Else it has paid for imports and caches.
        if fewer < rows && shorter < time {
            self.add(fewer, shorter, 0.0);
        }
        self.add(rows, time, 1.0);
    }

    /// What a batch and each of its rows cost. If the batches are too much alike to tell, a batch costs what is known already.
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

/// Moving average of a row's bytes in batches one way; 0 until one is too large for its lane.
#[derive(Debug, Default)]
pub(crate) struct Width(AtomicU64);

impl Width {
    /// That of `rest` rows, if the first `rows` have so many bytes; 0 if all of them fit a lane that holds `most`.
    pub(crate) fn of(rows: usize, bytes: usize, rest: usize, most: usize) -> Self {
        let width = bytes.div_ceil(rows.max(1)).max(1);
        Self(AtomicU64::new(if width.saturating_mul(rest) > most { width as u64 } else { 0 }))
    }

    /// Learns from a batch of so many bytes, for a lane whose own memory holds `most`.
    pub(crate) fn weigh(&self, rows: usize, bytes: usize, most: usize) {
        let old = self.0.load(Relaxed);
        if rows == 0 || (old == 0 && bytes <= most) {
            return;
        }
        // A wider row travels alone in any case, and narrow ones would have to win back more.
        let fresh = (bytes / rows).min(most / 2).max(1) as u64;
        // A single huge row must not say much.
        let average = if old == 0 { fresh } else { (old + fresh.min(2 * old)).div_ceil(2) };
        note(&self.0, old, average);
    }

    /// How many of `rows` rows to send at once, so that they fill no more than half of what a lane's own memory
    /// holds, if `rest` rows are left in all. Slices that are cut for this are equally long.
    pub(crate) fn fitting(&self, rows: usize, rest: usize, most: usize) -> usize {
        let fitting = match self.0.load(Relaxed) as usize {
            0 => return rows,
            bytes => (most / 2 / bytes).max(1),
        };
        if rows <= fitting { rows } else { rest.div_ceil(rest.div_ceil(fitting)) }
    }
}

/// The costs of a function's entries: a row of one says nothing about a row of another.
#[derive(Debug, Default)]
pub(crate) struct Costs([Cost; Entry::COUNT]);

impl Costs {
    pub(crate) fn of(&self, entry: Entry) -> &Cost {
        &self.0[entry as usize - 1]
    }
}

/// How the rest of a batch is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Rows of the next slice.
    pub(crate) rows: usize,
    /// Lanes that would pay.
    pub(crate) lanes: usize,
    /// Whether to wait for the reply before cutting further.
    pub(crate) probe: bool,
}

impl Cost {
    /// Learns from a reply. Concurrent updates may get lost; it is an estimate.
    pub(crate) fn learn(&self, rows: usize, guest: u64) {
        if rows == 0 {
            return;
        }
        // The time is what the guest says, so it may be anything.
        let time = guest.min(MOST) * 1000;
        let measured = self.measured.load(Relaxed);
        if measured < ENOUGH {
            self.measured.fetch_add(rows as u64, Relaxed);
        }
        let expected = self.expected(rows);
        let noticeable = if measured < ENOUGH { NOTICEABLE } else { NOTICEABLE_OF_KNOWN };
        // Nothing is expected while another thread is about to store the first costs.
        let is_settled = measured >= SETTLED && expected > 0;
        if is_settled && time.abs_diff(expected) <= expected / noticeable {
            return;
        }
        let Ok(mut latest) = self.latest.try_lock() else { return };
        // While little is known, the latest slice, which is the longest so far, says most. Later a single slice that was
        // preempted must not say much.
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

    /// What so many rows cost in one batch, in picoseconds.
    fn expected(&self, rows: usize) -> u64 {
        let per_row = self.per_row.load(Relaxed);
        per_row.saturating_mul(rows as u64).saturating_add(self.per_batch.load(Relaxed))
    }

    /// What `rows` rows will take, if that is known.
    pub(crate) fn estimate(&self, rows: usize) -> Option<Duration> {
        let is_known = self.per_row.load(Relaxed) > 0;
        is_known.then(|| Duration::from_nanos(self.expected(rows) / 1000))
    }

    /// How to cut `rest` rows for at most `width` lanes, if `sharing` lanes are at work, `concurrency` rows
    /// of a lane run at once, and a batch without rows would be there and back in `round_trip`.
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
            // No lane is taken for so little, but those that share the batch should be done at the same time.
            width = width.min(sharing);
        }
        let most = (rest as u64).div_ceil(rows_in(shortest).max(4 * concurrency as u64 - 3)) as usize;
        let lanes = width.min(most).max(1);
        // Rows that wait together should stay together: each slice ends with a wave that is not full.
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
        // However long the way is, a slice takes no longer than 20 ms.
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

    /// Calls a function of so many nanoseconds per batch and per row with 2,048 rows, cut as it is advised.
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
        // Rows that cost more than that share the lanes, in slices that repeat it as seldom as they can.
        let advice = called(1_000_000, 20_000).advise(2048, 2, 0, 1, NEAR);
        assert_eq!((advice.lanes, advice.rows), (2, 512));
        let advice = called(10_000_000, 20_000).advise(2048, 2, 0, 1, NEAR);
        assert_eq!((advice.lanes, advice.rows), (2, 1005));
    }

    #[test]
    fn batches_that_were_taken_for_expensive_become_whole_again() {
        let cost = Cost::default();
        // While the machine stood still, a batch without a cost of its own looked expensive.
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

    /// How many rows of 2,048 go over a lane that holds so many bytes.
    fn fitting(width: &Width, most: usize) -> usize {
        width.fitting(2048, 2048, most)
    }

    #[test]
    fn wide_rows_are_cut_and_narrow_ones_are_not_even_counted() {
        let width = Width::default();
        width.weigh(2048, 500_000, 500_000);
        assert_eq!((fitting(&width, 500_000), width.0.load(Relaxed)), (2048, 0));
        width.weigh(2048, 2_048_000, 500_000);
        // 250 would fit: nine slices, the last of which is not much shorter.
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
        // And so do wide ones from narrow ones.
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
        // Even if nothing else is known.
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
        // For 400 us no lane is taken.
        assert_eq!(cost.advise(400, 8, 1, 1, NEAR), Advice { rows: 400, lanes: 1, probe: false });
        assert_eq!(cost.advise(500, 8, 2, 1, NEAR), Advice { rows: 125, lanes: 2, probe: false });
        assert_eq!(cost.advise(300, 8, 2, 1, NEAR).rows, 100);
        assert_eq!(cost.advise(80, 8, 2, 1, NEAR).rows, 80);
        // Rows that wait together stay together.
        assert_eq!(cost.advise(400, 8, 2, 64, NEAR).rows, 400);
    }

    #[test]
    fn waiting_rows_stay_together() {
        let advice = measured(20_000).advise(2048, 2, 0, 64, NEAR);
        assert_eq!((advice.lanes, advice.rows), (2, 1024));
    }
}
