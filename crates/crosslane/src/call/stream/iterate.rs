//! A stream through a function that sees the whole stream. It is one exchange over one lane. In it,
//! the guest takes batch after batch, and answers with any number of batches at any time.
//!
//! The batch that opens the exchange has no rows, and neither has the batch that ends the input. So
//! a function is also called for an input without batches. The guest reports how many batches it
//! has taken ([`Header::row`]). It does so with its results, or with an empty message before it
//! waits for more. At most `depth` batches are sent that the guest has not taken. So memory stays
//! constant, also when batches take no space in the ring.
//!
//! The engine does not keep the batches that the function has seen. So it repeats nothing that a
//! guest has begun, whatever the function's `retries`.

use crate::batch::{self, BATCH, ColumnBuilder, FAILURE, Header, LAST};
use crate::call::Caller;
use crate::call::answers::failure;
use crate::call::answers::{MOST_ROWS, copied, forgiven};
use crate::call::clock::{Clock, Seen, Trouble};
use crate::call::loss::{Loss, MOST_UNBEGUN};
use crate::call::stream::map::{LONGEST_ANSWER, MapInput, MapStep, map_types};
use crate::error::{Error, Failure, Place};
use crate::function::{Function, Library};
use crate::lane::{Address, Entry, Lane, LaneError, Part, Patience};
use crate::pool::{PooledLane, Zygote};
use crate::stats::now;
use crate::types::DataType;
use std::sync::Arc;

/// A running stream. Its lane is given back when the guest has ended it, or when it is dropped.
#[derive(Debug)]
pub struct Iteration<Z: Zygote> {
    library: Arc<Library<Z>>,
    function: Arc<Function>,
    returns: DataType,
    /// The same type as text, as it is in messages.
    text: String,
    /// The most batches that are sent and not yet taken.
    depth: usize,
    lane: Option<PooledLane<Z::Lane>>,
    /// Whether a lane has received the first batch of the exchange.
    is_open: bool,
    exchange: u64,
    /// How many rows of results came so far.
    delivered: u64,
    /// How many batches were sent, and how many of these the guest has taken.
    sent: usize,
    taken: usize,
    /// The batches that were sent and that no guest has begun.
    kept: Vec<MapInput>,
    has_begun: bool,
    unbegun: u32,
    /// The next batch of the input.
    pending: Option<MapInput>,
    /// Whether the input has ended, and whether the guest was told so.
    ended: bool,
    told: bool,
    over: bool,
    /// The reason why nothing more is sent. The messages that the guest has sent are still there.
    dead: Option<LaneError>,
    /// The current results, if the engine has changed them.
    changed: Option<ColumnBuilder>,
    clock: Clock,
    seen: Seen,
}

/// The outcome of a look at the guest's messages.
enum Taken {
    Nothing,
    /// A message without rows.
    Progress,
    Rows,
}

impl<Z: Zygote> Iteration<Z> {
    /// A stream through a function of a library. The function declares the columns of its results.
    ///
    /// # Errors
    /// [`Error::Engine`] if the function takes no stream, or does not declare its results.
    pub fn new(library: Arc<Library<Z>>, function: Arc<Function>, depth: usize) -> Result<Self, Error> {
        let returns = function.entry(Entry::Iterate)?.returns.filter(|returns| **returns != DataType::Any);
        let missing = || Error::Engine(format!("{} does not declare its results", function.name()));
        let returns = returns.cloned().ok_or_else(missing)?;
        let (text, clock) = (map_types(&returns), Clock::new(&function));
        Ok(Self {
            library,
            function,
            returns,
            text,
            depth: depth.max(1),
            lane: None,
            is_open: false,
            exchange: 0,
            delivered: 0,
            sent: 0,
            taken: 0,
            kept: Vec::new(),
            has_begun: false,
            unbegun: 0,
            pending: None,
            ended: false,
            told: false,
            over: false,
            dead: None,
            changed: None,
            clock,
            seen: Seen::now(),
        })
    }

    /// Gives the stream the next batch of the input.
    ///
    /// # Panics
    /// If the stream did not ask for a batch.
    pub fn put(&mut self, input: MapInput) {
        assert!(self.pending.is_none() && !self.ended, "a batch that was not asked for");
        self.pending = Some(input);
    }

