//! Slices that fail, are late, or are lost with their lanes.

use super::fake::*;
use crosslane::Error;
use crosslane::call::{CallGroup, CallGroups};
use crosslane::stats::now;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn what_fails_in_a_slice_is_blamed_on_its_row_of_the_batch() {
    // The first row of the second slice, its last row, and a row in the middle of the last slice.
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
    // The guest ended at the first row of the slice.
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
        // This is longer than the engine's interval between two checks.
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
    // Another slice may have been in flight on the lane of the failed one. That lane is not given
    // back.
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
        // Lane 1 or 2 ends, and the other one ends with it. The third try is on a lane of a new
        // process.
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
    // At row 1000 the function's cost is known, and both lanes are at work.
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
fn a_malformed_reply_of_a_dead_lane_is_handled_once() {
    let fixture = fixture(r#", "on_error": "null""#, false, |_, _| Act::DieWithGarbage);
    let results =
        ends(move || (fixture.call(0..1), fixture.library.functions[0].stats.totals().deaths.get()));
    assert_eq!((results.0.unwrap(), results.1), (vec![None], 1));
}

#[test]
fn slices_that_no_lane_has_begun_are_sent_again_without_a_retry() {
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
fn slices_that_may_have_begun_on_a_lost_lane_are_sent_again_only_if_that_is_allowed() {
    // The first two slices are on the first lane when that lane is lost.
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
fn slices_that_a_late_lane_has_not_begun_are_sent_again_if_that_is_known() {
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
    // A cancellation up to an earlier time has no effect. A time in the future counts as now.
    let begun = now();
    second.group = groups.of(2, |_| false);
    groups.cancel_all_before(begun - 1);
    assert!(!second.group.should_end(begun));
    groups.cancel_all_before(u64::MAX);
    assert!(second.group.should_end(begun) && !second.group.should_end(now()));
    // The call is cancelled although it does not wait for long.
    assert!(matches!(second.call_of(begun, 0..5), Err(Error::Cancelled { .. })));
    assert_eq!(second.call(0..5).unwrap(), doubled(0..5));
    drop(second);
    assert!(!groups.cancel(3), "a connection without calls");
}

/// A lane that the engine has given up may still take the batches in its ring.
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

/// A scalar call would be made again, because its lane may not be the cause of the process's end.
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
