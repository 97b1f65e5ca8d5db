//! The processes of one repetition.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;

use super::{BenchError, Cell};
use crate::processes::Processes;

/// Where the files of all repetitions are, and where the processes run.
pub(super) struct Placed {
    pub(super) keys: PathBuf,
    pub(super) out: PathBuf,
    /// Words before the command of a server and of a worker.
    pub(super) server_via: Vec<String>,
    pub(super) worker_via: Vec<String>,
    /// The address of the servers' machine.
    pub(super) bind: IpAddr,
}

/// What the rounds of all workers took.
pub(super) struct Done {
    /// Microseconds that pushes waited for servers.
    pub(super) busy_us: u64,
    /// Bytes that the workers' own code copied.
    pub(super) copied_bytes: u64,
    /// Microseconds of each round of each worker.
    pub(super) rounds_us: Vec<u64>,
}

/// Servers and workers of one repetition, in this order.
pub(super) struct Cluster {
    processes: Processes,
    servers: usize,
}

impl Cluster {
    /// Starts all processes, and waits until every worker is warm.
    pub(super) fn start(cell: &Cell, placed: &Placed) -> Result<Self, BenchError> {
        let (mut cluster, addresses) = Self::start_servers(cell, placed)?;
        for index in 0..cell.workers {
            cluster.start_client("worker", &index.to_string(), cell, placed, &addresses)?;
        }
        cluster.processes.each_says(cluster.workers(), "warm")?;
        Ok(cluster)
    }

    /// Starts the servers; their addresses, with commas between them.
    pub(super) fn start_servers(cell: &Cell, placed: &Placed) -> Result<(Self, String), BenchError> {
        let servers = cell.servers as usize;
        let bind = placed.bind.to_string();
        let mut cluster = Self { processes: Processes::new(), servers };
        for index in 0..cell.servers {
            let index = index.to_string();
            let out = placed.out.as_os_str();
            cluster.spawn(
                "server",
                &index,
                cell,
                placed,
                &[
                    "--index".as_ref(),
                    index.as_ref(),
                    "--out".as_ref(),
                    out,
                    "--bind".as_ref(),
                    bind.as_ref(),
                ],
            )?;
        }
        let addresses = cluster.processes.each_says(0..servers, "ready")?.join(",");
        cluster.processes.tell(0..servers, &addresses)?;
        Ok((cluster, addresses))
    }

    /// Starts a process that connects to the servers.
    pub(super) fn start_client(
        &mut self,
        role: &str,
        index: &str,
        cell: &Cell,
        placed: &Placed,
        addresses: &str,
    ) -> Result<(), BenchError> {
        self.spawn(role, index, cell, placed, &["--addresses".as_ref(), addresses.as_ref()])
    }

    /// Says a line to all workers, and waits until each has said `word`; what it said after that.
    pub(super) fn ask_workers(&mut self, line: &str, word: &str) -> Result<Vec<String>, BenchError> {
        self.processes.tell(self.workers(), line)?;
        self.workers_say(word)
    }

    /// Waits until each worker has said `word`; what it said after that.
    pub(super) fn workers_say(&self, word: &str) -> Result<Vec<String>, BenchError> {
        self.processes.each_says(self.workers(), word)
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
        let via = if role == "server" { &placed.server_via } else { &placed.worker_via };
        let mut command = Processes::this_program_via(via)?;
        command.arg(role).args(["--mib", &cell.mib.to_string(), "--workers", &cell.workers.to_string()]);
        command.args(["--servers", &cell.servers.to_string(), "--rounds", &cell.rounds.to_string()]);
        command.args(["--way", cell.way.name()]);
        command.args(cell.sets.iter().flat_map(|set| ["--set", set]));
        command.arg("--keys").arg(&placed.keys).args(extra);
        self.processes.spawn(format!("{role} {index}"), command)
    }

    /// Lets all workers run so many rounds.
    pub(super) fn run_rounds(&mut self, rounds: u32) -> Result<Done, BenchError> {
        let mut done = Done { busy_us: 0, copied_bytes: 0, rounds_us: Vec::new() };
        for line in self.ask_workers(&format!("go {rounds}"), "done")? {
            let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
            done.busy_us += numbers.next().unwrap_or_default();
            done.copied_bytes += numbers.next().unwrap_or_default();
            done.rounds_us.extend(numbers);
        }
        Ok(done)
    }

    /// Processor seconds, user and system, that all processes have used so far; none where /proc does not tell.
    pub(super) fn processor_seconds(&self) -> Option<f64> {
        self.processes.processor_seconds()
    }

    /// The same of all workers, and of all servers.
    pub(super) fn processor_seconds_by_side(&self) -> Option<(f64, f64)> {
        let of = |places| self.processes.processor_seconds_of(places);
        of(self.workers()).zip(of(0..self.servers))
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
