//! Calls over fake lanes that fail in every way a lane can, without processes. No row is lost,
//! healthy lanes are given back, and other lanes are not used again.

use crosslane::batch::{self, BATCH, Column, Encode, Header, Plan};
use crosslane::call::{self, CallGroup, CallGroups, Caller, Input, Output};
use crosslane::lane::{Lane, LaneError, Waiter};
use crosslane::pool::{self, Pool, PoolOptions};
use crosslane::stats::now;
use crosslane::{Address, ColumnBuilder, DataType, Entry, Error, Failure, Function, FunctionSpec, Library};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The reaction of a lane to a slice of these values.
pub(super) type Behaviour = dyn Fn(u64, &[i64]) -> Act + Send + Sync;

pub(super) enum Act {
    Double,
    Raise(usize),
    Garble,
    Die,
    /// Ends after it has taken the batch.
    DieOnSubmit,
    /// Ends before it has read the batch.
    DieIdle,
    TooLarge,
    UnreadableFailure,
    /// Ends, and leaves a malformed reply that the engine finds only after that.
    DieWithGarbage,
    /// Never answers, and wakes its engine all the time.
    Hang,
    /// As `Hang`, and its progress alternates between two rows.
    Flip,
    /// Never takes the batch, and wakes its engine all the time.
    Ignore,
    /// As `Ignore`, but after its end the engine knows that it has begun no exchange.
    Starve,
    /// Takes what follows, and is lost. The engine does not know which exchanges it has begun.
    Vanish,
    /// Answers after a pause.
    Slow,
    /// Answers, and reports a microsecond for each row.
    Work,
}

/// Nothing wakes a thread that sleeps on it. A reply is there as soon as its batch was submitted.
static NEVER: AtomicU32 = AtomicU32::new(0);

pub(super) struct FakeLane {
    pub(super) id: u64,
    pub(super) behaviour: Arc<Behaviour>,
    pub(super) replies: VecDeque<Result<(Header, Vec<u64>), LaneError>>,
    pub(super) frame: Vec<u64>,
    pub(super) sequence: u64,
    /// The number of the exchange that it has begun.
    pub(super) begun: u64,
    pub(super) restless: bool,
    pub(super) flips: Option<AtomicU64>,
    pub(super) vanishes: bool,
    pub(super) starved: bool,
    /// Whether its ring has a malformed reply when the engine finds that it has ended.
    pub(super) last_words: bool,
    pub(super) shared: bool,
    /// The size of its own memory, as it reports it.
    pub(super) most: usize,
    pub(super) alive: Arc<Mutex<bool>>,
}

pub(super) struct FakeZygote {
    pub(super) behaviour: Arc<Behaviour>,
    pub(super) booted: Arc<AtomicU64>,
    pub(super) shared: bool,
    pub(super) most: usize,
    /// Whether the process that the lanes share is alive.
    pub(super) alive: Arc<Mutex<bool>>,
    /// Whether it makes no more lanes.
    pub(super) refuses: Arc<AtomicBool>,
}

impl pool::Zygote for FakeZygote {
    type Lane = FakeLane;

    fn boot(&mut self) -> Result<FakeLane, Error> {
        if self.refuses.load(Relaxed) {
            return Err(Error::Boot("it makes no lanes now".into()));
        }
        if !*self.alive.lock().unwrap() || !self.shared {
            self.alive = Arc::new(Mutex::new(true));
        }
        Ok(FakeLane {
            id: self.booted.fetch_add(1, Relaxed) + 1,
            behaviour: Arc::clone(&self.behaviour),
            replies: VecDeque::new(),
            frame: Vec::new(),
            sequence: 0,
            begun: 0,
            restless: false,
            flips: None,
            vanishes: false,
            starved: false,
            last_words: false,
            shared: self.shared,
            most: self.most,
            alive: Arc::clone(&self.alive),
        })
    }
}

pub(super) fn planned(content: &dyn Encode) -> Plan {
    let mut plan = Plan::default();
    content.plan(&mut plan);
    plan
}

pub(super) fn encoded(content: &dyn Encode, header: Header) -> Vec<u64> {
    let plan = planned(content);
    let mut words = vec![0u64; plan.size().div_ceil(8)];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..plan.size()];
    content.write(&mut plan.start(bytes, header));
    words
}

pub(super) fn integers(values: impl IntoIterator<Item = i64>) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::BigInt);
    values.into_iter().for_each(|value| column.fixed(value));
    column
}

impl FakeLane {
    pub(super) fn died() -> LaneError {
        LaneError::Died("its worker is a test's".into())
    }

    pub(super) fn is_dead(&self) -> bool {
        !*self.alive.lock().unwrap()
    }
}

impl Lane for FakeLane {
    fn id(&self) -> u64 {
        self.id
    }

    fn process(&self) -> i32 {
        0
    }

    fn most(&self) -> usize {
        self.most
    }

