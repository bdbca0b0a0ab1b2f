//! A server that keeps no promise. Run it with `make fuzz`.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|input: &[u8]| common::garbage::answers(input));
