//! One scan of a function. One set of arguments goes in. Batches of rows come out, one after the
//! other, until the guest's last one.
//!
//! The guest works ahead as long as its ring has space. A scan that is dropped before its end is
//! cancelled, and its lane is given back. The pool throws away the messages that still come. It
//! lends the lane again when the guest has ended the scan.
//!
//! If the function's options say so, a scan that fails is done again: on another lane, and after a
//! pause. The rows that the caller already has are left out. So the function must give the same
//! rows again, or must not have given any.

use super::answers::{MOST_ROWS, copied, failure, forgiven, made};
use super::clock::{Clock, Seen, Trouble};
use super::loss::{Loss, MOST_UNBEGUN, died};
use super::{Caller, Input, place};
use crate::batch::builder::ColumnBuilder;
use crate::batch::{self, BATCH, Column, Encode, FAILURE, Frame, Header};
use crate::error::{Error, Failure, Place};
use crate::function::{Function, Library, Verdict};
use crate::lane::{Address, Entry, Lane, LaneError, Patience};
use crate::pool::{PooledLane, Zygote};
use crate::stats::now;
use crate::types::DataType;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The most rows in a batch of a table. Engines take no more at once.
pub const LONGEST_BATCH: usize = 2048;

/// The most partitions of a table.
const MOST_PARTITIONS: usize = 1 << 20;
/// The most bytes of all partitions of a table, if an engine sets no limit of its own.
pub const LARGEST_PARTITIONS: usize = 1 << 30;

/// A running scan. Its lane belongs to the calling thread until the guest has sent its last batch.
#[derive(Debug)]
pub struct Scan<Z: Zygote, I: Input> {
    library: Arc<Library<Z>>,
    function: Arc<Function>,
    /// Which entry of the function is used: its rows, or its partitions.
    entry: Entry,
    returns: DataType,
    input: I,
    /// `None` when the guest has ended the scan, or the lane is lost.
    lane: Option<PooledLane<Z::Lane>>,
    exchange: u64,
    /// Whether the guest has sent a message of this try.
    answered: bool,
    clock: Clock,
    /// How many rows the caller has.
    delivered: u64,
    /// How many of those rows this try still has to repeat.
    skip: u64,
    /// How often the scan was done again after it had failed.
    tries: u32,
    /// How often the scan was done again because no guest had begun it.
    unbegun: u32,
    /// The current batch, if it differs from what the guest has sent.
    changed: ColumnBuilder,
    over: bool,
}

/// Why a scan cannot go on.
struct Stop {
    error: Error,
    again: Again,
}

/// Whether a failed scan may be done again.
enum Again {
    Never,
    /// As often as the function's options say, plus this many times.
    Tries(u32),
    /// Yes, because no guest has begun it.
    Unbegun,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self { error, again: Again::Never }
    }
}

impl<Z: Zygote, I: Input> Scan<Z, I> {
    /// Begins a scan with these arguments. Each row of the results is a value of the type
    /// `returns`.
    ///
    /// # Errors
    /// If the function is no table, no lane can be had or reached, the arguments are too large, or
    /// the query was cancelled.
    pub fn open(
        library: Arc<Library<Z>>,
        function: Arc<Function>,
        caller: Caller<'_>,
        returns: DataType,
        input: I,
    ) -> Result<Self, Error> {
        Self::of(library, function, Entry::Scan, caller, returns, input)
    }

    /// The partitions of a table, which are scanned one by one. If the table declares none, the
    /// only item is `None`, which scans the whole table. All partitions together have at most
    /// `largest` bytes.
    ///
    /// # Errors
    /// As [`Scan::open`] and [`Scan::next`]; [`Error::Engine`] if a partition is NULL, or there are
    /// too many.
    pub fn partitions(
        library: &Arc<Library<Z>>,
        function: &Arc<Function>,
        caller: Caller<'_>,
        input: I,
        largest: usize,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        if !function.spec.partitions {
            return Ok(vec![None]);
        }
        let (library, function) = (Arc::clone(library), Arc::clone(function));
        let refused = |what: &str| Error::Engine(format!("{}: {what}", function.name()));
        // Each partition is a BLOB.
        let returns = DataType::Blob;
        let mut scan = Self::of(library, Arc::clone(&function), Entry::Partitions, caller, returns, input)?;
        let (mut partitions, mut size) = (Vec::new(), 0);
        while let Some(batch) = scan.next(caller)? {
            for row in 0..batch.rows {
                if !batch.is_valid(row) {
                    return Err(refused("a partition is NULL"));
                }
                let bytes = batch.bytes(row);
                size += bytes.len();
                if partitions.len() == MOST_PARTITIONS || size > largest {
                    let most = largest >> 20;
                    let what = format!("more than 1,048,576 partitions, or more than {most} MiB of them");
                    return Err(refused(&what));
                }
                partitions.push(Some(bytes.to_vec()));
            }
        }
        Ok(partitions)
    }

