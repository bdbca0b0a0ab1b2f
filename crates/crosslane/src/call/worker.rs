//! A lane at work for a call, and what it was given.

use crate::lane::{COUNT, Lane, WRITING};
use crate::pool::PooledLane;
use crate::spread::Taken;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Rows to be computed, and what happened to them before.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) rows: Range<usize>,
    /// How often they were lost with a lane that had begun them.
    pub(super) lost: u32,
    /// How often with one that had not.
    pub(super) unbegun: u32,
    /// When they may be sent again, if that is not at once.
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
    pub(super) submitting: u64,
    pub(super) submitted: u64,
}

pub(super) struct Worker<'a, L: Lane> {
    pub(super) lane: PooledLane<L>,
    pub(super) slices: VecDeque<Submitted>,
    /// How far the oldest slice is, and since when, for the timeout.
    pub(super) seen: (u64, Instant),
    /// Whether the last slice found no room, so that none is sent before a reply has come.
    pub(super) full: bool,
    pub(super) borrowed: bool,
    /// When its last reply was collected.
    pub(super) free: u64,
    /// Its place among the lanes at work.
    pub(super) _slot: Taken<'a>,
}

impl<L: Lane> Worker<'_, L> {
    /// The row that the guest works on, if it works on the oldest slice.
    pub(super) fn row(&self, submitted: &Submitted) -> Option<usize> {
        let (exchange, row) = self.lane.progress();
        let row = (row & !WRITING) as usize;
        (exchange == submitted.exchange as u32 && row < submitted.slice.rows.len())
            .then(|| submitted.slice.rows.start + row)
    }

    /// Whether the guest has taken this slice, or one that was sent after it.
    pub(super) fn has_begun(&self, submitted: &Submitted) -> bool {
        let (exchange, _) = self.lane.progress();
        exchange.wrapping_sub(submitted.exchange as u32) < 1 << 31
    }

    /// Whether the guest has come no further with its oldest slice for longer than `limit`. Only more counts: it
    /// could say anything.
    pub(super) fn overdue(&mut self, now: Instant, limit: Duration) -> bool {
        let Some(submitted) = self.slices.front() else { return false };
        let far = far(self.lane.progress(), submitted);
        if far > self.seen.0 {
            self.seen = (far, now);
        }
        now.saturating_duration_since(self.seen.1) >= limit
    }
}

/// How far a slice is, by what its guest says: from 0 to twice its rows.
fn far((exchange, row): (u32, u32), submitted: &Submitted) -> u64 {
    let rows = submitted.slice.rows.len() as u64;
    let within = |row: u32| u64::from(row).min(rows);
    if exchange != submitted.exchange as u32 || row == u32::MAX {
        0
    } else if row & COUNT != 0 {
        1 + within(row & !COUNT)
    } else if row & WRITING != 0 {
        2 + rows + within(row & !WRITING)
    } else {
        1 + within(row)
    }
}
