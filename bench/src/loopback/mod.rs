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
pub mod worker;

use std::io::Write;
use std::time::Instant;

pub use cell::{Cell, RATE};
pub use figures::{Figures, Repeat, Spread, json, table};

use children::{Cluster, Placed};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The configuration that a cell stands for is refused.
    #[error("the configuration of the cell is refused: {0}")]
    Config(String),
    /// Something that the system did not do.
    #[error("{what}: {source}")]
    System {
        /// What was asked.
        what: String,
        /// Why it was not done.
        source: std::io::Error,
    },
    /// The keys.
    #[error(transparent)]
    Keys(#[from] slackline_net::KeysError),
    /// The server.
    #[error(transparent)]
    Server(#[from] slackline_server::ServerError),
    /// The network thread is gone.
    #[error(transparent)]
    Stopped(#[from] slackline_net::NetworkStopped),
    /// A connection or a transfer.
    #[error("{what} failed: {reason}")]
    Network {
        /// What was under way.
        what: &'static str,
        /// How it failed.
        reason: String,
    },
    /// A server did or sent what it should not.
    #[error("a server did not do as it should: {0}")]
    Protocol(String),
    /// A process ended, or said something that makes no sense.
    #[error("{name} {text}; its errors are above")]
    Child {
        /// Which process.
        name: String,
        /// What it did.
        text: String,
    },
}

impl BenchError {
    fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    fn network(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Self {
        move |reason| Self::Network { what, reason: reason.to_string() }
    }
}

/// Runs a cell `repeats` times, each time with new processes.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub fn measure(cell: &Cell, repeats: u32) -> Result<Figures, BenchError> {
    let resolved = cell.resolve()?;
    let folder = tempfile::Builder::new()
        .prefix("slackline-loopback-")
        .tempdir()
        .map_err(BenchError::system("no temporary folder for the keys"))?;
    let keys = folder.path().join("keys");
    slackline_net::keys::init(&keys)?;
    let placed = Placed { keys, out: folder.path().join("out") };
    let repeats = (0..repeats).map(|_| once(cell, &placed)).collect::<Result<_, _>>()?;
    Ok(Figures { cell: cell.clone(), values: resolved.config.layout().len(), repeats })
}

fn once(cell: &Cell, placed: &Placed) -> Result<Repeat, BenchError> {
    let mut cluster = Cluster::start(cell, placed)?;
    let before = cluster.processor_seconds();
    let began = Instant::now();
    let rounds_us = cluster.run_rounds()?;
    let wall = began.elapsed();
    let processor = before.zip(cluster.processor_seconds()).map(|(before, after)| after - before);
    let server_peak_bytes = cluster.server_peak_bytes();
    cluster.end()?;
    Ok(Repeat { wall, rounds_us, processor_seconds: processor, server_peak_bytes })
}

/// A line on standard output, at once.
fn say(line: &str) {
    let mut out = std::io::stdout();
    // Whoever started the process may be gone; then its standard input has ended too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
