//! Throughput of push and pull between real processes over the loopback device.
//!
//! A [`Cell`] is one combination of model size, workers and servers. [`measure`] runs it several times, each time with new
//! processes: servers are the daemon itself ([`server`]), workers ([`worker`]) do all that a worker does but compute. A round
//! is one push of all values and one pull of them, as MXNet's `kv.push` and `kv.pull` of one array.
//!
//! Both ends share the processor here: on a machine of few cores the figure is the cost of the protocol, encryption included,
//! and neither what a network card carries nor how servers scale.

mod cell;
mod children;
mod figures;
pub mod server;
mod steady;
pub mod worker;

use std::time::Instant;

pub use cell::{Allowed, Cell, RATE};
pub use figures::{Figures, Repeat, json, table};
pub use steady::{Steady, steady};

use crate::BenchError;
use crate::processes::say;
use children::{Cluster, Placed};

/// Runs a cell `repeats` times, each time with new processes.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub fn measure(cell: &Cell, repeats: u32) -> Result<Figures, BenchError> {
    let (values, allowed) = (cell.resolve()?.config.layout().len(), cell.allowed()?);
    let (_folder, placed) = place()?;
    let repeats = (0..repeats).map(|_| once(cell, &placed)).collect::<Result<_, _>>()?;
    Ok(Figures { cell: cell.clone(), values, allowed, repeats })
}

/// Keys for the processes, and a folder for what they write, which is there for as long as what is returned.
fn place() -> Result<(tempfile::TempDir, Placed), BenchError> {
    let folder = tempfile::Builder::new()
        .prefix("slackline-loopback-")
        .tempdir()
        .map_err(BenchError::system("no temporary folder for the keys"))?;
    let keys = folder.path().join("keys");
    slackline_net::keys::init(&keys)?;
    let placed = Placed { keys, out: folder.path().join("out") };
    Ok((folder, placed))
}

fn once(cell: &Cell, placed: &Placed) -> Result<Repeat, BenchError> {
    let mut cluster = Cluster::start(cell, placed)?;
    let before = cluster.processor_seconds();
    let began = Instant::now();
    let (busy_us, rounds_us) = cluster.run_rounds(cell.rounds)?;
    let wall = began.elapsed();
    let processor = before.zip(cluster.processor_seconds()).map(|(before, after)| after - before);
    let server_peak_bytes = cluster.server_peak_bytes();
    cluster.end()?;
    Ok(Repeat { wall, rounds_us, busy_us, processor_seconds: processor, server_peak_bytes })
}
