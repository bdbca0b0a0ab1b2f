//! A call over lanes that fail in every way a lane can, without processes: no row is lost, healthy lanes are given
//! back, and others are not used again.

use crosslane::batch::{self, BATCH, Body, Column, Encode, Header, Plan};
use crosslane::call::{self, CallGroup, CallGroups, Caller, Input, Output};
use crosslane::lane::{Lane, LaneError, Waiter};
use crosslane::pool::{self, Pool, PoolOptions};
use crosslane::stats::now;
use crosslane::{Address, ColumnBuilder, DataType, Entry, Error, Failure, Function, FunctionSpec, Library};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a lane does with a slice of these values.
type Behaviour = dyn Fn(u64, &[i64]) -> Act + Send + Sync;

enum Act {
    Double,
    Raise(usize),
    Garble,
    Die,
    /// Dies with the batch in its hands.
    DieOnSubmit,
    /// Dies before it has seen the batch.
    DieIdle,
    TooLarge,
    UnreadableFailure,
    /// Dies, and leaves a malformed reply that is found only then.
    DieWithGarbage,
    /// Never answers, and wakes its engine all the time.
    Hang,
    /// The same, and says now one row and now another.
    Flip,
    /// Never takes it, and wakes its engine all the time.
    Ignore,
    /// The same, and is known to have begun nothing once it was ended.
    Starve,
    /// Takes what follows, and is lost. Nobody knows what it has begun.
    Vanish,
    /// Takes its time, and answers.
    Slow,
    /// Answers, and says that each row took a microsecond.
    Work,
}

/// Nobody wakes who sleeps on it: a reply is there when its batch was submitted.
static NEVER: AtomicU32 = AtomicU32::new(0);

struct FakeLane {
    id: u64,
    behaviour: Arc<Behaviour>,
    replies: VecDeque<Result<(Header, Vec<u64>), LaneError>>,
    frame: Vec<u64>,
    sequence: u64,
    /// The call that it has begun.
    begun: u64,
    restless: bool,
    flips: Option<AtomicU64>,
    vanishes: bool,
    starved: bool,
    /// What is in its ring when it is found dead.
    last_words: bool,
    shared: bool,
    /// What it says that its memory holds.
    most: usize,
    alive: Arc<Mutex<bool>>,
}

struct FakeZygote {
    behaviour: Arc<Behaviour>,
    booted: Arc<AtomicU64>,
    shared: bool,
    most: usize,
    /// Of the process that lanes share.
    alive: Arc<Mutex<bool>>,
}

impl pool::Zygote for FakeZygote {
    type Lane = FakeLane;

    fn boot(&mut self) -> Result<FakeLane, Error> {
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

fn planned(content: &dyn Encode) -> Plan {
    let mut plan = Plan::default();
    content.plan(&mut plan);
    plan
}

fn encoded(content: &dyn Encode, header: Header) -> Vec<u64> {
    let plan = planned(content);
    let mut words = vec![0u64; plan.size().div_ceil(8)];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..plan.size()];
    content.write(&mut plan.start(bytes, header));
    words
}

fn integers(values: impl IntoIterator<Item = i64>) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::BigInt);
    values.into_iter().for_each(|value| column.fixed(value));
    column
}

impl FakeLane {
    fn died() -> LaneError {
        LaneError::Died("its worker is a test's".into())
    }

    fn is_dead(&self) -> bool {
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
        // It does nothing behind what it hangs in, or dies of.
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

struct Values(Vec<i64>);

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
struct Results(Vec<Option<i64>>);

impl Output for Results {
    fn accept(&mut self, first: usize, results: &Column<'_>) -> Result<(), Error> {
        for row in 0..results.rows {
            assert_eq!(self.0[first + row], None, "a row that came twice");
            self.0[first + row] = Some(results.value(row));
        }
        Ok(())
    }

    fn null(&mut self, row: usize) {
        assert_eq!(self.0[row], None, "a row that came twice");
    }
}

/// What a call comes to; a call that hangs fails the test.
fn ends<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(call()));
    receiver.recv_timeout(Duration::from_secs(60)).expect("the call hangs, or panicked")
}

