//! Throughput of push and pull between real processes over the loopback device.
//!
//! A [`Cell`] is one combination of model size, workers and servers. [`measure`] runs it several times, each time with new
//! processes: servers are the daemon itself ([`server`]), workers ([`worker`]) do all that a worker does but compute. A round
//! is one push of all values and one pull of them, as MXNet's `kv.push` and `kv.pull` of one array.
//!
//! Both ends share the processor here: on a machine of few cores the figure is the cost of the protocol, encryption included,
//! and neither what a network card carries nor how servers scale.

mod beside;
mod cell;
mod children;
mod figures;
mod idle;
pub mod raw;
pub mod server;
mod steady;
pub mod worker;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

pub use beside::{Beside, Row};
pub use cell::{Allowed, Cell, RATE, Way};
pub use figures::{Figures, Repeat, json, table};
pub use idle::{Idle, idle};
pub use steady::{Steady, steady};

use crate::BenchError;
use crate::processes::say;
use children::{Cluster, Done, Placed};

/// Where processes run, if not all of them here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Where {
    /// Words before the command of every server, such as `ip netns exec NAME`.
    pub server_via: Vec<String>,
    /// The same for every worker.
    pub worker_via: Vec<String>,
    /// The address of the servers' machine, which workers reach.
    pub bind: IpAddr,
}

impl Default for Where {
    fn default() -> Self {
        Self { server_via: Vec::new(), worker_via: Vec::new(), bind: Ipv4Addr::LOCALHOST.into() }
    }
}

/// Runs a cell `repeats` times, each time with new processes.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub fn measure(cell: &Cell, at: &Where, repeats: u32) -> Result<Figures, BenchError> {
    let (values, allowed) = (cell.resolve()?.config.layout().len(), cell.allowed()?);
    let (_folder, placed) = place(at)?;
    let repeats = (0..repeats).map(|_| once(cell, &placed)).collect::<Result<_, _>>()?;
    Ok(Figures { cell: cell.clone(), values, allowed, repeats })
}

/// Carries the bytes of a cell one way: bare, and as pushes and pulls, in turns.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub fn beside(cell: &Cell, at: &Where, beside: Beside, repeats: u32) -> Result<Vec<Row>, BenchError> {
    let (_folder, placed) = place(at)?;
    beside::measure(cell, &placed, beside, repeats)
}

/// The ways to carry bytes as a table for people, or as JSON.
#[must_use]
pub fn beside_text(rows: &[Row], as_json: bool) -> String {
    if as_json { format!("{:#}\n", beside::json(rows)) } else { beside::table(rows) }
}

/// How long it takes from a push, the last one of a clock, until the values that it releases are in the memory of a worker that waits for
/// them: microseconds of each of so many clocks.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub fn held(cell: &Cell, at: &Where, clocks: u32) -> Result<Vec<f64>, BenchError> {
    let (_folder, placed) = place(at)?;
    let (mut cluster, addresses) = Cluster::start_servers(cell, &placed)?;
    cluster.start_client("held-workers", "0", cell, &placed, &addresses)?;
    cluster.workers_say("warm")?;
    let said = cluster.ask_workers(&format!("go {clocks}"), "done")?;
    cluster.end()?;
    Ok(said.iter().flat_map(|line| line.split(' ')).filter_map(|word| word.parse().ok()).collect())
}

/// Keys for the processes, and a folder for what they write, which is there for as long as what is returned.
fn place(at: &Where) -> Result<(tempfile::TempDir, Placed), BenchError> {
    let folder = tempfile::Builder::new()
        .prefix("slackline-loopback-")
        .tempdir()
        .map_err(BenchError::system("no temporary folder for the keys"))?;
    let keys = folder.path().join("keys");
    slackline_net::keys::init(&keys)?;
    let Where { server_via, worker_via, bind } = at.clone();
    let placed = Placed { keys, out: folder.path().join("out"), server_via, worker_via, bind };
    Ok((folder, placed))
}

fn once(cell: &Cell, placed: &Placed) -> Result<Repeat, BenchError> {
    let mut cluster = Cluster::start(cell, placed)?;
    let before = cluster.processor_seconds();
    let began = Instant::now();
    let Done { busy_us, rounds_us, .. } = cluster.run_rounds(cell.rounds)?;
    let wall = began.elapsed();
    let processor = before.zip(cluster.processor_seconds()).map(|(before, after)| after - before);
    let server_peak_bytes = cluster.server_peak_bytes();
    cluster.end()?;
    Ok(Repeat { wall, rounds_us, busy_us, processor_seconds: processor, server_peak_bytes })
}
