//! The states of aggregates: which lane each lives in, and under which number.
//!
//! A state lives in the guest of one lane, from its first row on. The engine's own memory of a state holds two words, the lane
//! and the number, which any thread may copy. The lanes belong to one [`Accumulation`]: one use of an aggregate in one query.
//! Each thread of the engine gets a lane of its own there, so that threads do not wait for each other; who works on a state
//! of another's lane takes its turn. When the accumulation ends, the lanes forget its states and go back to the pool.

use crate::batch::{Body, Column, Encode, Plan};
use crate::builder::ColumnBuilder;
use crate::call::{CallGroup, Caller, Clock, Input, Output, Results, backoff, call_on};
use crate::error::Error;
use crate::exchange::{Address, Entry};
use crate::function::{Function, Library};
use crate::lane::Lane;
use crate::pool::{PooledLane, Zygote};
use crate::stats::now;
use crate::types::DataType;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError, Weak};
use std::thread::{self, ThreadId};

/// So many ended states are told to a guest at once, at least, while others of its lane live.
const MANY: usize = 1024;
/// The most states that a lane is told to forget when its accumulation ends. One with more is ended.
const MOST: usize = 1 << 20;
/// Who does not use it for so many nanoseconds is not in the function when its queries are cancelled.
const PAUSE: u64 = 100_000_000;
/// For so many nanoseconds without use, the failure of the accumulation before this one is kept for threads that come with
/// its states.
const KEPT: u64 = 10_000_000_000;
/// States travel between lanes through the engine's memory, about so many bytes at once.
const MOST_BYTES: usize = 16 << 20;
/// So many states travel at first, when it is not known how large they are, and so many at most.
const FIRST_PIECE: usize = 16;
const MOST_PIECE: usize = 1 << 16;
/// The most states of a lane: their numbers are those of rows.
const MOST_STATES: u64 = 1 << 31;

/// What the engine's memory holds of a state: nothing but zeros before its first row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct State {
    /// The lane's place in the registry; 0 if there is no state yet.
    lane: u64,
    /// Its number there.
    number: u64,
}

/// The states of a chunk's rows, where the engine has them. Rows may have the same.
#[derive(Debug, Clone, Copy)]
pub struct States<'a> {
    places: &'a [*mut State],
    _engine: PhantomData<&'a mut State>,
}

impl<'a> States<'a> {
    /// # Safety
    /// Each must point to a state, aligned or not, that nobody else uses as long as this lives.
    pub unsafe fn new(places: &'a [*mut State]) -> Self {
        Self { places, _engine: PhantomData }
    }

    fn count(&self) -> usize {
        self.places.len()
    }

    fn get(&self, row: usize) -> State {
        // SAFETY: as the maker said.
        unsafe { self.places[row].read_unaligned() }
    }

    fn set(&self, row: usize, state: State) {
        // SAFETY: as the maker said.
        unsafe { self.places[row].write_unaligned(state) };
    }

    /// The lane of each row's state, so that the rows of a lane can be put one behind the other.
    pub fn lanes(&self) -> impl Iterator<Item = u64> {
        (0..self.count()).map(|row| self.get(row).lane)
    }

    /// Neighbours whose states are in the same lane.
    fn runs(&self) -> impl Iterator<Item = (u64, Range<usize>)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let lane = (from < self.count()).then(|| self.get(from).lane)?;
            let end = (from..self.count()).find(|row| self.get(*row).lane != lane).unwrap_or(self.count());
            let rows = from..end;
            from = end;
            Some((lane, rows))
        })
    }

    fn numbers(&self, rows: Range<usize>) -> Vec<i64> {
        rows.map(|row| self.get(row).number as i64).collect()
    }
}

