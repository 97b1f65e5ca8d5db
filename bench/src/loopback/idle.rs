//! What workers cost a server that are there and do nothing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::children::Cluster;
use super::{BenchError, Cell, Where, place};

/// What the workers of a cell cost its first server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idle {
    /// How many there were.
    pub workers: u32,
    /// Share of a core that the server used while they did nothing; none where /proc does not tell.
    pub core_share: Option<f64>,
    /// Bytes of memory that each of them but the first made the server have more; none where /proc does not tell.
    pub bytes_each: Option<f64>,
}

impl Idle {
    /// As JSON: percent of a core, and KiB each.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "idle_workers": self.workers,
            "percent_of_a_core": self.core_share.map(|share| share * 100.0),
            "kib_each": self.bytes_each.map(|bytes| bytes / 1024.0),
        })
    }
}

/// Lets the workers of a cell join and watches its first server for so long.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub fn idle(cell: &Cell, watched: Duration) -> Result<Idle, BenchError> {
    let (_folder, placed) = place(&Where::default())?;
    let (mut cluster, addresses) = Cluster::start_servers(cell, &placed)?;
    cluster.start_client("idle-workers", "0", cell, &placed, &addresses)?;
    cluster.workers_say("warm")?;
    let bytes = |cluster: &Cluster| Some(*cluster.servers_bytes()?.first()? as f64);
    let alone = bytes(&cluster);
    cluster.ask_workers("go", "done")?;
    let others = f64::from(cell.workers.saturating_sub(1).max(1));
    let bytes_each = alone.zip(bytes(&cluster)).map(|(alone, all)| (all - alone) / others);
    let before = cluster.processor_seconds_by_side();
    let began = Instant::now();
    std::thread::sleep(watched);
    let wall = began.elapsed().as_secs_f64();
    let core_share =
        before.zip(cluster.processor_seconds_by_side()).map(|(before, after)| (after.1 - before.1) / wall);
    cluster.end()?;
    Ok(Idle { workers: cell.workers, core_share, bytes_each })
}
