//! Inputs of cargo-fuzz for `journal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("journal", bytes));
