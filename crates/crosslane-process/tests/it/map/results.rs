//! Streams: the engine sends batches, and takes their results.

use super::fixture::*;
use crosslane::call::{Caller, LONGEST_ANSWER, MapInput, MapStep};
use crosslane::catalog::{Catalog, Registration};
use crosslane::lane::COUNT;
use crosslane::{ColumnBuilder, Entry, Failure, Function};
use crosslane_process::guest::{Call, Emitted, GuestLane, RowCounts};
use crosslane_process::testing::Guests;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

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

/// The guest of the first batch ends that batch only when another guest has ended the second one.
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
        // The engine takes this result before the other guest begins to answer.
        taken(lane, &call);
        both.wait();
        none(lane, call)
    });
    assert_eq!(fixture.rest().0, [2, 1]);
}

/// With a depth of two, the second batch is in the ring while the guest works on the first.
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

/// The input gives its second batch only after the results of the first one were taken.
#[test]
fn a_thread_that_waits_for_the_input_can_take_results() {
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
fn an_endless_answer_waits_until_its_results_are_taken() {
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
    // The ring of each of the two lanes holds further results.
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

/// The function's options do not count for a failed set-up.
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

/// The row counts within the results of a batch, however many messages there are and however often the
/// batch was tried.
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
fn an_invalid_value_names_its_row_of_the_results() {
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
        lane.succeed(call.with_rows(1), &numbers(&[n], name), RowCounts::default()).is_ok()
    });
    let (rows, error) = fixture.rest();
    assert_eq!(rows, [1, 2]);
    let error = error.unwrap().to_string();
    assert!(error.contains("batch 3: InvalidResult: gave (STRUCT(b BIGINT))"), "{error}");
}

/// A function whose signature names the columns.
const DECLARED: &str = "f(rows TABLE(n BIGINT)) -> TABLE(m BIGINT)";

#[test]
fn batches_of_declared_columns_need_no_types() {
    let mut fixture = fixture_of(DECLARED, "", (1, 1, true), 4, |_, lane, call| {
        let n = read(lane, &call);
        let Numbers(column, _) = numbers(&[n], "m");
        match n {
            1 => lane.succeed(call.with_rows(1), &column, RowCounts::default()).is_ok(),
            2 => last(lane, call, &[n]),
            3 => none(lane, call),
            // A batch without rows has its columns all the same.
            _ => lane
                .succeed(call.with_rows(0), &ColumnBuilder::new(&column_type()), RowCounts::default())
                .is_ok(),
        }
    });
    assert_eq!(fixture.map.takes().unwrap().to_string(), "STRUCT(n BIGINT)");
    assert_eq!(fixture.map.returns().unwrap().to_string(), "STRUCT(m BIGINT)");
    let (rows, error) = fixture.rest();
    assert_eq!((rows, error.map(|error| error.to_string())), (vec![1, 2], None));
    let mut fixture = fixture_of(DECLARED, "", (1, 1, true), 4, |_, lane, call| {
        lane.succeed(call.with_rows(1), &numbers(&[1], "other"), RowCounts::default()).is_ok()
    });
    let error = fixture.next().unwrap_err().to_string();
    assert!(error.contains("batches have (STRUCT(m BIGINT))"), "{error}");
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
fn a_catalog_finds_streams_that_no_engine_registers() {
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
    // There is only one stream function of a name, whatever its columns are.
    publish("b", vec![function("f(rows TABLE(other DATE)) -> TABLE(n DATE)", "")]);
    assert_eq!(entry.current().unwrap().library.name, "b");
    assert_eq!(catalog.libraries().len(), 1);
    assert_eq!(catalog.forget("f").len(), 1);
    assert!(entry.current().err().unwrap().to_string().contains("was dropped"));
    assert!(catalog.libraries().is_empty());
}
