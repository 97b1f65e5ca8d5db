//! Inputs of cargo-fuzz for `log`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("log", bytes));