/// What an adapter does with the states of one use of an aggregate.
pub trait Accumulates: Send + Sync {
    /// Adds rows to states.
    ///
    /// # Errors
    /// What the function raised, or what became of a lane; then all states of this accumulation are gone.
    fn update(&self, states: &States<'_>, input: &dyn Input) -> Result<(), Error>;

    /// Adds the sources to the targets, row by row. Sources that are not kept hold nothing afterwards.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    fn combine(&self, targets: &States<'_>, sources: &States<'_>, keep: bool) -> Result<(), Error>;

    /// The results of states.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    fn finish(&self, states: &States<'_>, output: &mut dyn Output) -> Result<(), Error>;

    /// What it uses.
    fn function(&self) -> &Function;

    /// Whether no state lives.
    fn is_idle(&self) -> bool;

    /// It is used where no state lives: by the next rows of a query, or by a prepared statement that runs again, which an earlier
    /// cancellation does not concern.
    fn renew(&self);

    /// What it has failed with, if it has: it can be used no more.
    fn failure(&self) -> Option<Error>;

    /// Gives back lanes that have no states, and had none when this was called last. Whether none is left, and nobody may ask what
    /// an accumulation before it has failed with.
    fn sweep(&self) -> bool;

    /// Ends it, with the states that still live.
    fn end(&self);
}

/// The states are no more. It waits for no guest.
pub fn destroy(states: &States<'_>) {
    for (lane, rows) in states.runs() {
        let pinned =
            registry().read().unwrap_or_else(PoisonError::into_inner).get(&lane).and_then(Weak::upgrade);
        if let Some(pinned) = pinned {
            pinned.ended(&mut rows.map(|row| states.get(row).number));
        }
    }
}

/// A lane of any accumulation.
trait AnyLane: Send + Sync {
    fn ended(&self, numbers: &mut dyn Iterator<Item = u64>);
}

type Registry = RwLock<HashMap<u64, Weak<dyn AnyLane>>>;

/// The lanes that states live in, by the first word of a state. A state of a lane that is not there any more is nobody's.
fn registry() -> &'static Registry {
    static REGISTRY: std::sync::LazyLock<Registry> = std::sync::LazyLock::new(RwLock::default);
    &REGISTRY
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which numbers of a lane are in use.
#[derive(Debug, Default)]
struct Numbers {
    /// The first that was never used.
    next: u64,
    /// Those that the guest has forgotten.
    free: Vec<u64>,
    /// Those that it is still to forget.
    ended: Vec<u64>,
    /// Whether none lived when that was looked at last.
    idle: bool,
}

impl Numbers {
    fn take(&mut self) -> Option<u64> {
        self.free.pop().or_else(|| {
            let next = self.next;
            (next < MOST_STATES).then(|| {
                self.next += 1;
                next
            })
        })
    }

    /// How many states live.
    fn living(&self) -> u64 {
        self.next - (self.free.len() + self.ended.len()) as u64
    }

    /// All that the guest may hold.
    fn held(&self) -> Vec<i64> {
        let mut held = vec![true; self.next as usize];
        self.free.iter().for_each(|number| held[*number as usize] = false);
        (0..).zip(held).filter_map(|(number, held)| held.then_some(number)).collect()
    }
}

/// A lane that holds states.
struct Pinned<Z: Zygote> {
    id: u64,
    /// Taken for an exchange. `None` when the lane is lost or given back.
    lane: Mutex<Option<PooledLane<Z::Lane>>>,
    /// Taken for a moment, also while the lane is at work.
    numbers: Mutex<Numbers>,
}

impl<Z: Zygote> AnyLane for Pinned<Z> {
    fn ended(&self, ended: &mut dyn Iterator<Item = u64>) {
        lock(&self.numbers).ended.extend(ended);
    }
}

/// The lanes of an accumulation.
struct Lanes<Z: Zygote> {
    by_id: HashMap<u64, Arc<Pinned<Z>>>,
    by_thread: HashMap<ThreadId, Arc<Pinned<Z>>>,
    /// Why there are none any more.
    over: Option<Error>,
    /// What the one before it has failed with, whose states may still be asked for.
    before: Option<Error>,
}

/// One use of an aggregate in one query.
pub struct Accumulation<Z: Zygote> {
    library: Arc<Library<Z>>,
    function: Arc<Function>,
    group: Arc<CallGroup>,
    /// When the query began, as far as that is known.
    begun: AtomicU64,
    /// When it was used last.
    used: AtomicU64,
    /// How many states travel from one lane to another at once.
    piece: AtomicUsize,
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
    /// Begins one, which ends with a cancellation of these calls.
    pub fn new(library: Arc<Library<Z>>, function: Arc<Function>, group: Arc<CallGroup>) -> Self {
        let lanes = Lanes { by_id: HashMap::new(), by_thread: HashMap::new(), over: None, before: None };
        let (begun, used) = (AtomicU64::new(now()), AtomicU64::new(now()));
        let piece = AtomicUsize::new(FIRST_PIECE);
        Self { library, function, group, begun, used, piece, lanes: Mutex::new(lanes) }
    }

