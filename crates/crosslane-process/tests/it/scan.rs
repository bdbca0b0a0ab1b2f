//! Scans over lanes of a pool, whose guests are threads of this process. The tests check the batches,
//! the ends of scans, and the next use of a lane after a cancelled scan.

use crosslane::batch::{Column, Encode};
use crosslane::call::{CallGroup, Caller, Input, LARGEST_PARTITIONS, LONGEST_BATCH, Scan};
use crosslane::pool::PoolStats;
use crosslane::{ColumnBuilder, DataType, Error, Failure, Function, FunctionSpec, Library};
use crosslane_process::guest::{Call, Emitted, GuestLane, Room, RowCounts};
use crosslane_process::testing::Guests;
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

struct Argument(&'static str);

impl Input for Argument {
    fn rows(&self) -> usize {
        1
    }
    fn slice(&self, _: Range<usize>, take: &mut dyn FnMut(&dyn Encode)) -> Result<(), Error> {
        let (mut partition, mut wanted) =
            (ColumnBuilder::new(&DataType::Blob), ColumnBuilder::new(&places()));
        partition.null();
        wanted.null();
        take(&vec![partition, wanted, texts(&[self.0])]);
        Ok(())
    }
}

fn places() -> DataType {
    "INTEGER[]".parse().unwrap()
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
    let pool = Guests::new(4096, guest).at_most(most).pool(1);
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

    fn partitions(&self, largest: usize) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let function = &self.library.functions[0];
        Scan::partitions(&self.library, function, self.caller(), Argument("x"), largest)
    }

    fn open(&self, argument: &'static str) -> Result<Scan<Guests, Argument>, Error> {
        let function = Arc::clone(&self.library.functions[0]);
        Scan::open(Arc::clone(&self.library), function, self.caller(), TEXT, Argument(argument))
    }

    fn next(&self, scan: &mut Scan<Guests, Argument>) -> Result<Option<Vec<String>>, Error> {
        scan.next(self.caller()).map(|batch| batch.map(|batch| read(&batch)))
    }

    /// All batches of a scan, or the batches before an error, and the error.
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

    /// Waits until the pool is in the wanted state.
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
    read(&lane.columns([&DataType::Blob, &places(), &TEXT].into_iter()).unwrap()[2]).remove(0)
}

/// Sends batches of one text until the engine wants no more.
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
    lane.succeed(call.with_rows(rows.len()), &texts(rows), RowCounts::default()).is_ok()
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
    // The pool has one lane, so each scan has given the lane back.
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
        // The next scan waits for the only lane that the pool may have.
        assert_eq!(fixture.all("end").0, [["end"]]);
    }
    drop(fixture.open("more").unwrap());
    fixture.settle(|stats| stats.idle == 1);
    let stats = fixture.library.pool.stats();
    assert_eq!((stats.booted, stats.busy, stats.discarded), (1, 0, 0));
}

