//! Inputs of cargo-fuzz for `part`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("part", bytes));
