//! Uses of functions: calls, the entries of aggregates, and scans ([`Scan`]).
//!
//! One call of a function with one batch goes over its own lane, and over idle ones if that pays. So does one use of an
//! aggregate's entry, which is a call with other columns ([`crate::EntryTypes`]).
//! The batch is cut into slices: [`crate::cost`] says how, and none is larger than what a lane's own memory holds, unless
//! it is a single row, or rows that wait together. Each lane holds up to [`DEPTH`] slices, so
//! that a guest finds its next slice while the engine copies the last results; a lane that is done
//! early takes the next slice, so that the slowest lane does not decide how long the batch takes.
//!
//! Every wait ends: with a reply, with the death of a lane (looked for every `wait::TICK`), with the function's
//! timeout, or with the cancellation of the query. A lane that failed, or that still works when
//! the call ends, is dropped, which ends its process; all others are given back.

mod deliver;
mod group;
mod iterate;
mod loss;
mod map;
mod place;
mod replies;
mod results;
mod scan;
mod wait;
mod worker;

pub use deliver::deliver;
pub use group::{CallGroup, CallGroups, Caller};
pub use iterate::Iteration;
pub use map::{LONGEST_ANSWER, Map, MapInput, MapOptions, MapStep, map_types, table_of};
pub use place::place;
pub use results::Results;
pub use scan::{Asked, LARGEST_PARTITIONS, LONGEST_BATCH, Row, Scan};

use crate::batch::{Body, Column, Encode, Frame, Plan};
use crate::cost::{Advice, Cost, Width};
use crate::error::Error;
use crate::exchange::{Address, Entry};
use crate::function::{Function, Library};
use crate::kind::EntryTypes;
use crate::lane::{Lane, LaneError};
use crate::pool::{PooledLane, Zygote};
use crate::stats::now;
use crate::unread::Unread;
use loss::Loss;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
pub(crate) use wait::Clock;
use wait::Seen;
use worker::{Slice, Submitted, Worker};

/// Slices in flight per lane.
const DEPTH: usize = 2;
/// A slice that was cut to fill half of what a lane holds is too short if it fills less than this part.
const NARROW: usize = 8;
/// Into so many pieces a slice is cut at a time that is too large.
const MOST_PIECES: usize = 32;
/// The first pause before a call is tried again; it doubles with each try.
const BACKOFF: Duration = Duration::from_millis(50);

/// The arguments of a call, as the engine holds them.
pub trait Input {
    /// Rows of the batch.
    fn rows(&self) -> usize;
    /// Gives `take` some of the rows, ready to be written into a ring. It is called once, unless there is an error.
    ///
    /// # Errors
    /// If there are no such rows, or there is no memory to find them with.
    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error>;
    /// Some of the rows as a batch outside of a lane.
    ///
    /// # Errors
    /// As [`Input::slice`] and [`Frame::new`].
    fn frame(&self, rows: Range<usize>) -> Result<Frame, Error> {
        let (count, mut frame) = (rows.len(), None);
        self.slice(rows, &mut |content| frame = Some(Frame::new(content, count)))?;
        frame.unwrap_or_else(|| Err(Error::Engine(format!("an input without {count} rows"))))
    }
}

