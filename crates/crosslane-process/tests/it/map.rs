//! Streams over lanes of a pool, whose guests are threads of this process: which batch goes where, in which order results
//! come, and what becomes of batches whose lane is lost.

use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::{CallGroup, Caller, LONGEST_ANSWER, Map, MapInput, MapOptions, MapStep, map_types};
use crosslane::catalog::{Catalog, Registration};
use crosslane::lane::COUNT;
use crosslane::pool::Pool;
use crosslane::{ColumnBuilder, DataType, Entry, Error, Failure, Function, FunctionSpec, Library};
use crosslane_process::guest::{Call, Emitted, GuestLane, Mishaps, Room};
use crosslane_process::testing::Guests;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

/// A column of numbers as a table's batch, with its types.
struct Numbers(ColumnBuilder, Arc<str>);

fn numbers(values: &[i64], name: &str) -> Numbers {
    let table: DataType = format!("STRUCT({name} BIGINT)").parse().unwrap();
    let mut column = ColumnBuilder::new(&table);
    values.iter().for_each(|value| {
        column.children[0].fixed(*value);
        column.nested().unwrap();
    });
    let text = map_types(&table);
    Numbers(column, text.into())
}

impl Encode for Numbers {
    fn plan(&self, plan: &mut Plan) {
        plan.types(&self.1);
        self.0.plan(plan);
    }
    fn write(&self, body: &mut Body<'_>) {
        self.0.write(body);
    }
}

struct Fixture {
    map: Map<Guests>,
    library: Arc<Library<Guests>>,
    group: CallGroup,
    /// Batches that were given to it.
    put: i64,
    /// Of so many.
    all: i64,
}

