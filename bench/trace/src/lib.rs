//! Traces of real runs: replayed against the definition of the policy, and exported as timelines.
//!
//! `slackline run --trace` leaves a trace of each shard ([`slackline_core::trace`] says how it is made up). [`check`] replays them:
//! it counts clocks from the pushes itself, and holds every read and every apply against what the policy promises. It shares the
//! format with the server and nothing else, so a mistake in the server's rules is not made here again.
//!
//! | what is checked | under |
//! |---|---|
//! | a served reader at clock c sees every active worker's first c - s iterations | bsp (s = 0), ssp, essp, dssp (s = high) |
//! | the same, but for the b slowest | backup(b) |
//! | a reader sees its own pushes | all; they need only have arrived under buffer, and under a quorum that holds nobody |
//! | an apply is the mean of one whole clock, of gradients computed on the version before; clocks rise | bsp, backup |
//! | an apply has at least min(K, active) pushes, or was waited for a quarter of a second, and waits for the grace | quorum, buffer |
//! | each push makes one version, alone | ssp, essp, dssp, asp |
//! | versions rise by one; no push is applied twice; one that was dropped never is; staleness is as stated | all |
//! | nothing by a worker after its end; a joiner enters at the minimum and gates nobody before its first push | all |
//! | a push is answered by every shard, the last one of a worker that died aside | all |
//!
//! [`export`] makes a timeline of them that Perfetto and Chrome show.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod breach;
mod check;
mod export;
mod files;
mod numbers;
#[cfg(test)]
mod script;

pub use breach::{Breach, Law};
pub use check::{Checked, ShardChecked, check};
pub use export::{EXPORT_BYTES, Exported, export};
pub use files::{Ending, TraceError};