/// Where the results go.
pub trait Output {
    /// Takes the results of the rows from `first` on.
    ///
    /// # Errors
    /// If the engine cannot hold them.
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error>;
    /// The same for results whose values the guest can still change: copies the values to their own place and accepts the
    /// column with that copy, after `check` has accepted it. False if nothing was done: then the results come by
    /// [`Output::accept`].
    ///
    /// # Errors
    /// That of `check`; or if the engine cannot hold them.
    fn accept_unread(
        &mut self,
        _first: usize,
        _results: &Column<'_>,
        _values: Unread<'_>,
        _check: &mut dyn FnMut(&Column<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        Ok(false)
    }
    /// Makes one row NULL.
    fn null(&mut self, row: usize);
}

/// Of an entry that is answered without results.
impl Output for () {
    fn accept(&mut self, _first: usize, _results: &Column<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn null(&mut self, _row: usize) {}
}

/// The pause before try `tries + 1`, in guests as in the engine.
pub fn backoff(tries: u32) -> Duration {
    BACKOFF * 2u32.saturating_pow(tries.min(6))
}

/// Calls `function` with all rows of `input`.
///
/// # Errors
/// What the function raised, or what became of its lane; see [`Error`].
pub fn call<Z: Zygote>(
    library: &Library<Z>,
    function: &Function,
    caller: Caller<'_>,
    input: &dyn Input,
    output: &mut dyn Output,
) -> Result<(), Error> {
    let Some(mut call) = ChunkCall::new(library, function, Entry::Call, caller, input, output)? else {
        return Ok(());
    };
    let outcome = call.run();
    // Those that failed are gone already; one that still works is ended by this.
    call.lanes.into_iter().for_each(|worker| library.pool.give_back(worker.lane));
    outcome
}

/// Uses an entry of `function` with all rows of `input`, which has the columns of the entry ([`crate::EntryTypes`]), over the one lane
/// that the caller has: it holds what the entry works on. It is taken if it is lost, or still works; nothing is sent again then.
///
/// # Errors
/// As [`call`]; [`Error::LaneDied`] if there is no lane; [`Error::Engine`] if the function has no such entry, or it is a scan.
pub fn call_on<Z: Zygote>(
    library: &Library<Z>,
    function: &Function,
    entry: Entry,
    caller: Caller<'_>,
    lane: &mut Option<PooledLane<Z::Lane>>,
    input: &dyn Input,
    output: &mut dyn Output,
) -> Result<(), Error> {
    let Some(mut call) = ChunkCall::new(library, function, entry, caller, input, output)? else {
        return Ok(());
    };
    let Some(held) = lane.take() else { return Err(call.died("its worker is gone".into(), None)) };
    call.held = true;
    call.lanes.push(Worker::new(held, caller.group.join(), false));
    let outcome = call.run();
    *lane = call.lanes.pop().map(|worker| worker.lane).filter(|lane| lane.in_flight() == 0);
    outcome
}

/// Arguments that are refused as too large unless they have from `least` to `most` bytes.
struct Bounded<'a> {
    content: &'a dyn Encode,
    least: usize,
    most: usize,
    /// How many they have.
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

/// A call under way.
struct ChunkCall<'a, Z: Zygote> {
    library: &'a Library<Z>,
    function: &'a Function,
    entry: Entry,
    /// What the entry carries.
    types: EntryTypes<'a>,
    cost: &'a Cost,
    caller: Caller<'a>,
    input: &'a dyn Input,
    output: &'a mut dyn Output,
    /// Rows that have not been cut into slices.
    rest: Range<usize>,
    /// How wide the arguments' rows are, if they turned out to be narrower than those of earlier calls.
    narrow: Option<Width>,
    /// Slices that were lost with a lane.
    again: VecDeque<Slice>,
    lanes: SmallVec<[Worker<'a, Z::Lane>; 1]>,
    /// Whether the only lane is the caller's.
    held: bool,
    /// Whether a slice is in flight whose reply will show what a row costs.
    probing: bool,
    clock: Clock,
}

impl<'a, Z: Zygote> ChunkCall<'a, Z> {
    /// A call of all rows; `None` if there are none.
    fn new(
        library: &'a Library<Z>,
        function: &'a Function,
        entry: Entry,
        caller: Caller<'a>,
        input: &'a dyn Input,
        output: &'a mut dyn Output,
    ) -> Result<Option<Self>, Error> {
        let types = function.entry(entry)?;
        if !entry.is_answered_once() {
            return Err(Error::Engine(format!("{}: {entry:?} has any number of answers", function.name())));
        }
        let rows = input.rows();
        if rows == 0 {
            return Ok(None);
        }
        // A query of many short calls ends between them: none of these waits long enough to look.
        if caller.was_cancelled() {
            return Err(Caller::cancelled(function));
        }
        Ok(Some(Self {
            library,
            function,
            entry,
            types,
            cost: function.cost(entry),
            caller,
            input,
            output,
            rest: 0..rows,
            narrow: None,
            again: VecDeque::new(),
            lanes: SmallVec::new(),
            held: false,
            probing: false,
            clock: Clock::new(function),
        }))
    }
}

impl<Z: Zygote> ChunkCall<'_, Z> {
    fn run(&mut self) -> Result<(), Error> {
        loop {
            self.feed()?;
            let busy = self.lanes.iter().any(|worker| !worker.slices.is_empty());
            if !busy && self.again.is_empty() && self.rest.is_empty() {
                return Ok(());
            }
            // What was to be sent may have been cut, or its lane lost on the way: then it is sent again.
            if !self.collect()? && (busy || !self.has_more()) {
                self.wait();
            }
            self.look()?;
        }
    }

