//! Inputs of cargo-fuzz for `keys`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("keys", bytes));