    fn submit(&mut self, _: Address, rows: usize, arguments: &dyn Encode) -> Result<Option<u64>, LaneError> {
        if self.is_dead() {
            return Err(Self::died());
        }
        // After a batch that hangs or ends it, the lane does no further work.
        if self.restless || self.replies.iter().any(Result::is_err) {
            self.sequence += 1;
            return Ok(Some(self.sequence));
        }
        if planned(arguments).is_too_large() {
            return Err(LaneError::TooLarge("too large".into()));
        }
        let words = encoded(arguments, Header { rows: rows as u32, ..Header::default() });
        let types = [DataType::BigInt];
        let columns = batch::columns(bytemuck::cast_slice(&words), types.iter()).unwrap();
        let values: Vec<i64> = (0..rows).map(|row| columns[0].value(row)).collect();
        let header =
            Header { kind: BATCH, exchange: self.sequence + 1, rows: rows as u32, ..Header::default() };
        let failure = |text: &[u8], row: usize| {
            let frame = batch::failure_frame(Header { row: row as u32, ..header }, text);
            let mut words = vec![0u64; frame.len().div_ceil(8)];
            bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..frame.len()].copy_from_slice(&frame);
            Ok((batch::header(&frame).unwrap(), words))
        };
        let reply = match (self.behaviour)(self.id, &values) {
            Act::TooLarge => return Err(LaneError::TooLarge("too large".into())),
            Act::DieOnSubmit => {
                self.begun = self.sequence + 1;
                *self.alive.lock().unwrap() = false;
                return Err(Self::died());
            }
            act @ (Act::Hang
            | Act::Flip
            | Act::Ignore
            | Act::Starve
            | Act::Vanish
            | Act::DieIdle
            | Act::DieWithGarbage) => {
                self.sequence += 1;
                match act {
                    Act::DieIdle | Act::DieWithGarbage => *self.alive.lock().unwrap() = false,
                    Act::Ignore | Act::Starve | Act::Vanish => {}
                    _ => self.begun = self.sequence,
                }
                self.restless =
                    matches!(act, Act::Hang | Act::Flip | Act::Ignore | Act::Starve | Act::Vanish);
                self.starved = matches!(act, Act::Starve);
                self.vanishes = matches!(act, Act::Vanish);
                self.flips = matches!(act, Act::Flip).then(AtomicU64::default);
                self.last_words = matches!(act, Act::DieWithGarbage);
                return Ok(Some(self.sequence));
            }
            Act::Slow => {
                std::thread::sleep(Duration::from_millis(1));
                let header = Header { worked: 20_000_000 * header.rows as u64, ..header };
                Ok((header, encoded(&integers(values.iter().map(|value| value * 2)), header)))
            }
            Act::Work => {
                let header = Header { worked: 1_000 * header.rows as u64, ..header };
                Ok((header, encoded(&integers(values.iter().map(|value| value * 2)), header)))
            }
            Act::Double => Ok((header, encoded(&integers(values.iter().map(|value| value * 2)), header))),
            Act::Raise(row) => {
                let raised = Failure { class: "Oops".into(), message: "no".into(), ..Failure::default() };
                failure(&serde_json::to_vec(&raised).unwrap(), row)
            }
            Act::UnreadableFailure => failure(b"{", 0),
            Act::Garble => Ok((Header { rows: header.rows + 1, ..header }, Vec::new())),
            Act::Die => Err(Self::died()),
        };
        self.sequence += 1;
        self.begun = self.sequence;
        self.replies.push_back(reply);
        Ok(Some(self.sequence))
    }

    fn cancel(&mut self) -> Result<(), LaneError> {
        Err(LaneError::System("a lane for calls alone".into()))
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn try_collect(&mut self) -> Result<Option<Header>, LaneError> {
        match self.replies.pop_front() {
            None => Ok(None),
            Some(Err(error)) => {
                *self.alive.lock().unwrap() = false;
                Err(error)
            }
            Some(Ok((header, frame))) => {
                self.frame = frame;
                Ok(Some(header))
            }
        }
    }

    fn shares_its_process(&self) -> bool {
        self.shared
    }

    fn frame(&self) -> &[u8] {
        bytemuck::cast_slice(&self.frame)
    }

    fn in_flight(&self) -> usize {
        self.replies.len()
    }

    fn progress(&self) -> (u32, u32) {
        let row = self.flips.as_ref().map_or(0, |flips| flips.fetch_add(1, Relaxed) as u32 % 2);
        (self.begun as u32, row)
    }

    fn lives(&self) -> bool {
        !self.is_dead()
    }

    fn may_have_begun(&self, exchange: u64) -> bool {
        self.vanishes || self.begun >= exchange
    }

    fn halt(&mut self) -> bool {
        *self.alive.lock().unwrap() &= !self.starved;
        self.starved
    }

    fn check(&mut self) -> Result<(), LaneError> {
        if self.vanishes {
            *self.alive.lock().unwrap() = false;
        }
        if !self.is_dead() {
            return Ok(());
        }
        if std::mem::take(&mut self.last_words) {
            let header = Header { kind: BATCH, exchange: self.sequence, rows: u32::MAX, ..Header::default() };
            self.replies.push_back(Ok((header, Vec::new())));
        }
        Err(Self::died())
    }

    fn has_news(&self) -> bool {
        self.restless || !self.replies.is_empty()
    }

    fn waiter(&self) -> Waiter<'_> {
        Waiter::Word(&NEVER)
    }
}

