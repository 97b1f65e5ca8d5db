//! Inputs of cargo-fuzz for `manifest`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("manifest", bytes));
