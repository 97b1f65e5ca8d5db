//! The processes of one repetition.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::PathBuf;

use super::{BenchError, Cell};
use crate::processes::Processes;

/// Where the files of all repetitions are.
pub(super) struct Placed {
    pub(super) keys: PathBuf,
    pub(super) out: PathBuf,
}

/// Servers and workers of one repetition, in this order.
pub(super) struct Cluster {
    processes: Processes,
    servers: usize,
}

impl Cluster {
    /// Starts all processes, and waits until every worker is warm.
    pub(super) fn start(cell: &Cell, placed: &Placed) -> Result<Self, BenchError> {
        let servers = cell.servers as usize;
        let mut cluster = Self { processes: Processes::new(), servers };
        for index in 0..cell.servers {
            let index = index.to_string();
            let out = placed.out.as_os_str();
            cluster.spawn(
                "server",
                &index,
                cell,
                placed,
                &["--index".as_ref(), index.as_ref(), "--out".as_ref(), out],
            )?;
        }
        let addresses = cluster.processes.each_says(0..servers, "ready")?.join(",");
        cluster.processes.tell(0..servers, &addresses)?;
        for index in 0..cell.workers {
            let extra = ["--addresses".as_ref(), addresses.as_ref()];
            cluster.spawn("worker", &index.to_string(), cell, placed, &extra)?;
        }
        cluster.processes.each_says(cluster.workers(), "warm")?;
        Ok(cluster)
    }

    fn workers(&self) -> Range<usize> {
        self.servers..self.processes.len()
    }

    fn spawn(
        &mut self,
        role: &str,
        index: &str,
        cell: &Cell,
        placed: &Placed,
        extra: &[&OsStr],
    ) -> Result<(), BenchError> {
        let mut command = Processes::this_program()?;
        command.arg(role).args(["--mib", &cell.mib.to_string(), "--workers", &cell.workers.to_string()]);
        command.args(["--servers", &cell.servers.to_string(), "--rounds", &cell.rounds.to_string()]);
        command.args(cell.sets.iter().flat_map(|set| ["--set", set]));
        command.arg("--keys").arg(&placed.keys).args(extra);
        self.processes.spawn(format!("{role} {index}"), command)
    }

    /// Lets all workers run so many rounds; the microseconds that pushes waited for servers, and those
    /// that each round of each worker took.
    pub(super) fn run_rounds(&mut self, rounds: u32) -> Result<(u64, Vec<u64>), BenchError> {
        self.processes.tell(self.workers(), &format!("go {rounds}"))?;
        let said = self.processes.each_says(self.workers(), "done")?;
        let (mut busy_us, mut rounds_us) = (0, Vec::new());
        for line in said {
            let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
            busy_us += numbers.next().unwrap_or_default();
            rounds_us.extend(numbers);
        }
        Ok((busy_us, rounds_us))
    }

    /// Processor seconds, user and system, that all processes have used so far; none where /proc does not tell.
    pub(super) fn processor_seconds(&self) -> Option<f64> {
        self.processes.processor_seconds()
    }

    /// Memory of the largest server at its peak; none where /proc does not tell.
    pub(super) fn server_peak_bytes(&self) -> Option<u64> {
        self.processes.peak_bytes(0..self.servers)
    }

    /// Memory of each server at present; none where /proc does not tell.
    pub(super) fn servers_bytes(&self) -> Option<Vec<u64>> {
        self.processes.resident_bytes(0..self.servers)
    }

    /// Ends workers, then servers, and looks at how they ended.
    pub(super) fn end(self) -> Result<(), BenchError> {
        self.processes.end()
    }
}
