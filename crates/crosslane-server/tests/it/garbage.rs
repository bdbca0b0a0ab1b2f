//! Whatever the other side sends, each side reads messages or errors. The inputs are those that the
//! fuzzers have found (`fuzz/corpus`), and the same with a few bytes changed, cut or doubled.

use crate::common::garbage::{answers, client, wire};
use crosslane_process::testing::Random;
use std::fs;

/// The inputs that the fuzzers keep for a target.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} is empty");
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

fn changed(known: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = known[random.below(known.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len());
        match random.below(5) {
            0 => input.truncate(at),
            1 => {
                let other = &known[random.below(known.len())];
                input.extend_from_slice(&other[random.below(other.len())..]);
            }
            2 => input.insert(at, random.next() as u8),
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = [0, 1, 0xFF, random.next() as u8][random.below(4)];
                }
            }
        }
    }
    input
}

fn run(target: &str, rounds: usize, body: fn(&[u8])) {
    let (known, mut random) = (corpus(target), Random(1));
    known.iter().for_each(|input| body(input));
    (0..rounds).for_each(|_| body(&changed(&known, &mut random)));
}

#[test]
fn a_stream_is_cut_into_the_same_messages_however_it_comes() {
    run("wire", 20_000, wire);
}

#[test]
fn a_client_that_keeps_no_promise_ends_alone() {
    run("client", 1_000, client);
}

#[test]
fn a_server_that_keeps_no_promise_is_an_error() {
    run("answers", 300, answers);
}