struct Fixture {
    library: Library<FakeZygote>,
    group: Arc<CallGroup>,
    booted: Arc<AtomicU64>,
}

fn fixture(
    options: &str,
    shared: bool,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    narrow(usize::MAX, options, shared, behaviour)
}

/// One whose lanes say that their memory holds `most` bytes.
fn narrow(
    most: usize,
    options: &str,
    shared: bool,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    let text = format!(r#"{{"signature": "f(x BIGINT) -> BIGINT", "admits_null": [false]{options}}}"#);
    specified(&text, most, shared, behaviour)
}

/// One with an aggregate, whose states are all that its entries take.
fn aggregate(
    options: &str,
    shared: bool,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    let text =
        format!(r#"{{"signature": "f() -> BIGINT", "kind": "aggregate", "admits_null": []{options}}}"#);
    specified(&text, usize::MAX, shared, behaviour)
}

fn specified(
    text: &str,
    most: usize,
    shared: bool,
    behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static,
) -> Fixture {
    let spec: FunctionSpec = serde_json::from_str(text).unwrap();
    let booted = Arc::new(AtomicU64::new(0));
    let zygote = FakeZygote {
        behaviour: Arc::new(behaviour),
        booted: Arc::clone(&booted),
        shared,
        most,
        alive: Arc::new(Mutex::new(true)),
    };
    let pool_options = PoolOptions { warm: 2, idle_timeout: Duration::from_secs(60) };
    let (pool, ()) = Pool::start(pool_options, move |_| Ok((zygote, ()))).unwrap();
    let functions = vec![Arc::new(Function::new(0, spec).unwrap())];
    let library = Library { name: "fake".into(), version: 1, functions, pool };
    let fixture = Fixture { library, group: Arc::default(), booted };
    fixture.settle();
    fixture
}

impl Fixture {
    /// Waits until both lanes are idle.
    fn settle(&self) {
        while self.library.pool.stats().idle < 2 {
            std::thread::yield_now();
        }
    }

    fn call(&self, values: Range<i64>) -> Result<Vec<Option<i64>>, Error> {
        self.call_of(now(), values)
    }

    fn update(&self, states: Range<i64>) -> Result<(), Error> {
        let (input, function) = (Values(states.collect()), &self.library.functions[0]);
        let mut lane = self.library.pool.check_out(|| false)?;
        let caller = Caller::new(&self.group, 1);
        call::call_on(&self.library, function, Entry::Update, caller, &mut lane, &input, &mut ())
    }

    /// A call of a query that began at this moment.
    fn call_of(&self, begun: u64, values: Range<i64>) -> Result<Vec<Option<i64>>, Error> {
        let input = Values(values.collect());
        let mut results = Results(vec![None; input.0.len()]);
        let function = &self.library.functions[0];
        call::call(&self.library, function, Caller::since(&self.group, 2, begun), &input, &mut results)
            .map(|()| results.0)
    }
}

fn doubled(values: Range<i64>) -> Vec<Option<i64>> {
    values.map(|value| Some(value * 2)).collect()
}

/// Who answers may share what it looks at with all workers.
#[test]
fn only_waits_ask_whether_a_call_should_end() {
    let mut fixture = fixture("", false, |_, _| Act::Double);
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    fixture.group = Arc::new(CallGroup::with_stop(move || {
        count.fetch_add(1, Relaxed);
        false
    }));
    for _ in 0..1000 {
        fixture.call(0..1).unwrap();
    }
    assert!(asked.load(Relaxed) < 1000);
}

#[test]
fn all_rows_come_back_and_so_do_the_lanes() {
    let fixture = fixture("", false, |_, _| Act::Double);
    for rows in [0, 1, 2, 2047, 2048] {
        assert_eq!(fixture.call(0..rows).unwrap(), doubled(0..rows));
    }
    let stats = fixture.library.pool.stats();
    assert_eq!((stats.idle, stats.busy, stats.discarded), (2, 0, 0));
}

#[test]
fn a_batch_that_is_too_large_is_cut_until_it_fits() {
    let fixture = fixture("", false, |_, values| if values.len() > 3 { Act::TooLarge } else { Act::Double });
    for _ in 0..3 {
        assert_eq!(fixture.call(0..1000).unwrap(), doubled(0..1000));
    }
    assert_eq!(fixture.library.pool.stats().discarded, 0);
}

#[test]
fn a_row_that_is_too_large_by_itself_is_an_error_with_its_row() {
    let fixture =
        fixture("", false, |_, values| if values.contains(&5) { Act::TooLarge } else { Act::Double });
    let error = fixture.call(0..10).unwrap_err().to_string();
    assert!(error.contains("too large") && error.contains("in row 6 of the batch, with x = 5"), "{error}");
}

/// One whose lanes hold 1,000 bytes each, and where nothing but their size decides how batches are cut.
fn sliced(options: &str, behaviour: impl Fn(u64, &[i64]) -> Act + Send + Sync + 'static) -> Fixture {
    let groups = CallGroups::default();
    groups.set_fan_out(false);
    Fixture { group: groups.of(1, |_| false), ..narrow(1000, options, false, behaviour) }
}

#[test]
fn a_batch_is_cut_into_slices_that_fit_a_lane() {
    for (options, rows, slices) in [
        // What fits goes as it is.
        ("", 109, vec![109]),
        ("", 110, vec![37, 37, 36]),
        ("", 1000, [vec![59; 16], vec![56]].concat()),
        // Rows that wait together stay together.
        (r#", "concurrency": 4, "calling": "async""#, 1000, vec![1000]),
    ] {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sent);
        let fixture = sliced(options, move |_, values| {
            seen.lock().unwrap().push(values.len());
            Act::Double
        });
        assert_eq!(fixture.call(0..rows).unwrap(), doubled(0..rows));
        assert_eq!(*sent.lock().unwrap(), slices);
        assert_eq!(fixture.library.pool.stats().discarded, 0);
    }
}

/// Counts how often rows are measured.
struct Counted<'a>(Values, &'a Cell<usize>);

impl Input for Counted<'_> {
    fn rows(&self) -> usize {
        self.0.rows()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        self.1.set(self.1.get() + 1);
        self.0.slice(rows, take)
    }
}

