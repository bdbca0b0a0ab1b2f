//! Streams whose lanes die, are late or lie, and whose readers leave.

use super::fixture::*;
use crosslane::call::Caller;
use crosslane::{ColumnBuilder, DataType, Error, Failure};
use crosslane_process::guest::{Call, GuestLane, RowCounts};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

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
    // The function may give other rows at the second try, but no rows were delivered before.
    let mut fixture = fixture(random, (2, 2, true), 20, dies_at(5, 0));
    assert!(fixture.rest().1.is_none());
    let mut fixture = fixture_null();
    let (rows, error) = fixture.rest();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(rows.len(), 20 * 3 - 1, "all but the third of its rows");
    assert_eq!(fixture.library.functions[0].stats.totals().errors.get(), 1);
}

/// The results are in order. All lanes are full of later batches, whose results wait in the rings.
#[test]
fn a_failed_batch_does_not_wait_for_later_batches() {
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

/// A guest that waits for room is not late, however slow the consumer is.
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

/// In the first case, the guest works on the only batch of its lane. In the others, the cancel is behind
/// other batches.
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
        // These rows have no types.
        |lane, call| {
            lane.succeed(call.with_rows(1), &ColumnBuilder::new(&DataType::BigInt), RowCounts::default())
                .is_ok()
        },
        // These types cannot be parsed.
        |lane, call| {
            let Numbers(column, _) = numbers(&[1], "m");
            lane.succeed(call.with_rows(1), &Numbers(column, "(STRUCT(".into()), RowCounts::default()).is_ok()
        },
        // These types belong to other columns.
        |lane, call| {
            let Numbers(column, _) = numbers(&[1], "m");
            let types = "(STRUCT(a VARCHAR))".into();
            lane.succeed(call.with_rows(1), &Numbers(column, types), RowCounts::default()).is_ok()
        },
    ];
    for lie in lies {
        let mut fixture = fixture("", (1, 1, true), 3, move |_, lane, call| lie(lane, call));
        let error = fixture.next().unwrap_err().to_string();
        assert!(error.starts_with("f, batch 1: its worker wrote garbage: "), "{error}");
    }
}
