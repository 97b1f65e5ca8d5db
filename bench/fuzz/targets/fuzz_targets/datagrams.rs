//! Inputs of cargo-fuzz for `datagrams`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("datagrams", bytes));
