//! Inputs of cargo-fuzz for `results`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("results", bytes));