    /// The same, where one has failed: other threads may come with its states before the query ends.
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

    /// This thread's lane.
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
        let lane = self.library.pool.check_out(|| caller.should_end())?;
        let lane = lane.ok_or_else(|| Caller::cancelled(&self.function))?;
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
    fn of(&self, id: u64) -> Result<Arc<Pinned<Z>>, Error> {
        let lanes = lock(&self.lanes);
        let known = lanes.by_id.get(&id).map(Arc::clone);
        known.ok_or_else(|| {
            let gone = || Error::Engine(format!("{}: a state of a query that is over", self.function.name()));
            lanes.over.as_ref().or(lanes.before.as_ref()).cloned().unwrap_or_else(gone)
        })
    }

    /// Uses an entry on a lane.
    fn enter(
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
            // Before another thread can look at the lane.
            .map_err(|error| lock(&self.lanes).over.get_or_insert(error).clone())
    }

    /// Gives all up after an error. Other threads fail with the first one, whatever they found.
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

    /// Gives a lane back, without its states. One that another thread is at work on ends with that work.
    fn give_back(&self, pinned: &Pinned<Z>) {
        let lane = match pinned.lane.try_lock() {
            Ok(mut lane) => lane.take(),
            Err(TryLockError::Poisoned(lane)) => lane.into_inner().take(),
            // Who has it drops it: nobody else knows it any more.
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
            // The pool throws the answer away, and lends the lane again when it is there.
            let sent = lane.submit(address, held.len(), &column);
            if !matches!(sent, Ok(Some(_))) || lane.cancel().is_err() {
                return;
            }
        }
        self.library.pool.give_back(lane);
    }

    /// Runs a batch of combines, over one lane or from one to another.
    fn flush(&self, (source, target): (u64, u64), pairs: Pairs, keep: bool) -> Result<(), Error> {
        let Pairs { targets, sources } = pairs;
        let rows = targets.len();
        let ended = |pinned: &Pinned<Z>| {
            if !keep {
                lock(&pinned.numbers).free.extend(sources.iter().map(|number| *number as u64));
            }
        };
        let from = self.of(source)?;
        if source == target {
            let keeps = Keep(rows, keep);
            let columns = vec![targets, sources.clone()];
            self.enter(&from, Entry::Combine, &Numbered { columns, rest: Some((&keeps, 0)) }, &mut ())?;
            ended(&from);
            return Ok(());
        }
        let to = self.of(target)?;
        let mut first = 0;
        while first < rows {
            let piece = first..rows.min(first + self.piece.load(Relaxed));
            first = piece.end;
            let sources = &sources[piece.clone()];
            let mut saved = Saved::new(piece.len());
            let numbers = Numbered { columns: vec![sources.to_vec()], rest: None };
            self.enter(&from, Entry::Save, &numbers, &mut saved)?;
            if !keep {
                lock(&from.numbers).ended.extend(sources.iter().map(|number| *number as u64));
            }
            let fitting = MOST_BYTES * piece.len() / saved.bytes.len().max(1);
            self.piece.store(fitting.clamp(1, MOST_PIECE), Relaxed);
            let numbers = Numbered { columns: vec![targets[piece].to_vec()], rest: Some((&saved, 0)) };
            self.enter(&to, Entry::Load, &numbers, &mut ())?;
        }
        Ok(())
    }

