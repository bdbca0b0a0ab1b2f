//! One use of an aggregate in one query, and its lanes.

use super::accumulates::Accumulates;
use super::columns::Numbered;
use super::registry::{AnyLane, Numbers, Pinned, registry};
use super::state::{State, States};
use crate::batch::ColumnBuilder;
use crate::call::{Behind, CallGroup, Caller, Clock, Input, Output, Results, call_on, pause};
use crate::error::Error;
use crate::function::{Function, Library};
use crate::lane::{Address, Entry, Lane};
use crate::lock;
use crate::pool::Zygote;
use crate::stats::now;
use crate::types::DataType;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, ThreadId};

/// The least number of ended states in one message to a guest, while other states of its lane are
/// alive.
const MANY: usize = 1024;
/// The most states that a lane is asked to forget when its accumulation ends. A lane with more
/// states is ended.
const MOST: usize = 1 << 20;
/// Nanoseconds. If no thread uses an accumulation for this time, its query is not inside the
/// function. An earlier cancellation does not apply to the next use.
const PAUSE: u64 = 100_000_000;
/// Nanoseconds. The failure of the previous accumulation is kept until this one is unused for this
/// time. Until then, threads may arrive with states of the previous one.
const KEPT: u64 = 10_000_000_000;
/// The number of states in the first transfer between lanes, when their size is unknown.
const FIRST_PIECE: usize = 16;

/// The lanes of an accumulation.
struct Lanes<Z: Zygote> {
    by_id: HashMap<u64, Arc<Pinned<Z>>>,
    by_thread: HashMap<ThreadId, Arc<Pinned<Z>>>,
    /// The reason why the accumulation has no lanes any more.
    over: Option<Error>,
    /// The failure of the previous accumulation, whose states threads may still use.
    before: Option<Error>,
}

/// One use of an aggregate in one query.
pub struct Accumulation<Z: Zygote> {
    library: Arc<Library<Z>>,
    function: Arc<Function>,
    group: Arc<CallGroup>,
    /// The time when the query began, or an estimate of it.
    begun: AtomicU64,
    /// The time of the last use.
    used: AtomicU64,
    /// The number of states in one transfer between lanes.
    pub(super) piece: AtomicUsize,
    lanes: Mutex<Lanes<Z>>,
}

impl<Z: Zygote> fmt::Debug for Accumulation<Z> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes = lock(&self.lanes).by_id.len();
        f.debug_struct("Accumulation")
            .field("function", &self.function.name())
            .field("lanes", &lanes)
            .finish()
    }
}

impl<Z: Zygote> Accumulation<Z> {
    /// Begins an accumulation. The cancellation of the group's calls ends it.
    pub fn new(library: Arc<Library<Z>>, function: Arc<Function>, group: Arc<CallGroup>) -> Self {
        let lanes = Lanes { by_id: HashMap::new(), by_thread: HashMap::new(), over: None, before: None };
        let (begun, used) = (AtomicU64::new(now()), AtomicU64::new(now()));
        let piece = AtomicUsize::new(FIRST_PIECE);
        Self { library, function, group, begun, used, piece, lanes: Mutex::new(lanes) }
    }

    /// Notes the failure of the previous accumulation. Other threads may use its states before the
    /// query ends.
    #[must_use]
    pub fn after(self, failure: Option<Error>) -> Self {
        lock(&self.lanes).before = failure;
        self
    }

