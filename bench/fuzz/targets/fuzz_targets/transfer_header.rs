//! Inputs of cargo-fuzz for `transfer_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("transfer_header", bytes));
