//! Benchmarks of Slackline: criterion micro-benches in `benches/`, and the loopback throughput of whole processes here.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod loopback;
