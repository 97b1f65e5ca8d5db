//! What was measured, and how it is shown.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Allowed, Cell, Way};
use crate::spread::Spread;

/// One repetition.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeat {
    /// From the word to all workers to the end of the last of them.
    pub wall: Duration,
    /// Microseconds of every round of every worker.
    pub rounds_us: Vec<u64>,
    /// Microseconds that pushes waited for servers, for room or for a shard; those of several pushes at once are added.
    pub busy_us: u64,
    /// Processor seconds of all processes in that time; none where the system does not tell.
    pub processor_seconds: Option<f64>,
    /// Resident memory of the largest server at its peak, warm-up included.
    pub server_peak_bytes: Option<u64>,
}

/// All repetitions of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The cell.
    pub cell: Cell,
    /// Values of its model.
    pub values: u64,
    /// What its largest server may have in memory.
    pub allowed: Allowed,
    /// What each repetition gave.
    pub repeats: Vec<Repeat>,
}

impl Figures {
    /// Bytes of values that one repetition carries: pushed, pulled or both, by all workers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let ways = if self.cell.way == Way::Both { 2 } else { 1 };
        ways * 4 * self.values * u64::from(self.cell.workers) * u64::from(self.cell.rounds)
    }

    /// Megabytes (10^6) a second, pushed and pulled by all workers together, over repetitions.
    #[must_use]
    pub fn megabytes_per_second(&self) -> Option<Spread> {
        Spread::of(self.repeats.iter().map(|repeat| self.bytes() as f64 / 1e6 / repeat.wall.as_secs_f64()))
    }

    /// Milliseconds of a round of one worker, over all rounds of all repetitions.
    #[must_use]
    pub fn round_milliseconds(&self) -> Option<Spread> {
        Spread::of(self.repeats.iter().flat_map(|repeat| &repeat.rounds_us).map(|us| *us as f64 / 1e3))
    }

    /// Processor seconds of all processes for each GiB carried, over repetitions.
    #[must_use]
    pub fn processor_seconds_per_gib(&self) -> Option<Spread> {
        let gib = self.bytes() as f64 / f64::from(1 << 30);
        Spread::of(self.repeats.iter().filter_map(|repeat| repeat.processor_seconds).map(|used| used / gib))
    }

    /// Memory of the largest server at its peak in MiB, over repetitions.
    #[must_use]
    pub fn server_peak_mib(&self) -> Option<Spread> {
        let peaks = self.repeats.iter().filter_map(|repeat| repeat.server_peak_bytes);
        Spread::of(peaks.map(|bytes| bytes as f64 / f64::from(1 << 20)))
    }

    /// Whether no server ever had more memory than it may; none where /proc does not tell.
    #[must_use]
    pub fn is_within_limit(&self) -> Option<bool> {
        let peaks: Option<Vec<u64>> = self.repeats.iter().map(|repeat| repeat.server_peak_bytes).collect();
        Some(peaks?.into_iter().all(|peak| peak <= self.allowed.limit))
    }
}

/// The cells as a table for people.
#[must_use]
pub fn table(all: &[Figures]) -> String {
    let mut text = String::from(
        "  MiB workers servers  push + pull, MB/s         ms a round (99 of 100)              processor s/GiB      server: state, peak, limit, MiB\n",
    );
    for figures in all {
        let Cell { mib, workers, servers, .. } = figures.cell;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{mib:>5} {workers:>7} {servers:>7}  {:<24}  {:<34}  {:<19}  {:.0}, {}, {:.0}",
            Spread::show(figures.megabytes_per_second(), 0),
            rounds(figures.round_milliseconds()),
            Spread::show(figures.processor_seconds_per_gib(), 2),
            mebibytes(figures.allowed.state),
            figures.server_peak_mib().map_or_else(|| "-".to_owned(), |peak| format!("{:.0}", peak.max)),
            mebibytes(figures.allowed.limit),
        );
    }
    text
}

fn rounds(spread: Option<Spread>) -> String {
    let p99 = spread.map_or_else(String::new, |spread| format!(" ({:.1})", spread.p99));
    Spread::show(spread, 1) + &p99
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The cells as JSON, with the wall time of each repetition.
#[must_use]
pub fn json(all: &[Figures]) -> Value {
    let cell = |figures: &Figures| {
        let Cell { mib, workers, servers, rounds, way, sets } = &figures.cell;
        let walls: Vec<f64> = figures.repeats.iter().map(|repeat| repeat.wall.as_secs_f64()).collect();
        json!({
            "mib": mib, "workers": workers, "servers": servers, "rounds": rounds, "way": way.name(), "set": sets,
            "values": figures.values, "bytes": figures.bytes(), "wall_s": walls,
            "megabytes_per_s": Spread::json(figures.megabytes_per_second()),
            "busy_ms": figures.repeats.iter().map(|repeat| repeat.busy_us / 1000).collect::<Vec<_>>(),
            "round_ms": Spread::json(figures.round_milliseconds()),
            "processor_s_per_gib": Spread::json(figures.processor_seconds_per_gib()),
            "server_state_mib": mebibytes(figures.allowed.state),
            "server_peak_mib": Spread::json(figures.server_peak_mib()),
            "server_limit_mib": mebibytes(figures.allowed.limit),
            "within_limit": figures.is_within_limit(),
        })
    };
    Value::Array(all.iter().map(cell).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_and_all_workers_count() {
        let cell = Cell { mib: 1, workers: 2, servers: 1, rounds: 5, way: Way::Both, sets: Vec::new() };
        let repeat = Repeat {
            wall: Duration::from_secs(2),
            rounds_us: vec![1000],
            busy_us: 0,
            processor_seconds: Some(1.0),
            server_peak_bytes: None,
        };
        let allowed = Allowed { state: 4_000_000, limit: 5_000_000 };
        let mut figures = Figures { cell, values: 1_000_000, allowed, repeats: vec![repeat.clone()] };
        assert_eq!(figures.bytes(), 80_000_000);
        assert_eq!(figures.megabytes_per_second().unwrap().median, 40.0);
        figures.cell.way = Way::Pull;
        assert_eq!(figures.bytes(), 40_000_000);
        assert!(figures.server_peak_mib().is_none() && figures.is_within_limit().is_none());
        for (peak, is_within) in [(5_000_000, true), (5_000_001, false)] {
            figures.repeats = vec![Repeat { server_peak_bytes: Some(peak), ..repeat.clone() }];
            assert_eq!(figures.is_within_limit(), Some(is_within));
        }
    }
}