    fn caller(&self) -> Caller<'_> {
        Caller::since(&self.group, 1, self.begun.load(Relaxed))
    }

    fn check(&self) -> Result<(), Error> {
        self.used.store(now(), Relaxed);
        lock(&self.lanes).over.clone().map_or(Ok(()), Err)
    }

    /// The lane of this thread. If the thread has none, it takes one from the pool.
    fn own(&self) -> Result<Arc<Pinned<Z>>, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let this = thread::current().id();
        if let Some(pinned) = lock(&self.lanes).by_thread.get(&this) {
            return Ok(Arc::clone(pinned));
        }
        let caller = self.caller();
        if caller.was_cancelled() {
            return Err(Caller::cancelled(&self.function));
        }
        let lane = caller.check_out(&self.library, &self.function)?;
        let id = NEXT.fetch_add(1, Relaxed);
        let pinned = Arc::new(Pinned::<Z> { id, lane: Mutex::new(Some(lane)), numbers: Mutex::default() });
        let mut lanes = lock(&self.lanes);
        if let Some(error) = &lanes.over {
            let error = error.clone();
            drop(lanes);
            self.give_back(&pinned);
            return Err(error);
        }
        let any: Arc<dyn AnyLane> = Arc::clone(&pinned) as _;
        registry().write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::downgrade(&any));
        lanes.by_id.insert(id, Arc::clone(&pinned));
        lanes.by_thread.insert(this, Arc::clone(&pinned));
        Ok(pinned)
    }

    /// The lane of a state.
    pub(super) fn of(&self, id: u64) -> Result<Arc<Pinned<Z>>, Error> {
        let lanes = lock(&self.lanes);
        let known = lanes.by_id.get(&id).map(Arc::clone);
        known.ok_or_else(|| {
            let gone = || Error::Engine(format!("{}: a state of a query that is over", self.function.name()));
            lanes.over.as_ref().or(lanes.before.as_ref()).cloned().unwrap_or_else(gone)
        })
    }

    /// Uses an entry on a lane.
    pub(super) fn enter(
        &self,
        pinned: &Pinned<Z>,
        entry: Entry,
        input: &dyn Input,
        output: &mut dyn Output,
    ) -> Result<(), Error> {
        let mut lane = lock(&pinned.lane);
        if let Some(lane) = &mut *lane {
            lane.hold();
        }
        let mut enter = |entry: Entry, input: &dyn Input, output: &mut dyn Output| {
            call_on(&self.library, &self.function, entry, self.caller(), &mut lane, input, output)
        };
        let ended = {
            let mut numbers = lock(&pinned.numbers);
            if numbers.ended.len() < MANY { Vec::new() } else { std::mem::take(&mut numbers.ended) }
        };
        let forget =
            Numbered { columns: vec![ended.iter().map(|number| *number as i64).collect()], rest: None };
        let forgotten = enter(Entry::Forget, &forget, &mut ());
        let outcome = forgotten.and_then(|()| {
            lock(&pinned.numbers).free.extend(ended);
            enter(entry, input, output)
        });
        outcome
            .map_err(|error| match error {
                Error::LaneDied { function, how, place } => {
                    let living = lock(&pinned.numbers).living();
                    let how = format!("{how}; the states that it held, {living}, are lost with it");
                    Error::LaneDied { function, how, place }
                }
                error => error,
            })
            // The error is stored before another thread can lock the lane.
            .map_err(|error| lock(&self.lanes).over.get_or_insert(error).clone())
    }

    /// Ends the accumulation after an error. All threads then fail with the first error, whatever
    /// errors they get themselves.
    fn settle<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.map_err(|error| self.leave(error))
    }

    fn leave(&self, why: Error) -> Error {
        let (lanes, why) = {
            let mut lanes = lock(&self.lanes);
            let why = lanes.over.get_or_insert(why).clone();
            lanes.by_thread.clear();
            (std::mem::take(&mut lanes.by_id), why)
        };
        for (id, pinned) in lanes {
            registry().write().unwrap_or_else(PoisonError::into_inner).remove(&id);
            self.give_back(&pinned);
        }
        why
    }

    /// Gives a lane back to the pool, without its states. A lane that another thread is using ends
    /// with that use.
    fn give_back(&self, pinned: &Pinned<Z>) {
        let lane = match pinned.lane.try_lock() {
            Ok(mut lane) => lane.take(),
            Err(TryLockError::Poisoned(lane)) => lane.into_inner().take(),
            // The thread that uses the lane drops it, because no other reference to the lane
            // remains.
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(mut lane) = lane else { return };
        let numbers = lock(&pinned.numbers);
        if numbers.next as usize > MOST {
            return;
        }
        let held = numbers.held();
        drop(numbers);
        if !held.is_empty() {
            let mut column = ColumnBuilder::new(&DataType::BigInt);
            column.fixed_all(&held);
            let address = Address::whole(self.function.index, Entry::Forget);
            // The pool discards the answer, and lends the lane again after the answer has arrived.
            let sent = lane.submit(address, held.len(), &column);
            if !matches!(sent, Ok(Some(_))) || lane.cancel().is_err() {
                return;
            }
        }
        self.library.pool.give_back(lane);
    }

    pub(super) fn born(&self, pinned: &Pinned<Z>, numbers: &mut Numbers) -> Result<State, Error> {
        let number = numbers.take();
        let number =
            number.ok_or_else(|| Error::Engine(format!("{}: too many states", self.function.name())))?;
        Ok(State { lane: pinned.id, number })
    }

    /// Gives a state to each row that has none.
    fn begin(&self, states: &States<'_>) -> Result<(), Error> {
        if states.lanes().all(|lane| lane != 0) {
            return Ok(());
        }
        let own = self.own()?;
        let mut numbers = lock(&own.numbers);
        for row in 0..states.count() {
            if states.get(row).lane == 0 {
                states.set(row, self.born(&own, &mut numbers)?);
            }
        }
        Ok(())
    }
}

