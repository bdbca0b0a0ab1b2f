//! A stream through a function, over all lanes. Each batch that goes in gives any number of
//! batches.
//!
//! Each batch of the input is an exchange of its own. It goes to the lane that has the fewest batches.
//! No lane has more than `depth` batches, so a guest finds the next batch in its ring when it is done
//! with one. Results are taken in the order of the input, or as they come. Results that the consumer
//! does not take stay in the rings, where guests wait for space. So a slow consumer slows down the
//! guests, and then the reader. Memory stays constant.
//!
//! A batch is kept until its last result was taken. It is sent again if its lane dies, or if its
//! function fails and has `retries`. Then the rows that were delivered before are left out.
//!
//! For results in order, the engine takes messages only from the lane that has the next due batch.
//! So no lane may have a batch behind a later one. Otherwise that lane's guest could wait for space
//! for ever. New batches are later than all others. A batch that is sent again goes to a lane that
//! has no batches. If no lane is free, the stream takes one lane more.

use crate::batch::{self, BATCH, Column, ColumnBuilder, Encode, FAILURE, Header};
use crate::call::Caller;
use crate::call::answers::{copied, forgiven};
use crate::call::clock::{Clock, Seen};
use crate::error::{Error, Failure};
use crate::function::{Function, Library};
use crate::lane::{Address, Entry, Lane, LaneError};
use crate::pool::{PooledLane, Zygote};
use crate::stats::now;
use crate::types::DataType;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The most rows in a message of a stream's results.
pub const LONGEST_ANSWER: usize = 65_536;

/// How a stream uses its lanes.
#[derive(Debug, Clone, Copy)]
pub struct MapOptions {
    /// The most lanes at work.
    pub lanes: usize,
    /// The most batches that a lane has at once.
    pub depth: usize,
    /// Whether results come in the order of the input.
    pub ordered: bool,
}

/// A batch of the input. Its content is one column. The content declares its type
/// ([`batch::Plan::types`]), unless the function's signature does.
pub struct MapInput {
    /// How many rows it has.
    pub rows: usize,
    /// The column.
    pub content: Box<dyn Encode + Send>,
}

impl fmt::Debug for MapInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapInput").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The next step of a stream.
#[derive(Debug)]
pub enum MapStep<'a> {
    /// The stream can take another batch: call [`Map::put`], or [`Map::end`] if there is none.
    Wants,
    /// Results: the rows of this column from the given row on. Each is a STRUCT of the output's
    /// columns.
    Output(Column<'a>, usize),
    /// There are no more results.
    Done,
}

/// A batch that is not finished.
#[derive(Debug)]
pub(super) struct Job {
    /// Its place in the input, from 1.
    pub(super) number: u64,
    pub(super) input: MapInput,
    /// How many rows of its results were delivered.
    pub(super) delivered: u64,
    /// How many rows this try has to repeat before new ones come.
    pub(super) skip: u64,
    /// How often it failed, or was lost with a lane that had begun it.
    pub(super) lost: u32,
    pub(super) unbegun: u32,
    /// When the batch may be sent again; `None` if at once.
    pub(super) due: Option<Instant>,
}

impl Job {
    fn is_due(&self) -> bool {
        self.due.is_none_or(|due| due <= Instant::now())
    }
}

#[derive(Debug)]
pub(super) struct Worker<L: Lane> {
    pub(super) lane: PooledLane<L>,
    /// The batches that it works on, the oldest first, with the numbers of their exchanges.
    pub(super) jobs: VecDeque<(u64, Job)>,
    pub(super) seen: Seen,
    /// Whether the last batch did not fit into the ring.
    pub(super) full: bool,
    /// The reason why nothing more is sent to it. The messages that it has sent are still there.
    pub(super) dead: Option<LaneError>,
}

