//! A guest that writes garbage into its reply ring. Run it with `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| crosslane_process::testing::garbage_reply(input));