impl<Z: Zygote> Accumulation<Z> {
    /// Saves states as bytes, for an engine that moves the states itself. A state without rows is
    /// NULL.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    pub fn save(&self, states: &States<'_>, output: &mut dyn Output) -> Result<(), Error> {
        self.check()?;
        let outcome = states.runs().try_for_each(|(lane, rows)| {
            if lane == 0 {
                rows.for_each(|row| output.null(row));
                return Ok(());
            }
            let (numbers, first) = (vec![states.numbers(rows.clone())], rows.start);
            let numbers = Numbered { columns: numbers, rest: None };
            self.enter(&*self.of(lane)?, Entry::Save, &numbers, &mut Behind { first, output })
        });
        self.settle(outcome)
    }

    /// Adds saved states to states, row by row. The input is one column of saved states. NULL adds
    /// nothing.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    pub fn load(&self, states: &States<'_>, saved: &dyn Input) -> Result<(), Error> {
        self.add(Entry::Load, states, saved)
    }

    /// The results of `count` groups. `groups` has the group of each row.
    fn results(&self, input: &dyn Input, groups: &[usize], count: usize) -> Result<Results, Error> {
        let mut states = vec![State::default(); count];
        let first = states.as_mut_ptr();
        let rows: Vec<*mut State> = groups.iter().map(|group| first.wrapping_add(*group)).collect();
        let all: Vec<*mut State> = (0..count).map(|group| first.wrapping_add(group)).collect();
        // SAFETY: `aggregate` has checked that each group is less than `count`. So the pointers
        // point into `states`. No other code uses `states` until the results are complete.
        let (rows, all) = unsafe { (States::new(&rows), States::new(&all)) };
        let mut results = Results::new(self.function.signature.returns.clone());
        self.update(&rows, input)?;
        self.finish(&all, &mut results)?;
        Ok(results)
    }

    /// Adds rows to states, with one exchange for each run of rows whose states are in one lane.
    fn add(&self, entry: Entry, states: &States<'_>, input: &dyn Input) -> Result<(), Error> {
        self.check()?;
        let outcome = self.begin(states).and_then(|()| {
            states.runs().try_for_each(|(lane, rows)| {
                let (columns, rest) = (vec![states.numbers(rows.clone())], Some((input, rows.start)));
                self.enter(&*self.of(lane)?, entry, &Numbered { columns, rest }, &mut ())
            })
        });
        self.settle(outcome)
    }
}

