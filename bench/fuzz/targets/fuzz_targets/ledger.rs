//! Inputs of cargo-fuzz for `ledger`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("ledger", bytes));
