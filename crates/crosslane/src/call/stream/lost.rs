//! What happens to the batches of a stream that failed, or whose lane is lost.

use super::map::{Job, Map, Taken};
use crate::batch::Header;
use crate::call::Caller;
use crate::call::answers::{MOST_ROWS, failure, made};
use crate::call::clock::{Seen, Trouble};
use crate::call::loss::MOST_UNBEGUN;
use crate::error::{Error, Failure, Place, Spot};
use crate::function::Verdict;
use crate::lane::{Lane, LaneError, Patience};
use crate::pool::Zygote;
use std::collections::VecDeque;
use std::time::Instant;

impl<Z: Zygote> Map<Z> {
    /// Handles a failure of the function with the oldest batch of a worker.
    pub(super) fn failed(&mut self, index: usize, header: &Header) -> Result<Taken, Error> {
        let worker = &mut self.workers[index];
        let failure = match failure(header, worker.lane.frame()) {
            Ok(failure) => failure,
            Err(what) => {
                self.lose(index, &LaneError::Corrupt(what))?;
                return Ok(Taken::Progress);
            }
        };
        let Some((_, job)) = worker.jobs.pop_front() else { return Ok(Taken::Progress) };
        let log = self.library.log(&self.function);
        log.counters().guest.add(header.worked);
        log.failed(worker.lane.stats(), header, &failure);
        let is_set_up = failure.set_up;
        let row = Some(header.row as usize).filter(|row| *row < MOST_ROWS && !is_set_up);
        let error = self.raised(failure, job.number, row);
        if is_set_up {
            // The function's options apply only to batches that were begun.
            return Err(error);
        }
        self.judge(job, 0, error)?;
        Ok(Taken::Progress)
    }

    /// Decides what happens to a batch that failed, or that was lost with a lane that had begun it.
    pub(super) fn judge(&mut self, mut job: Job, more: u32, error: Error) -> Result<(), Error> {
        let mut error_policy = self.function.spec.error_policy();
        error_policy.retries += more;
        if job.delivered > 0 && !self.function.spec.deterministic {
            // Another try could give other rows.
            error_policy.retries = 0;
        }
        let log = self.library.log(&self.function);
        let after = error.retry_after();
        match error_policy.judge(error, job.lost, after)? {
            Verdict::Null => log.counters().errors.add(1),
            Verdict::Again(pause) => {
                log.retried();
                job.lost += 1;
                job.skip = job.delivered;
                job.due = Some(Instant::now() + pause);
                self.send_again(job);
            }
        }
        Ok(())
    }

    /// Sends a batch again if no guest has begun it, whatever the function's options say.
    pub(super) fn not_begun(&mut self, mut job: Job, error: Error) -> Result<(), Error> {
        if job.unbegun == MOST_UNBEGUN {
            return Err(error);
        }
        job.unbegun += 1;
        self.send_again(job);
        Ok(())
    }

    /// Gives up a lane that failed.
    pub(super) fn lose(&mut self, index: usize, error: &LaneError) -> Result<(), Error> {
        let replied = matches!(error, LaneError::Corrupt(_));
        self.give_up(index, replied, |map, number, row| map.died(error.to_string(), number, row))
    }

    /// Gives up a lane, with its batches. `is_known` says that all its reports have arrived: the
    /// lane is late, or has reported something wrong, but has not died.
    pub(super) fn give_up(
        &mut self,
        index: usize,
        is_known: bool,
        error: impl Fn(&Self, u64, Option<usize>) -> Error,
    ) -> Result<(), Error> {
        let worker = &mut self.workers[index];
        let shared = worker.lane.shares_its_process();
        let row = worker.jobs.front().and_then(|(exchange, _)| made(&*worker.lane, *exchange));
        let jobs = std::mem::take(&mut worker.jobs).into_iter();
        if is_known {
            // All reports are known. The guest may begin more batches until it has ended.
            worker.lane.halt();
        }
        let lane = &worker.lane;
        let begun =
            |exchange| if is_known { lane.says_begun(exchange) } else { lane.may_have_begun(exchange) };
        let mut jobs = jobs.map(|(exchange, job)| (begun(exchange), job)).collect::<VecDeque<_>>();
        self.remove(index);
        let Some((begun, oldest)) = jobs.pop_front() else { return Ok(()) };
        let lost = error(self, oldest.number, row);
        if is_known || oldest.delivered > 0 || begun {
            self.judge(oldest, u32::from(shared), lost)?;
        } else {
            self.not_begun(oldest, lost)?;
        }
        // The batches behind the oldest one did not cause the loss, unless they may have begun.
        jobs.into_iter().try_for_each(|(begun, job)| {
            if !begun {
                self.send_again(job);
                return Ok(());
            }
            let lost = error(self, job.number, None);
            self.judge(job, u32::from(shared), lost)
        })
    }

    /// Waits for a message, or until it is time to look.
    pub(super) fn wait(&mut self) {
        let sources = self.sources();
        let workers = self.workers.iter_mut().enumerate().filter(|(index, _)| sources.contains(index));
        let lanes: Vec<_> = workers.map(|(_, worker)| &mut *worker.lane).collect();
        self.clock.wait(&lanes, Patience::Spin);
    }

    /// Looks for cancellation, deaths and deadlines whenever it is time.
    pub(super) fn look(&mut self, caller: Caller<'_>) -> Result<(), Error> {
        if !self.clock.due(&self.function, caller)? {
            return Ok(());
        }
        let mut index = 0;
        while index < self.workers.len() {
            let worker = &mut self.workers[index];
            index += 1;
            let Some((exchange, _)) = worker.jobs.front().filter(|_| worker.dead.is_none()) else { continue };
            if worker.lane.has_news() {
                // The guest may be waiting until the engine takes its messages.
                worker.seen = Seen::now();
            }
            match self.clock.trouble(&mut *worker.lane, &mut worker.seen, (*exchange, MOST_ROWS)) {
                None => {}
                // The messages that it has sent before come first.
                Some(Trouble::Dead(error)) => worker.dead = Some(error),
                Some(Trouble::Late(late)) => {
                    index -= 1;
                    let error = |map: &Self, number, row| late.error(map.name(number), place(row));
                    self.give_up(index, true, error)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn name(&self, number: u64) -> String {
        format!("{}, batch {number}", self.function.name())
    }

    pub(super) fn raised(&self, failure: Box<Failure>, number: u64, row: Option<usize>) -> Error {
        Error::Raised { function: self.name(number), failure, place: place(row) }
    }

    pub(super) fn died(&self, how: String, number: u64, row: Option<usize>) -> Error {
        Error::LaneDied { function: self.name(number), how, place: place(row) }
    }
}

/// A row of the function's results for a batch.
fn place(row: Option<usize>) -> Place {
    Place(row.map(|row| Spot::Answered { row: row + 1 }))
}
