//! Scans over lanes of a pool, whose guests are threads of this process: what comes, how they end, and that a lane is used
//! again after its scan was cancelled.

use crosslane::batch::{Column, Encode};
use crosslane::call::{CallGroup, Caller, Input, Scan};
use crosslane::pool::{self, Pool, PoolOptions, PoolStats};
use crosslane::{ColumnBuilder, DataType, Error, Failure, Function, FunctionSpec, Library};
use crosslane_process::ProcessLane;
use crosslane_process::guest::{Call, Emitted, GuestLane, Mishaps, Next};
use crosslane_process::testing::both_ends;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const TEXT: DataType = DataType::Varchar;

fn texts(values: &[&str]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&TEXT);
    values.iter().for_each(|value| column.bytes(value.as_bytes()).unwrap());
    column
}

/// A guest: it serves one exchange of the lane with this number. `false` if its thread is to end.
type Guest = dyn Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync;

struct Guests {
    guest: Arc<Guest>,
    booted: u64,
    /// How many lanes there may be.
    most: u64,
}

impl pool::Zygote for Guests {
    type Lane = ProcessLane;

    fn boot(&mut self) -> Result<ProcessLane, Error> {
        if self.booted == self.most {
            return Err(Error::Boot("there are enough".into()));
        }
        self.booted += 1;
        let (lane, mut end) = both_ends(4096);
        let (guest, number) = (Arc::clone(&self.guest), self.booted);
        thread::spawn(move || {
            while let Ok(next) = end.next_call_or(|| false) {
                match next {
                    Next::Call(call) if guest(number, &mut end, call) => {}
                    Next::Cancelled => {}
                    _ => break,
                }
            }
        });
        Ok(lane)
    }
}

