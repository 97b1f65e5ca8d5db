//! The virtual-time simulator: the pure cores of servers and workers under a discrete-event clock.
//!
//! [`simulate`] takes the configuration of a real run and gives the results of one: the same cores
//! ([`slackline_server_core::Control`], [`slackline_server_core::Shard`], [`slackline_worker_core::Worker`]), the same order of the
//! data, the same gradients. Only time is made: a gradient takes what `[stragglers]` draws, a transfer what `[simulation]` says of the
//! links, and everything else none. The same seed gives the same bytes on any number of threads.
//!
//! Read in this order: `world` (what can happen), `agenda` (when), `links` (what a transfer costs), `uplinks` (which goes first), `network` (connections), `servers`,
//! `hosts` (shards), `workers`, `computing` (the shells of the cores), `coordinator` and `feeds` (what servers say to each other), `disks`
//! and `store` (what a crash leaves), `allreduce` (workers that exchange gradients with each other), `engine` (gradients), `sizes`, `mishaps`
//! (crashes and pauses), `timeline`, `results`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agenda;
mod allreduce;
mod computing;
mod coordinator;
mod disks;
mod engine;
mod failure;
mod feeds;
mod hosts;
mod links;
mod mishaps;
mod network;
mod plan;
mod results;
mod servers;
mod sizes;
mod store;
mod timeline;
mod uplinks;
mod workers;
mod world;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use slackline_core::config::Resolved;
use slackline_core::wire::Progress;
use slackline_server::files::Results as Files;
use slackline_server::parts;

pub use failure::SimFailure;

use crate::results::Results;
use crate::timeline::Timeline;
use crate::world::{Over, World};

/// Spans of the timeline that are kept unless said otherwise.
pub const TIMELINE_SPANS: usize = 20_000;

/// How a simulation is run; none of it changes its figures.
#[derive(Clone, Debug)]
pub struct Options {
    /// No gradients and no data: throughput, waiting, staleness and bytes only.
    pub timing_only: bool,
    /// Threads that compute gradients, at least one.
    pub threads: usize,
    /// Folder of the results; none writes no files.
    pub out: Option<PathBuf>,
    /// Most spans of the timeline.
    pub timeline_cap: usize,
}

impl Default for Options {
    /// With gradients, on all processors, without files.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { timing_only: false, threads, out: None, timeline_cap: TIMELINE_SPANS }
    }
}

/// What came out of a simulated run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What `summary.json` holds.
    pub summary: serde_json::Value,
    /// Events that the cores took.
    pub events: u64,
    /// Seconds of virtual time from the beginning to the end, joining and leaving included.
    pub virtual_s: f64,
    /// Real seconds that it took.
    pub wall_s: f64,
    /// The clock at which the loss left all bounds, if it did not come back.
    pub diverged: Option<u64>,
    /// Over all pushes applied one by one, how many other workers had pulled and not pushed. Where no worker leaves, that is the sum
    /// of all version staleness.
    pub in_flight: u64,
    /// What happened to servers and shards, with the second at which it did.
    pub chronicle: Vec<(f64, String)>,
}

/// Runs a configuration in virtual time.
///
/// With [`Options::out`], the folder then holds `config.toml`, `metrics.jsonl`, `timeline.jsonl` and `summary.json`.
///
/// # Errors
/// [`SimFailure`]: the data or the folder cannot be used, or the run failed as a real one would have. A run that diverges has figures,
/// and no error, however it ended.
pub fn simulate(resolved: &Resolved, options: &Options) -> Result<Outcome, SimFailure> {
    simulate_watched(resolved, options, &mut |_| ())
}

/// As [`simulate`]; every now and then in real time, `see` is shown how far the run has come.
///
/// # Errors
/// See [`simulate`].
pub fn simulate_watched(
    resolved: &Resolved,
    options: &Options,
    see: &mut dyn FnMut(&Progress),
) -> Result<Outcome, SimFailure> {
    let began = Instant::now();
    let resolved = plan::with_recorded_times(resolved)?;
    let files = match &options.out {
        Some(out) => Some(Files::begin(out, &resolved.to_toml(), None)?),
        None => None,
    };
    let every = Duration::from_secs_f64(resolved.config.metrics.every_s);
    let results = Results::new(files, parts::heading(&resolved), every);
    let (plan, engine) = plan::plan(resolved, options.timing_only, options.threads.max(1))?;
    let cap = if options.out.is_some() { options.timeline_cap } else { 0 };
    let mut world = World::new(plan, engine, Timeline::new(cap), results);
    let over = world.run(see)?;
    let virtual_s = world.now().0 as f64 / 1e9;
    let diverged = world.diverged(over != Over::Complete);
    if let (Over::Failed(text), None) = (over, diverged) {
        return Err(SimFailure::Run { virtual_s, text });
    }
    let wall = began.elapsed();
    let summary = world.summary(wall, diverged);
    world.write_end(&summary)?;
    Ok(Outcome {
        summary,
        events: world.counts.events,
        virtual_s,
        wall_s: wall.as_secs_f64(),
        diverged: diverged.map(|diverged| diverged.clock),
        in_flight: world.counts.in_flight,
        chronicle: world.chronicled(),
    })
}
