//! Inputs of cargo-fuzz for `recorded`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("recorded", bytes));
