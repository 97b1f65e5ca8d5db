//! Inputs of cargo-fuzz for `trace`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("trace", bytes));
