//! Inputs of cargo-fuzz for `handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("handshake", bytes));
