//! One scan of a function: one set of arguments in, batches of rows out, one after the other, until the guest's last.
//!
//! The guest works ahead as far as its ring has room. A scan that is dropped before its end is cancelled, and its lane
//! given back: the pool throws away what still comes, and lends the lane again when the guest has ended the scan.

use super::loss::{Loss, died};
use super::replies::failure;
use super::wait::{Clock, Seen, Trouble};
use super::worker::row_at;
use super::{Caller, Input, place};
use crate::batch::{self, BATCH, Column, FAILURE, Header};
use crate::error::{Error, Failure, Place};
use crate::exchange::{Address, Entry};
use crate::function::{Function, Library};
use crate::lane::{Lane, LaneError, Patience, WRITING};
use crate::pool::{PooledLane, Zygote};
use crate::stats::now;
use crate::types::DataType;
use crate::values::unfit;
use std::fmt;
use std::sync::Arc;

/// A scan may have any number of rows: as many as a guest's progress can tell.
const MOST_ROWS: usize = WRITING as usize;

/// A scan under way. Its lane is the calling thread's until the guest has sent its last batch.
pub struct Scan<Z: Zygote, I: Input> {
    library: Arc<Library<Z>>,
    function: Arc<Function>,
    returns: DataType,
    input: I,
    /// `None` when the guest has ended the scan, or the lane is lost.
    lane: Option<PooledLane<Z::Lane>>,
    exchange: u64,
    /// Whether the lane must not be used again.
    corrupt: bool,
    clock: Clock,
}

impl<Z: Zygote, I: Input> fmt::Debug for Scan<Z, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("function", &self.function.name()).field("lane", &self.lane).finish()
    }
}

impl<Z: Zygote, I: Input> Scan<Z, I> {
    /// Begins a scan with these arguments, of which each row is a value of the type `returns`.
    ///
    /// # Errors
    /// If the function is no table, no lane can be had or reached, the arguments are too large, or the query was cancelled.
    pub fn open(
        library: Arc<Library<Z>>,
        function: Arc<Function>,
        caller: Caller<'_>,
        returns: DataType,
        input: I,
    ) -> Result<Self, Error> {
        function.entry(Entry::Scan)?;
        if caller.was_cancelled() {
            return Err(Caller::cancelled(&function));
        }
        let lane = library.pool.check_out(|| caller.should_end())?;
        let lane = lane.ok_or_else(|| Caller::cancelled(&function))?;
        let clock = Clock::new(&function);
        let mut scan =
            Self { library, function, returns, input, lane: Some(lane), exchange: 0, corrupt: false, clock };
        scan.begin()?;
        Ok(scan)
    }

    fn begin(&mut self) -> Result<(), Error> {
        let Some(lane) = &mut self.lane else { return Ok(()) };
        lane.hold();
        let submitting = now();
        let rows = self.input.rows();
        let address = Address::whole(self.function.index, Entry::Scan);
        let mut outcome = Ok(None);
        self.input.slice(0..rows, &mut |arguments| outcome = lane.submit(address, rows, arguments))?;
        match outcome {
            Ok(Some(exchange)) => {
                self.exchange = exchange;
                let stats = self.function.stats.here();
                stats.calls.add(1);
                stats.copy_in.add(now() - submitting);
                Ok(())
            }
            Ok(None) => Err(self.lose(Loss::Failed(&LaneError::Corrupt(
                "it has no room for the arguments of a scan".into(),
            )))),
            Err(LaneError::TooLarge(what)) => Err(died(&self.function, what, self.place(Some(0)))),
            Err(error) => Err(self.lose(Loss::Failed(&error))),
        }
    }

