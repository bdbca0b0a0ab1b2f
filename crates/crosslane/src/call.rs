//! One call of a function with one batch: over its own lane, and over idle ones if that pays.
//!
//! The batch is cut into slices ([`crate::cost`] says how). Each lane holds up to [`DEPTH`] slices, so
//! that a guest finds its next slice while the engine copies the last results; a lane that is done
//! early takes the next slice, so that the slowest lane does not decide.
//!
//! Every wait ends: with a reply, with the death of a lane (looked for every [`TICK`]), with the function's
//! timeout, or with the cancellation of the query. A lane that failed, or that still works when
//! the call ends, is dropped, which ends its process; all others are given back.

use crate::batch::{self, Column, Encode, FAILURE, Header, Plan, RESULT, Trust};
use crate::error::{Error, Failure, Place};
use crate::function::{Function, Library, OnError};
use crate::lane::{Lane, LaneError, Patience};
use crate::pool::{PooledLane, Zygote};
use crate::stats::{Times, now};
use crate::{DataType, display};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Slices in flight per lane.
const DEPTH: usize = 2;
/// How often a waiting call looks for deaths, deadlines and cancellation.
const TICK: Duration = Duration::from_millis(10);
/// A reply further away than this is not worth a core that spins.
const FAR: Duration = Duration::from_micros(500);
/// How soon an engine repeats a call that it could not fold.
const AGAIN: Duration = Duration::from_millis(100);
/// The first pause before a call is tried again; it doubles with each try.
const BACKOFF: Duration = Duration::from_millis(50);

/// The arguments of a call, as the engine holds them.
pub trait Input {
    /// Rows of the batch.
    fn rows(&self) -> usize;
    /// Some of the rows, ready to be written into a ring.
    fn slice(&self, rows: Range<usize>) -> Box<dyn Encode + '_>;
}

/// Where the results go.
pub trait Output {
    /// Takes the results of the rows from `first` on.
    ///
    /// # Errors
    /// If the engine cannot hold them.
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error>;
    /// Makes one row NULL.
    fn null(&mut self, row: usize);
}

/// The pause before try `tries + 1`, in guests as in the engine.
pub fn backoff(tries: u32) -> Duration {
    BACKOFF * 2u32.saturating_pow(tries.min(6))
}

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// What all calls of one engine instance share.
#[derive(Default)]
pub struct Crew {
    /// Lanes at work. Engines bring one thread per worker; idle ones may lend their share.
    busy: AtomicUsize,
    /// Counts the cancellations.
    cancelled: AtomicU64,
    /// Whether each call stays on its own lane.
    alone: AtomicBool,
    /// The call that was cancelled last: by which thread, of which function, when.
    last_cancelled: Mutex<Option<(ThreadId, String, Instant)>>,
    /// Asked by waiting calls whether they should end.
    stop: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("busy", &self.busy).finish_non_exhaustive()
    }
}

impl Crew {
    /// A crew whose waiting calls ask `stop`, each on its own thread, whether they should end.
    pub fn with_stop(stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { stop: Some(Box::new(stop)), ..Self::default() }
    }

    /// Counts the cancellations so far, for waits that are none of a call.
    pub fn cancellations(&self) -> u64 {
        self.cancelled.load(Relaxed)
    }

    /// Whether what waits since there were so many cancellations should end.
    pub fn should_end(&self, cancellations: u64) -> bool {
        self.cancelled.load(Relaxed) != cancellations || self.stop.as_ref().is_some_and(|stop| stop())
    }

    /// Ends all calls that are running now.
    pub fn cancel(&self) {
        self.cancelled.fetch_add(1, Relaxed);
    }

    /// Whether calls may use idle lanes beside their own.
    pub fn set_fan_out(&self, fan_out: bool) {
        self.alone.store(!fan_out, Relaxed);
    }

    fn cancelled(&self, function: &Function) -> Error {
        let call = (std::thread::current().id(), function.name().to_owned(), Instant::now());
        *self.last_cancelled.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
        Error::Cancelled { function: function.name().into() }
    }

