//! How a call is cut into slices, and which lanes they go to.

use crate::batch::{Body, Encode, Plan};
use crate::call::chunk::chunk_call::ChunkCall;
use crate::call::chunk::worker::{DEPTH, Slice, Submitted, Worker};
use crate::call::clock::Seen;
use crate::call::loss::Loss;
use crate::cost::{Advice, Width};
use crate::error::Error;
use crate::lane::{Address, Entry, Lane, LaneError};
use crate::pool::Zygote;
use crate::stats::now;
use std::cell::Cell;

/// A slice is cut to fill half of the memory of a lane. It is too short if it fills less than `1 /
/// NARROW` of that memory.
const NARROW: usize = 8;
/// The most pieces into which a slice that is too large is cut at once.
const MOST_PIECES: usize = 32;

/// Arguments that are refused as too large, unless they have between `least` and `most` bytes.
struct Bounded<'a> {
    content: &'a dyn Encode,
    least: usize,
    most: usize,
    /// The size of the arguments in bytes.
    size: &'a Cell<usize>,
}

impl Encode for Bounded<'_> {
    fn plan(&self, plan: &mut Plan) {
        self.content.plan(plan);
        self.size.set(plan.size());
        if !(self.least..=self.most).contains(&plan.size()) {
            plan.overflow();
        }
    }
    fn write(&self, body: &mut Body<'_>) {
        self.content.write(body);
    }
}