    /// The next batch, of one row at least; `None` if there are no more. After an error the scan is of no use.
    ///
    /// # Errors
    /// What the function raised, or what became of its lane; see [`Error`].
    pub fn next(&mut self, caller: Caller<'_>) -> Result<Option<Column<'_>>, Error> {
        let mut seen = Seen::now();
        let header = loop {
            let Some(header) = self.receive(caller, &mut seen)? else { return Ok(None) };
            if header.rows > 0 {
                break header;
            }
            // A guest that sends nothing but empty batches makes no progress, and is never waited for.
            self.look(caller, &mut seen)?;
        };
        let Some(lane) = &self.lane else { return Ok(None) };
        let begun = now();
        let stats = self.function.stats.here();
        stats.rows.add(u64::from(header.rows));
        stats.bytes_out.add(lane.frame().len() as u64);
        match batch::column(lane.frame(), &self.returns) {
            Ok(column) => {
                if let Some((row, what)) = unfit(&column).first_key_value() {
                    let failure = Box::new(Failure::unfit(&format!("{what}, in row {}", row + 1)));
                    return Err(raised(&self.function, failure, Place::default()));
                }
                stats.copy_out.add(now() - begun);
                Ok(Some(column))
            }
            Err(malformed) => {
                // The column is borrowed from the lane: it ends when the scan is dropped.
                self.corrupt = true;
                let error = LaneError::Corrupt(malformed.to_string());
                Err(Loss::Failed(&error).error(&self.function, Place::default()))
            }
        }
    }

    /// Takes the next message, and sees to the end of the scan.
    fn receive(&mut self, caller: Caller<'_>, seen: &mut Seen) -> Result<Option<Header>, Error> {
        if self.is_over() {
            self.leave();
            return Ok(None);
        }
        // A query of many quick batches ends between them: none of them is waited for long enough to look.
        if caller.was_cancelled() {
            return Err(Caller::cancelled(&self.function));
        }
        let header = self.wait(caller, seen)?;
        let Some(lane) = &self.lane else { return Ok(None) };
        self.function.stats.here().guest.add(header.worked);
        let what = match header.kind {
            BATCH if header.exchange == self.exchange => {
                lane.stats().record(&header, header.rows as usize);
                return Ok(Some(header));
            }
            FAILURE if header.exchange == self.exchange => match failure(&header, lane.frame()) {
                Ok(failure) => {
                    let row = Some(header.row as usize).filter(|row| *row < self.input.rows());
                    let error = raised(&self.function, failure, self.place(row));
                    self.leave();
                    return Err(error);
                }
                Err(what) => what,
            },
            kind => format!(
                "a message of kind {kind} of exchange {}, where scan {} is open",
                header.exchange, self.exchange
            ),
        };
        Err(self.lose(Loss::Failed(&LaneError::Corrupt(what))))
    }

    /// Waits for the next message.
    fn wait(&mut self, caller: Caller<'_>, seen: &mut Seen) -> Result<Header, Error> {
        let _slot = caller.group.join();
        let mut dead = None;
        loop {
            let Some(lane) = &mut self.lane else { return Err(Caller::cancelled(&self.function)) };
            // The engine may have moved the scan to another of its threads.
            lane.hold();
            match lane.try_collect() {
                Ok(Some(header)) => return Ok(header),
                Ok(None) => {}
                // The lane is whole, but nobody can say which rows these were.
                Err(LaneError::TooLarge(what)) => return Err(died(&self.function, what, Place::default())),
                Err(error) => return Err(self.lose(Loss::Failed(&error))),
            }
            if let Some(error) = &dead {
                return Err(self.lose(Loss::Failed(error)));
            }
            self.clock.wait(&[&mut **lane], Patience::Spin);
            dead = self.look(caller, seen)?;
        }
    }

    /// Looks, if it is time, for what ends the scan. A guest that is dead does not: what it has sent before comes first.
    fn look(&mut self, caller: Caller<'_>, seen: &mut Seen) -> Result<Option<LaneError>, Error> {
        let Some(lane) = &mut self.lane else { return Ok(None) };
        let Some(now) = self.clock.due(&self.function, caller)? else { return Ok(None) };
        match self.clock.trouble(now, &mut **lane, seen, (self.exchange, MOST_ROWS)) {
            None => Ok(None),
            Some(Trouble::Dead(error)) => Ok(Some(error)),
            Some(Trouble::Late) => Err(self.lose(Loss::Late)),
        }
    }

    /// Whether the guest has sent its last batch, which may still be read.
    fn is_over(&self) -> bool {
        self.lane.as_ref().is_none_or(|lane| lane.in_flight() == 0)
    }

    fn place(&self, row: Option<usize>) -> Place {
        place(&self.function, Entry::Scan, &self.input, row)
    }

    /// Gives up the lane.
    fn lose(&mut self, loss: Loss<'_>) -> Error {
        let row = self.lane.as_ref().and_then(|lane| row_at(&**lane, self.exchange, self.input.rows()));
        self.end();
        loss.error(&self.function, self.place(row))
    }

    /// Ends the lane.
    fn end(&mut self) {
        self.lane = None;
        self.function.stats.here().deaths.add(1);
        // Others may have died with it, or of the same cause.
        self.library.pool.reap();
    }

    /// Gives the lane back, wherever the scan is.
    fn leave(&mut self) {
        if self.corrupt {
            return self.end();
        }
        let Some(mut lane) = self.lane.take() else { return };
        if lane.in_flight() > 0 && lane.cancel().is_err() {
            return self.end();
        }
        self.library.pool.give_back(lane);
    }
}

impl<Z: Zygote, I: Input> Drop for Scan<Z, I> {
    fn drop(&mut self) {
        if self.lane.is_some() {
            self.leave();
        }
    }
}

fn raised(function: &Function, failure: Box<Failure>, place: Place) -> Error {
    Error::Raised { function: function.name().into(), failure, place }
}