fn fixture(
    options: &str,
    (lanes, depth, ordered): (usize, usize, bool),
    all: i64,
    guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Fixture {
    fixture_of("f(rows TABLE) -> TABLE", options, (lanes, depth, ordered), all, guest)
}

fn function(signature: &str, options: &str) -> Arc<Function> {
    let spec = format!(r#"{{"signature": "{signature}", "kind": "stream", "admits_null": [true]{options}}}"#);
    let spec: FunctionSpec = serde_json::from_str(&spec).unwrap();
    Arc::new(Function::new(0, spec).unwrap())
}

fn pool(
    lanes: usize,
    guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Pool<Guests> {
    Guests::new(4096, guest).pool(lanes)
}

fn fixture_of(
    signature: &str,
    options: &str,
    (lanes, depth, ordered): (usize, usize, bool),
    all: i64,
    guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Fixture {
    let pool = pool(lanes, guest);
    let functions = vec![function(signature, options)];
    let function = Arc::clone(&functions[0]);
    let library = Arc::new(Library { name: "fake".into(), version: 1, functions, pool });
    let map = Map::new(Arc::clone(&library), function, MapOptions { lanes, depth, ordered }).unwrap();
    Fixture { map, library, group: CallGroup::default(), put: 0, all }
}

impl Fixture {
    /// Until so many lanes are booted. A stream that has a lane does not wait for others.
    fn wait_for_lanes(&self, lanes: usize) {
        while self.library.pool.stats().idle < lanes {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next results. Batch n of the input is the number n.
    fn next(&mut self) -> Result<Option<Vec<i64>>, Error> {
        loop {
            match self.map.next(Caller::new(&self.group, 1))? {
                MapStep::Done => return Ok(None),
                MapStep::Output(column, first) => {
                    return Ok(Some((first..column.rows).map(|row| column.children[0].value(row)).collect()));
                }
                MapStep::Wants => {}
            }
            if self.put == self.all {
                self.map.end();
            } else {
                self.put += 1;
                self.map.put(MapInput { rows: 1, content: Box::new(numbers(&[self.put], "n")) });
            }
        }
    }

    fn rest(&mut self) -> (Vec<i64>, Option<Error>) {
        let mut rows = Vec::new();
        loop {
            match self.next() {
                Ok(Some(more)) => rows.extend(more),
                Ok(None) => return (rows, None),
                Err(error) => return (rows, Some(error)),
            }
        }
    }
}

fn read(lane: &GuestLane, call: &Call) -> i64 {
    let types = lane.types(call).unwrap().unwrap();
    let table = crosslane::call::table_of(types).unwrap();
    let columns = lane.columns(std::iter::once(&table)).unwrap();
    let column: &Column<'_> = &columns[0].children[0];
    column.value(0)
}

fn emit(lane: &mut GuestLane, call: &Call, values: &[i64]) -> bool {
    matches!(lane.emit(call, values.len(), &numbers(values, "m"), || false), Ok(Emitted::Sent))
}

fn last(lane: &mut GuestLane, call: Call, values: &[i64]) -> bool {
    lane.succeed(call.with_rows(values.len()), &numbers(values, "m"), Mishaps::default()).is_ok()
}

/// Waits until the engine has taken all that was sent, so that it does so before it sees the end of the lane.
fn taken(lane: &mut GuestLane, call: &Call) {
    assert!(matches!(lane.await_room(call, Room::All, || false), Ok(Emitted::Sent)));
}

/// A batch without answer.
fn none(lane: &mut GuestLane, call: Call) -> bool {
    lane.succeed(call.with_rows(0), &(), Mishaps::default()).is_ok()
}

#[test]
fn results_come_in_order_whatever_their_number() {
    for (lanes, depth) in [(1, 1), (1, 2), (3, 1), (3, 4)] {
        let mut fixture = fixture("", (lanes, depth, true), 100, |_, lane, call| {
            assert_eq!(call.entry(), Some(Entry::Map));
            let n = read(lane, &call);
            match n % 4 {
                0 => none(lane, call),
                1 => last(lane, call, &[n, -n]),
                2 => {
                    emit(lane, &call, &[n])
                        && emit(lane, &call, &[])
                        && emit(lane, &call, &[-n])
                        && none(lane, call)
                }
                _ => (0..50).all(|_| emit(lane, &call, &[n; 20])) && last(lane, call, &[]),
            }
        });
        let expected: Vec<i64> = (1..=100)
            .flat_map(|n: i64| match n % 4 {
                0 => vec![],
                3 => vec![n; 1000],
                _ => vec![n, -n],
            })
            .collect();
        let (rows, error) = fixture.rest();
        assert!(error.is_none(), "{error:?}");
        assert!(rows == expected, "{lanes} lanes of {depth}");
        assert!(fixture.next().unwrap().is_none());
        let totals = fixture.library.functions[0].stats.totals();
        assert_eq!((totals.calls.get(), totals.rows.get()), (100, expected.len() as u64));
        assert_eq!(fixture.map.returns().unwrap().to_string(), "STRUCT(m BIGINT)");
    }
}

/// The guest of the first batch ends it when another guest has ended the second.
#[test]
fn results_come_as_they_are_ready_if_no_order_is_wanted() {
    let both = Arc::new(Barrier::new(2));
    let mut fixture = fixture("", (2, 1, false), 2, move |_, lane, call| {
        let n = read(lane, &call);
        if n == 1 {
            both.wait();
            return last(lane, call, &[n]);
        }
        assert!(emit(lane, &call, &[n]));
        // The engine takes it before the other begins to answer.
        taken(lane, &call);
        both.wait();
        none(lane, call)
    });
    assert_eq!(fixture.rest().0, [2, 1]);
}

/// With a depth of two the second batch lies in the ring while the guest is at work on the first.
#[test]
fn a_lane_holds_as_many_batches_as_its_depth() {
    for depth in [1, 2, 3] {
        let mut fixture = fixture("", (1, depth, true), 10, |_, lane, call| {
            let n = read(lane, &call);
            last(lane, call, &[n])
        });
        assert_eq!(fixture.next().unwrap(), Some(vec![1]));
        assert_eq!(fixture.put, depth as i64);
        assert_eq!(fixture.rest().0, (2..=10).collect::<Vec<_>>());
    }
}

/// The input has a batch that does not come before the first one's results were taken.
#[test]
fn results_are_there_for_who_waits_for_the_input() {
    let mut fixture = fixture("", (2, 2, true), 1, |_, lane, call| {
        let n = read(lane, &call);
        last(lane, call, &[n, 7])
    });
    let caller = Caller::new(&fixture.group, 1);
    assert!(matches!(fixture.map.next(caller).unwrap(), MapStep::Wants));
    assert!(fixture.map.ready(caller).unwrap().is_none());
    fixture.map.put(MapInput { rows: 1, content: Box::new(numbers(&[1], "n")) });
    assert!(matches!(fixture.map.next(caller).unwrap(), MapStep::Wants));
    let rows = loop {
        if let Some((column, first)) = fixture.map.ready(caller).unwrap() {
            break (first..column.rows).map(|row| column.children[0].value(row)).collect::<Vec<i64>>();
        }
        thread::yield_now();
    };
    assert_eq!(rows, [1, 7]);
    fixture.map.end();
    assert!(matches!(fixture.map.next(caller).unwrap(), MapStep::Done));
}

#[test]
fn an_endless_answer_waits_for_who_takes_it() {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let mut fixture = fixture("", (2, 2, true), 100, move |_, lane, call| {
        while emit(lane, &call, &[7; 10]) {
            counted.fetch_add(1, Relaxed);
        }
        none(lane, call)
    });
    fixture.wait_for_lanes(2);
    for _ in 0..500 {
        assert_eq!(fixture.next().unwrap(), Some(vec![7; 10]));
    }
    thread::sleep(Duration::from_millis(50));
    // Beside what was taken, each of two lanes has what fits into its ring.
    let sent = sent.load(Relaxed);
    assert!((500..600).contains(&sent), "{sent}");
    assert_eq!(fixture.put, 4);
}

#[test]
fn errors_name_the_batch() {
    let mut fixture = fixture("", (2, 2, true), 10, |_, lane, call| {
        let n = read(lane, &call);
        if n < 5 {
            return last(lane, call, &[n]);
        }
        let failure = Failure { class: "Oops".into(), message: n.to_string(), ..Failure::default() };
        emit(lane, &call, &[n]) && lane.fail(call, &failure, None).is_ok()
    });
    let (rows, error) = fixture.rest();
    assert_eq!(rows, [1, 2, 3, 4, 5]);
    assert_eq!(error.unwrap().to_string(), "f, batch 5: Oops: 5");
}

/// Whatever the function's options are, which do not count for it.
#[test]
fn a_set_up_that_fails_ends_the_stream() {
    for options in ["", r#", "on_error": "null""#, r#", "on_error": "null", "retries": 3"#] {
        let mut fixture = fixture(options, (2, 2, true), 10, |_, lane, call| {
            let n = read(lane, &call);
            if n < 5 {
                return last(lane, call, &[n]);
            }
            let failure = Failure { class: "Oops".into(), set_up: true, ..Failure::default() };
            lane.fail(call, &failure, Some(0)).is_ok()
        });
        let (rows, error) = fixture.rest();
        assert_eq!(rows, [1, 2, 3, 4]);
        assert_eq!(error.unwrap().to_string(), "f, batch 5: Oops: ");
        assert_eq!(fixture.library.functions[0].stats.totals().retries.get(), 0);
    }
}

/// Rows of a batch's results, whatever its messages are and how often it was tried.
#[test]
fn errors_name_the_row_of_the_results() {
    let failing = |lane: &mut GuestLane, call: Call| {
        let failure = Failure { class: "Oops".into(), ..Failure::default() };
        lane.fail(call, &failure, Some(4)).is_ok()
    };
    let dying = |lane: &mut GuestLane, call: Call| {
        lane.progress().set(call.header.exchange as u32, COUNT | 4);
        taken(lane, &call);
        false
    };
    let late = |lane: &mut GuestLane, call: Call| {
        lane.progress().set(call.header.exchange as u32, COUNT | 4);
        thread::sleep(Duration::from_secs(60));
        none(lane, call)
    };
    type End = fn(&mut GuestLane, Call) -> bool;
    let ends: [(&str, End); 3] = [("", failing), (r#", "retries": 1"#, dying), (r#", "timeout": 0.2"#, late)];
    for (options, end) in ends {
        let mut fixture = fixture(options, (1, 1, true), 1, move |_, lane, call| {
            emit(lane, &call, &[1, 2]) && emit(lane, &call, &[3, 4]) && end(lane, call)
        });
        let (rows, error) = fixture.rest();
        assert_eq!(rows, [1, 2, 3, 4]);
        let error = error.unwrap().to_string();
        assert!(error.ends_with("\n  in row 5 of its results"), "{error}");
    }
}

#[test]
fn values_that_are_none_are_in_a_row_of_the_results() {
    let tries = AtomicU64::new(0);
    let signature = "f(rows TABLE(n BIGINT)) -> TABLE(m VARCHAR)";
    let mut fixture = fixture_of(signature, r#", "retries": 1"#, (1, 1, true), 1, move |_, lane, call| {
        let mut column = ColumnBuilder::new(&"STRUCT(m VARCHAR)".parse().unwrap());
        column.children[0].bytes(b"1").unwrap();
        column.nested().unwrap();
        assert!(matches!(lane.emit(&call, 1, &column, || false), Ok(Emitted::Sent)));
        if tries.fetch_add(1, Relaxed) == 0 {
            return lane.fail(call, &Failure::default(), None).is_ok();
        }
        assert!(matches!(lane.emit(&call, 1, &column, || false), Ok(Emitted::Sent)));
        with_a_null(lane, call, b"\xff")
    });
    let mut rows = 0;
    let error = loop {
        match fixture.map.next(Caller::new(&fixture.group, 1)) {
            Ok(MapStep::Output(column, first)) => rows += column.rows - first,
            Ok(MapStep::Wants) => {
                fixture.map.put(MapInput { rows: 1, content: Box::new(numbers(&[1], "n")) });
                fixture.map.end();
            }
            Ok(MapStep::Done) => panic!("no error"),
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(rows, 2);
    assert!(error.ends_with("in row 5"), "{error}");
}

#[test]
fn a_message_of_too_many_rows_is_garbage() {
    for rows in [LONGEST_ANSWER, LONGEST_ANSWER + 1] {
        let mut fixture = fixture("", (1, 1, true), 1, move |_, lane, call| last(lane, call, &vec![7; rows]));
        let (taken, error) = fixture.rest();
        let error = error.map(|error| error.to_string());
        if rows == LONGEST_ANSWER {
            assert_eq!((taken.len(), error), (rows, None));
        } else {
            let error = error.unwrap();
            assert!(
                error.starts_with("f, batch 1: its worker wrote garbage: a batch of 65537 rows"),
                "{error}"
            );
            assert_eq!(taken.len(), 0);
        }
    }
}

#[test]
fn batches_of_other_columns_are_an_error() {
    let mut fixture = fixture("", (1, 1, true), 10, |_, lane, call| {
        let n = read(lane, &call);
        let name = if n < 3 { "a" } else { "b" };
        lane.succeed(call.with_rows(1), &numbers(&[n], name), Mishaps::default()).is_ok()
    });
    let (rows, error) = fixture.rest();
    assert_eq!(rows, [1, 2]);
    let error = error.unwrap().to_string();
    assert!(error.contains("batch 3: InvalidResult: gave (STRUCT(b BIGINT))"), "{error}");
}

/// A function whose signature says the columns.
const DECLARED: &str = "f(rows TABLE(n BIGINT)) -> TABLE(m BIGINT)";

#[test]
fn batches_of_declared_columns_need_no_types() {
    let mut fixture = fixture_of(DECLARED, "", (1, 1, true), 4, |_, lane, call| {
        let n = read(lane, &call);
        let Numbers(column, _) = numbers(&[n], "m");
        match n {
            1 => lane.succeed(call.with_rows(1), &column, Mishaps::default()).is_ok(),
            2 => last(lane, call, &[n]),
            3 => none(lane, call),
            // Of a batch without rows, with its columns.
            _ => lane
                .succeed(call.with_rows(0), &ColumnBuilder::new(&column_type()), Mishaps::default())
                .is_ok(),
        }
    });
    assert_eq!(fixture.map.takes().unwrap().to_string(), "STRUCT(n BIGINT)");
    assert_eq!(fixture.map.returns().unwrap().to_string(), "STRUCT(m BIGINT)");
    let (rows, error) = fixture.rest();
    assert_eq!((rows, error.map(|error| error.to_string())), (vec![1, 2], None));
    let mut fixture = fixture_of(DECLARED, "", (1, 1, true), 4, |_, lane, call| {
        lane.succeed(call.with_rows(1), &numbers(&[1], "other"), Mishaps::default()).is_ok()
    });
    let error = fixture.next().unwrap_err().to_string();
    assert!(error.contains("batches have (STRUCT(m BIGINT))"), "{error}");
}

fn column_type() -> DataType {
    "STRUCT(m BIGINT)".parse().unwrap()
}

/// A guest whose rows are a 1, none at all, and a 3, or text that is none.
fn with_a_null(lane: &mut GuestLane, call: Call, text: &[u8]) -> bool {
    let mut column = ColumnBuilder::new(&"STRUCT(m VARCHAR)".parse().unwrap());
    column.children[0].bytes(b"1").unwrap();
    column.nested().unwrap();
    column.null();
    column.children[0].bytes(text).unwrap();
    column.nested().unwrap();
    let mishaps = Mishaps { errors: 1, ..Mishaps::default() };
    lane.succeed(call.with_rows(3), &column, mishaps).is_ok()
}

#[test]
fn a_row_that_is_an_error_is_null() {
    let signature = "f(rows TABLE(n BIGINT)) -> TABLE(m VARCHAR)";
    for (options, text, outcome) in [
        ("", &b"3"[..], Ok(vec![true, false, true])),
        (r#", "on_error": "null""#, b"\xff", Ok(vec![true, false, false])),
        ("", b"\xff", Err("returned text that is not UTF-8 where VARCHAR is due, in row 3")),
    ] {
        let mut fixture = fixture_of(signature, options, (1, 1, true), 1, move |_, lane, call| {
            with_a_null(lane, call, text)
        });
        fixture.put += 1;
        let MapStep::Wants = fixture.map.next(Caller::new(&fixture.group, 1)).unwrap() else { panic!() };
        fixture.map.put(MapInput { rows: 1, content: Box::new(numbers(&[1], "n")) });
        fixture.map.end();
        match (fixture.map.next(Caller::new(&fixture.group, 1)), outcome) {
            (Ok(MapStep::Output(column, 0)), Ok(valid)) => {
                let child = &column.children[0];
                assert_eq!((0..3).map(|row| child.is_valid(row)).collect::<Vec<_>>(), valid);
                let errors = valid.iter().filter(|valid| !**valid).count() as u64;
                assert_eq!(fixture.library.functions[0].stats.totals().errors.get(), errors);
            }
            (Err(error), Err(what)) => assert!(error.to_string().ends_with(what), "{error}"),
            (step, _) => panic!("{step:?}"),
        }
    }
}

#[test]
fn a_catalog_finds_streams_of_which_no_engine_is_told() {
    let catalog = Catalog::default();
    let publish = |library: &str, functions: Vec<Arc<Function>>| {
        let told = |functions: &[Registration<Guests>]| {
            assert_eq!(functions.len(), 0);
            Ok(())
        };
        catalog.publish(library.to_owned(), functions, 0, pool(1, |_, _, _| false), told).unwrap()
    };
    assert!(catalog.stream("f").is_none());
    publish("a", vec![function(DECLARED, "")]);
    let entry = catalog.stream("F").unwrap();
    assert_eq!(entry.current().unwrap().library.name, "a");
    assert!(!catalog.knows("f", true) && !catalog.knows("f", false) && catalog.outdated().is_empty());
    // Whatever its columns, there is one of a name.
    publish("b", vec![function("f(rows TABLE(other DATE)) -> TABLE(n DATE)", "")]);
    assert_eq!(entry.current().unwrap().library.name, "b");
    assert_eq!(catalog.libraries().len(), 1);
    assert_eq!(catalog.forget("f").len(), 1);
    assert!(entry.current().unwrap_err().to_string().contains("was dropped"));
    assert!(catalog.libraries().is_empty());
}

/// The guest of a batch ends its thread, and so its lane, after some rows of it; that of another try goes on.
fn dies_at(at: i64, after: usize) -> impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync {
    let tries = AtomicU64::new(0);
    move |_, lane, call| {
        let n = read(lane, &call);
        let rows = [10 * n, 10 * n + 1, 10 * n + 2];
        if n == at && tries.fetch_add(1, Relaxed) == 0 {
            rows[..after].iter().all(|row| emit(lane, &call, &[*row]));
            taken(lane, &call);
            return false;
        }
        // In other batches than before.
        last(lane, call, &rows)
    }
}

#[test]
fn a_batch_whose_lane_died_is_sent_again_without_the_rows_that_were_delivered() {
    let all: Vec<i64> = (1..=20).flat_map(|n| [10 * n, 10 * n + 1, 10 * n + 2]).collect();
    for ordered in [true, false] {
        for (lanes, depth) in [(1, 1), (1, 3), (3, 2)] {
            for after in 0..=3 {
                let mut fixture =
                    fixture(r#", "retries": 1"#, (lanes, depth, ordered), 20, dies_at(5, after));
                let (mut rows, error) = fixture.rest();
                assert!(error.is_none(), "{error:?}");
                if !ordered {
                    rows.sort_unstable();
                }
                assert_eq!(rows, all, "{lanes} lanes of {depth}, after {after}");
                let totals = fixture.library.functions[0].stats.totals();
                assert_eq!((totals.deaths.get(), totals.retries.get()), (1, 1));
            }
        }
    }
}

#[test]
fn a_batch_whose_lane_died_fails_without_retries() {
    let random = r#", "retries": 3, "deterministic": false"#;
    for (options, after) in [("", 0), ("", 2), (random, 2)] {
        let mut fixture = fixture(options, (2, 2, true), 20, dies_at(5, after));
        let (rows, error) = fixture.rest();
        let expected: Vec<i64> = (1..=5).flat_map(|n| [10 * n, 10 * n + 1, 10 * n + 2]).collect();
        assert_eq!(rows, expected[..12 + after]);
        assert!(
            matches!(&error, Some(Error::LaneDied { function, .. }) if function == "f, batch 5"),
            "{error:?}"
        );
    }
    // Of a function that may give something else nothing was delivered.
    let mut fixture = fixture(random, (2, 2, true), 20, dies_at(5, 0));
    assert!(fixture.rest().1.is_none());
    let mut fixture = fixture_null();
    let (rows, error) = fixture.rest();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(rows.len(), 20 * 3 - 1, "all but the third of its rows");
    assert_eq!(fixture.library.functions[0].stats.totals().errors.get(), 1);
}

fn fixture_null() -> Fixture {
    fixture(r#", "on_error": "null""#, (2, 2, true), 20, dies_at(5, 2))
}

/// In order, with all lanes full of later batches, whose results wait in the rings.
#[test]
fn what_failed_does_not_wait_for_later_batches_that_wait_for_it() {
    let tries = AtomicU64::new(0);
    let mut fixture = fixture(r#", "retries": 2"#, (2, 4, true), 40, move |_, lane, call| {
        let n = read(lane, &call);
        if n == 1 && tries.fetch_add(1, Relaxed) < 2 {
            thread::sleep(Duration::from_millis(100));
            let failure = Failure { class: "Oops".into(), ..Failure::default() };
            return lane.fail(call, &failure, None).is_ok();
        }
        (0..20).all(|_| emit(lane, &call, &[n; 50])) && none(lane, call)
    });
    let (rows, error) = fixture.rest();
    assert!(error.is_none(), "{error:?}");
    assert!(rows == (1..=40).flat_map(|n| vec![n; 1000]).collect::<Vec<i64>>());
}

#[test]
fn a_batch_for_which_nothing_comes_is_given_up() {
    let mut fixture = fixture(r#", "timeout": 0.2"#, (2, 2, true), 20, |_, lane, call| {
        let n = read(lane, &call);
        if n == 5 {
            thread::sleep(Duration::from_secs(60));
        }
        last(lane, call, &[n])
    });
    let (rows, error) = fixture.rest();
    assert_eq!(rows, [1, 2, 3, 4]);
    assert!(
        matches!(&error, Some(Error::TimedOut { function, .. }) if function == "f, batch 5"),
        "{error:?}"
    );
}

/// Guests that wait for room are not late, however slow the consumer is.
#[test]
fn a_slow_consumer_makes_no_guest_late() {
    let mut fixture = fixture(r#", "timeout": 0.1"#, (2, 2, true), 6, |_, lane, call| {
        let n = read(lane, &call);
        (0..20).all(|_| emit(lane, &call, &[n; 50])) && none(lane, call)
    });
    let mut rows = 0;
    while let Some(more) = fixture.next().unwrap() {
        rows += more.len();
        if rows % 500 == 0 {
            thread::sleep(Duration::from_millis(150));
        }
    }
    assert_eq!(rows, 6 * 1000);
}

/// Whether a guest is at work on the only batch of its lane, or the cancel lies behind others.
#[test]
fn a_cancelled_stream_ends_at_once_and_its_lanes_are_used_again() {
    for depth in [1, 2, 5] {
        let begun = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&begun);
        let mut fixture = fixture("", (2, depth, true), 20, move |_, lane, call| {
            counted.fetch_add(1, Relaxed);
            while emit(lane, &call, &[1]) {}
            none(lane, call)
        });
        fixture.wait_for_lanes(2);
        assert_eq!(fixture.next().unwrap(), Some(vec![1]));
        assert_eq!(fixture.put, 2 * depth as i64);
        let caller = Caller::new(&fixture.group, 1);
        fixture.group.cancel();
        let error = fixture.map.next(caller).unwrap_err();
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        let Fixture { map, library, .. } = fixture;
        drop(map);
        while library.pool.stats().idle < 2 && library.pool.stats().discarded == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((library.pool.stats().idle, library.pool.stats().discarded), (2, 0), "depth {depth}");
        assert_eq!(begun.load(Relaxed), 2, "what nobody wants any more was begun");
    }
}

#[test]
fn guests_that_lie_lose_their_lanes() {
    let lies: [fn(&mut GuestLane, Call) -> bool; 3] = [
        // Rows without types.
        |lane, call| {
            lane.succeed(call.with_rows(1), &ColumnBuilder::new(&DataType::BigInt), Mishaps::default())
                .is_ok()
        },
        // Types that are none.
        |lane, call| {
            let Numbers(column, _) = numbers(&[1], "m");
            lane.succeed(call.with_rows(1), &Numbers(column, "(STRUCT(".into()), Mishaps::default()).is_ok()
        },
        // Types of something else.
        |lane, call| {
            let Numbers(column, _) = numbers(&[1], "m");
            let types = "(STRUCT(a VARCHAR))".into();
            lane.succeed(call.with_rows(1), &Numbers(column, types), Mishaps::default()).is_ok()
        },
    ];
    for lie in lies {
        let mut fixture = fixture("", (1, 1, true), 3, move |_, lane, call| lie(lane, call));
        let error = fixture.next().unwrap_err().to_string();
        assert!(error.starts_with("f, batch 1: its worker wrote garbage: "), "{error}");
    }
}