/// A running stream. Dropping it ends it, and gives its lanes back.
#[derive(Debug)]
pub struct Map<Z: Zygote> {
    pub(super) library: Arc<Library<Z>>,
    pub(super) function: Arc<Function>,
    pub(super) options: MapOptions,
    pub(super) workers: Vec<Worker<Z::Lane>>,
    /// Batches that have to be sent again, in order.
    pub(super) again: VecDeque<Job>,
    /// The next batch of the input.
    pub(super) pending: Option<Job>,
    /// How many batches of the input were taken.
    pub(super) taken: u64,
    pub(super) ended: bool,
    /// The type of the results, once it is known.
    pub(super) returns: Option<Arc<DataType>>,
    /// The same type as text, as it is in messages.
    pub(super) text: Option<Arc<str>>,
    /// The current results, if the engine has changed them.
    pub(super) changed: Option<ColumnBuilder>,
    pub(super) clock: Clock,
}

/// The outcome of a look at all workers' replies.
enum Collected {
    Nothing,
    Progress,
    /// Rows: the index of the worker, and how many of the rows were delivered before.
    Rows(usize, usize),
}

/// The outcome of a look at one worker's replies.
pub(super) enum Taken {
    Nothing,
    /// A message without rows, or the end of a batch or a lane.
    Progress,
    /// Rows. This many of the first ones were delivered before.
    Rows(usize),
}

impl<Z: Zygote> Map<Z> {
    /// A stream through a function of a library.
    ///
    /// # Errors
    /// [`Error::Engine`] if the function takes no stream.
    pub fn new(
        library: Arc<Library<Z>>,
        function: Arc<Function>,
        options: MapOptions,
    ) -> Result<Self, Error> {
        let declared = function.entry(Entry::Map)?.returns.filter(|returns| **returns != DataType::Any);
        let declared = declared.cloned().map(Arc::new);
        let text = declared.as_ref().map(|returns| map_types(returns).into());
        let options = MapOptions { lanes: options.lanes.max(1), depth: options.depth.max(1), ..options };
        let clock = Clock::new(&function);
        Ok(Self {
            library,
            function,
            options,
            workers: Vec::new(),
            again: VecDeque::new(),
            pending: None,
            taken: 0,
            ended: false,
            returns: declared,
            text,
            changed: None,
            clock,
        })
    }

    /// The type of the input, if the function's signature says it.
    pub fn takes(&self) -> Option<&DataType> {
        let [rows] = &self.function.signature.parameters[..] else { return None };
        Some(&rows.data_type).filter(|takes| **takes != DataType::Any)
    }

    /// The type of the results, if the function's signature or a batch has said it.
    pub fn returns(&self) -> Option<&Arc<DataType>> {
        self.returns.as_ref()
    }

    /// Gives the stream the next batch of the input.
    ///
    /// # Panics
    /// If the stream did not ask for a batch.
    pub fn put(&mut self, input: MapInput) {
        assert!(self.pending.is_none() && !self.ended, "a batch that was not asked for");
        self.taken += 1;
        let number = self.taken;
        self.pending = Some(Job { number, input, delivered: 0, skip: 0, lost: 0, unbegun: 0, due: None });
    }

    /// Says that the input has no more batches.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The next results, or the input that the stream needs for them. After an error the stream
    /// cannot be used.
    ///
    /// # Errors
    /// The error that the function raised, or how its lane was lost, with the number of the batch;
    /// see [`Error`].
    pub fn next(&mut self, caller: Caller<'_>) -> Result<MapStep<'_>, Error> {
        // The waits of many quick batches are too short to look for a cancellation, so this looks.
        if caller.was_cancelled() {
            return Err(Caller::cancelled(&self.function));
        }
        let (index, first) = loop {
            self.feed(caller)?;
            if self.pending.is_none() && !self.ended && self.has_room() {
                return Ok(MapStep::Wants);
            }
            if self.is_done() {
                self.leave();
                return Ok(MapStep::Done);
            }
            match self.collect()? {
                Collected::Rows(index, first) => break (index, first),
                Collected::Progress => {}
                Collected::Nothing => self.wait(),
            }
            self.look(caller)?;
        };
        self.output(index, first)
    }

    /// Results that are there already, without a wait. For a caller that waits for the input after
    /// [`MapStep::Wants`].
    ///
    /// # Errors
    /// As [`Map::next`].
    pub fn ready(&mut self, caller: Caller<'_>) -> Result<Option<(Column<'_>, usize)>, Error> {
        loop {
            self.feed(caller)?;
            match self.collect()? {
                Collected::Rows(index, first) => {
                    return match self.output(index, first)? {
                        MapStep::Output(results, first) => Ok(Some((results, first))),
                        MapStep::Wants | MapStep::Done => Ok(None),
                    };
                }
                Collected::Progress => self.look(caller)?,
                Collected::Nothing => {
                    self.look(caller)?;
                    return Ok(None);
                }
            }
        }
    }

    /// The rows of the message that was taken last.
    fn output(&self, index: usize, first: usize) -> Result<MapStep<'_>, Error> {
        let (Some(returns), Some(worker)) = (&self.returns, self.workers.get(index)) else {
            return Ok(MapStep::Done);
        };
        let results = match &self.changed {
            Some(changed) => changed.column(returns),
            // The check has read the column already.
            None => batch::column(worker.lane.frame(), returns)?,
        };
        Ok(MapStep::Output(results, first))
    }

