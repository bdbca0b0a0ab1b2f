//! A stream through a function that sees the whole stream. The guest is a thread of this process. The
//! tests check when the guest gets batches, how many are sent ahead, and how the stream ends.

use crosslane::call::{CallGroup, Caller, Iteration, LONGEST_ANSWER, MapInput, MapStep};
use crosslane::{ColumnBuilder, DataType, Entry, Error, Failure, Function, FunctionSpec, Library};
use crosslane_process::guest::{Call, Emitted, GuestLane, Next, RowCounts};
use crosslane_process::testing::Guests;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

fn table() -> DataType {
    "STRUCT(n BIGINT)".parse().unwrap()
}

fn numbers(values: &[i64]) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&table());
    values.iter().for_each(|value| {
        column.children[0].fixed(*value);
        column.nested().unwrap();
    });
    column
}

struct Fixture {
    iteration: Iteration<Guests>,
    library: Arc<Library<Guests>>,
    group: CallGroup,
    /// The number of batches that the iteration got so far, and the number of all batches.
    put: Arc<AtomicU64>,
    all: u64,
}

fn fixture(
    options: &str,
    depth: usize,
    all: u64,
    guest: impl Fn(u64, &mut GuestLane, Call) -> bool + Send + Sync + 'static,
) -> Fixture {
    let spec = format!(
        r#"{{"signature": "f(rows TABLE(n BIGINT)) -> TABLE(n BIGINT)", "kind": "stream", "iterates": true,
            "admits_null": [true]{options}}}"#
    );
    let spec: FunctionSpec = serde_json::from_str(&spec).unwrap();
    let pool = Guests::new(4096, guest).pool(1);
    let functions = vec![Arc::new(Function::new(0, spec).unwrap())];
    let function = Arc::clone(&functions[0]);
    let library = Arc::new(Library { name: "fake".into(), version: 1, functions, pool });
    let iteration = Iteration::new(Arc::clone(&library), function, depth).unwrap();
    Fixture { iteration, library, group: CallGroup::default(), put: Arc::default(), all }
}

impl Fixture {
    /// The next results. Batch n of the input is the number n.
    fn next(&mut self) -> Result<Option<Vec<i64>>, Error> {
        loop {
            match self.iteration.next(Caller::new(&self.group, 1))? {
                MapStep::Done => return Ok(None),
                MapStep::Output(column, first) => {
                    return Ok(Some((first..column.rows).map(|row| column.children[0].value(row)).collect()));
                }
                MapStep::Wants => {}
            }
            if self.put.load(Relaxed) == self.all {
                self.iteration.end();
            } else {
                let n = self.put.fetch_add(1, Relaxed) as i64 + 1;
                self.iteration.put(MapInput { rows: 1, content: Box::new(numbers(&[n])) });
            }
        }
    }

    fn rest(&mut self) -> Result<Vec<i64>, Error> {
        let mut rows = Vec::new();
        while let Some(more) = self.next()? {
            rows.extend(more);
        }
        Ok(rows)
    }

    fn error(&mut self) -> String {
        self.rest().unwrap_err().to_string()
    }
}

/// The number of the next batch. `None` at the end, or when the engine wants no more results.
fn pull(lane: &mut GuestLane, call: &mut Call) -> Option<i64> {
    assert_eq!(call.entry(), Some(Entry::Iterate));
    let Ok(Next::Call(next)) = lane.more(call, || false) else { return None };
    *call = next;
    if next.is_last() {
        return None;
    }
    let table = table();
    let columns = lane.columns(std::iter::once(&table)).unwrap();
    Some(columns[0].children[0].value(0))
}

fn emit(lane: &mut GuestLane, call: &Call, values: &[i64]) -> bool {
    matches!(lane.emit(call, values.len(), &numbers(values), || false), Ok(Emitted::Sent))
}

fn end(lane: &mut GuestLane, call: Call) -> bool {
    lane.succeed(call.with_rows(0), &(), RowCounts::default()).is_ok()
}