struct Argument(&'static str);

impl Input for Argument {
    fn rows(&self) -> usize {
        1
    }
    fn slice(&self, _: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        take(&texts(&[self.0]));
        Ok(())
    }
}

struct Fixture {
    library: Arc<Library<Guests>>,
    group: CallGroup,
}

fn fixture(
    options: &str,
    most: u64,
    guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Fixture {
    let text = format!(
        r#"{{"signature": "f(x VARCHAR) -> TABLE(y VARCHAR)", "kind": "table", "admits_null": [false]{options}}}"#
    );
    let spec: FunctionSpec = serde_json::from_str(&text).unwrap();
    let guests = Guests { guest: Arc::new(guest), booted: 0, most };
    let options = PoolOptions { warm: 1, idle_timeout: Duration::from_secs(600) };
    let (pool, ()) = Pool::start(options, move |_| Ok((guests, ()))).unwrap();
    let functions = vec![Arc::new(Function::new(0, spec).unwrap())];
    Fixture {
        library: Arc::new(Library { name: "fake".into(), version: 1, functions, pool }),
        group: CallGroup::default(),
    }
}

impl Fixture {
    fn caller(&self) -> Caller<'_> {
        Caller::new(&self.group, 1)
    }

    fn open(&self, argument: &'static str) -> Result<Scan<Guests, Argument>, Error> {
        let function = Arc::clone(&self.library.functions[0]);
        Scan::open(Arc::clone(&self.library), function, self.caller(), TEXT, Argument(argument))
    }

    fn next(&self, scan: &mut Scan<Guests, Argument>) -> Result<Option<Vec<String>>, Error> {
        scan.next(self.caller()).map(|batch| batch.map(|batch| read(&batch)))
    }

    /// All batches of a scan, or the error with those before it.
    fn all(&self, argument: &'static str) -> (Vec<Vec<String>>, Option<Error>) {
        let mut batches = Vec::new();
        let mut scan = match self.open(argument) {
            Ok(scan) => scan,
            Err(error) => return (batches, Some(error)),
        };
        loop {
            match self.next(&mut scan) {
                Ok(Some(batch)) => batches.push(batch),
                Ok(None) => return (batches, None),
                Err(error) => return (batches, Some(error)),
            }
        }
    }

    /// Waits until the pool holds this.
    fn settle(&self, wanted: impl Fn(PoolStats) -> bool) {
        while !wanted(self.library.pool.stats()) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn read(batch: &Column<'_>) -> Vec<String> {
    (0..batch.rows).map(|row| String::from_utf8(batch.bytes(row).to_vec()).unwrap()).collect()
}

fn argument(lane: &GuestLane) -> String {
    read(&lane.columns(std::iter::once(&TEXT)).unwrap()[0]).remove(0)
}

/// Sends batches of one text until nobody wants more.
fn endless(lane: &mut GuestLane, call: Call, text: &str) -> bool {
    loop {
        match lane.emit(&call, 1, &texts(&[text]), || false) {
            Ok(Emitted::Sent) => {}
            Ok(Emitted::Cancelled) => return last(lane, call, &[]),
            _ => return false,
        }
    }
}

fn last(lane: &mut GuestLane, call: Call, rows: &[&str]) -> bool {
    lane.succeed(call.with_rows(rows.len()), &texts(rows), Mishaps::default()).is_ok()
}

#[test]
fn batches_come_until_the_last() {
    let fixture = fixture("", 1, |_, lane, call| {
        let word = argument(lane);
        for batch in [&[word.as_str(), "b"][..], &[], &["c"]] {
            assert!(matches!(lane.emit(&call, batch.len(), &texts(batch), || false), Ok(Emitted::Sent)));
        }
        last(lane, call, if word == "a" { &["d"] } else { &[] })
    });
    // There is one lane: each scan has given it back.
    for _ in 0..3 {
        let (batches, error) = fixture.all("a");
        assert!(error.is_none(), "{error:?}");
        assert_eq!(batches, [vec!["a", "b"], vec!["c"], vec!["d"]]);
        assert_eq!(fixture.all("x").0, [vec!["x", "b"], vec!["c"]]);
    }
    let mut scan = fixture.open("x").unwrap();
    while fixture.next(&mut scan).unwrap().is_some() {}
    assert!(fixture.next(&mut scan).unwrap().is_none(), "a batch after the last");
    let stats = fixture.library.pool.stats();
    assert_eq!((stats.booted, stats.idle, stats.discarded), (1, 1, 0));
    assert_eq!(fixture.library.functions[0].stats.totals().rows.get(), 3 * 7 + 3);
}

#[test]
fn a_scan_that_is_dropped_is_cancelled_and_its_lane_used_again() {
    let fixture = fixture("", 1, |_, lane, call| {
        let word = argument(lane);
        if word == "end" { last(lane, call, &["end"]) } else { endless(lane, call, &word) }
    });
    for taken in [0, 1, 500] {
        let mut scan = fixture.open("more").unwrap();
        for _ in 0..taken {
            assert_eq!(fixture.next(&mut scan).unwrap().unwrap(), ["more"]);
        }
        drop(scan);
        // Whoever comes next waits for the only lane there may be.
        assert_eq!(fixture.all("end").0, [["end"]]);
    }
    drop(fixture.open("more").unwrap());
    fixture.settle(|stats| stats.idle == 1);
    let stats = fixture.library.pool.stats();
    assert_eq!((stats.booted, stats.busy, stats.discarded), (1, 0, 0));
}

#[test]
fn a_guest_that_does_not_end_what_is_cancelled_loses_its_lane() {
    for floods in [false, true] {
        let fixture = fixture("", 2, move |number, lane, call| {
            if number > 1 {
                return last(lane, call, &["next"]);
            }
            while floods && lane.emit(&call, 1, &texts(&["more"]), || false).is_ok() {}
            loop {
                thread::park();
            }
        });
        drop(fixture.open("x").unwrap());
        // Another is booted meanwhile for who needs one.
        assert_eq!(fixture.all("x").0, [["next"]]);
        fixture.settle(|stats| stats.discarded == 1);
        assert_eq!((fixture.library.pool.stats().busy, fixture.all("x").0), (0, vec![vec!["next".into()]]));
    }
}

#[test]
fn a_pool_that_is_dropped_waits_for_no_guest() {
    let fixture = fixture("", 1, |_, _, _| {
        loop {
            thread::park();
        }
    });
    drop(fixture.open("x").unwrap());
    let (told, gone) = std::sync::mpsc::channel();
    thread::spawn(move || {
        drop(fixture);
        told.send(()).unwrap();
    });
    gone.recv_timeout(Duration::from_secs(20)).expect("the pool waits");
}

#[test]
fn a_failure_is_that_of_the_guest_and_the_lane_stays() {
    let fixture = fixture("", 1, |_, lane, call| {
        let row = (argument(lane) == "x").then_some(0);
        lane.emit(&call, 1, &texts(&["before"]), || false).unwrap();
        let failure = Failure { class: "Oops".into(), message: "no".into(), ticket: 7, ..Failure::default() };
        lane.fail(call, &failure, row).is_ok()
    });
    for (argument, place) in [("x", "\n  in row 1 of the batch, with x = 'x'"), ("y", "")] {
        let (batches, error) = fixture.all(argument);
        assert_eq!(batches, [["before"]]);
        let Some(Error::Raised { function, failure, place: told }) = error else { panic!("{error:?}") };
        assert_eq!((function.as_str(), failure.class.as_str(), failure.ticket), ("f", "Oops", 7));
        assert_eq!(told.to_string(), place);
    }
    assert_eq!(fixture.library.pool.stats().discarded, 0);
}

#[test]
fn values_that_do_not_fit_are_the_functions_error() {
    let fixture = fixture("", 1, |_, lane, call| {
        let mut column = texts(&["good"]);
        column.bytes(b"\xff").unwrap();
        lane.emit(&call, 2, &column, || false).unwrap();
        endless(lane, call, "more")
    });
    let error = fixture.all("x").1.unwrap().to_string();
    assert!(error.contains("f: InvalidResult:") && error.contains(", in row 2"), "{error}");
    fixture.settle(|stats| stats.idle == 1);
}

#[test]
fn garbage_ends_the_lane() {
    for rows in [1, 3] {
        let fixture = fixture("", 2, move |number, lane, call| {
            if number > 1 {
                return last(lane, call, &["next"]);
            }
            // Of another type, and with another number of rows than it says.
            let mut numbers = ColumnBuilder::new(&DataType::BigInt);
            numbers.fixed(1i64);
            lane.emit(&call, rows, &numbers, || false).is_ok()
        });
        let error = fixture.all("x").1.unwrap();
        assert!(matches!(error, Error::LaneDied { .. }) && error.to_string().contains("garbage"), "{error}");
        fixture.settle(|stats| stats.discarded == 1);
        assert_eq!(fixture.all("x").0, [["next"]]);
        assert_eq!(fixture.library.functions[0].stats.totals().deaths.get(), 1);
    }
}

#[test]
fn what_a_dead_guest_has_sent_comes_before_its_error() {
    let fixture = fixture("", 2, |number, lane, call| {
        if number > 1 {
            return last(lane, call, &["next"]);
        }
        lane.emit(&call, 1, &texts(&["first"]), || false).unwrap();
        lane.emit(&call, 1, &texts(&["second"]), || false).unwrap();
        false
    });
    let (batches, error) = fixture.all("x");
    assert_eq!(batches, [["first"], ["second"]]);
    let error = error.unwrap().to_string();
    assert!(error.contains("f: the thread that ran it was ended"), "{error}");
    assert_eq!(fixture.all("x").0, [["next"]]);
}

#[test]
fn a_guest_that_makes_no_progress_times_out() {
    let fixture = fixture(r#", "timeout": 0.2"#, 2, |number, lane, call| {
        if number > 1 {
            return last(lane, call, &["next"]);
        }
        lane.emit(&call, 1, &texts(&["first"]), || false).unwrap();
        loop {
            thread::park();
        }
    });
    let mut scan = fixture.open("x").unwrap();
    assert_eq!(fixture.next(&mut scan).unwrap().unwrap(), ["first"]);
    let error = fixture.next(&mut scan).unwrap_err();
    assert!(error.to_string().contains("timed out after 0.2 s"), "{error}");
    assert_eq!(fixture.library.pool.stats().discarded, 1);
    assert_eq!(fixture.all("x").0, [["next"]]);
}

#[test]
fn empty_batches_are_no_progress() {
    let fixture = fixture(r#", "timeout": 0.2"#, 2, |number, lane, call| {
        if number > 1 {
            return last(lane, call, &["next"]);
        }
        while lane.emit(&call, 0, &texts(&[]), || false).is_ok() {}
        false
    });
    let error = fixture.all("x").1.unwrap();
    assert!(error.to_string().contains("timed out after 0.2 s"), "{error}");
    assert_eq!(fixture.all("x").0, [["next"]]);
}

#[test]
fn a_cancellation_ends_the_wait_and_what_comes_later_goes_on() {
    let fixture = fixture("", 1, |_, lane, call| match argument(lane).as_str() {
        "end" => last(lane, call, &["end"]),
        // Nothing comes, until nobody wants it.
        _ => {
            lane.emit(&call, 1, &texts(&["first"]), || false).unwrap();
            while !matches!(lane.await_taken(&call, || false), Ok(Emitted::Cancelled)) {
                thread::sleep(Duration::from_millis(1));
            }
            last(lane, call, &[])
        }
    });
    let mut scan = fixture.open("x").unwrap();
    let caller = fixture.caller();
    assert_eq!(scan.next(caller).unwrap().map(|batch| read(&batch)).unwrap(), ["first"]);
    let outcome = thread::scope(|scope| {
        let next = scope.spawn(|| scan.next(caller).map(|_| ()));
        while !next.is_finished() {
            fixture.group.cancel();
            thread::sleep(Duration::from_millis(1));
        }
        next.join().unwrap()
    });
    assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
    assert!(matches!(scan.next(caller), Err(Error::Cancelled { .. })));
    drop(scan);
    assert_eq!(fixture.all("end").0, [["end"]]);
    assert_eq!(fixture.library.pool.stats().booted, 1);
}
