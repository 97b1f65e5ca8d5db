//! Inputs of cargo-fuzz for `payload`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("payload", bytes));