    fn is_done(&self) -> bool {
        let idle = self.workers.iter().all(|worker| worker.jobs.is_empty());
        self.ended && idle && self.again.is_empty() && self.pending.is_none()
    }

    /// Whether another batch could be sent. While lost batches wait, no new batch is sent. What
    /// ended the lane of a lost batch could also end other lanes.
    fn has_room(&self) -> bool {
        self.again.is_empty() && (self.best().is_some() || self.workers.len() < self.options.lanes)
    }

    /// The worker that takes the next batch.
    fn best(&self) -> Option<usize> {
        let open = |worker: &Worker<Z::Lane>| {
            worker.jobs.len() < self.options.depth && !worker.full && worker.dead.is_none()
        };
        let open = self.workers.iter().enumerate().filter(|(_, worker)| open(worker));
        open.min_by_key(|(_, worker)| worker.jobs.len()).map(|(index, _)| index)
    }

    /// Sends all batches that can be sent now.
    fn feed(&mut self, caller: Caller<'_>) -> Result<(), Error> {
        let ended = |worker: &Worker<Z::Lane>| worker.jobs.is_empty() && worker.dead.is_some();
        while let Some(index) = self.workers.iter().position(ended) {
            self.remove(index);
        }
        while self.again.front().is_some_and(Job::is_due) {
            let idle = |worker: &Worker<Z::Lane>| worker.jobs.is_empty() && worker.dead.is_none();
            let index = match self.workers.iter().position(idle) {
                Some(index) => index,
                None => self.add_worker(caller)?,
            };
            let Some(job) = self.again.pop_front() else { break };
            self.submit(index, job)?;
        }
        if !self.again.is_empty() {
            return Ok(());
        }
        let idle = |worker: &Worker<Z::Lane>| worker.jobs.is_empty() && worker.dead.is_none();
        if let Some(index) =
            self.workers.iter().position(idle).filter(|_| self.workers.len() > self.options.lanes)
        {
            // This lane was an extra one for a lost batch.
            let worker = self.workers.remove(index);
            self.library.pool.give_back(worker.lane);
        }
        if self.pending.is_none() {
            return Ok(());
        }
        let best = self.best();
        let idle = best.is_some_and(|index| self.workers[index].jobs.is_empty());
        let mut chosen = best;
        if !idle && self.workers.len() < self.options.lanes {
            chosen = match best {
                None if self.workers.is_empty() => Some(self.add_worker(caller)?),
                // The call does not wait for a lane to boot, because other lanes are at work.
                _ => self.library.pool.try_check_out().map(|lane| self.adopt(lane)).or(best),
            };
        }
        if let (Some(index), Some(job)) = (chosen, self.pending.take_if(|_| chosen.is_some())) {
            self.submit(index, job)?;
        }
        Ok(())
    }

    fn add_worker(&mut self, caller: Caller<'_>) -> Result<usize, Error> {
        let lane = caller.check_out(&self.library, &self.function)?;
        Ok(self.adopt(lane))
    }

    fn adopt(&mut self, lane: PooledLane<Z::Lane>) -> usize {
        let (jobs, seen) = (VecDeque::new(), Seen::now());
        self.workers.push(Worker { lane, jobs, seen, full: false, dead: None });
        self.workers.len() - 1
    }

