//! Encodes and decodes values without V8.

use crate::codec::{Decoder, encode};
use magnus::value::ReprValue;
use magnus::{Value, eval};

fn evaluate(text: &str) -> Value {
    eval(&format!("# encoding: utf-8\n{text}")).expect("an expression")
}

fn what_is_sent_comes_back() {
    for text in [
        "true",
        "false",
        "0",
        "-2**31",
        "2**31",
        "-(2**53)",
        "0.5",
        "Float::INFINITY",
        "''",
        "'\u{1F980} ä'",
        "\"\\xFF\\x00\".b",
        "[1, ['two', [3.5]], {}]",
        "{ 'a' => { 'b' => [false] } }",
        "Time.at(1_700_000_000, 250, :millisecond).utc",
    ] {
        let value = evaluate(text);
        let mut encoded = Vec::new();
        encode(value, 0, &mut encoded).expect("a value that V8 has too");
        let mut decoder = Decoder(&encoded);
        let decoded = decoder.value(0).expect("what was encoded");
        assert!(decoder.0.is_empty(), "{text}: {} bytes too many", decoder.0.len());
        assert!(value.eql(decoded).expect("comparable"), "{decoded:?} instead of {value:?}");
        // A truncated value is an error, wherever it is cut.
        for length in 0..encoded.len() {
            assert!(Decoder(&encoded[..length]).value(0).is_err(), "{text}: {length} bytes are enough");
        }
    }
}

/// The process of a context may send anything.
fn what_is_no_value_is_an_error() {
    let deep = [6, 1, 0, 0, 0].repeat(100_000);
    let long = [6, 255, 255, 255, 255, 1];
    for encoded in [&deep[..], &long, &[]] {
        assert!(Decoder(encoded).value(0).is_err());
    }
}

fn what_javascript_has_not_is_refused() {
    for (text, why) in [
        ("Object.new", "a Object cannot be passed"),
        ("a = []; a << a; a", "contains itself"),
        ("h = {}; h[:h] = h; h", "contains itself"),
    ] {
        let value = evaluate(text);
        let error = encode(value, 0, &mut Vec::new()).expect_err(text);
        assert!(error.to_string().contains(why), "{text}: {error}");
    }
}

/// One thread must start and use the VM, so all tests are in this one.
#[test]
fn codec() {
    // SAFETY: the VM is begun once, and lives as long as this frame.
    let _vm = unsafe { magnus::embed::init() };
    what_is_sent_comes_back();
    what_javascript_has_not_is_refused();
    what_is_no_value_is_an_error();
}
