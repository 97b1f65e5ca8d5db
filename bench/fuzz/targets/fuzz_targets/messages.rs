//! Inputs of cargo-fuzz for `messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackline_fuzz::call("messages", bytes));