    fn of(
        library: Arc<Library<Z>>,
        function: Arc<Function>,
        entry: Entry,
        caller: Caller<'_>,
        returns: DataType,
        input: I,
    ) -> Result<Self, Error> {
        function.entry(entry)?;
        let (clock, changed) = (Clock::new(&function), ColumnBuilder::new(&returns));
        let mut scan = Self {
            library,
            function,
            entry,
            returns,
            input,
            lane: None,
            exchange: 0,
            answered: false,
            clock,
            delivered: 0,
            skip: 0,
            tries: 0,
            unbegun: 0,
            changed,
            over: false,
        };
        if let Err(stop) = scan.begin(caller) {
            scan.settle(stop, caller)?;
        }
        Ok(scan)
    }

    /// Sends the arguments to a lane.
    fn begin(&mut self, caller: Caller<'_>) -> Result<(), Stop> {
        if caller.was_cancelled() {
            return Err(Caller::cancelled(&self.function).into());
        }
        let mut lane = caller.check_out(&self.library, &self.function)?;
        lane.hold();
        (self.answered, self.skip) = (false, self.delivered);
        let submitting = now();
        let rows = self.input.rows();
        let address = Address::whole(self.function.index, self.entry);
        let mut outcome = Ok(None);
        let sliced =
            self.input.slice(0..rows, &mut |arguments| outcome = lane.submit(address, rows, arguments));
        let lane = self.lane.insert(lane);
        sliced?;
        let what = match outcome {
            Ok(Some(exchange)) => {
                self.exchange = exchange;
                let log = self.library.log(&self.function);
                log.counters().calls.add(1);
                log.sent(lane.stats(), rows, submitting);
                return Ok(());
            }
            Ok(None) => LaneError::Corrupt("it has no room for the arguments of a scan".into()),
            Err(LaneError::TooLarge(what)) => return Err(died(&self.function, what, Place::default()).into()),
            Err(error) => error,
        };
        self.end();
        Err(Stop {
            error: Loss::Failed(&what).error(&self.function, Place::default()),
            again: Again::Unbegun,
        })
    }

    /// Begins a failed scan again, or ends it.
    ///
    /// # Errors
    /// The error of the scan, if it is not done again.
    fn settle(&mut self, mut stop: Stop, caller: Caller<'_>) -> Result<(), Error> {
        loop {
            let mut error_policy = self.function.spec.error_policy();
            let pause = match stop.again {
                Again::Never => return Err(stop.error),
                Again::Unbegun if self.unbegun < MOST_UNBEGUN => {
                    self.unbegun += 1;
                    Duration::ZERO
                }
                Again::Unbegun => return Err(stop.error),
                Again::Tries(more) => {
                    // If the rows could differ from those before, the wrong ones would be thrown
                    // away.
                    let repeats = self.delivered == 0 || self.function.spec.deterministic;
                    error_policy.retries = if repeats { error_policy.retries + more } else { 0 };
                    let after = stop.error.retry_after();
                    match error_policy.judge(stop.error, self.tries, after)? {
                        Verdict::Again(pause) => {
                            self.tries += 1;
                            self.library.log(&self.function).retried();
                            pause
                        }
                        Verdict::Null => {
                            self.function.stats.here().errors.add(1);
                            self.over = true;
                            return Ok(());
                        }
                    }
                }
            };
            self.clock.rest(pause, &self.function, caller)?;
            match self.begin(caller) {
                Ok(()) => return Ok(()),
                Err(again) => stop = again,
            }
        }
    }

