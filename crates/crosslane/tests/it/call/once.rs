//! Equal rows are called once, and kept results not at all.

use super::fake::*;

fn results(values: &[i64]) -> Vec<Option<i64>> {
    values.iter().map(|value| Some(2 * value)).collect()
}

#[test]
fn kept_results_need_no_call() {
    let (fixture, called) = logged(r#", "memoize": 1000000"#, |_| Act::Double);
    for (values, calls) in [
        (vec![3, 1, 3, 2, 1], vec![1, 2, 3]),
        (vec![2, 4, 3], vec![4]),
        (vec![4, 4], vec![]),
        (vec![], vec![]),
    ] {
        assert_eq!(fixture.call(values.clone()).unwrap(), results(&values));
        assert_eq!(called(), calls, "of {values:?}");
    }
    let counted = fixture.library.functions[0].stats.totals();
    assert_eq!((counted.rows.get(), counted.reused.get()), (4, 6));
}

#[test]
fn many_rows_come_back_in_their_places() {
    let (fixture, called) = logged(r#", "memoize": 100000000"#, |_| Act::Double);
    let values: Vec<i64> = (0..5000).map(|row| row * row % 1009).collect();
    assert_eq!(fixture.call(values.clone()).unwrap(), results(&values));
    let mut distinct = values.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(called(), distinct);
    assert_eq!(fixture.call(values.clone()).unwrap(), results(&values));
    assert!(called().is_empty());
}

#[test]
fn an_error_names_the_row_of_the_engine() {
    let (fixture, called) = logged(r#", "memoize": 1000000"#, |values| {
        values.iter().position(|value| *value == 7).map_or(Act::Double, Act::Raise)
    });
    let error = fixture.call([1, 1, 1, 7, 7]).unwrap_err().to_string();
    assert!(error.contains("in row 4 of the batch, with x = 7"), "{error}");
    called();
    // The function was called with one row first, to measure it. That result is kept.
    assert_eq!(fixture.call([1]).unwrap(), results(&[1]));
    assert!(called().is_empty());
    fixture.call([7]).unwrap_err();
    assert_eq!(called(), [7]);
}

#[test]
fn a_failed_call_is_not_kept() {
    let (fixture, called) = logged(r#", "memoize": 1000000, "on_error": "null""#, |values| {
        if values.contains(&7) { Act::Die } else { Act::Double }
    });
    for calls in [vec![1, 7], vec![7]] {
        assert_eq!(fixture.call([1, 7, 7]).unwrap(), [Some(2), None, None]);
        assert_eq!(called(), calls);
    }
}

#[test]
fn an_expensive_function_is_called_once_for_equal_rows() {
    let (fixture, called) = logged("", |_| Act::Slow);
    // This measures it.
    fixture.call(0..3).unwrap();
    called();
    assert_eq!(fixture.call([5, 6, 5, 5, 6]).unwrap(), results(&[5, 6, 5, 5, 6]));
    assert_eq!(called(), [5, 6]);
    // Nothing is kept.
    fixture.call([5, 5]).unwrap();
    assert_eq!(called(), [5]);
}

#[test]
fn other_functions_are_called_for_each_row() {
    for (options, act) in
        [(r#", "deterministic": false"#, (|| Act::Slow) as fn() -> Act), ("", || Act::Double)]
    {
        let (fixture, called) = logged(options, move |_| act());
        fixture.call(0..3).unwrap();
        called();
        fixture.call([5, 5, 5]).unwrap();
        assert_eq!(called(), [5, 5, 5]);
    }
}
