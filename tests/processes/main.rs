//! Real processes over real QUIC: the program as its users meet it, from the first key to the last exit code.
//!
//! Every test has a [`stage::Stage`] of its own: a folder, the processes started in it, all they said. Nothing waits by the clock:
//! a test waits for a line of output, an answer to `slackline status` or the end of a process, and fails with everything that all
//! its processes said when that does not come in time.
#![allow(clippy::unwrap_used)]

mod allreduce;
mod bad_gradients;
mod by_hand;
mod chaos;
mod cluster;
mod codecs;
mod comparisons;
mod configurations;
mod crowds;
mod deaths;
mod disagreements;
mod endings;
mod full_disks;
mod guards;
mod keys;
mod last_evaluation;
mod losses;
mod lossy_links;
mod membership;
mod order;
mod partial;
mod peer;
mod process;
#[cfg(target_os = "linux")]
mod processors;
mod resume;
mod runs;
mod servers;
mod shards;
mod stage;
mod stops;
mod strangers;
mod traces;
mod virtual_time;