#[test]
fn only_the_first_batch_is_measured_before_it_is_cut() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let fixture = sliced("", move |_, _| {
        count.fetch_add(1, Relaxed);
        Act::Double
    });
    // A frame has bytes that are no row's, and more of them in all the more slices there are.
    for (slices, in_vain) in [(17, 1), (20, 0), (20, 0)] {
        let (measured, mut results) = (Cell::new(0), Results(vec![None; 1000]));
        let input = Counted(Values((0..1000).collect()), &measured);
        let caller = Caller::new(&fixture.group, 2);
        call::call(&fixture.library, &fixture.library.functions[0], caller, &input, &mut results).unwrap();
        assert_eq!(results.0, doubled(0..1000));
        assert_eq!((sent.swap(0, Relaxed), measured.get()), (slices, slices + in_vain));
    }
}

/// Rows that have so many bytes more each.
struct Padded(Values, usize);

impl Input for Padded {
    fn rows(&self) -> usize {
        self.0.rows()
    }

    fn slice(&self, rows: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        struct Content(ColumnBuilder, Arc<str>);

        impl Encode for Content {
            fn plan(&self, plan: &mut Plan) {
                // The lane does not look at it.
                plan.types(&self.1);
                self.0.plan(plan);
            }

            fn write(&self, body: &mut Body<'_>) {
                self.0.write(body);
            }
        }

        let padding = "x".repeat(rows.len() * self.1).into();
        take(&Content(integers(self.0.0[rows].iter().copied()), padding));
        Ok(())
    }
}

