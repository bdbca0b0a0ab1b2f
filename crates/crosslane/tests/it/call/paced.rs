//! Functions with a rate.

use super::fake::*;
use crosslane::call::CallGroup;
use crosslane::{Error, Function, FunctionSpec};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

#[test]
fn rows_that_have_waited_come_back_in_their_places() {
    let fixture = fixture(r#", "rate": "2000/s""#, false, |_, _| Act::Double);
    assert_eq!(fixture.call(0..50).unwrap(), doubled(0..50));
}

#[test]
fn an_error_names_the_row_of_the_engine() {
    let fixture = fixture(r#", "rate": "1000/s""#, false, |_, values| {
        values.iter().position(|value| *value == 7).map_or(Act::Double, Act::Raise)
    });
    let error = fixture.call(3..10).unwrap_err().to_string();
    assert!(error.contains("in row 5 of the batch, with x = 7"), "{error}");
}

#[test]
fn rows_wait_for_their_time_and_are_cancelled() {
    let called = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&called);
    let mut fixture = fixture(r#", "rate": "1/h""#, false, move |_, values| {
        log.lock().unwrap().extend_from_slice(values);
        Act::Double
    });
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (ends, was_asked) = (Arc::clone(&stop), Arc::clone(&asked));
    let first = Arc::clone(&called);
    fixture.group = Arc::new(CallGroup::with_stop(move || {
        was_asked.store(!first.lock().unwrap().is_empty(), Relaxed);
        ends.load(Relaxed)
    }));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| fixture.call(0..3));
        while !asked.load(Relaxed) && !call.is_finished() {
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
        assert!(matches!(call.join().unwrap(), Err(Error::Cancelled { .. })));
    });
    // One row may begin at once, and the others wait.
    assert_eq!(*called.lock().unwrap(), [0]);
    let stats = fixture.library.pool.stats();
    assert_eq!((stats.busy, stats.discarded), (0, 0));
}

#[test]
fn a_call_without_a_lane_does_not_count() {
    let mut fixture = fixture(r#", "rate": "1/h""#, false, |_, _| Act::Double);
    // Both lanes are there, so no lane is being made.
    fixture.refuses.store(true, Relaxed);
    let lanes = [(); 2].map(|()| fixture.library.pool.check_out(|| false).unwrap().unwrap());
    // It is cancelled as soon as it waits for a lane.
    fixture.group = Arc::new(CallGroup::with_stop(|| true));
    assert!(matches!(fixture.call(0..1), Err(Error::Cancelled { .. })));
    fixture.group = Arc::default();
    lanes.into_iter().for_each(|lane| lane.give_back());
    // The only call of an hour.
    assert_eq!(fixture.call(0..1).unwrap(), doubled(0..1));
}

#[test]
fn rates_that_cannot_be_are_errors() {
    for (options, message) in [
        (r#""rate": "often""#, "rate is a number of calls such as \"50/s\""),
        (r#""rate": "5/s", "calling": "vectorized""#, "rate is for scalar functions"),
        (r#""rate": "5/s", "kind": "aggregate""#, "rate is for scalar functions"),
    ] {
        let text = format!(r#"{{"signature": "f(x BIGINT) -> BIGINT", "admits_null": [false], {options}}}"#);
        let spec: FunctionSpec = serde_json::from_str(&text).unwrap();
        let error = Function::new(0, spec).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
