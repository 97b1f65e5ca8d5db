//! `slackline sweep` and `slackline report`: experiments over many runs, and what they show.

use std::io::{IsTerminal, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slackline_core::config::{Config, VARIABLE_PREFIX};
use slackline_lab::{
    Execution, LabError, Mode, Overlay, Plan, Purpose, Results, RunFailure, RunSpec, Runner, Verdict, Watch,
    execute, short,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{ReportArgs, SweepArgs};
use crate::failure::Failure;
use crate::{ERROR, configuration, print, say};

/// Exit codes of what a signal ended, as a shell says them.
const INTERRUPTED: u8 = 128 + 2;
const TERMINATED: u8 = 128 + 15;

/// Between two plain lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Spans of the timeline of a reported run: more than the report draws, and little enough to keep thousands of runs.
const TIMELINE_SPANS: usize = 4000;

/// What chooses a scale in the place of a key.
const SCALE: &str = "scale";

pub(crate) fn sweep(args: &SweepArgs) -> Result<u8, Failure> {
    let plan = Plan::read(&args.file, &overlay(&args.sets)?).map_err(Failure::user)?;
    let (jobs, threads) = at_once(args.jobs, plan.mode());
    say(&plan.shown());
    let shared = Arc::new(Shared::default());
    listen(&shared)?;
    let maker = Maker { shared: &shared, threads, links: None };
    let command = command("sweep", &args.file, &args.sets);
    let execution = Execution { jobs, resume: args.resume, command: &command, stop: &shared.stop };
    let outcome = execute(&plan, Path::new(&args.out), execution, &maker, &*shared);
    shared.end();
    let results = match outcome {
        Ok(results) => results,
        Err(stopped @ LabError::Stopped { .. }) => {
            return Err(Failure { code: shared.code(), text: stopped.to_string() });
        }
        Err(error) => return Err(Failure::of(error.is_users(), error)),
    };
    print(&told(&results, &args.out))?;
    let (failed, missed) = (results.failures().count(), results.failed().count());
    if failed > 0 {
        return Err(Failure::world(format!(
            "{failed} runs failed (failure.txt in their folders says why); the same command tries them again"
        )));
    }
    Ok(u8::from(args.check && missed > 0))
}

pub(crate) fn report(args: &ReportArgs) -> Result<u8, Failure> {
    let path =
        slackline_lab::report(Path::new(&args.dir)).map_err(|error| Failure::of(error.is_users(), error))?;
    print(&format!("{}\n", path.display()))
}

/// Runs at once, and threads of each.
pub(crate) fn at_once(jobs: Option<u32>, mode: Mode) -> (usize, usize) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = match (jobs, mode) {
        (Some(jobs), _) => jobs as usize,
        // Real runs measure each other's noise.
        (None, Mode::Run) => 1,
        (None, Mode::Sim | Mode::Timing) => processors,
    };
    (jobs, (processors / jobs).max(1))
}

/// What is said over the file: `--set scale=NAME` chooses a scale, other keys are for every run.
pub(crate) fn overlay(sets: &[String]) -> Result<Overlay, Failure> {
    let chooses = |set: &&String| set.split_once('=').is_some_and(|(key, _)| key.trim() == SCALE);
    let (scales, sets): (Vec<&String>, Vec<&String>) = sets.iter().partition(chooses);
    let scale = scales.last().and_then(|set| set.split_once('=')).map(|(_, name)| name.trim().to_owned());
    let sets: Vec<String> = sets.into_iter().cloned().collect();
    let (environment, sets) =
        configuration::layers_over(std::env::vars_os(), &sets).map_err(Failure::user)?;
    Ok(Overlay { scale, environment, sets })
}

/// The command that makes it all again, without the folder.
pub(crate) fn command(name: &str, file: &Path, sets: &[String]) -> String {
    let file = file.display().to_string();
    let plain =
        |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-=".contains(letter));
    let shell =
        |text: &str| if plain(text) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) };
    let sets: String = sets.iter().map(|set| format!(" --set {}", shell(set))).collect();
    format!("slackline {name} {}{sets}", shell(&file))
}

/// How it went, for reading.
fn told(results: &Results, out: &str) -> String {
    let runs: usize = results.points.iter().map(|point| point.runs.len()).sum();
    let mut text = format!("points         {}, {runs} runs\n", results.points.len());
    let missed: Vec<&Verdict> = results.failed().collect();
    let all = results.verdicts.len();
    text += &format!("expectations   {} of {all} hold", all - missed.len());
    if !results.not_judged.is_empty() {
        text += &format!(", {} not judged at this scale", results.not_judged.len());
    }
    text += "\n";
    if !missed.is_empty() {
        text += &table(&missed);
    }
    text + &format!(
        "results        {out}/results.csv, {out}/results.json\nreport         {out}/report.html\n"
    )
}