#[test]
fn narrow_rows_behind_wide_ones_are_not_cut() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let mut fixture = narrow(20_000, "", false, move |_, values| {
        seen.lock().unwrap().push(values.len());
        Act::Double
    });
    let groups = CallGroups::default();
    groups.set_fan_out(false);
    fixture.group = groups.of(1, |_| false);
    for (width, longest) in [(92, 200), (0, 1000), (92, 200), (0, 1000)] {
        let input = Padded(Values((0..1000).collect()), width);
        let (caller, mut results) = (Caller::new(&fixture.group, 2), Results(vec![None; 1000]));
        call::call(&fixture.library, &fixture.library.functions[0], caller, &input, &mut results).unwrap();
        assert_eq!(results.0, doubled(0..1000));
        let sent = std::mem::take(&mut *sent.lock().unwrap());
        let most = sent.iter().copied().max();
        assert!(most <= Some(longest), "{width}: {sent:?}");
        assert_eq!(sent.len() == 1, width == 0, "{sent:?}");
    }
}

#[test]
fn a_lane_gets_two_pieces_of_a_batch_before_the_first_is_awaited() {
    #[derive(Debug, PartialEq)]
    enum Event {
        Sent(i64),
        Accepted(usize),
    }

    struct Logged(Arc<Mutex<Vec<Event>>>);

    impl Output for Logged {
        fn accept(&mut self, first: usize, _: &Column<'_>) -> Result<(), Error> {
            self.0.lock().unwrap().push(Event::Accepted(first));
            Ok(())
        }

        fn null(&mut self, _: usize) {}
    }

    let log = Arc::new(Mutex::new(Vec::new()));
    let sent = Arc::clone(&log);
    let fixture = sliced("", move |_, values| {
        sent.lock().unwrap().push(Event::Sent(values[0]));
        Act::Double
    });
    let (input, caller) = (Values((0..110).collect()), Caller::new(&fixture.group, 2));
    let output = &mut Logged(Arc::clone(&log));
    call::call(&fixture.library, &fixture.library.functions[0], caller, &input, output).unwrap();
    assert_eq!(log.lock().unwrap()[..3], [Event::Sent(0), Event::Sent(37), Event::Accepted(0)]);
}

#[test]
fn lanes_that_share_a_batch_get_less_and_less_towards_its_end() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let fixture = fixture("", false, move |lane, values| {
        seen.lock().unwrap().push((lane, values.len()));
        Act::Work
    });
    // Until it is known what a row costs.
    fixture.call(0..2048).unwrap();
    fixture.settle();
    sent.lock().unwrap().clear();
    assert_eq!(fixture.call(0..2048).unwrap(), doubled(0..2048));
    let sent = sent.lock().unwrap();
    assert_ne!(sent[0].0, sent[1].0, "{sent:?}");
    let mut rest = 2048_usize;
    for (_, rows) in sent.iter() {
        // Two slices of what is left for each lane, but none of less than 100 us.
        assert_eq!(*rows, rest.div_ceil(4).max(100).min(rest), "{sent:?}");
        rest -= rows;
    }
}

#[test]
fn rows_of_which_none_fits_a_lane_are_sent_one_by_one() {
    let fixture = narrow(100, "", false, |_, values| {
        assert_eq!(values.len(), 1);
        Act::Double
    });
    assert_eq!(fixture.call(0..50).unwrap(), doubled(0..50));
}

#[test]
fn what_fails_in_a_slice_is_blamed_on_its_row_of_the_batch() {
    // The first row of the second slice, its last, and one in the midst of the last slice.
    for row in [59, 117, 960] {
        let fixture = sliced("", move |_, values| {
            values.iter().position(|value| *value == row).map_or(Act::Double, Act::Raise)
        });
        let error = fixture.call(0..1000).unwrap_err().to_string();
        let place = format!("in row {} of the batch, with x = {row}", row + 1);
        assert!(error.contains("Oops: no") && error.contains(&place), "{error}");
    }
}

