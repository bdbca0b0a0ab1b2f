//! Streams over lanes of a pool, whose guests are threads of this process: which batch goes where, in which order results
//! come, and what becomes of batches whose lane is lost.

use crosslane::batch::{Body, Column, Encode, Plan};
use crosslane::call::{CallGroup, Caller, Map, MapInput, MapOptions, MapStep, map_types};
use crosslane::pool::{self, Pool, PoolOptions};
use crosslane::{ColumnBuilder, DataType, Entry, Error, Failure, Function, FunctionSpec, Library};
use crosslane_process::ProcessLane;
use crosslane_process::guest::{Call, Emitted, GuestLane, Mishaps, Next};
use crosslane_process::testing::both_ends;
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

type Guest = dyn Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync;

struct Guests {
    guest: Arc<Guest>,
    booted: u64,
}

impl pool::Zygote for Guests {
    type Lane = ProcessLane;

    fn boot(&mut self) -> Result<ProcessLane, Error> {
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
    let spec = format!(
        r#"{{"signature": "f(rows TABLE) -> TABLE", "kind": "stream", "admits_null": [true]{options}}}"#
    );
    let spec: FunctionSpec = serde_json::from_str(&spec).unwrap();
    let guests = Guests { guest: Arc::new(guest), booted: 0 };
    let warm = PoolOptions { warm: lanes, idle_timeout: Duration::from_secs(600) };
    let (pool, ()) = Pool::start(warm, move |_| Ok((guests, ()))).unwrap();
    let functions = vec![Arc::new(Function::new(0, spec).unwrap())];
    let function = Arc::clone(&functions[0]);
    let library = Arc::new(Library { name: "fake".into(), version: 1, functions, pool });
    let map = Map::new(Arc::clone(&library), function, MapOptions { lanes, depth, ordered }).unwrap();
    Fixture { map, library, group: CallGroup::default(), put: 0, all }
}

impl Fixture {
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
        let sent = last(lane, call, &[n]);
        // The engine takes it before the other begins to answer.
        thread::sleep(Duration::from_millis(200));
        both.wait();
        sent
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

/// The guest of a batch ends its thread, and so its lane, after some rows of it; that of another try goes on.
fn dies_at(at: i64, after: usize) -> impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync {
    let tries = AtomicU64::new(0);
    move |_, lane, call| {
        let n = read(lane, &call);
        let rows = [10 * n, 10 * n + 1, 10 * n + 2];
        if n == at && tries.fetch_add(1, Relaxed) == 0 {
            rows[..after].iter().all(|row| emit(lane, &call, &[*row]));
            // What was sent is taken before the death is seen.
            thread::sleep(Duration::from_millis(100));
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

#[test]
fn a_cancelled_stream_ends_at_once_and_its_lanes_are_used_again() {
    let mut fixture = fixture("", (2, 1, true), 20, |_, lane, call| {
        while emit(lane, &call, &[1]) {}
        none(lane, call)
    });
    assert_eq!(fixture.next().unwrap(), Some(vec![1]));
    let caller = Caller::new(&fixture.group, 1);
    fixture.group.cancel();
    let error = fixture.map.next(caller).unwrap_err();
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    let Fixture { map, library, .. } = fixture;
    drop(map);
    while library.pool.stats().idle < 2 {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(library.pool.stats().discarded, 0);
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
