//! What happens to the slices of a lost lane ([`crate::call::loss`] has the protocol).

use super::chunk_call::ChunkCall;
use super::worker::{Slice, Worker};
use crate::call::loss::{Loss, MOST_UNBEGUN, died};
use crate::call::place::place;
use crate::error::{Error, Place};
use crate::function::{ErrorPolicy, Verdict};
use crate::lane::{Lane, LaneError};
use crate::pool::Zygote;
use std::time::Instant;

impl<Z: Zygote> ChunkCall<'_, Z> {
    /// Counts rows that are called once more.
    fn called_again(&self, rows: usize) {
        self.function.rate.iter().for_each(|rate| rate.spend(rows as u64));
        self.caller.spent.iter().for_each(|spent| spent.add(rows as u64));
    }

    pub(super) fn place(&self, row: Option<usize>) -> Place {
        place(self.function, self.entry, self.input, row)
    }

    /// Removes a lane whose guest is dead, after accepting the replies that the guest left.
    pub(super) fn drain_dead(&mut self, index: usize, error: &LaneError) -> Result<(), Error> {
        loop {
            let worker = &mut self.lanes[index];
            if worker.slices.is_empty() {
                self.lanes.remove(index);
                self.library.pool.reap();
                return Ok(());
            }
            match worker.lane.try_collect_head() {
                Ok(Some(header)) if self.accept(index, header)? => {}
                // The reply was malformed, and the lane has been removed already.
                Ok(Some(_)) => return Ok(()),
                // The last message of a server explains more than that it has closed the
                // connection.
                Err(why @ LaneError::Died(_)) => return self.lose(index, Loss::Failed(&why)),
                Ok(None) | Err(_) => return self.lose(index, Loss::Failed(error)),
            }
        }
    }

    /// Gives up a lane, with the slices in flight on it.
    pub(super) fn lose(&mut self, index: usize, loss: Loss<'_>) -> Result<(), Error> {
        let mut worker = self.lanes.remove(index);
        let Some(submitted) = worker.oldest() else {
            return Err(self.error(loss, None));
        };
        let replied = matches!(loss, Loss::Failed(LaneError::Corrupt(_)));
        // A late guest may still begin a slice, until it has ended.
        let ended = !matches!(loss, Loss::Late(_)) || worker.lane.halt();
        if !replied && ended && !worker.may_have_begun(&submitted) {
            return self.not_begun(worker, submitted.slice, loss);
        }
        let row = worker.row(&submitted);
        self.begun(worker, submitted.slice, row, loss)
    }

    fn error(&self, loss: Loss<'_>, row: Option<usize>) -> Error {
        loss.error(self.function, self.place(row))
    }

    pub(super) fn died(&self, how: String, row: Option<usize>) -> Error {
        died(self.function, how, self.place(row))
    }

    /// Ends a lane. The slices behind its oldest one did not cause the loss, and are sent again.
    /// Returns those that may have begun, which are not sent again here.
    fn end(&mut self, worker: Worker<'_, Z::Lane>, loss: Loss<'_>) -> Vec<Slice> {
        self.library.log(self.function).lost(Some(worker.lane.stats()));
        self.probing = false;
        let mut begun = Vec::new();
        for submitted in &worker.slices {
            let slice = submitted.slice.clone();
            let may_have_begun = match loss {
                // All its reports have arrived.
                Loss::Late(_) => worker.lane.says_begun(submitted.exchange),
                Loss::Failed(_) => worker.may_have_begun(submitted),
            };
            if may_have_begun { begun.push(slice) } else { self.again.push_back(slice) }
        }
        drop(worker);
        // Other lanes may have died with it, or of the same cause.
        self.library.pool.reap();
        begun
    }

    /// Sends a slice again if no row of it was begun, whatever the function's options say.
    pub(super) fn not_begun(
        &mut self,
        worker: Worker<'_, Z::Lane>,
        mut slice: Slice,
        loss: Loss<'_>,
    ) -> Result<(), Error> {
        let error_policy = self.error_policy(&worker, loss);
        let behind = self.end(worker, loss);
        if self.held || slice.unbegun == MOST_UNBEGUN {
            return Err(self.error(loss, None));
        }
        slice.unbegun += 1;
        self.again.push_front(slice);
        behind.into_iter().try_for_each(|slice| self.judge(slice, None, loss, error_policy))
    }

    /// Decides what happens to a slice whose lane was lost while it worked on `row`. Decides the
    /// same for the slices behind it that may have begun.
    fn begun(
        &mut self,
        worker: Worker<'_, Z::Lane>,
        slice: Slice,
        row: Option<usize>,
        loss: Loss<'_>,
    ) -> Result<(), Error> {
        let error_policy = self.error_policy(&worker, loss);
        let behind = self.end(worker, loss);
        if self.held {
            // The caller's state in this lane is lost with it.
            return Err(self.error(loss, row));
        }
        self.judge(slice, row, loss, error_policy)?;
        behind.into_iter().try_for_each(|slice| self.judge(slice, None, loss, error_policy))
    }

    /// The error policy for a lane that is lost in this way.
    fn error_policy(&self, worker: &Worker<'_, Z::Lane>, loss: Loss<'_>) -> ErrorPolicy {
        // A lane that shares its process may have died because of another lane. So its slices get
        // one more try.
        let mut error_policy = self.function.spec.error_policy();
        if matches!(loss, Loss::Failed(_)) && !self.entry.changes_states() {
            error_policy.retries += u32::from(worker.lane.shares_its_process());
        }
        error_policy
    }

    /// Decides what happens to a slice that may have begun. `row` is the row it was at, if that is
    /// known.
    fn judge(
        &mut self,
        mut slice: Slice,
        row: Option<usize>,
        loss: Loss<'_>,
        error_policy: ErrorPolicy,
    ) -> Result<(), Error> {
        match error_policy.judge(loss, slice.lost, None) {
            Ok(Verdict::Null) => {}
            Ok(Verdict::Again(pause)) => {
                slice.due = Some(Instant::now() + pause);
                slice.lost += 1;
                self.library.log(self.function).retried();
                self.called_again(slice.rows.len());
                self.again.push_front(slice);
                return Ok(());
            }
            Err(loss) => return Err(self.error(loss, row)),
        }
        // The rows around the culprit are computed again. Without a culprit, all rows become NULL.
        let culprit = row.map_or(slice.rows.clone(), |row| row..row + 1);
        self.function.stats.here().errors.add(culprit.len() as u64);
        culprit.clone().for_each(|row| self.output.null(row));
        for rows in [culprit.end..slice.rows.end, slice.rows.start..culprit.start] {
            if !rows.is_empty() {
                self.called_again(rows.len());
                self.again.push_front(Slice::new(rows));
            }
        }
        Ok(())
    }
}
