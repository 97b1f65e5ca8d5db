//! Benchmarks of Slackline: criterion micro-benches and loopback throughput.