#[test]
fn a_lane_that_dies_at_the_second_slice_loses_no_other() {
    // The guest died at the first row of the slice.
    for (options, lost) in [(r#", "retries": 1"#, 0..0), (r#", "on_error": "null""#, 59..60)] {
        let died = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&died);
        let fixture = sliced(options, move |_, values| {
            let dies = values[0] == 59 && count.fetch_add(1, Relaxed) == 0;
            if dies { Act::Die } else { Act::Double }
        });
        let mut expected = doubled(0..1000);
        expected[lost].fill(None);
        assert_eq!(fixture.call(0..1000).unwrap(), expected);
        assert_eq!(fixture.library.functions[0].stats.totals().deaths.get(), 1);
    }
}

#[test]
fn a_query_is_cancelled_between_its_slices() {
    let sent = Arc::new(AtomicU64::new(0));
    let (count, group) = (Arc::clone(&sent), Arc::new(Mutex::new(None::<Arc<CallGroup>>)));
    let known = Arc::clone(&group);
    let fixture = sliced("", move |_, _| {
        if count.fetch_add(1, Relaxed) == 1
            && let Some(group) = &*known.lock().unwrap()
        {
            group.cancel();
        }
        // Longer than the engine waits between two looks.
        std::thread::sleep(Duration::from_millis(20));
        Act::Double
    });
    *group.lock().unwrap() = Some(Arc::clone(&fixture.group));
    assert!(matches!(fixture.call(0..1000), Err(Error::Cancelled { .. })));
    assert!(sent.load(Relaxed) < 17, "all slices were sent");
}

#[test]
fn an_exception_gives_the_lane_back() {
    let fixture = fixture("", false, |_, values| {
        values.iter().position(|value| *value == 700).map_or(Act::Double, Act::Raise)
    });
    for _ in 0..3 {
        let error = fixture.call(0..1000).unwrap_err().to_string();
        assert!(
            error.contains("Oops: no") && error.contains("in row 701 of the batch, with x = 700"),
            "{error}"
        );
    }
    // A slice behind the one that raised may have been in flight on its lane, which then is not given back.
    assert_eq!(fixture.call(0..700).unwrap(), doubled(0..700));
}

#[test]
fn a_lane_that_breaks_the_protocol_is_not_used_again() {
    for act in [|| Act::Garble, || Act::UnreadableFailure] {
        let fixture = fixture("", false, move |lane, _| if lane <= 2 { act() } else { Act::Double });
        for _ in 0..2 {
            let error = fixture.call(0..10).unwrap_err().to_string();
            assert!(error.contains("wrote garbage"), "{error}");
            fixture.settle();
        }
        assert_eq!(fixture.call(0..10).unwrap(), doubled(0..10));
        assert_eq!(fixture.library.pool.stats().discarded, 2);
    }
}