    fn submit(&mut self, index: usize, job: Job) -> Result<(), Error> {
        let submitting = now();
        let address = Address::whole(self.function.index, Entry::Map);
        let worker = &mut self.workers[index];
        worker.lane.hold();
        match worker.lane.submit(address, job.input.rows, &*job.input.content) {
            Ok(Some(exchange)) => {
                if worker.jobs.is_empty() {
                    worker.seen = Seen::now();
                }
                let log = self.library.log(&self.function);
                log.sent(worker.lane.stats(), job.input.rows, submitting);
                worker.jobs.push_back((exchange, job));
            }
            Ok(None) => {
                worker.full = true;
                if job.number == self.taken && self.pending.is_none() {
                    self.pending = Some(job);
                } else {
                    self.send_again(job);
                }
            }
            Err(LaneError::TooLarge(what)) => return Err(self.died(what, job.number, None)),
            Err(error) => {
                let lost = self.died(error.to_string(), job.number, None);
                // The messages that it has sent are taken in their order.
                self.workers[index].dead = Some(error);
                if self.workers[index].jobs.is_empty() {
                    self.remove(index);
                }
                self.not_begun(job, lost)?;
            }
        }
        Ok(())
    }

    /// Ends a lane that cannot be used any more.
    pub(super) fn remove(&mut self, index: usize) {
        let worker = self.workers.remove(index);
        self.library.log(&self.function).lost(Some(worker.lane.stats()));
        drop(worker);
        // Other lanes may have died with it, or of the same cause.
        self.library.pool.reap();
    }

    /// Queues a batch that is sent before any new one.
    pub(super) fn send_again(&mut self, job: Job) {
        let place = self.again.partition_point(|other| other.number < job.number);
        self.again.insert(place, job);
    }

    /// The workers whose messages may be taken now.
    pub(super) fn sources(&self) -> Vec<usize> {
        let heads = self.workers.iter().enumerate();
        let heads = heads.filter_map(|(index, worker)| Some((index, worker.jobs.front()?.1.number)));
        if !self.options.ordered {
            return heads.map(|(index, _)| index).collect();
        }
        let oldest = heads.min_by_key(|(_, number)| *number);
        let before = |number: u64| self.again.front().is_none_or(|job| number < job.number);
        oldest.filter(|(_, number)| before(*number)).map(|(index, _)| index).into_iter().collect()
    }

    /// Takes the first message that is there.
    fn collect(&mut self) -> Result<Collected, Error> {
        for index in self.sources() {
            match self.take(index)? {
                Taken::Nothing => {}
                Taken::Progress => return Ok(Collected::Progress),
                Taken::Rows(first) => return Ok(Collected::Rows(index, first)),
            }
        }
        Ok(Collected::Nothing)
    }

    /// Takes one message.
    fn take(&mut self, index: usize) -> Result<Taken, Error> {
        let worker = &mut self.workers[index];
        worker.lane.hold();
        let header = match worker.lane.try_collect() {
            Ok(Some(header)) => header,
            Ok(None) => {
                let Some(error) = worker.dead.take() else { return Ok(Taken::Nothing) };
                self.lose(index, &error)?;
                return Ok(Taken::Progress);
            }
            Err(LaneError::TooLarge(what)) => {
                let number = worker.jobs.front().map_or(0, |(_, job)| job.number);
                return Err(self.died(what, number, None));
            }
            Err(error) => {
                self.lose(index, &error)?;
                return Ok(Taken::Progress);
            }
        };
        worker.seen = Seen::now();
        worker.full = false;
        let exchange = worker.jobs.front().map(|(exchange, _)| *exchange);
        let outcome = if exchange != Some(header.exchange) {
            Err(format!("a message of exchange {}, where {exchange:?} is due", header.exchange))
        } else if header.kind == FAILURE {
            return self.failed(index, &header);
        } else if header.kind == BATCH {
            self.rows(index, &header)?
        } else {
            Err(format!("a message of kind {}", header.kind))
        };
        match outcome {
            Ok(taken) => Ok(taken),
            Err(what) => {
                self.lose(index, &LaneError::Corrupt(what))?;
                Ok(Taken::Progress)
            }
        }
    }