/// The results of an aggregate for `count` groups, for a caller that has all rows. `groups` has the
/// group of each row. If the lane is lost with its states, the whole aggregation runs again, at
/// most as often as the function's `retries`.
///
/// # Errors
/// As [`Accumulates::update`]. [`Error::Engine`] if a row has no group, or a group that does not
/// exist.
pub fn aggregate<Z: Zygote>(
    library: &Arc<Library<Z>>,
    function: &Arc<Function>,
    group: &Arc<CallGroup>,
    input: &dyn Input,
    (groups, count): (&[usize], usize),
) -> Result<Results, Error> {
    if groups.len() != input.rows() || groups.iter().any(|group| *group >= count) {
        let (name, rows, places) = (function.name(), input.rows(), groups.len());
        return Err(Error::Engine(format!("{name}: {places} places among {count} groups for {rows} rows")));
    }
    let caller = Caller::new(group, 1);
    let mut clock = Clock::new(function);
    let mut tries = 0;
    loop {
        let accumulation = Accumulation::new(Arc::clone(library), Arc::clone(function), Arc::clone(group));
        let outcome = accumulation.results(input, groups, count);
        accumulation.end();
        if !matches!(outcome, Err(Error::LaneDied { .. })) || tries == function.spec.retries {
            return outcome;
        }
        library.log(function).retried();
        clock.rest(pause(tries, None).unwrap_or_default(), function, caller)?;
        tries += 1;
    }
}

impl<Z: Zygote> Accumulates for Accumulation<Z> {
    fn update(&self, states: &States<'_>, input: &dyn Input) -> Result<(), Error> {
        self.add(Entry::Update, states, input)
    }

    fn combine(&self, targets: &States<'_>, sources: &States<'_>, keep: bool) -> Result<(), Error> {
        self.check()?;
        let outcome = self.combine_all(targets, sources, keep);
        self.settle(outcome)
    }

    fn finish(&self, states: &States<'_>, output: &mut dyn Output) -> Result<(), Error> {
        self.check()?;
        let finish = |pinned: &Pinned<Z>, numbers: Vec<i64>, first: usize, output: &mut dyn Output| {
            let mut output = Behind { first, output };
            self.enter(pinned, Entry::Finish, &Numbered { columns: vec![numbers], rest: None }, &mut output)
        };
        let outcome = states.runs().try_for_each(|(lane, rows)| {
            if lane != 0 {
                return finish(&*self.of(lane)?, states.numbers(rows.clone()), rows.start, output);
            }
            // All these rows get the result of one new state without rows.
            let own = self.own()?;
            let State { number, .. } = self.born(&own, &mut lock(&own.numbers))?;
            finish(&own, vec![number as i64; rows.len()], rows.start, output)?;
            lock(&own.numbers).ended.push(number);
            Ok(())
        });
        self.settle(outcome)
    }

    fn function(&self) -> &Function {
        &self.function
    }

    fn is_idle(&self) -> bool {
        lock(&self.lanes).by_id.values().all(|pinned| lock(&pinned.numbers).living() == 0)
    }

    fn renew(&self) {
        let now = now();
        if now.saturating_sub(self.used.load(Relaxed)) > PAUSE {
            self.begun.store(now, Relaxed);
        }
    }

    fn failure(&self) -> Option<Error> {
        lock(&self.lanes).over.clone()
    }

    fn sweep(&self) -> bool {
        let mut lanes = lock(&self.lanes);
        let idle = lanes.by_id.values().filter(|pinned| {
            // A thread that uses the lane may add states.
            let at_work = pinned.lane.try_lock().is_err() || Arc::strong_count(pinned) > 2;
            let mut numbers = lock(&pinned.numbers);
            let idle = !at_work && numbers.living() == 0;
            std::mem::replace(&mut numbers.idle, idle) && idle
        });
        let idle: Vec<_> = idle.map(|pinned| pinned.id).collect();
        lanes.by_thread.retain(|_, pinned| !idle.contains(&pinned.id));
        let idle: Vec<_> = idle.iter().filter_map(|id| lanes.by_id.remove(id)).collect();
        let is_needed = lanes.before.is_some() && now().saturating_sub(self.used.load(Relaxed)) < KEPT;
        let none = lanes.by_id.is_empty() && !is_needed;
        drop(lanes);
        for pinned in idle {
            registry().write().unwrap_or_else(PoisonError::into_inner).remove(&pinned.id);
            self.give_back(&pinned);
        }
        none
    }

    fn end(&self) {
        let _ = self.leave(Error::Engine(format!("{}: the query is over", self.function.name())));
    }
}
