//! A stream through a function that sees all of it: one exchange over one lane, in which the guest takes batch after batch, and answers
//! with any number of batches whenever it likes.
//!
//! The batch that opens the exchange has no rows, and neither has the one that ends the input; so a function is also called for
//! an input without batches. The guest tells with its results, or without any before it waits for more, how many batches it
//! has taken ([`Header::row`]). No more than `depth` are sent that it has not taken: so memory stays constant, also
//! where a batch takes no room in the ring.
//!
//! What the function has seen is not kept. So nothing is done again that a guest has begun, whatever the function's `retries`.

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
use std::fmt;
use std::sync::Arc;

/// A stream under way. Its lane is given back when the guest has ended it, or when it is dropped.
pub struct Iteration<Z: Zygote> {
    library: Arc<Library<Z>>,
    function: Arc<Function>,
    returns: DataType,
    /// The same as it travels.
    text: String,
    /// The most batches that are sent and not taken.
    depth: usize,
    lane: Option<PooledLane<Z::Lane>>,
    /// Whether a lane has the exchange's first batch.
    is_open: bool,
    exchange: u64,
    /// How many rows of results there were.
    delivered: u64,
    /// How many batches were sent and taken.
    sent: usize,
    taken: usize,
    /// The batches that no guest has begun with.
    kept: Vec<MapInput>,
    has_begun: bool,
    unbegun: u32,
    /// The next of the input.
    pending: Option<MapInput>,
    /// Whether the input has ended, and whether the guest was told.
    ended: bool,
    told: bool,
    over: bool,
    /// Why nothing more is sent. What the guest has sent is still there.
    dead: Option<LaneError>,
    /// The results at hand, if the engine has changed them.
    changed: Option<ColumnBuilder>,
    clock: Clock,
    seen: Seen,
}

impl<Z: Zygote> fmt::Debug for Iteration<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iteration").field("function", &self.function.name()).finish_non_exhaustive()
    }
}

/// What a look at the guest's messages gave.
enum Taken {
    Nothing,
    /// A message without rows.
    Progress,
    Rows,
}

impl<Z: Zygote> Iteration<Z> {
    /// A stream through a function of a library, which declares its columns.
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

    /// Gives it the next batch of the input.
    ///
    /// # Panics
    /// If it did not ask for one.
    pub fn put(&mut self, input: MapInput) {
        assert!(self.pending.is_none() && !self.ended, "a batch that was not asked for");
        self.pending = Some(input);
    }

    /// Says that the input has no more batches.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The next results, or what it needs for them. After an error it is of no use.
    ///
    /// # Errors
    /// What the function raised, or what became of its lane; see [`Error`].
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
            // It was read before, to be checked.
            (None, Some(lane)) => batch::column(lane.frame(), &self.returns)?,
            (None, None) => return Ok(MapStep::Done),
        };
        Ok(MapStep::Output(results, 0))
    }

    /// Sends what can be sent.
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

    /// Opens the exchange on a lane, with what was sent on another that had not begun.
    fn open(&mut self, caller: Caller<'_>) -> Result<(), Error> {
        let lane = self.library.pool.check_out(|| caller.should_end())?;
        self.lane = Some(lane.ok_or_else(|| Caller::cancelled(&self.function))?);
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

    /// Sends a batch: the pending one, or one without rows. False if there is no room, or no lane any more.
    fn send(&mut self, part: Part) -> Result<bool, Error> {
        let submitting = now();
        let address = Address { function: self.function.index, entry: Entry::Iterate, part };
        let Some(lane) = self.lane.as_mut().filter(|_| self.dead.is_none()) else { return Ok(false) };
        lane.hold();
        if self.sent == self.taken {
            // Until now its guest may have waited for this.
            self.seen = Seen::now();
        }
        let submitted = match (&self.pending, part) {
            (Some(input), Part::Next) => lane.submit(address, input.rows, &*input.content),
            _ => lane.submit(address, 0, &()),
        };
        match submitted {
            Ok(Some(exchange)) => {
                self.exchange = exchange;
                self.function.stats.here().copy_in.add(now() - submitting);
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
                    self.function.stats.here().guest.add(header.worked);
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
        self.lane = None;
        self.function.stats.here().deaths.add(1);
        self.lost(&LaneError::Corrupt(what))
    }

    /// Takes a batch of results; what is wrong with it if its lane cannot be used any more.
    fn rows(&mut self, header: &Header) -> Result<Result<Taken, String>, Error> {
        let begun = now();
        let Some(lane) = &self.lane else { return Ok(Ok(Taken::Nothing)) };
        if header.rows as usize > LONGEST_ANSWER {
            let rows = header.rows;
            return Ok(Err(format!("a batch of {rows} rows, where {LONGEST_ANSWER} are the most")));
        }
        // It takes the last, which has no rows, too.
        let taken = if header.row == u32::MAX { 0 } else { header.row as usize };
        if taken > self.sent + usize::from(self.told) {
            return Ok(Err(format!("it has taken {taken} batches, of {}", self.sent)));
        }
        let taken = taken.min(self.sent);
        if header.rows > 0 || taken > self.taken {
            // A guest that sends nothing but empty batches makes no progress.
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
        let stats = self.function.stats.here();
        self.changed = None;
        if header.rows > 0 {
            let column = match batch::column(bytes, &self.returns) {
                Ok(column) => column,
                Err(malformed) => return Ok(Err(malformed.to_string())),
            };
            let unfit =
                forgiven(&self.function, &column, self.delivered).map_err(|failure| self.raised(failure))?;
            // A row that is NULL as a whole has no values that could be looked at.
            if column.validity.is_some() || !unfit.is_empty() {
                let changed = self.changed.insert(ColumnBuilder::new(&self.returns));
                copied(changed, &column, 0, &unfit).map_err(|error| Error::Engine(error.to_string()))?;
                stats.errors.add(unfit.len() as u64);
            }
        }
        self.delivered += u64::from(header.rows);
        stats.rows.add(u64::from(header.rows));
        stats.guest.add(header.worked);
        stats.bytes_out.add(bytes.len() as u64);
        stats.copy_out.add(now() - begun);
        lane.stats().record(header, header.rows as usize);
        self.over = header.flags & LAST != 0;
        Ok(Ok(if header.rows > 0 { Taken::Rows } else { Taken::Progress }))
    }

    /// Gives up a lane that failed. What no guest has begun goes to another one.
    fn lose(&mut self, error: &LaneError, caller: Caller<'_>) -> Result<(), Error> {
        let lost = self.lost(error);
        let begun = self.lane.take().is_some_and(|lane| lane.may_have_begun(self.exchange));
        self.function.stats.here().deaths.add(1);
        // Others may have died with it, or of the same cause.
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
            // Its guest may wait for input.
            self.seen = Seen::now();
        }
        match self.clock.trouble(&mut **lane, &mut self.seen, (self.exchange, MOST_ROWS)) {
            None => Ok(()),
            // What it has sent before comes first.
            Some(Trouble::Dead(error)) => {
                self.dead = Some(error);
                Ok(())
            }
            Some(Trouble::Late(late)) => {
                self.lane = None;
                self.function.stats.here().deaths.add(1);
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