pub(super) struct Values(pub(super) Vec<i64>);

impl Input for Values {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        take(&integers(self.0[rows].iter().copied()));
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Results(pub(super) Vec<Option<i64>>);

impl Output for Results {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        for row in 0..results.rows {
            assert_eq!(self.0[first + row], None, "a row that came twice");
            self.0[first + row] = results.is_valid(row).then(|| results.value(row));
        }
        Ok(())
    }

    fn null(&mut self, row: usize) {
        assert_eq!(self.0[row], None, "a row that came twice");
    }
}

/// The result of a call. A call that does not return fails the test.
pub(super) fn ends<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(call()));
    receiver.recv_timeout(Duration::from_secs(60)).expect("the call hangs, or panicked")
}

pub(super) struct Fixture {
    pub(super) library: Library<FakeZygote>,
    pub(super) group: Arc<CallGroup>,
    pub(super) booted: Arc<AtomicU64>,
    pub(super) refuses: Arc<AtomicBool>,
}

pub(super) fn fixture(
    options: &str,
    shared: bool,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    narrow(usize::MAX, options, shared, behaviour)
}

/// A fixture, and the values that its function was called with.
pub(super) fn logged(
    options: &str,
    act: impl Fn(&[i64]) -> Act + Send + Sync + 'static,
) -> (Fixture, impl Fn() -> Vec<i64>) {
    let called = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&called);
    let fixture = fixture(options, false, move |_, values| {
        log.lock().unwrap().extend_from_slice(values);
        act(values)
    });
    let taken = move || {
        let mut values = std::mem::take(&mut *called.lock().unwrap());
        values.sort_unstable();
        values
    };
    (fixture, taken)
}

/// A fixture whose lanes report that their memory holds `most` bytes.
pub(super) fn narrow(
    most: usize,
    options: &str,
    shared: bool,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    let text = format!(r#"{{"signature": "f(x BIGINT) -> BIGINT", "admits_null": [false]{options}}}"#);
    specified(&text, most, shared, behaviour)
}

/// A fixture with an aggregate. Its entries take states only.
pub(super) fn aggregate(
    options: &str,
    shared: bool,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    let text =
        format!(r#"{{"signature": "f() -> BIGINT", "kind": "aggregate", "admits_null": []{options}}}"#);
    specified(&text, usize::MAX, shared, behaviour)
}

pub(super) fn specified(
    text: &str,
    most: usize,
    shared: bool,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    let spec: FunctionSpec = serde_json::from_str(text).unwrap();
    let (booted, refuses) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let zygote = FakeZygote {
        behaviour: Arc::new(behaviour),
        booted: Arc::clone(&booted),
        shared,
        most,
        alive: Arc::new(Mutex::new(true)),
        refuses: Arc::clone(&refuses),
    };
    let pool_options = PoolOptions { warm: 2, idle_timeout: Duration::from_secs(60) };
    let (pool, ()) = Pool::start(pool_options, move |_| Ok((zygote, ()))).unwrap();
    let functions = vec![Arc::new(Function::new(0, spec).unwrap())];
    let library = Library { name: "fake".into(), version: 1, functions, pool };
    let fixture = Fixture { library, group: Arc::default(), booted, refuses };
    fixture.settle();
    fixture
}

impl Fixture {
    /// Waits until both lanes are idle.
    pub(super) fn settle(&self) {
        while self.library.pool.stats().idle < 2 {
            std::thread::yield_now();
        }
    }

    pub(super) fn call(&self, values: impl IntoIterator<Item = i64>) -> Result<Vec<Option<i64>>, Error> {
        self.call_of(now(), values)
    }

    pub(super) fn update(&self, states: Range<i64>) -> Result<(), Error> {
        let (input, function) = (Values(states.collect()), &self.library.functions[0]);
        let mut lane = self.library.pool.check_out(|| false)?;
        let caller = Caller::new(&self.group, 1);
        call::call_on(&self.library, function, Entry::Update, caller, &mut lane, &input, &mut ())
    }

    /// A call of a query that began at the time `begun`.
    pub(super) fn call_of(
        &self,
        begun: u64,
        values: impl IntoIterator<Item = i64>,
    ) -> Result<Vec<Option<i64>>, Error> {
        let input = Values(values.into_iter().collect());
        let mut results = Results(vec![None; input.0.len()]);
        let function = &self.library.functions[0];
        call::call(&self.library, function, Caller::since(&self.group, 2, begun), &input, &mut results)
            .map(|()| results.0)
    }
}

pub(super) fn doubled(values: Range<i64>) -> Vec<Option<i64>> {
    values.map(|value| Some(value * 2)).collect()
}

/// A fixture whose lanes hold 1,000 bytes each. Only their size decides how batches are cut.
pub(super) fn sliced(
    options: &str,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    let groups = CallGroups::default();
    groups.set_fan_out(false);
    Fixture { group: groups.of(1, |_| false), ..narrow(1000, options, false, behaviour) }
}
