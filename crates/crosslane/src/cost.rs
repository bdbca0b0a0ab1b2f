//! What a row of a function costs, and what follows for the size of slices.
//!
//! Slicing costs a round trip per slice, which is short in a ring and longer to a server, and occupies idle lanes, so it must pay:
//! a batch is sliced only if its remaining work is worth so many round trips ([`WORTH_SLICING`]), or if lanes share it already.
//! A slice should be long enough to hide its round trip, short enough that the slowest lane does not decide,
//! and an unmeasured function is approached carefully: the first slice has one row, and no slice exceeds eight
//! times the rows measured so far, so that a function of a second per row is not sent 2048 of them.

use crate::exchange::Entry;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// In round trips.
const WORTH_SLICING: u32 = 30;
const SHORTEST: u32 = 5;
const LONGEST: Duration = Duration::from_millis(20);
/// Slices per lane, so that a lane that is done early finds more to do.
const BALANCE: u64 = 2;
const GROWTH: u64 = 8;
/// No batch takes longer than this many nanoseconds (a month), whatever its guest says.
const MOST: u64 = 30 * 86_400 * 1_000_000_000;
/// Rows after which the cost is an average.
const SETTLED: u64 = 512;
/// Rows after which no more are counted.
const ENOUGH: u64 = 1 << 20;
/// An average that has changed by less than this part of it stays as it is.
const NOTICEABLE: u64 = 16;

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
    /// Moving average, in picoseconds per row.
    per_row: AtomicU64,
    measured: AtomicU64,
    pub(crate) arguments: Width,
    pub(crate) results: Width,
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
        let fresh = (guest.min(MOST) * 1000 / rows as u64).max(1);
        let old = self.per_row.load(Relaxed);
        let measured = self.measured.load(Relaxed);
        if measured < ENOUGH {
            self.measured.fetch_add(rows as u64, Relaxed);
        }
        // The first rows pay for imports and caches: while little is known, the latest slice, which is the
        // longest so far, says most. Later a single slice that was preempted must not say much.
        let average = if measured < SETTLED { fresh } else { (3 * old + fresh.min(2 * old)) / 4 };
        note(&self.per_row, old, average);
    }

    /// What `rows` rows will take, if that is known.
    pub(crate) fn estimate(&self, rows: usize) -> Option<Duration> {
        let per_row = self.per_row.load(Relaxed);
        (per_row > 0).then(|| Duration::from_nanos(per_row.saturating_mul(rows as u64) / 1000))
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
        let rows_in = |time: Duration| (time.as_nanos() as u64 * 1000 / per_row).max(1);
        let shortest = (SHORTEST * round_trip).min(LONGEST);
        let mut width = width;
        if (rest as u64) < rows_in(WORTH_SLICING * round_trip) {
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
        let rows = if concurrency > 1 { rows } else { rows.clamp(rows_in(shortest), rows_in(LONGEST)) };
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
        (0..ENOUGH / 4096).for_each(|_| cost.learn(4096, 4096 * 1_100));
        let known = (cost.per_row.load(Relaxed), cost.measured.load(Relaxed));
        cost.learn(4096, 4096 * 1_100);
        assert_eq!(known, (1_000_000, cost.measured.load(Relaxed)));
        (0..50).for_each(|_| cost.learn(4096, 4096 * 2_000));
        assert!((1_600_000..=2_000_000).contains(&cost.per_row.load(Relaxed)));
    }

    #[test]
    fn an_unknown_function_is_approached_carefully() {
        let cost = Cost::default();
        assert_eq!(cost.advise(2048, 2, 0, 1, NEAR), Advice { rows: 1, lanes: 1, probe: true });
        cost.learn(1, 1_000);
        assert_eq!(cost.advise(2047, 2, 0, 1, NEAR).rows, 8);
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
