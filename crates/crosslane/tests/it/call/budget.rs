//! Functions with a budget.

use super::fake::*;
use crosslane::call::{self, Caller, Spent};
use crosslane::stats::now;
use crosslane::{Error, Function, FunctionSpec};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

impl Fixture {
    /// A call of a query that has made these calls before.
    fn call_within(&self, spent: &Spent, values: impl IntoIterator<Item = i64>) -> Result<(), Error> {
        let input = Values(values.into_iter().collect());
        let mut results = Results(vec![None; input.0.len()]);
        let caller = Caller::since(&self.group, 2, now()).spending(spent);
        call::call(&self.library, &self.library.functions[0], caller, &input, &mut results)
    }
}

#[test]
fn a_query_makes_no_more_calls_than_its_budget() {
    let (fixture, called) = logged(r#", "budget": 5"#, |_| Act::Double);
    let spent = Spent::default();
    fixture.call_within(&spent, 0..3).unwrap();
    let error = fixture.call_within(&spent, 3..6).unwrap_err().to_string();
    assert!(error.starts_with("f: the query has used up its budget of 5 calls"), "{error}");
    assert_eq!(called(), [0, 1, 2], "no row of the chunk is called, because not all can be");
    // Without a count, each call is a query of its own.
    for _ in 0..2 {
        assert_eq!(fixture.call(0..5).unwrap(), doubled(0..5));
    }
    assert!(matches!(fixture.call(0..6), Err(Error::OverBudget { budget: 5, .. })));
}

#[test]
fn threads_of_a_query_share_its_budget() {
    let (fixture, called) = logged(r#", "budget": 700"#, |_| Act::Double);
    let (spent, done) = (Spent::default(), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (fixture, spent, done) = (&fixture, &spent, &done);
            scope.spawn(move || {
                for value in 0..250 {
                    match fixture.call_within(spent, [thread * 250 + value]) {
                        Ok(()) => done.fetch_add(1, Relaxed),
                        Err(Error::OverBudget { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                }
            });
        }
    });
    assert_eq!((done.load(Relaxed), called().len()), (700, 700));
}

#[test]
fn kept_results_cost_nothing_and_each_query_comes_further() {
    let (fixture, called) = logged(r#", "budget": 5, "memoize": 1000000"#, |_| Act::Double);
    for calls in [vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9]] {
        assert!(matches!(fixture.call(0..12), Err(Error::OverBudget { .. })));
        assert_eq!(called(), calls);
    }
    assert_eq!(fixture.call(0..12).unwrap(), doubled(0..12));
    assert_eq!(called(), [10, 11]);
}

#[test]
fn rows_that_are_called_again_count() {
    let died = AtomicU64::new(0);
    let options = r#", "budget": 3, "retries": 1"#;
    let fixture = fixture(options, false, move |_, _| match died.fetch_add(1, Relaxed) {
        0 => Act::Die,
        _ => Act::Double,
    });
    let spent = Spent::default();
    // The first try of a row is lost with its lane.
    fixture.call_within(&spent, [1]).unwrap();
    fixture.call_within(&spent, [2]).unwrap();
    assert!(matches!(fixture.call_within(&spent, [3]), Err(Error::OverBudget { .. })));
}

#[test]
fn a_statement_begins_with_no_calls() {
    let (fixture, called) = logged(r#", "budget": 2"#, |_| Act::Double);
    let spent = Spent::default();
    for statement in 1..4 {
        spent.run(Some(statement));
        fixture.call_within(&spent, 0..2).unwrap();
        spent.run(Some(statement));
        assert!(matches!(fixture.call_within(&spent, [2]), Err(Error::OverBudget { .. })));
        assert_eq!(called(), [0, 1]);
    }
}

#[test]
fn budgets_that_cannot_be_are_errors() {
    for (options, message) in [
        (r#""budget": 0"#, "budget is 1 to 1000000000000000 calls, not 0"),
        (r#""budget": 5, "kind": "aggregate""#, "budget is for scalar functions"),
    ] {
        let text = format!(r#"{{"signature": "f(x BIGINT) -> BIGINT", "admits_null": [false], {options}}}"#);
        let spec: FunctionSpec = serde_json::from_str(&text).unwrap();
        let error = Function::new(0, spec).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
