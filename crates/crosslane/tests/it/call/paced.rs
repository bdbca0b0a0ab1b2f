//! Functions with a rate.

use super::fake::*;
use crosslane::call::CallGroup;
use crosslane::{Error, Function, FunctionSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[test]
fn rows_are_called_no_more_often_than_the_rate_says() {
    let fixture = fixture(r#", "rate": "200/s""#, false, |_, _| Act::Double);
    let begun = Instant::now();
    // 200 calls may be saved up.
    assert_eq!(fixture.call(0..221).unwrap(), doubled(0..221));
    assert!(begun.elapsed() >= Duration::from_millis(100));
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
fn rows_that_wait_for_their_time_are_cancelled() {
    let mut fixture = fixture(r#", "rate": "1/h""#, false, |_, _| Act::Double);
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (ends, was_asked) = (Arc::clone(&stop), Arc::clone(&asked));
    fixture.group = Arc::new(CallGroup::with_stop(move || {
        was_asked.store(true, Relaxed);
        ends.load(Relaxed)
    }));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| fixture.call(0..2));
        while !asked.load(Relaxed) {
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
        assert!(matches!(call.join().unwrap(), Err(Error::Cancelled { .. })));
    });
    let stats = fixture.library.pool.stats();
    assert_eq!((stats.busy, stats.discarded), (0, 0));
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
