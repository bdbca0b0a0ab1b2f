//! Takes and checks replies.

use crate::batch::{self, BATCH, Borrowed, FAILURE, Header, Malformed};
use crate::call::answers::failure;
use crate::call::chunk::chunk_call::ChunkCall;
use crate::call::chunk::deliver::{deliver, deliver_borrowed};
use crate::call::chunk::worker::Submitted;
use crate::call::clock::Seen;
use crate::call::loss::Loss;
use crate::error::Error;
use crate::lane::{Lane, LaneError};
use crate::pool::Zygote;
use crate::stats::{Times, now};

impl<Z: Zygote> ChunkCall<'_, Z> {
    /// Takes each reply that is there. False if there was none.
    pub(super) fn collect(&mut self) -> Result<bool, Error> {
        let mut any = false;
        let mut index = 0;
        while index < self.lanes.len() {
            let worker = &mut self.lanes[index];
            if worker.slices.is_empty() {
                index += 1;
                continue;
            }
            match worker.lane.try_collect_head() {
                Ok(None) => index += 1,
                Ok(Some(header)) => {
                    any = true;
                    if self.accept(index, header)? {
                        index += 1;
                    }
                }
                // The function has answered, and its lane still works, so there is no loss to
                // retry.
                Err(LaneError::TooLarge(what)) => return Err(self.died(what, None)),
                Err(error) => {
                    any = true;
                    self.lose(index, Loss::Failed(&error))?;
                }
            }
        }
        Ok(any)
    }

    /// Gives the results of a reply to the engine, unless they are malformed.
    fn results(&mut self, index: usize, first: usize) -> Result<Option<Malformed>, Error> {
        let Self { function, entry, types, input, output, lanes, .. } = self;
        let lane = &mut lanes[index].lane;
        let Some(returns) = types.returns else {
            return Ok(batch::columns(lane.frame(), std::iter::empty()).err());
        };
        if let Some(left) = lane.borrowed() {
            let accepted = match batch::column_before(lane.frame(), left.length(), returns) {
                Ok(Some((column, length))) => {
                    deliver_borrowed(function, *entry, *input, *output, first, &column, left.first(length))
                }
                Ok(None) => Ok(false),
                Err(malformed) => return Ok(Some(malformed)),
            };
            if !matches!(accepted, Ok(false)) {
                lane.release();
                return accepted.map(|_| None);
            }
            lane.copy_rest();
        }
        match batch::column(lane.frame(), returns) {
            Ok(column) => deliver(function, *entry, *input, *output, first, &column).map(|()| None),
            Err(malformed) => Ok(Some(malformed)),
        }
    }

    /// Takes one reply. False if its lane could not be used any more, and was removed.
    pub(super) fn accept(&mut self, index: usize, header: Header) -> Result<bool, Error> {
        let collected = now();
        let worker = &mut self.lanes[index];
        let Some(submitted) = worker.oldest() else {
            self.lose(index, Loss::Failed(&LaneError::Corrupt("a reply to no call".into())))?;
            return Ok(false);
        };
        worker.seen = Seen::now();
        worker.full = false;
        let rows = submitted.slice.rows.clone();
        let due = self.types.answer(rows.len());
        let tries = self.function.count_tries(header.retries, rows.len());
        self.caller.spent.iter().for_each(|spent| spent.add(tries));
        let bytes = worker.lane.frame().len() + worker.lane.borrowed().map_or(0, Borrowed::length);
        let outcome = match header.kind {
            BATCH if header.exchange == submitted.exchange && header.rows as usize == due => {
                let results = self.results(index, rows.start).inspect_err(|error| {
                    if let Error::Raised { failure, .. } = error {
                        let lane = self.lanes[index].lane.stats();
                        self.library.log(self.function).failed(lane, &header, failure);
                    }
                });
                results?.map(|malformed| malformed.to_string())
            }
            FAILURE if header.exchange == submitted.exchange => match failure(&header, worker.lane.frame()) {
                Ok(failure) => {
                    self.library.log(self.function).failed(worker.lane.stats(), &header, &failure);
                    let row = (header.row as usize) < rows.len();
                    let row = row.then(|| rows.start + header.row as usize);
                    let place = self.place(row);
                    return Err(Error::Raised { function: self.function.name().into(), failure, place });
                }
                Err(what) => Some(what),
            },
            kind => Some(format!(
                "a reply of kind {kind} to call {} with {} rows, where call {} with {due} rows was due",
                header.exchange, header.rows, submitted.exchange,
            )),
        };
        if let Some(what) = outcome {
            self.lanes[index].slices.insert(0, submitted);
            self.lose(index, Loss::Failed(&LaneError::Corrupt(what)))?;
            return Ok(false);
        }
        let free = std::mem::replace(&mut self.lanes[index].free, collected);
        let Submitted { bytes: sent, submitting, submitted, .. } = submitted;
        let times = Times { submitting, submitted, free, collected, delivered: now(), bytes };
        let first = || self.place(Some(rows.start)).arguments().to_owned();
        let lane = self.lanes[index].lane.stats();
        self.library.log(self.function).replied(lane, &header, rows.len(), times, first);
        self.cost.learn(rows.len(), header.worked);
        let most = self.most(index);
        self.cost.arguments.weigh(rows.len(), sent, most);
        self.cost.results.weigh(rows.len(), bytes, most);
        self.probing = false;
        Ok(true)
    }
}