#[test]
fn a_lane_that_dies_ends_the_call_unless_it_may_be_tried_again() {
    let once = |lane, _: &[i64]| if lane == 1 || lane == 2 { Act::Die } else { Act::Double };
    let strict = fixture("", false, once);
    assert!(strict.call(0..10).unwrap_err().to_string().contains("its worker is a test's"));
    let patient = fixture(r#", "retries": 2"#, false, once);
    assert_eq!(patient.call(0..1000).unwrap(), doubled(0..1000));
    let lenient = fixture(r#", "on_error": "null""#, false, once);
    assert_eq!(lenient.call(0..1).unwrap(), [None]);
}

#[test]
fn lanes_that_share_a_process_are_tried_once_more_and_the_dead_are_buried() {
    for act in [|| Act::Die, || Act::DieOnSubmit] {
        let fixture = fixture("", true, move |lane, _| if lane <= 2 { act() } else { Act::Double });
        // Lane 1 or 2 dies and takes the other along: the third try is on a lane of a new process.
        assert_eq!(fixture.call(0..1000).unwrap(), doubled(0..1000));
        assert_eq!(fixture.library.pool.stats().discarded, 2);
        assert!(fixture.booted.load(Relaxed) >= 3);
    }
}

#[test]
fn a_call_that_kills_every_process_is_an_error_after_the_second() {
    let fixture = fixture("", true, |_, _| Act::Die);
    assert!(fixture.call(0..10).unwrap_err().to_string().contains("its worker is a test's"));
    assert_eq!(fixture.library.functions[0].stats.totals().deaths.get(), 2);
}

#[test]
fn a_guest_that_wakes_its_engine_all_the_time_still_times_out() {
    for act in [|| Act::Hang, || Act::Flip] {
        let fixture = fixture(r#", "timeout": 0.05"#, false, move |_, _| act());
        let error = ends(move || fixture.call(0..2)).unwrap_err().to_string();
        assert!(error.contains("timed out after 0.05 s"), "{error}");
    }
}

#[test]
fn a_lane_that_is_stuck_times_out_while_another_is_busy() {
    let answered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&answered);
    // By then the function's cost is known, and both lanes are at work.
    let fixture = fixture(r#", "timeout": 0.05"#, false, move |_, values| {
        if values.contains(&1000) {
            return Act::Hang;
        }
        count.fetch_add(values.len() as u64, Relaxed);
        Act::Slow
    });
    let error = ends(move || fixture.call(0..3000)).unwrap_err().to_string();
    assert!(error.contains("timed out after 0.05 s"), "{error}");
    assert!(answered.load(Relaxed) < 2500, "found out only when nothing else was left to do");
}

#[test]
fn malformed_last_words_of_a_dead_lane_are_handled_once() {
    let fixture = fixture(r#", "on_error": "null""#, false, |_, _| Act::DieWithGarbage);
    let results =
        ends(move || (fixture.call(0..1), fixture.library.functions[0].stats.totals().deaths.get()));
    assert_eq!((results.0.unwrap(), results.1), (vec![None], 1));
}

#[test]
fn what_no_lane_has_begun_is_sent_again_free_of_charge() {
    for (options, act) in [
        ("", (|| Act::DieIdle) as fn() -> Act),
        ("", || Act::DieOnSubmit),
        (r#", "on_error": "null""#, || Act::DieIdle),
        (r#", "on_error": "null""#, || Act::DieOnSubmit),
    ] {
        let fixture = fixture(options, false, move |lane, _| if lane <= 2 { act() } else { Act::Double });
        let (results, retries) =
            ends(move || (fixture.call(0..10), fixture.library.functions[0].stats.totals().retries.get()));
        assert_eq!((results.unwrap(), retries), (doubled(0..10), 0));
    }
}

#[test]
fn what_may_have_begun_on_a_lane_that_is_lost_is_sent_again_only_if_that_is_allowed() {
    // The first two slices are on the first lane when it is lost.
    let sent = |options, count: Range<i64>| {
        let sent = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sent);
        let fixture = sliced(options, move |lane, values| match lane {
            1 => Act::Vanish,
            _ => {
                counted.fetch_add(u64::from(values[0] < 118), Relaxed);
                Act::Double
            }
        });
        (ends(move || fixture.call(count)), sent.load(Relaxed))
    };
    let (results, again) = sent("", 0..1000);
    assert!(results.unwrap_err().to_string().contains("its worker is a test's"));
    assert_eq!(again, 0);
    let (results, again) = sent(r#", "retries": 1"#, 0..1000);
    assert_eq!((results.unwrap(), again), (doubled(0..1000), 2));
    let mut expected = doubled(0..1000);
    expected[..118].fill(None);
    let (results, again) = sent(r#", "on_error": "null""#, 0..1000);
    assert_eq!((results.unwrap(), again), (expected, 0));
}

#[test]
fn what_a_late_lane_has_not_begun_is_sent_again_if_that_is_known() {
    for (starved, known) in [((|| Act::Starve) as fn() -> Act, true), (|| Act::Ignore, false)] {
        let fixture =
            sliced(r#", "timeout": 0.05"#, move |lane, _| if lane == 1 { starved() } else { Act::Double });
        let results = ends(move || fixture.call(0..1000));
        match known {
            true => assert_eq!(results.unwrap(), doubled(0..1000)),
            false => assert!(results.unwrap_err().to_string().starts_with("f: timed out after 0.05 s")),
        }
    }
}

#[test]
fn lanes_that_all_die_before_they_begin_are_an_error_in_the_end() {
    for options in ["", r#", "on_error": "null""#, r#", "retries": 1000"#] {
        let fixture = fixture(options, false, |_, _| Act::DieIdle);
        let (results, deaths) =
            ends(move || (fixture.call(0..10), fixture.library.functions[0].stats.totals().deaths.get()));
        assert!(results.unwrap_err().to_string().contains("its worker is a test's"));
        assert!(deaths < 20, "{deaths} lanes were tried");
    }
}

#[test]
fn a_cancellation_ends_the_calls_of_its_connection_and_none_that_begin_later() {
    let groups = CallGroups::default();
    let fixtures = [1, 2].map(|connection| {
        let mut fixture = fixture("", false, |_, values| if values == [7] { Act::Hang } else { Act::Double });
        fixture.group = groups.of(connection, |_| false);
        fixture
    });
    let [first, mut second] = fixtures;
    let group = Arc::clone(&first.group);
    let begun = now();
    assert!(groups.cancel(1) && group.should_end(begun) && !second.group.should_end(begun));
    assert_eq!(first.call(0..5).unwrap(), doubled(0..5), "what begins later");
    let call = std::thread::spawn(move || (first.call(7..8), first.call(0..5)));
    while !call.is_finished() {
        groups.cancel(1);
        std::thread::yield_now();
    }
    let (cancelled, _) = call.join().unwrap();
    assert!(matches!(cancelled, Err(Error::Cancelled { .. })));
    assert_eq!(second.call(0..5).unwrap(), doubled(0..5));
    // Told late, and by someone who exaggerates.
    let begun = now();
    second.group = groups.of(2, |_| false);
    groups.cancel_all_before(begun - 1);
    assert!(!second.group.should_end(begun));
    groups.cancel_all_before(u64::MAX);
    assert!(second.group.should_end(begun) && !second.group.should_end(now()));
    // Though none of its calls waits for long.
    assert!(matches!(second.call_of(begun, 0..5), Err(Error::Cancelled { .. })));
    assert_eq!(second.call(0..5).unwrap(), doubled(0..5));
    drop(second);
    assert!(!groups.cancel(3), "a connection without calls");
}

/// A lane that was given up may still take what lies in its ring.
#[test]
fn an_update_that_nobody_has_begun_in_time_is_not_sent_again() {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let fixture = aggregate(r#", "timeout": 0.05"#, false, move |_, _| {
        counted.fetch_add(1, Relaxed);
        Act::Ignore
    });
    let error = fixture.update(0..1).unwrap_err().to_string();
    assert!(error.starts_with("f: timed out after 0.05 s"), "{error}");
    assert_eq!(sent.load(Relaxed), 1);
}

/// A call would be made again: its lane may not be to blame.
#[test]
fn an_update_that_was_begun_is_not_made_again_where_lanes_share_a_process() {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let fixture = aggregate("", true, move |_, _| {
        counted.fetch_add(1, Relaxed);
        Act::Die
    });
    assert!(matches!(fixture.update(0..1), Err(Error::LaneDied { .. })));
    assert_eq!(sent.load(Relaxed), 1);
}
