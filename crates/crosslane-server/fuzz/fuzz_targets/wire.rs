//! A stream that is cut into messages. Run it with `make fuzz`.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|input: &[u8]| common::garbage::wire(input));
