//! How fast processes of this machine sum a buffer, over the connections and reductions that training workers have.
//!
//! A [`Cell`] is one combination of members, size and topology. A repetition begins with a barrier and ends when the last member has all
//! sums in its flat buffer, packing and unpacking included: what `bench/peers` measures of Gloo and Open MPI. Members ([`member`])
//! are processes; they stay for all repetitions of a cell, of which the first are not counted.

mod figures;
pub mod member;

use std::path::Path;

use slackline_core::collective::Topology;

pub use figures::{Figures, json, table};

use crate::BenchError;
use crate::processes::Processes;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Processes that sum.
    pub ranks: u32,
    /// Size of the buffer in MiB of f32, at least 1.
    pub mib: u64,
    /// Who sends what to whom.
    pub topology: Topology,
    /// KiB that are summed at once, as `sync.bucket_kib`; 0 for the whole buffer.
    pub bucket_kib: u64,
    /// Repetitions that count.
    pub repeats: u32,
}

/// Measures a cell, with new processes.
///
/// # Errors
/// The first [`BenchError`]; no process is left running.
pub fn measure(cell: &Cell) -> Result<Figures, BenchError> {
    cell.topology.fits(cell.ranks)?;
    let folder = tempfile::Builder::new()
        .prefix("slackline-allreduce-")
        .tempdir()
        .map_err(BenchError::system("no temporary folder for the keys"))?;
    slackline_net::keys::init(folder.path().join("keys").as_path())?;
    let mut processes = Processes::new();
    for position in 0..cell.ranks {
        spawn(&mut processes, cell, position, &folder.path().join("keys"))?;
    }
    let all = 0..processes.len();
    let addresses = processes.each_says(all.clone(), "ready")?.join(" ");
    processes.tell(all.clone(), &addresses)?;
    processes.each_says(all.clone(), "warm")?;
    let before = processes.processor_seconds();
    let mut seconds = Vec::new();
    for _ in 0..cell.repeats {
        processes.tell(all.clone(), "go")?;
        let took = processes.each_says(all.clone(), "done")?;
        let nanoseconds = took.iter().filter_map(|word| word.parse::<u64>().ok()).max();
        seconds.extend(nanoseconds.map(|ns| ns as f64 / 1e9));
    }
    let processor = before.zip(processes.processor_seconds()).map(|(before, after)| after - before);
    processes.end_together()?;
    Ok(Figures { cell: cell.clone(), seconds, processor_seconds: processor })
}

fn spawn(processes: &mut Processes, cell: &Cell, position: u32, keys: &Path) -> Result<(), BenchError> {
    let mut command = Processes::this_program()?;
    command.arg("member").args(["--ranks", &cell.ranks.to_string(), "--position", &position.to_string()]);
    command.args(["--mib", &cell.mib.to_string(), "--topology", &cell.topology.to_string()]);
    command.args(["--bucket-kib", &cell.bucket_kib.to_string()]).arg("--keys").arg(keys);
    processes.spawn(format!("member {position}"), command)
}