impl<Z: Zygote> ChunkCall<'_, Z> {
    /// Whether there are rows to send now. While lost rows pause, no new rows are sent. What ended
    /// the lane of the lost rows could also end other lanes.
    pub(super) fn has_more(&self) -> bool {
        self.again.front().map_or(!self.rest.is_empty(), Slice::is_due)
    }

    fn concurrency(&self) -> usize {
        self.function.spec.concurrency.max(1) as usize
    }

    /// Gives each lane that is not full its next slice, and borrows lanes while this makes the call
    /// faster.
    pub(super) fn feed(&mut self) -> Result<(), Error> {
        // Breadth first: each lane has a slice before any lane gets its second one.
        for full in 0..self.depth() {
            let mut index = 0;
            loop {
                if self.probing || !self.has_more() {
                    return Ok(());
                }
                // A lane may have been lost meanwhile.
                index = index.min(self.lanes.len());
                if index == self.lanes.len() && !self.add_worker()? {
                    break;
                }
                let worker = &self.lanes[index];
                if worker.slices.len() <= full && !worker.full {
                    let (slice, least) = self.next_slice(self.most(index));
                    if !self.submit(index, slice, least)? {
                        continue;
                    }
                }
                index += 1;
            }
        }
        Ok(())
    }

    fn depth(&self) -> usize {
        // Rows that wait together occupy a lane. A second batch behind them would wait longer than
        // for the next free lane. And only slices of calls may queue on a lane.
        if self.concurrency() > 1 || self.entry != Entry::Call { 1 } else { DEPTH }
    }

    /// The most bytes that a batch of several rows should have on this lane, in each direction.
    pub(super) fn most(&self, index: usize) -> usize {
        // Rows that wait together, or depend on each other, stay together, whatever it costs to
        // send them.
        let together = self.concurrency() > 1 || self.function.spec.whole_batches;
        if together { usize::MAX } else { self.lanes[index].lane.most() }
    }

    /// Takes one more lane: the call's own, or a borrowed one. False if no lane is available.
    fn add_worker(&mut self) -> Result<bool, Error> {
        if self.held {
            return Ok(false);
        }
        let (lane, slot, borrowed) = if self.lanes.is_empty() {
            let lane = self.caller.check_out(self.library, self.function)?;
            (lane, self.caller.group.join(), false)
        } else {
            let advice = self.advise();
            if advice.lanes <= self.lanes.len() {
                return Ok(false);
            }
            let Some(slot) = self.caller.group.try_join(self.caller.width) else { return Ok(false) };
            let Some(lane) = self.library.pool.of(self.function).try_check_out() else { return Ok(false) };
            (lane, slot, true)
        };
        self.lanes.push(Worker::new(lane, slot, borrowed));
        Ok(true)
    }

    fn advise(&self) -> Advice {
        // All lanes of a library use the same kind of connection.
        let round_trip = self.lanes[0].lane.round_trip();
        let (rest, sharing) = (self.rest.len(), self.lanes.len());
        self.cost.advise(rest, self.caller.width, sharing, self.concurrency(), round_trip)
    }

    /// The next slice, and the fewest bytes that it should have. If it has fewer, more rows fit
    /// than estimated.
    fn next_slice(&mut self, most: usize) -> (Slice, usize) {
        if let Some(slice) = self.again.pop_front() {
            return (slice, 0);
        }
        if self.function.spec.whole_batches {
            return (Slice::new(std::mem::take(&mut self.rest)), 0);
        }
        let advice = self.advise();
        self.probing = advice.probe;
        let rest = self.rest.len();
        let longest = self.cost.results.fitting(advice.rows, rest, most);
        let longest = self.function.spec.batch.map_or(longest, |rows| longest.min(rows as usize));
        let arguments = self.narrow.as_ref().unwrap_or(&self.cost.arguments);
        let length = arguments.fitting(longest, rest, most);
        let least = if length < longest && self.narrow.is_none() { most / NARROW } else { 0 };
        let end = self.rest.start + length;
        let rows = self.rest.start..end;
        self.rest.start = end;
        (Slice::new(rows), least)
    }

    /// Sends a slice over a lane. False if the slice was cut, or taken back to become longer. Then
    /// this lane can take the next slice.
    fn submit(&mut self, index: usize, slice: Slice, least: usize) -> Result<bool, Error> {
        let submitting = now();
        let most = self.most(index);
        let worker = &mut self.lanes[index];
        let (address, rows) = (Address::whole(self.function.index, self.entry), slice.rows.len());
        let size = Cell::new(0);
        let mut outcome = Ok(None);
        self.input.slice(slice.rows.clone(), &mut |content| {
            let most = if rows > 1 { most } else { usize::MAX };
            outcome = worker.lane.submit(address, rows, &Bounded { content, least, most, size: &size });
        })?;
        match outcome {
            Ok(Some(exchange)) => {
                if worker.slices.is_empty() {
                    worker.seen = Seen::now();
                }
                if worker.borrowed {
                    self.library.log(self.function).fanned_out(worker.lane.stats(), rows);
                }
                worker.slices.push(Submitted {
                    slice,
                    exchange,
                    bytes: size.get(),
                    submitting,
                    submitted: now(),
                });
                Ok(true)
            }
            Ok(None) => {
                worker.full = true;
                self.probing = false;
                self.again.push_front(slice);
                Ok(true)
            }
            // Nothing was sent, and the lane still works. These rows are narrower than earlier
            // ones.
            Err(LaneError::TooLarge(_)) if size.get() < least => {
                self.rest.start = slice.rows.start;
                self.narrow = Some(Width::of(rows, size.get(), self.rest.len(), most));
                self.probing = false;
                Ok(false)
            }
            // Nothing was sent, and the lane still works. Smaller slices may fit.
            Err(LaneError::TooLarge(_)) if rows > 1 => {
                // Pieces have half of the lane's memory, so that the next one fits while the guest
                // works on one. One row may be much larger than the others, so a piece that is
                // still too large is cut again.
                let pieces = size.get().div_ceil(most / 2).min(MOST_PIECES).clamp(2, rows);
                let length = rows.div_ceil(pieces);
                for start in slice.rows.clone().step_by(length).rev() {
                    let rows = start..slice.rows.end.min(start + length);
                    self.again.push_front(Slice { rows, ..slice });
                }
                // This makes the next slices as long as the pieces.
                self.cost.arguments.weigh(rows, size.get().min(pieces * (most / 2)), most);
                self.probing = false;
                Ok(false)
            }
            Err(LaneError::TooLarge(what)) => Err(self.died(what, Some(slice.rows.start))),
            Err(error) if worker.slices.is_empty() => {
                let worker = self.lanes.remove(index);
                self.not_begun(worker, slice, Loss::Failed(&error)).map(|()| true)
            }
            Err(error) => {
                self.again.push_front(slice);
                self.drain_dead(index, &error).map(|()| true)
            }
        }
    }
}