    /// Whether there are rows to be sent now. Nothing new is sent while lost ones pause: what their lane died of may
    /// befall the others.
    fn has_more(&self) -> bool {
        self.again.front().map_or(!self.rest.is_empty(), Slice::is_due)
    }

    fn concurrency(&self) -> usize {
        self.function.spec.concurrency.max(1) as usize
    }

    /// Gives every lane that has room its next slice, and borrows lanes while that pays.
    fn feed(&mut self) -> Result<(), Error> {
        // Breadth first: every lane has a slice before any gets its second.
        for full in 0..self.depth() {
            let mut index = 0;
            loop {
                if self.probing || !self.has_more() {
                    return Ok(());
                }
                // A lane may have been lost since.
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
        // Rows that wait together fill a lane. A second batch behind them would wait longer than on the next free lane. And
        // only calls follow one another on a lane.
        if self.concurrency() > 1 || self.entry != Entry::Call { 1 } else { DEPTH }
    }

    /// The most bytes that a batch of several rows should have on this lane, either way.
    fn most(&self, index: usize) -> usize {
        // Rows that wait together, or depend on each other, stay together, whatever it costs to send them.
        let together = self.concurrency() > 1 || self.function.spec.whole_batches;
        if together { usize::MAX } else { self.lanes[index].lane.most() }
    }

    /// Takes one more lane: the call's own, or a borrowed one. False if there is none to be had.
    fn add_worker(&mut self) -> Result<bool, Error> {
        if self.held {
            return Ok(false);
        }
        let pool = &self.library.pool;
        let (lane, slot, borrowed) = if self.lanes.is_empty() {
            let lane = pool.check_out(|| self.caller.should_end())?;
            let lane = lane.ok_or_else(|| Caller::cancelled(self.function))?;
            (lane, self.caller.group.join(), false)
        } else {
            let advice = self.advise();
            if advice.lanes <= self.lanes.len() {
                return Ok(false);
            }
            let Some(slot) = self.caller.group.try_join(self.caller.width) else { return Ok(false) };
            let Some(lane) = pool.try_check_out() else { return Ok(false) };
            (lane, slot, true)
        };
        self.lanes.push(Worker::new(lane, slot, borrowed));
        Ok(true)
    }

    fn advise(&self) -> Advice {
        // All lanes of a library go the same way.
        let round_trip = self.lanes[0].lane.round_trip();
        let (rest, sharing) = (self.rest.len(), self.lanes.len());
        self.cost.advise(rest, self.caller.width, sharing, self.concurrency(), round_trip)
    }

    /// The next slice, and the fewest bytes that it should have: with less, more rows fit than was thought.
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
        let arguments = self.narrow.as_ref().unwrap_or(&self.cost.arguments);
        let length = arguments.fitting(longest, rest, most);
        let least = if length < longest && self.narrow.is_none() { most / NARROW } else { 0 };
        let end = self.rest.start + length;
        let rows = self.rest.start..end;
        self.rest.start = end;
        (Slice::new(rows), least)
    }

    /// Sends a slice over a lane. False if it was cut, or taken back because it is to be longer, so that this
    /// lane can take the next one.
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
                    self.function.stats.here().fanned_out.add(1);
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
            // Nothing was sent and the lane is whole: these rows are narrower than earlier ones.
            Err(LaneError::TooLarge(_)) if size.get() < least => {
                self.rest.start = slice.rows.start;
                self.narrow = Some(Width::of(rows, size.get(), self.rest.len(), most));
                self.probing = false;
                Ok(false)
            }
            // Nothing was sent and the lane is whole: smaller slices may fit.
            Err(LaneError::TooLarge(_)) if rows > 1 => {
                // While one is worked on there is room for the next. One row may be much larger than the others, so what
                // is still too large is cut again.
                let pieces = size.get().div_ceil(most / 2).min(MOST_PIECES).clamp(2, rows);
                let length = rows.div_ceil(pieces);
                for start in slice.rows.clone().step_by(length).rev() {
                    let rows = start..slice.rows.end.min(start + length);
                    self.again.push_front(Slice { rows, ..slice });
                }
                // The next slices are as long as the pieces.
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
