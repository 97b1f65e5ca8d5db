//! Benchmarks of Slackline: criterion micro-benches in `benches/`, and the throughput of whole processes over the loopback device here: of
//! push and pull ([`loopback`]), and of allreduce ([`allreduce`]).
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod allreduce;
mod error;
pub mod loopback;
mod processes;
mod spread;

pub use error::BenchError;
pub use spread::Spread;