#[test]
fn a_function_answers_when_it_likes() {
    for depth in [1, 2, 5] {
        let mut fixture = fixture("", depth, 100, |_, lane, mut call| {
            let mut sum = 0;
            while let Some(n) = pull(lane, &mut call) {
                sum += n;
                if n % 10 == 0 {
                    let sent =
                        emit(lane, &call, &[n; 3]) && emit(lane, &call, &[]) && emit(lane, &call, &[-n]);
                    assert!(sent);
                }
            }
            emit(lane, &call, &[sum]) && end(lane, call)
        });
        let tens = (1..=10).flat_map(|n| [n * 10, n * 10, n * 10, n * -10]);
        let expected: Vec<i64> = tens.chain([5050]).collect();
        assert_eq!(fixture.rest().unwrap(), expected, "with a depth of {depth}");
        let totals = fixture.library.functions[0].stats.totals();
        assert_eq!((totals.calls.get(), totals.rows.get()), (1, 41));
        assert!(fixture.next().unwrap().is_none());
        assert_eq!(fixture.library.pool.stats().busy, 0);
    }
}

#[test]
fn a_function_is_called_for_an_input_without_batches() {
    let mut fixture = fixture("", 2, 0, |_, lane, mut call| {
        assert!(pull(lane, &mut call).is_none());
        emit(lane, &call, &[7]) && end(lane, call)
    });
    assert_eq!(fixture.rest().unwrap(), [7]);
}

/// After each batch, the guest reads how many batches the test has made. A batch is made only when the
/// engine asks for it. So there are never more than the depth allows.
#[test]
fn no_more_batches_are_sent_ahead_than_the_depth() {
    for depth in [1, 3] {
        let made: Arc<AtomicU64> = Arc::default();
        let (seen, furthest) = (Arc::clone(&made), Arc::new(AtomicU64::new(0)));
        let most = Arc::clone(&furthest);
        let mut fixture = fixture("", depth, 50, move |_, lane, mut call| {
            while let Some(n) = pull(lane, &mut call) {
                thread::sleep(Duration::from_millis(2));
                most.fetch_max(seen.load(Relaxed) - n as u64, Relaxed);
            }
            end(lane, call)
        });
        fixture.put = made;
        assert_eq!(fixture.rest().unwrap(), [0; 0]);
        // The test makes one batch while the engine waits until it may send that batch.
        assert!(furthest.load(Relaxed) <= depth as u64, "{furthest:?} of {depth}");
    }
}

/// Results fill the ring while the input is still open, and both sides go on.
#[test]
fn many_batches_go_in_both_directions() {
    let mut fixture = fixture("", 2, 200, |_, lane, mut call| {
        while let Some(n) = pull(lane, &mut call) {
            if !(0..20).all(|_| emit(lane, &call, &[n; 30])) {
                break;
            }
        }
        end(lane, call)
    });
    let rows = fixture.rest().unwrap();
    assert_eq!((rows.len(), rows.iter().sum::<i64>()), (200 * 600, 20_100 * 600));
}

#[test]
fn a_function_may_end_before_its_input() {
    let mut fixture = fixture("", 2, 1000, |_, lane, mut call| {
        let first = pull(lane, &mut call).unwrap();
        emit(lane, &call, &[first]) && end(lane, call)
    });
    assert_eq!(fixture.rest().unwrap(), [1]);
    // The engine drops the batches that it had sent to the function. The lane serves the next stream.
    let function = Arc::clone(&fixture.library.functions[0]);
    fixture.iteration = Iteration::new(Arc::clone(&fixture.library), function, 2).unwrap();
    fixture.put.store(10, Relaxed);
    assert_eq!(fixture.rest().unwrap(), [11]);
    assert_eq!(fixture.library.pool.stats().booted, 1);
}

#[test]
fn a_failure_ends_it_and_the_lane_stays() {
    let mut fixture = fixture("", 2, 1000, |_, lane, mut call| {
        let first = pull(lane, &mut call).unwrap();
        let failure = Failure { class: "Bad".into(), message: "luck".into(), ..Failure::default() };
        emit(lane, &call, &[first]) && lane.fail(call, &failure, None).is_ok()
    });
    assert_eq!(fixture.next().unwrap(), Some(vec![1]));
    assert_eq!(fixture.error(), "f: Bad: luck");
    drop(fixture.iteration);
    assert_eq!((fixture.library.pool.stats().busy, fixture.library.pool.stats().discarded), (0, 0));
}

