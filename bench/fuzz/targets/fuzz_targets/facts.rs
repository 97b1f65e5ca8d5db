//! Inputs of cargo-fuzz for `facts`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("facts", bytes));
