//! A lane at work for a call, and its slices.

use crate::call::clock::{Clock, Seen, Trouble};
use crate::lane::{Lane, WRITING};
use crate::pool::PooledLane;
use crate::pool::per_thread::Taken;
use smallvec::SmallVec;
use std::ops::Range;
use std::time::Instant;

/// Slices in flight per lane.
pub(super) const DEPTH: usize = 2;

/// Rows to compute, and how often they were lost before.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) rows: Range<usize>,
    /// How often the rows were lost with a lane that had begun them.
    pub(super) lost: u32,
    /// How often the rows were lost with a lane that had not begun them.
    pub(super) unbegun: u32,
    /// When the rows may be sent again; `None` if at once.
    pub(super) due: Option<Instant>,
}

impl Slice {
    pub(super) fn new(rows: Range<usize>) -> Self {
        Self { rows, lost: 0, unbegun: 0, due: None }
    }

    pub(super) fn is_due(&self) -> bool {
        self.due.is_none_or(|due| due <= Instant::now())
    }
}

pub(super) struct Submitted {
    pub(super) slice: Slice,
    pub(super) exchange: u64,
    /// The size of its arguments.
    pub(super) bytes: usize,
    pub(super) submitting: u64,
    pub(super) submitted: u64,
}

/// The slices that a lane works on, the oldest first.
pub(super) type Slices = SmallVec<[Submitted; DEPTH]>;

pub(super) struct Worker<'a, L: Lane> {
    pub(super) lane: PooledLane<L>,
    pub(super) slices: Slices,
    /// How far the oldest slice is, for the timeout.
    pub(super) seen: Seen,
    /// Whether the last slice did not fit. Then no slice is sent before a reply has come.
    pub(super) full: bool,
    pub(super) borrowed: bool,
    /// When the last reply of the lane was collected.
    pub(super) free: u64,
    /// The slot of this lane among the lanes at work.
    pub(super) _slot: Taken<'a>,
}

impl<'a, L: Lane> Worker<'a, L> {
    pub(super) fn new(lane: PooledLane<L>, slot: Taken<'a>, borrowed: bool) -> Self {
        let (slices, seen) = (Slices::new(), Seen::now());
        Self { lane, slices, seen, full: false, borrowed, free: 0, _slot: slot }
    }

    /// Removes and returns the oldest slice.
    pub(super) fn oldest(&mut self) -> Option<Submitted> {
        (!self.slices.is_empty()).then(|| self.slices.remove(0))
    }

    /// The row that the guest works on, if it works on this slice.
    pub(super) fn row(&self, submitted: &Submitted) -> Option<usize> {
        let rows = &submitted.slice.rows;
        row_at(&*self.lane, submitted.exchange, rows.len()).map(|row| rows.start + row)
    }

    /// Whether the guest may have begun this slice, or a slice that was sent after it.
    pub(super) fn may_have_begun(&self, submitted: &Submitted) -> bool {
        self.lane.may_have_begun(submitted.exchange)
    }

    /// The trouble of the lane, if it has a slice.
    pub(super) fn trouble(&mut self, clock: &Clock) -> Option<Trouble> {
        let submitted = self.slices.first()?;
        let work = (submitted.exchange, submitted.slice.rows.len());
        clock.trouble(&mut *self.lane, &mut self.seen, work)
    }
}

/// The row that a guest works on, if it works on this exchange of `rows` rows.
pub(super) fn row_at(lane: &impl Lane, exchange: u64, rows: usize) -> Option<usize> {
    let (at, row) = lane.progress();
    let row = (row & !WRITING) as usize;
    (at == exchange as u32 && row < rows).then_some(row)
}
