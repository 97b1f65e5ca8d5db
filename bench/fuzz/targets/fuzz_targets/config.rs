//! Inputs of cargo-fuzz for `config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("config", bytes));