    /// The next batch, which has at least one row. `None` if there are no more. After an error the
    /// scan cannot be used.
    ///
    /// # Errors
    /// The error that the function raised, or how its lane was lost; see [`Error`].
    pub fn next(&mut self, caller: Caller<'_>) -> Result<Option<Column<'_>>, Error> {
        let mut seen = Seen::now();
        let changed = loop {
            if self.over {
                return Ok(None);
            }
            match self.batch(caller, &mut seen) {
                Ok(Some(changed)) => break changed,
                Ok(None) => self.over = true,
                Err(stop) => {
                    self.settle(stop, caller)?;
                    seen = Seen::now();
                }
            }
        };
        if changed {
            return Ok(Some(self.changed.column(&self.returns)));
        }
        let Some(lane) = &self.lane else { return Ok(None) };
        Ok(Some(batch::column(lane.frame(), &self.returns)?))
    }

    /// Takes the next batch with rows that the caller does not have. Returns whether the batch is
    /// in [`Scan::changed`]. `None` if there are no more.
    fn batch(&mut self, caller: Caller<'_>, seen: &mut Seen) -> Result<Option<bool>, Stop> {
        loop {
            let Some(header) = self.receive(caller, seen)? else { return Ok(None) };
            let rows = u64::from(header.rows);
            if rows > self.skip {
                let taken = self.take(&header)?;
                self.skip = 0;
                return Ok(Some(taken));
            }
            self.skip -= rows;
            if rows > 0 {
                *seen = Seen::now();
            }
            // A guest that sends only empty batches makes no progress. The engine never waits for
            // it, so it looks here.
            self.look(caller, seen)?;
        }
    }

    /// Checks the current batch. Returns whether the caller's batch is in [`Scan::changed`].
    fn take(&mut self, header: &Header) -> Result<bool, Stop> {
        let begun = now();
        let rows = header.rows as usize;
        let Some(lane) = &self.lane else { return Ok(false) };
        let read = if self.entry == Entry::Scan && rows > LONGEST_BATCH {
            Err(format!("a batch of {rows} rows, where {LONGEST_BATCH} are the most"))
        } else {
            batch::column(lane.frame(), &self.returns).map_err(|malformed| malformed.to_string())
        };
        let column = match read {
            Ok(column) => column,
            Err(what) => return Err(self.lose(Loss::Failed(&LaneError::Corrupt(what)))),
        };
        let unfit = forgiven(&self.function, &column, self.delivered - self.skip)
            .map_err(|failure| raised(&self.function, failure, Place::default()))?;
        let skip = self.skip as usize;
        // If a row is NULL as a whole, its fields have no values that may be read.
        let nulls = matches!(self.returns, DataType::Struct(_)) && column.validity.is_some();
        let changed = skip > 0 || nulls || !unfit.is_empty();
        if changed {
            copied(&mut self.changed, &column, skip, &unfit).map_err(Error::from)?;
        }
        let log = self.library.log(&self.function);
        log.counters().errors.add(unfit.range(skip..).count() as u64);
        // A partition is not a row of the table.
        let counted = if self.entry == Entry::Scan { rows - skip } else { 0 };
        log.checked(lane.stats(), counted, lane.frame().len(), begun);
        self.delivered += (rows - skip) as u64;
        Ok(changed)
    }

    /// Takes the next message, and handles the end of the scan.
    fn receive(&mut self, caller: Caller<'_>, seen: &mut Seen) -> Result<Option<Header>, Stop> {
        if self.is_over() {
            self.leave();
            if self.skip > 0 {
                return Err(self.differs().into());
            }
            return Ok(None);
        }
        // A query of many quick batches is cancelled between them, because no wait is long enough
        // to look.
        if caller.was_cancelled() {
            return Err(Caller::cancelled(&self.function).into());
        }
        let header = self.wait(caller, seen)?;
        self.answered = true;
        let Some(lane) = &self.lane else { return Ok(None) };
        let log = self.library.log(&self.function);
        let what = match header.kind {
            BATCH if header.exchange == self.exchange => {
                log.received(lane.stats(), &header);
                return Ok(Some(header));
            }
            FAILURE if header.exchange == self.exchange => match failure(&header, lane.frame()) {
                Ok(failure) => {
                    log.counters().guest.add(header.worked);
                    log.failed(lane.stats(), &header, &failure);
                    let row = Some(header.row as usize).filter(|row| *row < MOST_ROWS);
                    let error = raised(&self.function, failure, self.place(row));
                    self.leave();
                    return Err(Stop { error, again: Again::Tries(0) });
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

    /// The error of a function that was tried again, and then made fewer rows than before.
    fn differs(&self) -> Error {
        Error::Engine(format!(
            "{}: it was tried again, and made fewer rows than the {} that the query had already; declare that it is not \
             deterministic",
            self.function.name(),
            self.delivered,
        ))
    }

    /// Waits for the next message.
    fn wait(&mut self, caller: Caller<'_>, seen: &mut Seen) -> Result<Header, Stop> {
        let _slot = caller.group.join();
        let mut dead = None;
        loop {
            let Some(lane) = &mut self.lane else { return Err(Caller::cancelled(&self.function).into()) };
            // The engine may have moved the scan to another of its threads.
            lane.hold();
            match lane.try_collect() {
                Ok(Some(header)) => return Ok(header),
                Ok(None) => {}
                // The lane still works, but the engine does not know which rows these were.
                Err(LaneError::TooLarge(what)) => {
                    return Err(died(&self.function, what, Place::default()).into());
                }
                Err(error) => return Err(self.lose(Loss::Failed(&error))),
            }
            if let Some(error) = &dead {
                return Err(self.lose(Loss::Failed(error)));
            }
            self.clock.wait(&[&mut **lane], Patience::Spin);
            dead = self.look(caller, seen)?;
        }
    }

    /// If it is time, looks for causes to end the scan. Returns the death of a guest as a value,
    /// because the messages that the guest sent before come first.
    fn look(&mut self, caller: Caller<'_>, seen: &mut Seen) -> Result<Option<LaneError>, Stop> {
        if self.lane.is_none() || !self.clock.due(&self.function, caller)? {
            return Ok(None);
        }
        let Some(lane) = &mut self.lane else { return Ok(None) };
        match self.clock.trouble(&mut **lane, seen, (self.exchange, MOST_ROWS)) {
            None => Ok(None),
            Some(Trouble::Dead(error)) => Ok(Some(error)),
            Some(Trouble::Late(late)) => Err(self.lose(Loss::Late(&late))),
        }
    }

    /// Whether the guest has sent its last batch. That batch may still be read.
    fn is_over(&self) -> bool {
        self.lane.as_ref().is_none_or(|lane| lane.in_flight() == 0)
    }

    fn place(&self, row: Option<usize>) -> Place {
        place(&self.function, self.entry, &self.input, row)
    }

    /// Gives up the lane.
    fn lose(&mut self, loss: Loss<'_>) -> Stop {
        let (mut row, mut again) = (None, Again::Tries(0));
        if let Some(lane) = &mut self.lane {
            row = made(&**lane, self.exchange);
            // A late guest may still begin an exchange, until it has ended.
            let ended = !matches!(loss, Loss::Late(_)) || lane.halt();
            let begun = !ended || lane.may_have_begun(self.exchange);
            again = match loss {
                Loss::Failed(LaneError::Corrupt(_)) => Again::Tries(0),
                _ if !begun && !self.answered => Again::Unbegun,
                // The lane may have died because of another lane.
                Loss::Failed(_) => Again::Tries(u32::from(lane.shares_its_process())),
                Loss::Late(_) => Again::Tries(0),
            };
        }
        self.end();
        Stop { error: loss.error(&self.function, self.place(row)), again }
    }

    /// Ends the lane.
    fn end(&mut self) {
        let lost = self.lane.take();
        self.library.log(&self.function).lost(lost.as_ref().map(PooledLane::stats));
        drop(lost);
        // Other lanes may have died with it, or of the same cause.
        self.library.pool.reap();
    }

    /// Gives the lane back at any point of the scan.
    fn leave(&mut self) {
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

/// The arguments of a table function: one row, which all parts of a query share.
#[derive(Debug, Clone)]
pub struct Row {
    frame: Arc<Frame>,
    types: Arc<[DataType]>,
}

impl Row {
    /// The only row of an input with columns of these types.
    ///
    /// # Errors
    /// As [`Input::frame`].
    pub fn of(input: &dyn Input, types: impl IntoIterator<Item = DataType>) -> Result<Self, Error> {
        Ok(Self { frame: Arc::new(input.frame(0..1)?), types: types.into_iter().collect() })
    }

    /// Its values.
    ///
    /// # Errors
    /// [`Error::Engine`] if it was not made of an input with these columns.
    pub fn columns(&self) -> Result<Vec<Column<'_>>, Error> {
        Ok(batch::columns(self.frame.bytes(), self.types.iter())?)
    }

    /// The same row with another column of this type at the end.
    ///
    /// # Errors
    /// As [`Row::columns`] and [`Input::frame`].
    pub fn with(&self, data_type: &DataType, column: &ColumnBuilder) -> Result<Self, Error> {
        let mut columns = self.columns()?;
        columns.push(column.column(data_type));
        let frame = Arc::new(Frame::new(&columns, 1)?);
        Ok(Self { frame, types: self.types.iter().chain([data_type]).cloned().collect() })
    }
}

impl Input for Row {
    fn rows(&self) -> usize {
        1
    }

    fn slice(&self, _rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        take(&self.columns()?);
        Ok(())
    }
}

/// The input that opens a scan of a table function.
#[derive(Debug)]
pub struct Asked {
    /// The partition to scan, if the table has partitions.
    pub partition: Option<Vec<u8>>,
    /// The indexes of the columns that the query wants, ascending.
    pub wanted: Arc<[usize]>,
    /// The function's arguments.
    pub arguments: Row,
}

impl Input for Asked {
    fn rows(&self) -> usize {
        1
    }

    fn slice(&self, _rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let mut partition = ColumnBuilder::new(&DataType::Blob);
        match &self.partition {
            Some(bytes) => partition.bytes(bytes)?,
            None => partition.null(),
        }
        let mut wanted = ColumnBuilder::new(&DataType::List(Arc::new(DataType::Integer)));
        self.wanted.iter().for_each(|place| wanted.children[0].fixed(*place as i32));
        wanted.nested()?;
        let (types, data_type) = (DataType::Blob, DataType::List(Arc::new(DataType::Integer)));
        let mut columns = vec![partition.column(&types), wanted.column(&data_type)];
        columns.extend(self.arguments.columns()?);
        take(&columns);
        Ok(())
    }
}