    /// Whether this call is the one that was cancelled a moment ago: an engine that could not fold a call
    /// with constant arguments while it planned a query makes the same call again when it runs it.
    fn was_just_cancelled(&self, function: &Function) -> bool {
        if self.cancelled.load(Relaxed) == 0 {
            return false;
        }
        let last = self.last_cancelled.lock().unwrap_or_else(PoisonError::into_inner).take();
        last.is_some_and(|(thread, name, when)| {
            thread == std::thread::current().id() && name == function.name() && when.elapsed() < AGAIN
        })
    }

    /// Takes a place at work for another lane, if fewer than `width` are taken.
    fn try_join(&self, width: usize) -> Option<Seat<'_>> {
        self.busy
            .fetch_update(Relaxed, Relaxed, |busy| (busy < width).then_some(busy + 1))
            .ok()
            .map(|_| Seat(self))
    }

    fn join(&self) -> Seat<'_> {
        self.busy.fetch_add(1, Relaxed);
        Seat(self)
    }
}

/// A lane's place at work; left when dropped.
struct Seat<'a>(&'a Crew);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

/// Calls `function` with all rows of `input`, on up to `width` lanes at once.
///
/// # Errors
/// What the function raised, or what became of its lane; see [`Error`].
pub fn call<Z: Zygote>(
    library: &Library<Z>,
    function: &Function,
    crew: &Crew,
    width: usize,
    input: &dyn Input,
    output: &mut dyn Output,
) -> Result<(), Error> {
    let rows = input.rows();
    if rows == 0 {
        return Ok(());
    }
    if rows == 1 && crew.was_just_cancelled(function) {
        return Err(crew.cancelled(function));
    }
    let mut call = Call {
        library,
        function,
        crew,
        width: if crew.alone.load(Relaxed) { 1 } else { width },
        input,
        output,
        rest: 0..rows,
        again: VecDeque::new(),
        lanes: Vec::new(),
        probing: false,
        cancelled: crew.cancelled.load(Relaxed),
    };
    let outcome = call.run();
    // Those that failed are gone already; one that still works is ended by this.
    call.lanes.into_iter().for_each(|worker| worker.lane.give_back());
    outcome
}

/// Rows to be computed, and how often they were lost with a lane.
#[derive(Debug, Clone)]
struct Slice {
    rows: Range<usize>,
    lost: u32,
}

struct Submitted {
    slice: Slice,
    sequence: u64,
    submitting: u64,
    submitted: u64,
}

struct Worker<'a, L: Lane> {
    lane: PooledLane<L>,
    slices: VecDeque<Submitted>,
    /// The progress seen last and since when, for the timeout.
    seen: ((u32, u32), Instant),
    borrowed: bool,
    /// When the guest was done with its last slice.
    free: u64,
    _seat: Seat<'a>,
}

struct Call<'a, Z: Zygote> {
    library: &'a Library<Z>,
    function: &'a Function,
    crew: &'a Crew,
    width: usize,
    input: &'a dyn Input,
    output: &'a mut dyn Output,
    /// Rows that have not been cut into slices.
    rest: Range<usize>,
    /// Slices that were lost with a lane.
    again: VecDeque<Slice>,
    lanes: Vec<Worker<'a, Z::Lane>>,
    /// Whether a slice is on its way that tells what a row costs.
    probing: bool,
    cancelled: u64,
}