    /// Says that the input has no more batches.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The next results, or the input that the stream needs for them. After an error the stream
    /// cannot be used.
    ///
    /// # Errors
    /// The error that the function raised, or how its lane was lost; see [`Error`].
    pub fn next(&mut self, caller: Caller<'_>) -> Result<MapStep<'_>, Error> {
        loop {
            if caller.was_cancelled() {
                return Err(Caller::cancelled(&self.function));
            }
            if self.over {
                self.leave();
                return Ok(MapStep::Done);
            }
            self.feed(caller)?;
            if self.pending.is_none() && !self.ended && self.sent - self.taken < self.depth {
                return Ok(MapStep::Wants);
            }
            match self.take(caller)? {
                Taken::Rows => break,
                Taken::Progress => {}
                Taken::Nothing => self.wait(),
            }
            self.look(caller)?;
        }
        let results = match (&self.changed, &self.lane) {
            (Some(changed), _) => changed.column(&self.returns),
            // The check has read the column already.
            (None, Some(lane)) => batch::column(lane.frame(), &self.returns)?,
            (None, None) => return Ok(MapStep::Done),
        };
        Ok(MapStep::Output(results, 0))
    }

    /// Sends all messages that can be sent now.
    fn feed(&mut self, caller: Caller<'_>) -> Result<(), Error> {
        while self.dead.is_none() {
            if !self.is_open {
                self.open(caller)?;
                continue;
            }
            if self.sent - self.taken < self.depth && self.pending.is_some() {
                if !self.send(Part::Next)? {
                    break;
                }
                let input = self.pending.take();
                self.kept.extend(input.filter(|_| !self.has_begun));
                self.sent += 1;
            } else if self.ended && !self.told && self.pending.is_none() {
                self.told = self.send(Part::Last)?;
                break;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Opens the exchange on a lane. Sends the batches again that an earlier lane has not begun.
    fn open(&mut self, caller: Caller<'_>) -> Result<(), Error> {
        self.lane = Some(caller.check_out(&self.library, &self.function)?);
        (self.seen, self.told) = (Seen::now(), false);
        self.is_open = self.send(Part::First)?;
        if self.dead.is_some() {
            return Ok(());
        }
        if !self.is_open {
            return Err(self.corrupt("it has no room for a first batch".into()));
        }
        self.function.stats.here().calls.add(1);
        let pending = self.pending.take();
        let kept = std::mem::take(&mut self.kept);
        for input in kept {
            self.pending = Some(input);
            if !self.send(Part::Next)? && self.dead.is_none() {
                return Err(self.corrupt("it has no room for its batches".into()));
            }
            self.kept.extend(self.pending.take());
        }
        self.pending = pending;
        Ok(())
    }

    /// Sends the pending batch, or a batch without rows. False if the ring is full, or there is no
    /// lane any more.
    fn send(&mut self, part: Part) -> Result<bool, Error> {
        let submitting = now();
        let address = Address { function: self.function.index, entry: Entry::Iterate, part };
        let Some(lane) = self.lane.as_mut().filter(|_| self.dead.is_none()) else { return Ok(false) };
        lane.hold();
        if self.sent == self.taken {
            // Until now the guest may have waited for this batch.
            self.seen = Seen::now();
        }
        let submitted = match (&self.pending, part) {
            (Some(input), Part::Next) => lane.submit(address, input.rows, &*input.content),
            _ => lane.submit(address, 0, &()),
        };
        match submitted {
            Ok(Some(exchange)) => {
                self.exchange = exchange;
                let rows = self.pending.as_ref().filter(|_| part == Part::Next).map_or(0, |input| input.rows);
                self.library.log(&self.function).sent(lane.stats(), rows, submitting);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error @ LaneError::TooLarge(_)) => Err(self.lost(&error)),
            Err(error) => {
                self.dead = Some(error);
                Ok(false)
            }
        }
    }

    /// Takes one message.
    fn take(&mut self, caller: Caller<'_>) -> Result<Taken, Error> {
        let Some(lane) = &mut self.lane else { return Ok(Taken::Nothing) };
        lane.hold();
        let header = match lane.try_collect() {
            Ok(Some(header)) => header,
            Ok(None) => match self.dead.take() {
                None => return Ok(Taken::Nothing),
                Some(error) => return self.lose(&error, caller).map(|()| Taken::Progress),
            },
            Err(error @ LaneError::TooLarge(_)) => return Err(self.lost(&error)),
            Err(error) => return self.lose(&error, caller).map(|()| Taken::Progress),
        };
        self.has_begun = true;
        self.kept.clear();
        let outcome = match header.kind {
            _ if header.exchange != self.exchange => {
                Err(format!("a message of exchange {}, where {} is due", header.exchange, self.exchange))
            }
            FAILURE => match failure(&header, lane.frame()) {
                Ok(failure) => {
                    let log = self.library.log(&self.function);
                    log.counters().guest.add(header.worked);
                    log.failed(lane.stats(), &header, &failure);
                    return Err(self.raised(failure));
                }
                Err(what) => Err(what),
            },
            BATCH => self.rows(&header)?,
            kind => Err(format!("a message of kind {kind}")),
        };
        match outcome {
            Ok(taken) => Ok(taken),
            Err(what) => Err(self.corrupt(what)),
        }
    }

    /// Ends a lane whose guest has broken the protocol.
    fn corrupt(&mut self, what: String) -> Error {
        self.give_up();
        self.lost(&LaneError::Corrupt(what))
    }

    /// Ends the lane.
    fn give_up(&mut self) {
        let lost = self.lane.take();
        self.library.log(&self.function).lost(lost.as_ref().map(PooledLane::stats));
    }

    /// Takes a batch of results. Returns a description of the fault if the lane cannot be used any
    /// more.
    fn rows(&mut self, header: &Header) -> Result<Result<Taken, String>, Error> {
        let begun = now();
        let Some(lane) = &self.lane else { return Ok(Ok(Taken::Nothing)) };
        if header.rows as usize > LONGEST_ANSWER {
            let rows = header.rows;
            return Ok(Err(format!("a batch of {rows} rows, where {LONGEST_ANSWER} are the most")));
        }
        // The guest also counts the last batch, which has no rows.
        let taken = if header.row == u32::MAX { 0 } else { header.row as usize };
        if taken > self.sent + usize::from(self.told) {
            return Ok(Err(format!("it has taken {taken} batches, of {}", self.sent)));
        }
        let taken = taken.min(self.sent);
        if header.rows > 0 || taken > self.taken {
            // A guest that sends only empty batches makes no progress.
            self.seen = Seen::now();
        }
        self.taken = self.taken.max(taken);
        let bytes = lane.frame();
        let said = match batch::types(bytes) {
            Ok(said) => said,
            Err(malformed) => return Ok(Err(malformed.to_string())),
        };
        if let Some(said) = said.filter(|said| *said != self.text) {
            return Ok(Err(format!("results of the types {said:.200}, where {} is declared", self.text)));
        }
        let log = self.library.log(&self.function);
        self.changed = None;
        if header.rows > 0 {
            let column = match batch::column(bytes, &self.returns) {
                Ok(column) => column,
                Err(malformed) => return Ok(Err(malformed.to_string())),
            };
            let unfit =
                forgiven(&self.function, &column, self.delivered).map_err(|failure| self.raised(failure))?;
            // If a row is NULL as a whole, its fields have no values that may be read.
            if column.validity.is_some() || !unfit.is_empty() {
                let changed = self.changed.insert(ColumnBuilder::new(&self.returns));
                copied(changed, &column, 0, &unfit)?;
                log.counters().errors.add(unfit.len() as u64);
            }
        }
        self.delivered += u64::from(header.rows);
        log.checked(lane.stats(), header.rows as usize, bytes.len(), begun);
        log.received(lane.stats(), header);
        self.over = header.flags & LAST != 0;
        Ok(Ok(if header.rows > 0 { Taken::Rows } else { Taken::Progress }))
    }

    /// Gives up a lane that failed. Batches that no guest has begun go to another lane.
    fn lose(&mut self, error: &LaneError, caller: Caller<'_>) -> Result<(), Error> {
        let lost = self.lost(error);
        let begun = self.lane.as_ref().is_some_and(|lane| lane.may_have_begun(self.exchange));
        self.give_up();
        // Other lanes may have died with it, or of the same cause.
        self.library.pool.reap();
        if self.has_begun || begun && self.is_open || self.unbegun == MOST_UNBEGUN || caller.was_cancelled() {
            return Err(lost);
        }
        self.unbegun += 1;
        self.is_open = false;
        Ok(())
    }

    fn lost(&self, error: &LaneError) -> Error {
        Loss::Failed(error).error(&self.function, Place::default())
    }

    fn raised(&self, failure: Box<Failure>) -> Error {
        Error::Raised { function: self.function.name().into(), failure, place: Place::default() }
    }

    /// Waits for a message, or until it is time to look.
    fn wait(&mut self) {
        if let Some(lane) = &mut self.lane {
            self.clock.wait(&[&mut **lane], Patience::Spin);
        }
    }

    /// Looks for cancellation, death and the deadline whenever it is time.
    fn look(&mut self, caller: Caller<'_>) -> Result<(), Error> {
        if !self.clock.due(&self.function, caller)? {
            return Ok(());
        }
        let Some(lane) = self.lane.as_mut().filter(|_| self.dead.is_none()) else { return Ok(()) };
        if self.sent == self.taken && !self.told {
            // The guest may be waiting for input.
            self.seen = Seen::now();
        }
        match self.clock.trouble(&mut **lane, &mut self.seen, (self.exchange, MOST_ROWS)) {
            None => Ok(()),
            // The messages that it has sent before come first.
            Some(Trouble::Dead(error)) => {
                self.dead = Some(error);
                Ok(())
            }
            Some(Trouble::Late(late)) => {
                self.give_up();
                Err(Loss::Late(&late).error(&self.function, Place::default()))
            }
        }
    }

    /// Gives the lane back.
    fn leave(&mut self) {
        let Some(mut lane) = self.lane.take() else { return };
        let busy = lane.in_flight() > 0;
        if self.dead.is_some() || busy && lane.cancel().is_err() {
            return;
        }
        self.library.pool.give_back(lane);
    }
}

impl<Z: Zygote> Drop for Iteration<Z> {
    fn drop(&mut self) {
        self.leave();
    }
}