    fn born(&self, pinned: &Pinned<Z>, numbers: &mut Numbers) -> Result<State, Error> {
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
    /// States as bytes, for an engine that moves them itself. One without rows is NULL.
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

    /// Adds saved states to states, row by row; the input is one column of them. NULL adds nothing.
    ///
    /// # Errors
    /// As [`Accumulates::update`].
    pub fn load(&self, states: &States<'_>, saved: &dyn Input) -> Result<(), Error> {
        self.add(Entry::Load, states, saved)
    }

    /// The results of so many groups; `groups` has the place of each row's.
    fn results(&self, input: &dyn Input, groups: &[usize], count: usize) -> Result<Results, Error> {
        let mut states = vec![State::default(); count];
        let first = states.as_mut_ptr();
        let rows: Vec<*mut State> = groups.iter().map(|group| first.wrapping_add(*group)).collect();
        let all: Vec<*mut State> = (0..count).map(|group| first.wrapping_add(group)).collect();
        // SAFETY: each group is one of `count`, as `aggregate` has checked, so they point into `states`, which is used through
        // nothing else until all is done.
        let (rows, all) = unsafe { (States::new(&rows), States::new(&all)) };
        let mut results = Results::new(self.function.signature.returns.clone());
        self.update(&rows, input)?;
        self.finish(&all, &mut results)?;
        Ok(results)
    }

    /// Adds rows to states, by the lanes that these are in.
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

/// The results of an aggregate for so many groups, for whoever has all rows; `groups` has the place of each row's group. If the
/// lane is lost with what it has added up, all is done again, as often as the function's `retries` allow.
///
/// # Errors
/// As [`Accumulates::update`]; [`Error::Engine`] if a row has no group, or one that is not there.
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
        function.stats.here().retries.add(1);
        clock.rest(backoff(tries), function, caller)?;
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
            // They all have the result of a state that nothing was added to.
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
            // Who is at work with it adds states.
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

/// A hash of numbers that nobody chooses: those of lanes and states.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        // An odd number of which about half of the bits are set. The high half of the product goes into the low one too.
        let product = u128::from(self.0.rotate_left(32) ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

/// Combines that wait for each other's lanes.
#[derive(Default)]
struct Pairs {
    targets: Vec<i64>,
    sources: Vec<i64>,
}

impl<Z: Zygote> Accumulation<Z> {
    fn combine_all(&self, targets: &States<'_>, sources: &States<'_>, keep: bool) -> Result<(), Error> {
        // By the lanes from which and to which they go. Which of them has a state, so that none is in two.
        let mut waiting: Vec<((u64, u64), Pairs)> = Vec::new();
        let mut touched: HashMap<(u64, u64), usize, BuildHasherDefault<Mixed>> = HashMap::default();
        for row in 0..targets.count() {
            let (mut target, source) = (targets.get(row), sources.get(row));
            if source.lane == 0 || source == target {
                continue;
            }
            if !keep {
                sources.set(row, State::default());
            }
            if target.lane == 0 {
                if keep {
                    let pinned = self.of(source.lane)?;
                    target = self.born(&pinned, &mut lock(&pinned.numbers))?;
                } else {
                    target = source;
                }
                targets.set(row, target);
                if !keep {
                    continue;
                }
            }
            let route = (source.lane, target.lane);
            let mut at = waiting.iter().position(|(other, _)| *other == route);
            let elsewhere =
                |state: State| touched.get(&(state.lane, state.number)).is_some_and(|one| Some(*one) != at);
            if elsewhere(source) || elsewhere(target) {
                touched.clear();
                waiting.drain(..).try_for_each(|(route, pairs)| self.flush(route, pairs, keep))?;
                at = None;
            }
            let at = at.unwrap_or_else(|| {
                waiting.push((route, Pairs::default()));
                waiting.len() - 1
            });
            for state in [source, target] {
                touched.insert((state.lane, state.number), at);
            }
            waiting[at].1.targets.push(target.number as i64);
            waiting[at].1.sources.push(source.number as i64);
        }
        waiting.into_iter().try_for_each(|(route, pairs)| self.flush(route, pairs, keep))
    }
}

/// Columns of states' numbers, and other columns behind them, from a row on.
struct Numbered<'a> {
    columns: Vec<Vec<i64>>,
    rest: Option<(&'a dyn Input, usize)>,
}

impl Input for Numbered<'_> {
    fn rows(&self) -> usize {
        self.columns.first().map_or(0, Vec::len)
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let columns = self.columns.iter().map(|numbers| {
            let mut column = ColumnBuilder::new(&DataType::BigInt);
            column.fixed_all(&numbers[rows.clone()]);
            column
        });
        let numbers: Vec<_> = columns.collect();
        let Some((rest, from)) = self.rest else {
            take(&Joined { numbers: &numbers, rest: None });
            return Ok(());
        };
        rest.slice(from + rows.start..from + rows.end, &mut |rest| {
            take(&Joined { numbers: &numbers, rest: Some(rest) });
        })
    }
}

struct Joined<'a> {
    numbers: &'a [ColumnBuilder],
    rest: Option<&'a dyn Encode>,
}

impl Encode for Joined<'_> {
    fn plan(&self, plan: &mut Plan) {
        self.numbers.iter().for_each(|column| column.plan(plan));
        self.rest.iter().for_each(|rest| rest.plan(plan));
    }
    fn write(&self, body: &mut Body<'_>) {
        self.numbers.iter().for_each(|column| column.write(body));
        self.rest.iter().for_each(|rest| rest.write(body));
    }
}

/// So many times whether a state is kept.
struct Keep(usize, bool);

impl Input for Keep {
    fn rows(&self) -> usize {
        self.0
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let mut column = ColumnBuilder::new(&DataType::Boolean);
        rows.for_each(|_| column.boolean(self.1));
        take(&column);
        Ok(())
    }
}

/// States on their way from one lane to another.
struct Saved {
    bytes: Vec<u8>,
    /// Where each is, if there is one.
    places: Vec<Option<Range<usize>>>,
}

impl Saved {
    fn new(rows: usize) -> Self {
        Self { bytes: Vec::new(), places: vec![None; rows] }
    }
}

impl Output for Saved {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        let places = self.places.get_mut(first..first + results.rows);
        let places = places.ok_or_else(|| Error::Engine("a state too many".into()))?;
        let room = self.bytes.try_reserve(results.data.len());
        room.map_err(|_| Error::memory(results.data.len()))?;
        for (row, place) in places.iter_mut().enumerate() {
            *place = results.is_valid(row).then(|| {
                let from = self.bytes.len();
                self.bytes.extend_from_slice(results.bytes(row));
                from..self.bytes.len()
            });
        }
        Ok(())
    }
    fn null(&mut self, row: usize) {
        self.places[row] = None;
    }
}

impl Input for Saved {
    fn rows(&self) -> usize {
        self.places.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let mut column = ColumnBuilder::new(&DataType::Blob);
        for place in &self.places[rows] {
            match place {
                Some(place) => {
                    let bytes = &self.bytes[place.clone()];
                    column.bytes(bytes).map_err(|_| Error::memory(bytes.len()))?;
                }
                None => column.null(),
            }
        }
        take(&column);
        Ok(())
    }
}

/// Results from a place on.
struct Behind<'a> {
    first: usize,
    output: &'a mut dyn Output,
}

impl Output for Behind<'_> {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        self.output.accept(self.first + first, results)
    }
    fn null(&mut self, row: usize) {
        self.output.null(self.first + row);
    }
}