#[test]
fn dropping_a_stream_ends_its_function_in_any_state() {
    // In the first case the guest waits for input. In the second case it waits for room.
    for waits in [true, false] {
        let ended: Arc<AtomicUsize> = Arc::default();
        let count = Arc::clone(&ended);
        let mut fixture = fixture("", 2, 1, move |_, lane, mut call| {
            let n = pull(lane, &mut call).unwrap();
            assert!(emit(lane, &call, &[n]));
            if waits {
                // The engine does not say that this batch was the last.
                while pull(lane, &mut call).is_some() {}
            } else {
                while emit(lane, &call, &[n; 50]) {}
            }
            count.fetch_add(1, Relaxed);
            end(lane, call)
        });
        fixture.all = 2;
        assert!(fixture.next().unwrap().is_some());
        fixture.iteration = {
            let function = Arc::clone(&fixture.library.functions[0]);
            Iteration::new(Arc::clone(&fixture.library), function, 2).unwrap()
        };
        for _ in 0..1000 {
            if ended.load(Relaxed) == 1 {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(ended.load(Relaxed), 1);
        assert_eq!(fixture.library.pool.stats().discarded, 0);
    }
}

/// Cancelling a query ends the wait for a guest that does nothing.
#[test]
fn a_cancelled_query_waits_for_no_guest() {
    let mut fixture = fixture("", 2, 1, |_, _, _| {
        loop {
            thread::park();
        }
    });
    thread::scope(|scope| {
        let group = std::mem::take(&mut fixture.group);
        let group = Arc::new(group);
        let other = Arc::clone(&group);
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(50));
            other.cancel();
        });
        let error = loop {
            match fixture.iteration.next(Caller::new(&group, 1)) {
                Ok(MapStep::Wants) => fixture.iteration.end(),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Cancelled { .. }), "{error}");
    });
}

#[test]
fn a_guest_that_is_late_is_given_up_but_not_for_its_input() {
    let pulled: Arc<AtomicU64> = Arc::default();
    let seen = Arc::clone(&pulled);
    let mut fixture = fixture(r#", "timeout": 0.2"#, 2, 3, move |_, lane, mut call| {
        while let Some(n) = pull(lane, &mut call) {
            pulled.store(n as u64, Relaxed);
            // The guest works on each batch, though not for long.
            thread::sleep(Duration::from_millis(50));
            if n == 3 {
                thread::sleep(Duration::from_secs(30));
            }
        }
        end(lane, call)
    });
    // The input takes longer than the function's timeout.
    let caller = Caller::new(&fixture.group, 1);
    assert!(matches!(fixture.iteration.next(caller).unwrap(), MapStep::Wants));
    thread::sleep(Duration::from_millis(400));
    fixture.put.store(1, Relaxed);
    fixture.iteration.put(MapInput { rows: 1, content: Box::new(numbers(&[1])) });
    let error = fixture.rest().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert_eq!(seen.load(Relaxed), 3);
}

#[test]
fn empty_batches_are_no_progress() {
    let mut fixture = fixture(r#", "timeout": 0.2"#, 2, 1, |_, lane, mut call| {
        pull(lane, &mut call);
        while emit(lane, &call, &[]) {}
        end(lane, call)
    });
    let error = fixture.rest().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

#[test]
fn a_lane_that_died_before_it_began_is_replaced() {
    // The first guest takes no batch, and its lane ends.
    let mut fixture = fixture("", 2, 3, |guest, lane, mut call| {
        if guest == 1 {
            return false;
        }
        let mut all = Vec::new();
        while let Some(n) = pull(lane, &mut call) {
            all.push(n);
        }
        emit(lane, &call, &all) && end(lane, call)
    });
    let before = fixture.library.pool.check_out(|| false).unwrap().unwrap();
    drop(before);
    // The second guest gets all batches, because the first one had begun none.
    let error = fixture.rest();
    assert!(error.is_ok_and(|rows| rows == [1, 2, 3]));
}

#[test]
fn a_guest_that_lies_is_found_out() {
    type Lie = fn(&mut GuestLane, Call) -> bool;
    let lies: [(Lie, &str); 3] = [
        (|lane, call| emit(lane, &call, &vec![1; LONGEST_ANSWER + 1]), "are the most"),
        (
            |lane, call| {
                let text: DataType = "VARCHAR".parse().unwrap();
                let mut column = ColumnBuilder::new(&text);
                column.bytes(b"x").unwrap();
                matches!(lane.emit(&call, 1, &column, || false), Ok(Emitted::Sent))
            },
            "garbage",
        ),
        (
            |lane, mut call| {
                // This message belongs to an exchange that does not exist.
                call.header.exchange += 1;
                end(lane, call)
            },
            "garbage",
        ),
    ];
    for (lie, told) in lies {
        let mut fixture = fixture("", 2, 1, move |_, lane, mut call| {
            pull(lane, &mut call);
            lie(lane, call)
        });
        let error = fixture.error();
        assert!(error.contains(told), "{error}");
        drop(fixture.iteration);
        assert_eq!(fixture.library.pool.stats().busy, 0);
    }
}