impl<Z: Zygote> Call<'_, Z> {
    fn run(&mut self) -> Result<(), Error> {
        loop {
            self.feed()?;
            if self.lanes.iter().all(|worker| worker.slices.is_empty()) {
                if self.again.is_empty() && self.rest.is_empty() {
                    return Ok(());
                }
                // What was to be sent was cut, or its lane was lost on the way: send it again.
            } else if !self.collect()? {
                self.wait()?;
            }
        }
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
                if self.probing || (self.again.is_empty() && self.rest.is_empty()) {
                    return Ok(());
                }
                // A lane may have been lost since.
                index = index.min(self.lanes.len());
                if index == self.lanes.len() && !self.hire()? {
                    break;
                }
                if self.lanes[index].slices.len() <= full {
                    let slice = self.next_slice();
                    self.submit(index, slice)?;
                }
                index += 1;
            }
        }
        Ok(())
    }

    fn depth(&self) -> usize {
        // Rows that wait together fill a lane; a second batch behind them would only wait longer
        // than it would on the next lane that is free.
        if self.concurrency() > 1 { 1 } else { DEPTH }
    }

    /// Takes one more lane: the call's own, or a borrowed one. False if there is none to be had.
    fn hire(&mut self) -> Result<bool, Error> {
        let pool = &self.library.pool;
        let (lane, seat, borrowed) = if self.lanes.is_empty() {
            (pool.check_out()?, self.crew.join(), false)
        } else {
            let advice = self.function.cost.advise(self.rest.len(), self.width, self.concurrency());
            if advice.lanes <= self.lanes.len() {
                return Ok(false);
            }
            let Some(seat) = self.crew.try_join(self.width) else { return Ok(false) };
            let Some(lane) = pool.try_check_out() else { return Ok(false) };
            (lane, seat, true)
        };
        let seen = (lane.progress(), Instant::now());
        self.lanes.push(Worker { lane, slices: VecDeque::new(), seen, borrowed, free: 0, _seat: seat });
        Ok(true)
    }

    fn next_slice(&mut self) -> Slice {
        if let Some(slice) = self.again.pop_front() {
            return slice;
        }
        let advice = self.function.cost.advise(self.rest.len(), self.width, self.concurrency());
        self.probing = advice.probe;
        let end = self.rest.start + advice.rows;
        let rows = self.rest.start..end;
        self.rest.start = end;
        Slice { rows, lost: 0 }
    }

    fn submit(&mut self, index: usize, slice: Slice) -> Result<(), Error> {
        let submitting = now();
        let arguments = self.input.slice(slice.rows.clone());
        let worker = &mut self.lanes[index];
        let outcome = worker.lane.submit(self.function.index, slice.rows.len(), &*arguments);
        drop(arguments);
        match outcome {
            Ok(sequence) => {
                if worker.slices.is_empty() {
                    worker.seen.1 = Instant::now();
                }
                if worker.borrowed {
                    self.function.stats.fanned_out.add(1);
                }
                worker.slices.push_back(Submitted { slice, sequence, submitting, submitted: now() });
                Ok(())
            }
            // Nothing was sent and the lane is whole: smaller slices may fit.
            Err(LaneError::TooLarge(_)) if slice.rows.len() > 1 => {
                let middle = slice.rows.start + slice.rows.len() / 2;
                self.again.push_front(Slice { rows: middle..slice.rows.end, lost: slice.lost });
                self.again.push_front(Slice { rows: slice.rows.start..middle, lost: slice.lost });
                self.probing = false;
                Ok(())
            }
            Err(LaneError::TooLarge(what)) => Err(self.died(what, Some(slice.rows.start))),
            Err(error) => {
                let worker = self.lanes.remove(index);
                let tries = self.tries(&worker);
                self.lost(worker, slice, None, tries, |call, place| call.died(error.to_string(), place))
            }
        }
    }

    /// Takes every reply that is there. False if there was none.
    fn collect(&mut self) -> Result<bool, Error> {
        let mut any = false;
        let mut index = 0;
        while index < self.lanes.len() {
            let worker = &mut self.lanes[index];
            if worker.slices.is_empty() {
                index += 1;
                continue;
            }
            match worker.lane.try_collect() {
                Ok(None) => index += 1,
                Ok(Some(header)) => {
                    any = true;
                    if self.accept(index, header)? {
                        index += 1;
                    }
                }
                Err(error) => {
                    any = true;
                    self.lane_failed(index, &error)?;
                }
            }
        }
        Ok(any)
    }

    /// Takes one reply. False if its lane turned out to be useless and is gone.
    fn accept(&mut self, index: usize, header: Header) -> Result<bool, Error> {
        let collected = now();
        let worker = &mut self.lanes[index];
        let Some(submitted) = worker.slices.pop_front() else {
            self.lane_failed(index, &LaneError::Corrupt("a reply to no call".into()))?;
            return Ok(false);
        };
        worker.seen.1 = Instant::now();
        let rows = submitted.slice.rows.clone();
        let outcome = match header.kind {
            RESULT if header.sequence == submitted.sequence && header.rows as usize == rows.len() => {
                let types = std::iter::once(&self.function.signature.returns);
                match batch::columns(worker.lane.frame(), types, Trust::Nothing) {
                    Ok(columns) => {
                        self.output.accept(rows.start, &columns[0])?;
                        None
                    }
                    Err(malformed) => Some(malformed.to_string()),
                }
            }
            FAILURE if header.sequence == submitted.sequence => {
                let text =
                    batch::failure_text(worker.lane.frame()).map_err(|malformed| malformed.to_string());
                let failure = text.and_then(|text| {
                    serde_json::from_slice::<Failure>(text).map_err(|error| error.to_string())
                });
                match failure {
                    Ok(failure) => {
                        let failure = Box::new(failure);
                        let row = (header.row as usize) < rows.len();
                        let row = row.then(|| rows.start + header.row as usize);
                        let place = self.place(row);
                        return Err(Error::Raised { function: self.function.name().into(), failure, place });
                    }
                    Err(error) => Some(format!("a failure that cannot be read: {error}")),
                }
            }
            kind => Some(format!(
                "a reply of kind {kind} to call {} with {} rows, where call {} with {} rows was due",
                header.sequence,
                header.rows,
                submitted.sequence,
                rows.len()
            )),
        };
        if let Some(what) = outcome {
            self.lanes[index].slices.push_front(submitted);
            self.lane_failed(index, &LaneError::Corrupt(what))?;
            return Ok(false);
        }
        let stats = &self.function.stats;
        let free = std::mem::replace(&mut self.lanes[index].free, header.done);
        let Submitted { submitting, submitted, .. } = submitted;
        stats.record(&header, Times { submitting, submitted, free, collected });
        self.lanes[index].lane.stats().record(&header);
        stats.bytes_out.add(self.lanes[index].lane.frame().len() as u64);
        stats.copy_out.add(now() - collected);
        self.function.cost.learn(rows.len(), header.done.saturating_sub(header.taken));
        self.probing = false;
        Ok(true)
    }

    /// How to wait for the next reply.
    fn patience(&self) -> Patience {
        let first = self
            .lanes
            .iter()
            .filter_map(|worker| worker.slices.front())
            .map(|submitted| submitted.slice.rows.len());
        match first.min().and_then(|rows| self.function.cost.estimate(rows)) {
            Some(estimate) if estimate > FAR => Patience::Sleep,
            // Each lane at work keeps a core busy beside the one that would spin.
            Some(_) if 2 * self.crew.busy.load(Relaxed) <= cores() => Patience::SpinLonger,
            _ => Patience::Spin,
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        let limit = self.function.patience();
        let tick = limit.map_or(TICK, |limit| (limit / 8).clamp(Duration::from_millis(1), TICK));
        let patience = self.patience();
        let mut lanes: Vec<&mut Z::Lane> = self
            .lanes
            .iter_mut()
            .filter(|worker| !worker.slices.is_empty())
            .map(|worker| &mut *worker.lane)
            .collect();
        let before = Instant::now();
        Z::Lane::wait_any(&mut lanes, patience, tick);
        if self.crew.should_end(self.cancelled) {
            return Err(self.crew.cancelled(self.function));
        }
        if before.elapsed() < tick / 2 {
            return Ok(());
        }
        let mut index = 0;
        while index < self.lanes.len() {
            let worker = &mut self.lanes[index];
            if worker.slices.is_empty() {
                index += 1;
            } else if let Err(error) = worker.lane.check() {
                // Its last words may be in the ring.
                if !matches!(worker.lane.try_collect(), Ok(Some(header)) if self.accept(index, header)?) {
                    self.lane_failed(index, &error)?;
                }
            } else if limit.is_some_and(|limit| worker.overdue(limit)) {
                let mut worker = self.lanes.remove(index);
                let Some(submitted) = worker.slices.pop_front() else { continue };
                let row = worker.row(&submitted);
                let tries = self.function.spec.retries;
                self.lost(worker, submitted.slice, row, tries, |call, row| Error::TimedOut {
                    function: call.function.name().into(),
                    seconds: call.function.spec.timeout.unwrap_or_default(),
                    place: call.place(row),
                })?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    fn lane_failed(&mut self, index: usize, error: &LaneError) -> Result<(), Error> {
        let mut worker = self.lanes.remove(index);
        let Some(submitted) = worker.slices.pop_front() else {
            return Err(self.died(error.to_string(), None));
        };
        let row = worker.row(&submitted);
        let tries = self.tries(&worker);
        self.lost(worker, submitted.slice, row, tries, |call, row| call.died(error.to_string(), row))
    }

    /// How often a slice may be lost by the death of its lane. One that shares its process with others may
    /// have been taken along by them, and gets another try.
    fn tries(&self, worker: &Worker<'_, Z::Lane>) -> u32 {
        self.function.spec.retries + u32::from(worker.lane.shares_its_process())
    }

    fn died(&self, how: String, row: Option<usize>) -> Error {
        Error::LaneDied { function: self.function.name().into(), how, place: self.place(row) }
    }

    /// Decides what becomes of a slice whose lane was lost while it worked on `row`.
    fn lost(
        &mut self,
        worker: Worker<'_, Z::Lane>,
        mut slice: Slice,
        row: Option<usize>,
        tries: u32,
        error: impl FnOnce(&Self, Option<usize>) -> Error,
    ) -> Result<(), Error> {
        self.function.stats.deaths.add(1);
        self.probing = false;
        // What was queued behind is not to blame.
        self.again.extend(worker.slices.iter().map(|submitted| submitted.slice.clone()));
        let shared = worker.lane.shares_its_process();
        drop(worker);
        if shared {
            self.library.pool.bury();
        }
        if slice.lost < tries {
            std::thread::sleep(backoff(slice.lost));
            slice.lost += 1;
            self.function.stats.retries.add(1);
            self.again.push_front(slice);
            return Ok(());
        }
        if self.function.spec.on_error == OnError::Fail {
            return Err(error(self, row));
        }
        // The rows around the culprit are computed again; without a culprit all are NULL.
        let culprit = row.map_or(slice.rows.clone(), |row| row..row + 1);
        self.function.stats.errors.add(culprit.len() as u64);
        culprit.clone().for_each(|row| self.output.null(row));
        for rows in [culprit.end..slice.rows.end, slice.rows.start..culprit.start] {
            if !rows.is_empty() {
                self.again.push_front(Slice { rows, lost: 0 });
            }
        }
        Ok(())
    }

    fn place(&self, row: Option<usize>) -> Place {
        place(self.function, self.input, row)
    }
}

/// The row and its arguments, read back from the engine's own data.
pub fn place(function: &Function, input: &dyn Input, row: Option<usize>) -> Place {
    Place(row.map(|row| (row + 1, arguments(function, input, row))))
}

fn arguments(function: &Function, input: &dyn Input, row: usize) -> String {
    let arguments = input.slice(row..row + 1);
    let mut plan = Plan::default();
    arguments.plan(&mut plan);
    let mut words = vec![0u64; plan.size().div_ceil(8)];
    let frame = &mut bytemuck::cast_slice_mut(&mut words)[..plan.size()];
    arguments.write(&mut plan.start(frame, Header { rows: 1, ..Header::default() }));
    let parameters = &function.signature.parameters;
    let types = parameters.iter().map(|parameter| -> &DataType { &parameter.data_type });
    match batch::columns(bytemuck::cast_slice(&words), types, Trust::Values) {
        Ok(columns) => display::arguments(parameters, &columns, 0),
        Err(malformed) => malformed.to_string(),
    }
}

impl<L: Lane> Worker<'_, L> {
    /// The row that the guest works on, if it works on the oldest slice.
    fn row(&self, submitted: &Submitted) -> Option<usize> {
        let (sequence, row) = self.lane.progress();
        let row = row as usize;
        (sequence == submitted.sequence as u32 && row < submitted.slice.rows.len())
            .then(|| submitted.slice.rows.start + row)
    }

    /// Whether the guest has been at the same row for longer than `limit`.
    fn overdue(&mut self, limit: Duration) -> bool {
        let progress = self.lane.progress();
        if progress != self.seen.0 {
            self.seen = (progress, Instant::now());
        }
        self.seen.1.elapsed() >= limit
    }
}