#[test]
fn a_guest_that_does_not_end_what_is_cancelled_loses_its_lane() {
    let loses = |floods: bool| {
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
        // The pool meanwhile boots another lane, because a caller needs one.
        assert_eq!(fixture.all("x").0, [["next"]]);
        fixture.settle(|stats| stats.discarded == 1);
        assert_eq!((fixture.library.pool.stats().busy, fixture.all("x").0), (0, vec![vec!["next".into()]]));
    };
    // Each case takes two seconds.
    thread::scope(|scope| {
        scope.spawn(|| loses(true));
        loses(false);
    });
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
    for (argument, place) in [("x", "\n  in row 1 of its table, with x = 'x'"), ("y", "")] {
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
            // The column has another type, and in one case another number of rows than the batch says.
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
        // The guest sends no second batch, and waits until the engine cancels the scan.
        _ => {
            lane.emit(&call, 1, &texts(&["first"]), || false).unwrap();
            while !matches!(lane.await_room(&call, Room::All, || false), Ok(Emitted::Cancelled)) {
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

/// A guest that fails on each lane in `sent` after that number of batches. A batch has one row. Later
/// lanes do not fail.
fn failing(sent: &'static [usize], dies: bool) -> impl Fn(u64, &mut GuestLane, Call) -> bool {
    move |number, lane, call| {
        let batches = ["a", "b", "c", "d"];
        let Some(sent) = sent.get(number as usize - 1) else { return last(lane, call, &batches) };
        for batch in &batches[..*sent] {
            lane.emit(&call, 1, &texts(&[batch]), || false).unwrap();
        }
        !dies && lane.fail(call, &Failure { class: "Oops".into(), ..Failure::default() }, None).is_ok()
    }
}

#[test]
fn a_scan_that_fails_is_done_again_without_the_rows_that_were_delivered() {
    for sent in [&[0][..], &[1], &[3], &[2, 3], &[3, 1]] {
        let fixture = fixture(r#", "retries": 2"#, 3, failing(sent, true));
        let (batches, error) = fixture.all("x");
        assert!(error.is_none(), "{sent:?}: {error:?}");
        assert_eq!(batches.concat(), ["a", "b", "c", "d"], "{sent:?}");
        let stats = fixture.library.functions[0].stats.totals();
        let tries = sent.len() as u64;
        assert_eq!((stats.rows.get(), stats.retries.get(), stats.deaths.get()), (4, tries, tries));
    }
}

#[test]
fn tries_end() {
    let fixture = fixture(r#", "retries": 1"#, 3, failing(&[1, 2, 3], true));
    let (batches, error) = fixture.all("x");
    assert_eq!(batches, [["a"], ["b"]]);
    assert!(matches!(error, Some(Error::LaneDied { .. })), "{error:?}");
}

#[test]
fn exceptions_are_tried_again_too() {
    let asked = std::sync::atomic::AtomicU32::new(0);
    let fixture = fixture(r#", "retries": 1"#, 1, move |_, lane, call| {
        if asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
            lane.emit(&call, 2, &texts(&["a", "b"]), || false).unwrap();
            return lane.fail(call, &Failure::default(), None).is_ok();
        }
        // The batches have other lengths than at the first try.
        lane.emit(&call, 1, &texts(&["a"]), || false).unwrap();
        last(lane, call, &["b", "c"])
    });
    assert_eq!(fixture.all("x").0, [vec!["a", "b"], vec!["c"]]);
    let stats = fixture.library.functions[0].stats.totals();
    assert_eq!((stats.rows.get(), stats.retries.get(), stats.deaths.get()), (3, 1, 0));
    assert_eq!(fixture.library.pool.stats().discarded, 0);
}

#[test]
fn rows_that_may_be_others_are_not_made_again() {
    for (sent, again) in [(&[0][..], true), (&[1], false)] {
        let options = r#", "retries": 1, "deterministic": false"#;
        let fixture = fixture(options, 2, failing(sent, true));
        let (batches, error) = fixture.all("x");
        assert_eq!(error.is_none(), again, "{error:?}");
        assert_eq!(batches.concat().len(), if again { 4 } else { 1 });
    }
}

#[test]
fn a_second_try_with_fewer_rows_is_an_error() {
    let fixture = fixture(r#", "retries": 1"#, 2, |number, lane, call| {
        if number > 1 {
            return last(lane, call, &["a"]);
        }
        lane.emit(&call, 2, &texts(&["a", "b"]), || false).unwrap();
        false
    });
    let (batches, error) = fixture.all("x");
    assert_eq!(batches, [["a", "b"]]);
    let error = error.unwrap().to_string();
    assert!(error.contains("fewer rows than the 2") && error.contains("not deterministic"), "{error}");
}

#[test]
fn errors_that_become_null_end_the_table() {
    for dies in [false, true] {
        let fixture = fixture(r#", "on_error": "null""#, 1, failing(&[3], dies));
        let (batches, error) = fixture.all("x");
        assert!(error.is_none(), "{error:?}");
        assert_eq!(batches, [["a"], ["b"], ["c"]]);
        let stats = fixture.library.functions[0].stats.totals();
        assert_eq!((stats.rows.get(), stats.errors.get()), (3, 1));
    }
}

#[test]
fn values_that_do_not_fit_become_null_where_errors_do() {
    let fixture = fixture(r#", "on_error": "null""#, 1, |_, lane, call| {
        let mut column = texts(&["good"]);
        column.bytes(b"\xff").unwrap();
        column.bytes(b"better").unwrap();
        lane.emit_with(
            &call,
            3,
            &column,
            RowCounts { errors: 4, retries: 2, ..RowCounts::default() },
            || false,
        )
        .unwrap();
        last(lane, call, &["end"])
    });
    let mut scan = fixture.open("x").unwrap();
    let batch = scan.next(fixture.caller()).unwrap().unwrap();
    assert_eq!([0, 1, 2].map(|row| batch.is_valid(row)), [true, false, true]);
    assert_eq!((batch.bytes(0), batch.bytes(2)), (&b"good"[..], &b"better"[..]));
    assert_eq!(fixture.next(&mut scan).unwrap().unwrap(), ["end"]);
    let stats = fixture.library.functions[0].stats.totals();
    assert_eq!((stats.rows.get(), stats.errors.get(), stats.retries.get()), (4, 5, 2));
}

#[test]
fn a_batch_that_no_engine_takes_ends_the_lane() {
    for (rows, taken) in [(LONGEST_BATCH, true), (LONGEST_BATCH + 1, false)] {
        let fixture = fixture("", 1, move |_, lane, call| {
            lane.emit(&call, rows, &texts(&vec!["x"; rows]), || false).is_ok() && last(lane, call, &[])
        });
        let (batches, error) = fixture.all("x");
        assert_eq!((batches.concat().len() == rows, error.is_none()), (taken, taken), "{error:?}");
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(taken || text.contains("a batch of 2049 rows, where 2048 are the most"), "{text}");
    }
}

#[test]
fn a_query_that_is_cancelled_waits_for_no_further_try() {
    let fixture = fixture(r#", "retries": 1000000"#, u64::MAX, |_, _, _| false);
    let outcome = thread::scope(|scope| {
        let scan = scope.spawn(|| fixture.all("x").1);
        while !scan.is_finished() {
            fixture.group.cancel();
            thread::sleep(Duration::from_millis(1));
        }
        scan.join().unwrap()
    });
    assert!(matches!(outcome, Some(Error::Cancelled { .. })), "{outcome:?}");
}

#[test]
fn partitions_are_any_number_of_bytes() {
    let fixture = fixture(r#", "partitions": true"#, 1, |_, lane, call| {
        let mut column = ColumnBuilder::new(&DataType::Blob);
        assert_eq!(call.entry(), Some(crosslane::Entry::Partitions));
        let rows = LONGEST_BATCH + 1;
        (0..rows).for_each(|row| column.bytes(&row.to_le_bytes()).unwrap());
        lane.emit(&call, rows, &column, || false).is_ok()
            && lane.succeed(call.with_rows(rows), &column, RowCounts::default()).is_ok()
    });
    let partitions = fixture.partitions(LARGEST_PARTITIONS).unwrap();
    let half = 0..LONGEST_BATCH + 1;
    let expected: Vec<_> =
        half.clone().chain(half).map(|row: usize| Some(row.to_le_bytes().to_vec())).collect();
    assert_eq!(partitions, expected);
    assert_eq!(fixture.library.functions[0].stats.totals().rows.get(), 0);
    // These partitions take 32,784 bytes.
    let error = fixture.partitions(1 << 15).unwrap_err().to_string();
    assert!(error.contains("more than 1,048,576 partitions"), "{error}");
}

#[test]
fn a_partition_is_never_null() {
    let fixture = fixture(r#", "partitions": true"#, 1, |_, lane, call| {
        let mut column = ColumnBuilder::new(&DataType::Blob);
        column.bytes(b"one").unwrap();
        column.null();
        lane.succeed(call.with_rows(2), &column, RowCounts::default()).is_ok()
    });
    assert_eq!(fixture.partitions(LARGEST_PARTITIONS).unwrap_err().to_string(), "f: a partition is NULL");
}

#[test]
fn a_table_without_partitions_is_scanned_at_once() {
    let fixture = fixture("", 1, |_, _, _| false);
    assert_eq!(fixture.partitions(LARGEST_PARTITIONS).unwrap(), [None]);
}