    /// Takes a batch of results. Returns a description of the fault if the lane cannot be used any
    /// more.
    fn rows(&mut self, index: usize, header: &Header) -> Result<Result<Taken, String>, Error> {
        let begun = now();
        let worker = &self.workers[index];
        let number = worker.jobs[0].1.number;
        if header.rows as usize > LONGEST_ANSWER {
            let rows = header.rows;
            return Ok(Err(format!("a batch of {rows} rows, where {LONGEST_ANSWER} are the most")));
        }
        let bytes = worker.lane.frame();
        let said = match batch::types(bytes) {
            Ok(said) => said,
            Err(malformed) => return Ok(Err(malformed.to_string())),
        };
        match (said, &self.text) {
            // There are no rows, and the function has not declared their type.
            (None, _) if header.rows == 0 && batch::columns(bytes, std::iter::empty()).is_ok() => {}
            (None, Some(_)) if self.function.signature.returns != DataType::Any => {}
            (None, _) => return Ok(Err("results without their types".into())),
            (Some(said), None) => {
                let Some(data_type) = table_of(said) else {
                    return Ok(Err(format!("results of the types {said:.200}, which are no table")));
                };
                (self.text, self.returns) = (Some(said.into()), Some(Arc::new(data_type)));
            }
            (Some(said), Some(known)) if said != &**known => {
                let message = format!("gave {said}, where batches have {known}; give map a schema");
                return Err(self.raised(Box::new(Failure::unfit(&message)), number, None));
            }
            (Some(_), Some(_)) => {}
        }
        let log = self.library.log(&self.function);
        self.changed = None;
        if let (true, Some(returns)) = (header.rows > 0 || said.is_some(), &self.returns) {
            let column = match batch::column(bytes, returns) {
                Ok(column) => column,
                Err(malformed) => return Ok(Err(malformed.to_string())),
            };
            let job = &self.workers[index].jobs[0].1;
            // Only rows of this try came before them.
            let unfit = forgiven(&self.function, &column, job.delivered - job.skip)
                .map_err(|failure| self.raised(failure, number, None))?;
            // If a row is NULL as a whole, its fields have no values that may be read.
            if column.validity.is_some() || !unfit.is_empty() {
                let changed = self.changed.insert(ColumnBuilder::new(returns));
                copied(changed, &column, 0, &unfit)?;
                let skipped = self.workers[index].jobs[0].1.skip;
                let count = unfit.keys().filter(|row| **row as u64 >= skipped).count();
                log.counters().errors.add(count as u64);
            }
        }
        log.checked(self.workers[index].lane.stats(), header.rows as usize, bytes.len(), begun);
        let worker = &mut self.workers[index];
        log.received(worker.lane.stats(), header);
        let rows = u64::from(header.rows);
        let job = &mut worker.jobs[0].1;
        let skipped = job.skip.min(rows);
        job.skip -= skipped;
        job.delivered += rows - skipped;
        if header.flags & batch::LAST != 0 {
            worker.jobs.pop_front();
            log.counters().calls.add(1);
        }
        Ok(Ok(if rows > skipped { Taken::Rows(skipped as usize) } else { Taken::Progress }))
    }

    /// Gives the lanes back.
    fn leave(&mut self) {
        for mut worker in self.workers.drain(..) {
            let busy = worker.lane.in_flight() > 0;
            if worker.dead.is_some() || busy && worker.lane.cancel().is_err() {
                continue;
            }
            self.library.pool.give_back(worker.lane);
        }
    }
}

impl<Z: Zygote> Drop for Map<Z> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The types of a batch of a stream as text: the type of its one column.
pub fn map_types(table: &DataType) -> String {
    crate::types::signature::types_text(std::slice::from_ref(table))
}

/// The type of a batch of a stream, from the text of its types. `None` if the text is not a table.
pub fn table_of(types: &str) -> Option<DataType> {
    let table = types.strip_prefix('(')?.strip_suffix(')')?.parse().ok()?;
    matches!(table, DataType::Struct(_)).then_some(table)
}