/// The expectations that do not hold, in columns.
pub(crate) fn table(missed: &[&Verdict]) -> String {
    let header = ["fails at", "column", "expected", "found", "short by", "claim"].map(str::to_owned);
    let row = |verdict: &&Verdict| {
        let missing = verdict.short_by.map_or_else(|| "-".to_owned(), short);
        let at = if verdict.at.is_empty() { "-".to_owned() } else { verdict.at.clone() };
        [
            at,
            verdict.column.clone(),
            verdict.expected.clone(),
            verdict.found.clone(),
            missing,
            verdict.claim.clone(),
        ]
    };
    let rows: Vec<[String; 6]> = std::iter::once(header).chain(missed.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &[String; 6]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// What the runs, the signals and the display share.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Real runs that go on.
    children: Vec<Pid>,
    /// The exit code of a sweep that was stopped.
    code: u8,
    display: Option<Display>,
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing that is done under the lock can leave it half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn code(&self) -> u8 {
        self.inner().code
    }

    pub(crate) fn end(&self) {
        if let Some(bar) = self.inner().display.as_ref().and_then(|display| display.bar.as_ref()) {
            bar.finish_and_clear();
        }
    }

    /// Waits until a run ends, and tells what it said. A signal meanwhile reaches it too.
    pub(crate) fn wait(&self, mut child: Child) -> std::io::Result<(ExitStatus, String)> {
        let pid = i32::try_from(child.id()).map(Pid::from_raw).ok();
        self.inner().children.extend(pid);
        if let Some(pid) = pid.filter(|_| self.stop.load(Ordering::Relaxed)) {
            let _ = kill(pid, Signal::SIGTERM);
        }
        let mut log = Vec::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_end(&mut log)?;
        }
        let status = child.wait();
        self.inner().children.retain(|other| Some(*other) != pid);
        Ok((status?, String::from_utf8_lossy(&log).into_owned()))
    }

    /// A signal came: real runs are told to end. Without any the process ends here; what was finished is kept, and nothing else counts.
    fn stop(&self, code: u8, by: Signal) {
        self.stop.store(true, Ordering::Relaxed);
        let mut inner = self.inner();
        inner.code = code;
        for child in &inner.children {
            // It may end at this very moment.
            let _ = kill(*child, by);
        }
        if inner.children.is_empty() {
            let display = inner.display.take();
            if let Some(bar) = display.as_ref().and_then(|display| display.bar.as_ref()) {
                bar.finish_and_clear();
            }
            let (done, total) = display.map_or((0, 0), |display| (display.done, display.total));
            say(&format!("{ERROR}{}", LabError::Stopped { done, total }));
            std::process::exit(code.into());
        }
    }
}

/// Listens for signals on a thread of its own: the first ends the sweep in order, the second by force.
pub(crate) fn listen(shared: &Arc<Shared>) -> Result<(), Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::world)?;
    let shared = shared.clone();
    let (mut interrupts, mut terminations) = {
        let _entered = runtime.enter();
        let listener = |kind| signal(kind).map_err(Failure::world);
        (listener(SignalKind::interrupt())?, listener(SignalKind::terminate())?)
    };
    let listening = move || {
        let mut by = Signal::SIGTERM;
        loop {
            let code = runtime.block_on(async {
                tokio::select! {
                    _ = interrupts.recv() => INTERRUPTED,
                    _ = terminations.recv() => TERMINATED,
                }
            });
            shared.stop(code, by);
            by = Signal::SIGKILL;
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listening).map_err(Failure::world)?;
    Ok(())
}

/// How far the sweep has come.
struct Display {
    bar: Option<ProgressBar>,
    began: Instant,
    last_line: Instant,
    done: u64,
    /// Those of them that were there before, which took no time.
    taken: u64,
    total: u64,
}

impl Display {
    fn text(&self) -> String {
        let Self { done, taken, total, .. } = *self;
        let made = done - taken;
        let left = match made {
            0 => String::new(),
            _ => {
                let each = self.began.elapsed().as_secs_f64() / made as f64;
                format!(", about {} left", span(each * (total - done) as f64))
            }
        };
        format!("{done} of {total} runs{left}")
    }
}

