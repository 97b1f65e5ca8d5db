//! Whether servers keep what they need, and nothing of what they have done: their memory early in many pushes and at the end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::children::Cluster;
use super::{BenchError, Cell, Where, place};

/// What many pushes left in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Steady {
    /// The cell.
    pub cell: Cell,
    /// Pushes: of all workers, at all shards.
    pub pushes: u64,
    /// How long they took.
    pub wall: Duration,
    /// Resident memory of each server after the first tenth and at the end; none where /proc does not tell.
    pub bytes: Option<Vec<(u64, u64)>>,
}

impl Steady {
    /// By how many bytes the server grew that grew most.
    #[must_use]
    pub fn growth(&self) -> Option<u64> {
        self.bytes.as_ref()?.iter().map(|(early, end)| end.saturating_sub(*early)).max()
    }

    /// As JSON, memory in MiB.
    #[must_use]
    pub fn json(&self) -> Value {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let servers = self.bytes.iter().flatten().map(|(early, end)| json!([mib(*early), mib(*end)]));
        let Cell { mib: model, workers, servers: count, sets, .. } = &self.cell;
        json!({
            "mib": model, "workers": workers, "servers": count, "set": sets, "pushes": self.pushes,
            "wall_s": self.wall.as_secs_f64(), "servers_mib_after_a_tenth_and_at_the_end": servers.collect::<Vec<_>>(),
            "growth_mib": self.growth().map(mib),
        })
    }
}

/// Lets a cell make at least so many pushes, whatever its rounds are.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub fn steady(cell: &Cell, pushes: u64) -> Result<Steady, BenchError> {
    let each = cell.resolve()?.config.partition().shards().count() as u64 * u64::from(cell.workers);
    let rounds = u32::try_from(pushes.div_ceil(each.max(1)).max(10)).unwrap_or(u32::MAX);
    let (_folder, placed) = place(&Where::default())?;
    let mut cluster = Cluster::start(cell, &placed)?;
    let began = Instant::now();
    cluster.run_rounds(rounds / 10)?;
    let early = cluster.servers_bytes();
    cluster.run_rounds(rounds - rounds / 10)?;
    let wall = began.elapsed();
    let end = cluster.servers_bytes();
    cluster.end()?;
    let bytes = early.zip(end).map(|(early, end)| early.into_iter().zip(end).collect());
    Ok(Steady { cell: cell.clone(), pushes: u64::from(rounds) * each, wall, bytes })
}
