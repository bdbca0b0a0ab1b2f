//! Whatever is sent, either side finds messages or errors: what the fuzzers have found (`fuzz/corpus`), and that with a few bytes
//! changed, cut or doubled.

mod common;

use common::garbage::{answers, client, wire};
use std::fs;

struct Random(u64);

impl Random {
    /// splitmix64 (G. Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// What the fuzzers keep for a target.
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
