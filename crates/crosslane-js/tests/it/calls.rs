//! Calls with values of all sizes.

use crate::support::{call, call_with_texts, load};

#[test]
fn texts_of_all_lengths_come_back() {
    let text = "udf('f(x VARCHAR) -> VARCHAR', (x) => x);
        udf('v(x VARCHAR) -> VARCHAR', { vectorized: true }, (x) => x);
        udf('u(x VARCHAR) -> VARCHAR', (x) => x + x.length);";
    let mut fixture = load(text).unwrap();
    let long = "0123456789abc".repeat(100);
    let short = [Some(""), Some("a"), None, Some("ab"), Some("0123456789ab")];
    for function in 0..2 {
        for values in [
            &short[..],
            // Mostly long texts; no texts; texts that are not ASCII, or not Latin-1.
            &[Some("0123456789abc"), None, Some(&long), Some("a")],
            &[Some("a"), Some("b"), Some(&long), Some("0123456789abc"), Some("c"), Some(&long), Some("d")],
            &[],
            &[None],
            &[Some("a"), Some("\u{fc}"), Some("c")],
            &[Some("a"), Some("\u{20ac}\u{1f600}"), Some("\u{fc}"), Some("d")],
        ] {
            let expected: Vec<_> = values.iter().map(|value| value.map(String::from)).collect();
            assert_eq!(call_with_texts(&mut fixture.guest, function, values).unwrap(), expected);
        }
    }
    let lengths = call_with_texts(&mut fixture.guest, 2, &short).unwrap();
    assert_eq!(lengths[3..], [Some("ab2".into()), Some("0123456789ab12".into())]);
}

#[test]
fn a_stored_text_does_not_keep_its_batch_alive() {
    let text = "const kept = [];
        udf('keep(x VARCHAR) -> VARCHAR', { memory_limit: '20 MB' }, (x) => {
          if (x < '01') kept.push(x);
          return x;
        });";
    let mut fixture = load(text).unwrap();
    for kept in ["000000000000", "0000000000000"] {
        let mut values = [Some("111111111111"); 2048];
        values[0] = Some(kept);
        // The texts of all batches together take 37 MB.
        for _ in 0..1500 {
            call_with_texts(&mut fixture.guest, 0, &values).unwrap();
        }
    }
}

#[test]
fn integers_of_all_sizes_and_nulls_come_back() {
    let mut fixture = load("udf('f(x BIGINT) -> BIGINT', { bigint: true }, (x) => x);").unwrap();
    let values =
        [Some(0), Some(-1), None, Some(i64::MIN), Some(i64::MAX), Some(1 << 53), Some(-(1 << 31) - 1)];
    assert_eq!(call(&mut fixture.guest, 0, &values).unwrap(), values);
    assert_eq!(call(&mut fixture.guest, 0, &[]).unwrap(), []);
    assert_eq!(call(&mut fixture.guest, 0, &[None; 3]).unwrap(), [None; 3]);
}

#[test]
fn numbers_are_exact_or_refused() {
    let mut fixture = load("udf('f(x BIGINT) -> BIGINT', (x) => x + 1);").unwrap();
    let most = (1 << 53) - 2;
    for x in [0, -1, -2, 1 << 31, (1 << 31) - 1, -(1 << 31) - 1, 1 << 32, -(1 << 32), most, -most] {
        assert_eq!(call(&mut fixture.guest, 0, &[Some(x)]).unwrap(), [Some(x + 1)]);
    }
    let (message, row) = call(&mut fixture.guest, 0, &[Some(1), Some(1 << 60)]).unwrap_err();
    assert!(message.contains("beyond 2^53"), "{message}");
    assert_eq!(row, Some(1));
}
