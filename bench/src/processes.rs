//! The processes that a bench measures: started, spoken to line by line, and gone whatever happens.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::BenchError;

/// Linux counts processor time for /proc in hundredths of a second, on every machine that Rust has a standard library for.
const TICKS_PER_SECOND: f64 = 100.0;

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

/// Processes in the order they were started in; a place is an index into that.
pub(crate) struct Processes {
    processes: Vec<Process>,
    /// Lines of all processes; none for one whose output has ended.
    lines: Receiver<(usize, Option<String>)>,
    sender: Sender<(usize, Option<String>)>,
}

impl Processes {
    pub(crate) fn new() -> Self {
        let (sender, lines) = channel();
        Self { processes: Vec::new(), lines, sender }
    }

    /// This program, to be started once more.
    pub(crate) fn this_program() -> Result<Command, BenchError> {
        Self::this_program_via(&[])
    }

    /// The same, with words before it that say where, such as `ip netns exec NAME`.
    pub(crate) fn this_program_via(before: &[String]) -> Result<Command, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::system("the path of this program"))?;
        let [first, rest @ ..] = before else { return Ok(Command::new(program)) };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        Ok(command)
    }

    /// How many were started.
    pub(crate) fn len(&self) -> usize {
        self.processes.len()
    }

    /// Starts one more.
    pub(crate) fn spawn(&mut self, name: String, mut command: Command) -> Result<(), BenchError> {
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

    /// Writes a line to each of these.
    pub(crate) fn tell(&mut self, places: Range<usize>, line: &str) -> Result<(), BenchError> {
        for process in &mut self.processes[places] {
            if let Some(input) = &mut process.input {
                let what = format!("{} does not listen", process.name);
                let line = format!("{line}\n");
                input
                    .write_all(line.as_bytes())
                    .and_then(|()| input.flush())
                    .map_err(BenchError::system(what))?;
            }
        }
        Ok(())
    }

    /// Waits until each of these has said `word`; what it said after that, in their order.
    pub(crate) fn each_says(&self, places: Range<usize>, word: &str) -> Result<Vec<String>, BenchError> {
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

    /// Processor seconds, user and system, that all processes have used so far; none where /proc does not tell.
    pub(crate) fn processor_seconds(&self) -> Option<f64> {
        self.processor_seconds_of(0..self.len())
    }

    /// The same of these.
    pub(crate) fn processor_seconds_of(&self, places: Range<usize>) -> Option<f64> {
        self.processes[places].iter().map(|process| processor_seconds(process.child.id())).sum()
    }

    /// Memory of the largest of these at its peak; none where /proc does not tell.
    pub(crate) fn peak_bytes(&self, places: Range<usize>) -> Option<u64> {
        let peaks = self.processes[places].iter().map(|process| memory(process.child.id(), "VmHWM:"));
        peaks.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Memory that each of these has at present; none where /proc does not tell.
    pub(crate) fn resident_bytes(&self, places: Range<usize>) -> Option<Vec<u64>> {
        self.processes[places].iter().map(|process| memory(process.child.id(), "VmRSS:")).collect()
    }

    /// Ends them, the last first, and looks at how they ended.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        while let Some(mut process) = self.processes.pop() {
            drop(process.input.take());
            process.ended()?;
        }
        Ok(())
    }

    /// Lets all end at once, and looks at how they ended.
    pub(crate) fn end_together(mut self) -> Result<(), BenchError> {
        self.processes.iter_mut().for_each(|process| drop(process.input.take()));
        self.processes.iter_mut().try_for_each(Process::ended)
    }
}

impl Process {
    fn ended(&mut self) -> Result<(), BenchError> {
        let name = &self.name;
        let status = self.child.wait().map_err(BenchError::system(format!("{name} cannot be waited for")))?;
        if status.success() {
            return Ok(());
        }
        Err(BenchError::Child { name: name.clone(), text: format!("ended badly ({status})") })
    }
}

/// A line on standard output, at once.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout();
    // Whoever started the process may be gone; then its standard input has ended too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn processor_seconds(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in brackets may hold anything; the fields after it begin with the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / TICKS_PER_SECOND)
}

/// A line of the memory of a process.
fn memory(process: u32, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kibibytes = status.lines().find_map(|found| found.strip_prefix(line))?;
    Some(kibibytes.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
