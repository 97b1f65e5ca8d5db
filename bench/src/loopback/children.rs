//! The processes of one repetition: started, read line by line, and gone whatever happens.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::{BenchError, Cell};

/// Linux counts processor time for /proc in hundredths of a second, on every machine that Rust has a standard library for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Where the files of all repetitions are.
pub(super) struct Placed {
    pub(super) keys: PathBuf,
    pub(super) out: PathBuf,
}

/// A process; killed when it is dropped before it ended.
struct Process {
    name: String,
    child: Child,
    /// Its leash: it ends when this does.
    input: Option<ChildStdin>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only on a process that has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Servers and workers of one repetition, in this order in `processes`.
pub(super) struct Cluster {
    processes: Vec<Process>,
    servers: usize,
    /// Lines of all processes; none for one whose output has ended.
    lines: Receiver<(usize, Option<String>)>,
    sender: Sender<(usize, Option<String>)>,
}

impl Cluster {
    /// Starts all processes, and waits until every worker is warm.
    pub(super) fn start(cell: &Cell, placed: &Placed) -> Result<Self, BenchError> {
        let (sender, lines) = channel();
        let servers = cell.servers as usize;
        let mut cluster = Self { processes: Vec::new(), servers, lines, sender };
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
        let addresses = cluster.each_says(0..servers, "ready")?.join(",");
        for index in 0..cell.workers {
            let extra = ["--addresses".as_ref(), addresses.as_ref()];
            cluster.spawn("worker", &index.to_string(), cell, placed, &extra)?;
        }
        cluster.each_says(cluster.workers(), "warm")?;
        Ok(cluster)
    }

    fn workers(&self) -> std::ops::Range<usize> {
        self.servers..self.processes.len()
    }

    fn spawn(
        &mut self,
        role: &str,
        index: &str,
        cell: &Cell,
        placed: &Placed,
        extra: &[&std::ffi::OsStr],
    ) -> Result<(), BenchError> {
        let name = format!("{role} {index}");
        let program = std::env::current_exe().map_err(BenchError::system("the path of this program"))?;
        let mut command = Command::new(program);
        command.arg(role).args(["--mib", &cell.mib.to_string(), "--workers", &cell.workers.to_string()]);
        command.args(["--servers", &cell.servers.to_string(), "--rounds", &cell.rounds.to_string()]);
        command.args(cell.sets.iter().flat_map(|set| ["--set", set]));
        command.arg("--keys").arg(&placed.keys).args(extra);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(BenchError::system(format!("{name} did not start")))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, place) = (self.sender.clone(), self.processes.len());
        self.processes.push(Process { name, child, input });
        std::thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { break };
                let _ = sender.send((place, Some(line)));
            }
            let _ = sender.send((place, None));
        });
        Ok(())
    }

    /// Waits until each of these processes has said `word`; what it said after that, in their order.
    fn each_says(&self, places: std::ops::Range<usize>, word: &str) -> Result<Vec<String>, BenchError> {
        let mut said = vec![None; places.len()];
        while said.iter().any(Option::is_none) {
            // This side holds a sender too, so the channel never ends.
            let Ok((place, line)) = self.lines.recv() else { break };
            let failed = |text: String| BenchError::Child { name: self.processes[place].name.clone(), text };
            let line = line.ok_or_else(|| failed("ended too early".to_owned()))?;
            match (line.strip_prefix(word), place.checked_sub(places.start).and_then(|at| said.get_mut(at))) {
                (Some(rest), Some(slot)) => *slot = Some(rest.trim().to_owned()),
                _ => return Err(failed(format!("said \"{line}\" instead of \"{word}\""))),
            }
        }
        Ok(said.into_iter().flatten().collect())
    }

    /// Lets all workers run their rounds; the microseconds that each round of each worker took.
    pub(super) fn run_rounds(&mut self) -> Result<Vec<u64>, BenchError> {
        for place in self.workers() {
            let process = &mut self.processes[place];
            if let Some(input) = &mut process.input {
                let what = format!("{} does not listen", process.name);
                input.write_all(b"go\n").and_then(|()| input.flush()).map_err(BenchError::system(what))?;
            }
        }
        let said = self.each_says(self.workers(), "done")?;
        Ok(said
            .iter()
            .flat_map(|line| line.split_whitespace())
            .filter_map(|word| word.parse().ok())
            .collect())
    }

    /// Processor seconds, user and system, that all processes have used so far; none where /proc does not tell.
    pub(super) fn processor_seconds(&self) -> Option<f64> {
        self.processes.iter().map(|process| processor_seconds(process.child.id())).sum()
    }

    /// Memory of the largest server at its peak; none where /proc does not tell.
    pub(super) fn server_peak_bytes(&self) -> Option<u64> {
        let peaks = self.processes[..self.servers].iter().map(|process| peak_bytes(process.child.id()));
        peaks.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Ends workers, then servers, and looks at how they ended.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        while let Some(mut process) = self.processes.pop() {
            drop(process.input.take());
            let name = process.name.clone();
            let status =
                process.child.wait().map_err(BenchError::system(format!("{name} cannot be waited for")))?;
            if !status.success() {
                return Err(BenchError::Child { name, text: format!("ended badly ({status})") });
            }
        }
        Ok(())
    }
}

fn processor_seconds(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in brackets may hold anything; the fields after it begin with the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / TICKS_PER_SECOND)
}

fn peak_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(kibibytes.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
