//! Experiments: sweeps over configurations, their expectations, tables and reports.
//!
//! Read in this order: `document` and `fields` (TOML with lines), `axis`, `tune`, `derived`, `expect` (what a sweep file says),
//! `sweep` (the whole of it), `plan` (laid over the base configuration and checked), `execute` (made, with whatever is there
//! already), `column`, `judge`, `results` (the tables and verdicts), `report` (drawn). How a run is made is the
//! program's part: the trait `Runner`. [`compare`] builds on all of it: contestants under conditions, and who wins.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod axis;
mod column;
pub mod compare;
mod derived;
mod document;
mod execute;
mod expect;
mod fields;
mod judge;
mod names;
mod plan;
mod problem;
mod report;
mod results;
mod state;
mod sweep;
#[cfg(test)]
mod tests;
mod tune;

pub use column::{Better, Column};
pub use execute::{Execution, RunFailure, Runner, Watch, execute};
pub use judge::{Verdict, short};
pub use plan::{Overlay, Plan, Purpose, RunSpec};
pub use problem::SweepError;
pub use report::report;
pub use results::Results;
pub use state::LabError;
pub use sweep::Mode;

/// Runs of one sweep; more are a mistake in the file.
pub const RUNS_MAX: u64 = 20_000;