/// Seconds as people say them.
fn span(seconds: f64) -> String {
    match seconds {
        _ if seconds < 90.0 => format!("{seconds:.0} s"),
        _ if seconds < 5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

impl Watch for Shared {
    fn planned(&self, total: u64) {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:24} {percent:>3}% {msg}");
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        let began = Instant::now();
        self.inner().display = Some(Display { bar, began, last_line: began, done: 0, taken: 0, total });
    }

    fn finished(&self, slug: &str, taken: bool, failure: Option<&str>) {
        let mut inner = self.inner();
        let Some(display) = &mut inner.display else { return };
        display.done += 1;
        display.taken += u64::from(taken);
        let text = display.text();
        let failed = failure.map(|why| format!("{slug} failed: {why}"));
        match &display.bar {
            Some(bar) => {
                bar.set_position(display.done);
                bar.set_message(text);
                if let Some(failed) = failed {
                    bar.suspend(|| say(&failed));
                }
            }
            None => {
                if let Some(failed) = failed {
                    say(&failed);
                }
                if display.last_line.elapsed() >= LINE_EVERY {
                    display.last_line = Instant::now();
                    say(&text);
                }
            }
        }
    }
}

/// Real links that are slowed as the configuration says of simulated ones, in network namespaces.
pub(crate) struct SlowLinks {
    /// bench/peers/netns.sh.
    pub(crate) script: PathBuf,
    /// The namespaces have one name each, so one run at a time has them.
    pub(crate) turn: Mutex<()>,
}

impl SlowLinks {
    /// What makes the links of a run and starts a command between them; nothing where the run needs none.
    fn command(&self, config: &Config) -> Option<Command> {
        let simulation = &config.simulation;
        let mut shape = Vec::new();
        shape.extend(simulation.bandwidth.map(|bytes| format!("rate={:.0}bit", 8.0 * bytes)));
        if simulation.latency_s > 0.0 {
            shape.push(format!("delay={:.0}us", 1e6 * simulation.latency_s));
        }
        if simulation.loss > 0.0 {
            shape.push(format!("loss={}%", 100.0 * simulation.loss));
        }
        if shape.is_empty() {
            return None;
        }
        let mut command = Command::new("bash");
        let processes = config.workers + config.servers;
        command.arg(&self.script).arg("with").arg(processes.to_string()).args(shape).arg("--");
        Some(command)
    }
}

/// Makes the runs: simulated ones here, real ones by a child.
pub(crate) struct Maker<'a> {
    pub(crate) shared: &'a Shared,
    /// Threads of one simulation.
    pub(crate) threads: usize,
    /// What slows down the links of real runs; none where nothing does.
    pub(crate) links: Option<SlowLinks>,
}

impl Runner for Maker<'_> {
    fn run(&self, run: &RunSpec, folder: &Path) -> Result<(), RunFailure> {
        match run.mode {
            Mode::Sim | Mode::Timing => self.simulate(run, folder),
            Mode::Run => self.start(run, folder),
        }
    }
}

impl Maker<'_> {
    fn simulate(&self, run: &RunSpec, folder: &Path) -> Result<(), RunFailure> {
        let options = slackline_sim::Options {
            timing_only: run.mode == Mode::Timing,
            threads: self.threads,
            out: Some(folder.to_owned()),
            timeline_cap: if run.purpose == Purpose::Reported { TIMELINE_SPANS } else { 0 },
        };
        slackline_sim::simulate(&run.resolved, &options)
            .map(|_| ())
            .map_err(|failure| RunFailure { text: failure.to_string() })
    }

    /// A real run, as somebody would start it by hand.
    fn start(&self, run: &RunSpec, folder: &Path) -> Result<(), RunFailure> {
        let failed = |what: &str, error: std::io::Error| RunFailure { text: format!("{what}: {error}") };
        // config.toml is written by the run itself.
        let file = folder.join("asked.toml");
        std::fs::write(&file, run.resolved.to_toml())
            .map_err(|error| failed(&file.display().to_string(), error))?;
        let program = std::env::current_exe().map_err(|error| failed("this program", error))?;
        let slow = self.links.as_ref().and_then(|links| Some((links, links.command(&run.resolved.config)?)));
        let (mut command, _turn) = match slow {
            Some((links, mut command)) => {
                command.arg(program).arg("run").arg(&file).arg("--netns");
                // Nothing is left half done by who had it before.
                (command, Some(links.turn.lock().unwrap_or_else(PoisonError::into_inner)))
            }
            None => {
                let mut command = Command::new(program);
                command.arg("run").arg(&file);
                (command, None)
            }
        };
        command.arg("--out").arg(folder);
        // The environment is in the configuration already, under what the sweep sets.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with(VARIABLE_PREFIX)) {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(|error| failed("the run could not be started", error))?;
        let (status, log) = self.shared.wait(child).map_err(|error| failed("the run was lost", error))?;
        if status.success() {
            return Ok(());
        }
        let words = log.rfind(ERROR).map_or("", |at| log[at + ERROR.len()..].trim());
        Err(RunFailure {
            text: if words.is_empty() { format!("it ended with {status}") } else { words.to_owned() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_chosen_beside_the_keys_of_all_runs() {
        let overlay = overlay(&["scale=small", "train.epochs=3"].map(str::to_owned)).unwrap();
        assert_eq!(overlay.scale.as_deref(), Some("small"));
        assert_eq!(overlay.sets.len(), 1);
    }

    #[test]
    fn the_command_can_be_given_to_a_shell() {
        let sets = ["scale=small", "data.dir=/my data"].map(str::to_owned);
        assert_eq!(
            command("sweep", Path::new("configs/x.toml"), &sets),
            "slackline sweep configs/x.toml --set scale=small --set 'data.dir=/my data'"
        );
    }

    #[test]
    fn what_is_left_is_said_as_people_say_it() {
        for (seconds, text) in [(5.2, "5 s"), (600.0, "10 min"), (7200.0, "2.0 h")] {
            assert_eq!(span(seconds), text);
        }
    }
}
