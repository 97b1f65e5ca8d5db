//! `slackline run`: servers and workers on this machine, from the first key to the summary, and nothing left running.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use slackline_core::config::{Config, Resolved, SET_LAYER, Value};
use slackline_core::wire::{Phase, Status};
use slackline_net::{Identity, Role};
use tokio::process::Command;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::child::{Child, Told};
use crate::cli::{Configured, RunArgs};
use crate::daemons::READY;
use crate::failure::Failure;
use crate::observer::{Observer, connector};
use crate::progress::Display;
use crate::{ERROR, keys, print, resolve, summary, traces};

/// How long all servers together may take to be ready.
const START: Duration = Duration::from_secs(30);

/// How long a child may take to end after it was told to.
const GRACE: Duration = Duration::from_secs(5);

/// How long a worker may live on when the coordinator has ended well. It was no member any more, or the coordinator had waited for it.
const STRAGGLERS: Duration = Duration::from_secs(2);

/// How long the coordinator may live on when all workers have ended, and it does not say that work is left.
const LAST: Duration = Duration::from_secs(30);

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Namespaces and addresses as bench/peers/netns.sh makes them.
const NAMESPACE: &str = "slackline-peer-";
const NETWORK: &str = "10.77.0.";

/// Exit codes of a run that a signal ended, as a shell says them.
const INTERRUPTED: u8 = 128 + 2;
const TERMINATED: u8 = 128 + 15;

/// What a run decides by itself, whatever the file says, and what it does there.
const OWN: [(&str, &str); 5] = [
    ("cluster.keys", "makes its own keys"),
    ("cluster.addresses", "chooses its own addresses"),
    ("cluster.exit_when_done", "ends its servers itself"),
    ("sync.listen", "lets its workers listen on the loopback only"),
    ("sync.advertise", "chooses its own addresses"),
];

pub(crate) fn run(args: &RunArgs, log: Option<&str>) -> Result<u8, Failure> {
    let configured = &args.configured;
    if let Some(folder) = &args.keys {
        return Err(Failure::user(format!("--keys {folder}: `run` makes its own keys; leave it out")));
    }
    let resolved = resolve(configured)?;
    refuse_own(&resolved)?;
    if args.trace && resolved.config.sync.is_some() {
        return Err(Failure::user(
            "--trace: an allreduce has no shards to trace; leave it out, or set sync.method=server",
        ));
    }
    let out = &resolved.config.out;
    traces::forget(Path::new(out))
        .map_err(|error| Failure::world(format!("the former traces in {out} cannot be removed: {error}")))?;
    let keys = keys::throw_away(&std::env::temp_dir())
        .map_err(|error| Failure::world(format!("no temporary folder for the keys: {error}")))?;
    let key_folder = keys.path().join("keys");
    slackline_net::keys::init(&key_folder).map_err(Failure::world)?;
    let identity = Identity::load(&key_folder, Role::Observer).map_err(Failure::world)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::world)?;
    let outcome = runtime.block_on(async {
        let (sender, told) = unbounded_channel();
        let mut run = Run {
            configured,
            trace: args.trace,
            netns: args.netns,
            log,
            config: &resolved.config,
            keys: &key_folder,
            children: Vec::new(),
            sender,
            told,
            display: Display::new(),
            signals: (signal(SignalKind::interrupt()), signal(SignalKind::terminate())),
            blamed: None,
        };
        let outcome = run.all(&identity).await;
        run.display.end();
        if let Ok(Ended::Interrupted(code)) = outcome {
            let left = run.children.iter().filter(|child| child.ended.is_none()).count();
            let how = if code == TERMINATED { "terminated" } else { "interrupted" };
            run.display.say(&format!("{how}: ending {left} processes"));
        }
        run.end_children().await;
        outcome
    });
    match outcome? {
        Ended::Well => {
            let out = Path::new(&resolved.config.out);
            print(&summary::render(out).map_err(Failure::world)?)
        }
        Ended::Interrupted(code) => Ok(code),
    }
}

/// What was set by hand must have an effect; in a file, these are for the daemons.
fn refuse_own(resolved: &Resolved) -> Result<(), Failure> {
    for (key, own) in OWN {
        if resolved.origin(key) == Some(SET_LAYER) {
            return Err(Failure::user(format!(
                "--set {key}: has no effect, since `run` {own}; leave it out"
            )));
        }
    }
    Ok(())
}

/// How a run ended.
enum Ended {
    Well,
    /// By a signal, with the code that says so.
    Interrupted(u8),
}

struct Run<'a> {
    configured: &'a Configured,
    /// Whether servers trace.
    trace: bool,
    /// Whether each process is in a network namespace of its own.
    netns: bool,
    log: Option<&'a str>,
    config: &'a Config,
    keys: &'a Path,
    /// Servers first, then workers.
    children: Vec<Child>,
    sender: UnboundedSender<Told>,
    told: UnboundedReceiver<Told>,
    display: Display,
    signals: (std::io::Result<SignalStream>, std::io::Result<SignalStream>),
    /// The error that the run fails with, as the child that ended first said it.
    blamed: Option<String>,
}

/// When those ended without which a run may go on, or which it may end without.
#[derive(Debug, Default)]
struct Ends {
    coordinator: Option<Instant>,
    first_worker: Option<Instant>,
    last_worker: Option<Instant>,
}

impl Ends {
    fn note(&mut self, coordinator: &Child, workers: &[Child]) {
        let now = |is_so: bool| is_so.then(Instant::now);
        let has_ended = |child: &Child| child.ended.is_some();
        self.coordinator = self.coordinator.or(now(has_ended(coordinator)));
        self.first_worker = self.first_worker.or(now(workers.iter().any(has_ended)));
        self.last_worker = self.last_worker.or(now(workers.iter().all(has_ended)));
    }

    /// Why a run that is in this state will never be complete. A worker ends well also when somebody told it to go.
    fn hopeless(&self, status: &Status) -> Option<&'static str> {
        let long_ago = |end: Option<Instant>| end.is_some_and(|end| end.elapsed() > STRAGGLERS);
        match status.phase {
            Phase::Waiting { .. } if long_ago(self.first_worker) => {
                Some("a worker ended before the run began")
            }
            Phase::Running if long_ago(self.last_worker) && status.members.is_empty() => {
                Some("all workers ended before the work was done")
            }
            _ => None,
        }
    }
}

impl Run<'_> {
    async fn all(&mut self, identity: &Identity) -> Result<Ended, Failure> {
        let servers = self.config.servers as usize;
        for index in 0..servers {
            let bind = format!("{}:0", self.host("server", index));
            let mut extra = vec!["--index".to_owned(), index.to_string(), "--bind".to_owned(), bind];
            extra.extend(self.trace.then(|| "--trace".to_owned()));
            self.start("server", index, &extra)?;
        }
        let addresses = match self.await_ready(servers).await? {
            Ok(addresses) => addresses,
            Err(interrupted) => return Ok(interrupted),
        };
        let list = Value::List(addresses.iter().cloned().map(Value::Text).collect());
        for index in 0..self.config.workers as usize {
            let mut extra = vec!["--set".to_owned(), format!("cluster.addresses={list}")];
            if self.config.sync.is_some() {
                // Nobody else is to reach the workers of one machine.
                let listen = format!("sync.listen={}:0", self.host("worker", index));
                extra.extend(["--set", &listen, "--set", "sync.advertise="].map(str::to_owned));
            }
            self.start("worker", index, &extra)?;
        }
        let mut looks = self.looks(identity, &addresses[0]);
        self.watch(servers, &mut looks).await
    }

    /// The place of a process among the namespaces: workers first.
    fn place(&self, role: &str, index: usize) -> usize {
        if role == "worker" { index } else { self.config.workers as usize + index }
    }

    /// The address that a process is reached at.
    fn host(&self, role: &str, index: usize) -> String {
        if self.netns { format!("{NETWORK}{}", self.place(role, index) + 1) } else { "127.0.0.1".to_owned() }
    }

    fn start(&mut self, role: &str, index: usize, extra: &[String]) -> Result<(), Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::world(format!("the path of this program is unknown: {error}")))?;
        let mut command = if self.netns {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &format!("{NAMESPACE}{}", self.place(role, index))]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.arg(role).arg(&self.configured.file).arg("--leash");
        command.args(["--log", self.log.unwrap_or("warn")]);
        // Who dials whom, and with which keys, is decided here and not by the file.
        for set in self.configured.all_sets().iter().chain([&"cluster.addresses=[]".to_owned()]) {
            command.args(["--set", set]);
        }
        command.arg("--keys").arg(self.keys).args(["--set", "cluster.exit_when_done=true"]).args(extra);
        let name = format!("{role} {index}");
        let child = Child::start(self.children.len(), name.clone(), command, &self.sender)
            .map_err(|error| Failure::world(format!("{name} could not be started: {error}")))?;
        self.children.push(child);
        Ok(())
    }

    /// The addresses of all servers, as each says that it is ready.
    async fn await_ready(&mut self, servers: usize) -> Result<Result<Vec<String>, Ended>, Failure> {
        let deadline = Instant::now() + START;
        let mut addresses = vec![None; servers];
        while addresses.iter().any(Option::is_none) {
            tokio::select! {
                Some(told) = self.told.recv() => match told {
                    Told::Line(index, line) => {
                        let address = line.split_once(READY).and_then(|(_, rest)| rest.split_whitespace().next());
                        if let (Some(address), Some(slot)) = (address, addresses.get_mut(index)) {
                            *slot = Some(address.to_owned());
                        }
                    }
                    Told::Log(line) => self.display.say(&line),
                    Told::Ended(index, status) => return Err(self.failed(index, status)),
                },
                code = interrupted(&mut self.signals) => return Ok(Err(Ended::Interrupted(code))),
                () = sleep_until(deadline) => {
                    let missing = addresses.iter().position(Option::is_none).unwrap_or(0);
                    let text = format!("server {missing} was not ready within {} s", START.as_secs());
                    return Err(Failure::world(text));
                }
            }
        }
        Ok(Ok(addresses.into_iter().flatten().collect()))
    }

    /// Looks at the coordinator for the display, in a task of its own: a look that takes long holds up nothing.
    fn looks(&self, identity: &Identity, address: &str) -> UnboundedReceiver<Status> {
        let (sender, looks) = unbounded_channel();
        let (connector, address) = (connector(self.config, identity), address.to_owned());
        tokio::spawn(async move {
            let connector = connector?;
            let mut observer = Observer::connect(&connector, &address).await?;
            let mut ticks = tokio::time::interval(LOOK_EVERY);
            loop {
                ticks.tick().await;
                if sender.send(observer.status().await?).is_err() {
                    return Ok::<(), String>(());
                }
            }
        });
        looks
    }

    /// Until all workers and the coordinator have ended well, or one child has not.
    async fn watch(
        &mut self,
        servers: usize,
        looks: &mut UnboundedReceiver<Status>,
    ) -> Result<Ended, Failure> {
        let mut ends = Ends::default();
        loop {
            tokio::select! {
                Some(told) = self.told.recv() => match told {
                    Told::Line(..) => {}
                    Told::Log(line) => self.display.say(&line),
                    Told::Ended(index, status) => {
                        match status {
                            Ok(status) if status.success() && (index == 0 || index >= servers) => {
                                self.children[index].ended = Some(status);
                            }
                            Ok(status) if index >= servers && status.code().is_none() && self.goes_on_without_some() => {
                                let (_, how) = describe(status);
                                self.children[index].ended = Some(status);
                                let name = &self.children[index].name;
                                self.display.say(&format!("{name} ended ({how}); the others go on without it"));
                            }
                            status => return Err(self.failed(index, status)),
                        }
                        ends.note(&self.children[0], &self.children[servers..]);
                        if ends.coordinator.is_some() && ends.last_worker.is_some() {
                            return Ok(Ended::Well);
                        }
                    }
                },
                Some(status) = looks.recv() => {
                    self.display.show(&status);
                    if let Some(text) = ends.hopeless(&status) {
                        return Err(Failure::world(text));
                    }
                }
                code = interrupted(&mut self.signals) => return Ok(Ended::Interrupted(code)),
                () = reached(ends.coordinator, STRAGGLERS) => {
                    for child in self.children[servers..].iter().filter(|child| child.ended.is_none()) {
                        self.display.say(&format!("{} did not end with the run and is ended now", child.name));
                    }
                    return Ok(Ended::Well);
                }
                () = reached(ends.last_worker, LAST) => {
                    let text = format!("all workers ended, and server 0 did not within {} s", LAST.as_secs());
                    return Err(Failure::world(text));
                }
            }
        }
    }

    /// Whether the run is made to lose workers.
    fn goes_on_without_some(&self) -> bool {
        self.config.sync.as_ref().is_some_and(|sync| sync.elastic)
    }

    /// A child that ended before its time: its code and its last words.
    fn failed(&mut self, index: usize, status: std::io::Result<ExitStatus>) -> Failure {
        let child = &mut self.children[index];
        let (code, how) = match &status {
            Ok(status) => {
                child.ended = Some(*status);
                describe(*status)
            }
            Err(error) => (crate::failure::WORLD, error.to_string()),
        };
        self.blamed = child.last_words();
        let words = self.blamed.as_ref().map_or_else(String::new, |words| format!(": {words}"));
        Failure { code, text: format!("{} ended ({how}) before the run was over{words}", child.name) }
    }

    /// Ends what is still running: workers first, which leave politely, then servers; then by force.
    async fn end_children(&mut self) {
        let workers_first = |child: &Child| child.name.starts_with("worker");
        for workers in [true, false] {
            for child in self.children.iter().filter(|child| workers_first(child) == workers) {
                child.signal(Signal::SIGTERM);
            }
            if !self.ended_within(workers, GRACE).await {
                for child in self.children.iter().filter(|child| workers_first(child) == workers) {
                    child.signal(Signal::SIGKILL);
                }
                self.ended_within(workers, GRACE).await;
            }
        }
    }

    async fn ended_within(&mut self, workers: bool, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let running = |child: &Child| child.name.starts_with("worker") == workers && child.ended.is_none();
        while self.children.iter().any(running) {
            tokio::select! {
                Some(told) = self.told.recv() => match told {
                    Told::Line(..) => {}
                    Told::Log(line) => self.display.say(&line),
                    Told::Ended(index, status) => {
                        let child = &mut self.children[index];
                        child.ended = Some(status.unwrap_or_default());
                        // It may know more than the one that ended first.
                        if let Some(words) = child.last_words().filter(|words| Some(words) != self.blamed.as_ref()) {
                            self.display.say(&format!("[{}] {ERROR}{words}", child.name));
                        }
                    }
                },
                () = sleep_until(deadline) => return false,
            }
        }
        true
    }
}

/// Waits until so long after a moment; for ever if there is none.
async fn reached(moment: Option<Instant>, after: Duration) {
    match moment {
        Some(moment) => sleep_until(moment + after).await,
        None => std::future::pending().await,
    }
}

/// The exit code and the words for how a child ended.
fn describe(status: ExitStatus) -> (u8, String) {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => (crate::failure::WORLD, "exit code 0".to_owned()),
        (Some(code), _) => (u8::try_from(code).unwrap_or(crate::failure::WORLD), format!("exit code {code}")),
        (None, Some(signal)) => (128 + signal as u8, format!("signal {signal}")),
        (None, None) => (crate::failure::WORLD, "unknown".to_owned()),
    }
}

/// Waits for a signal; the exit code that tells which.
async fn interrupted(signals: &mut (std::io::Result<SignalStream>, std::io::Result<SignalStream>)) -> u8 {
    async fn one(stream: &mut std::io::Result<SignalStream>) {
        match stream {
            Ok(stream) => {
                stream.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    }
    tokio::select! {
        () = one(&mut signals.0) => INTERRUPTED,
        () = one(&mut signals.1) => TERMINATED,
    }
}

#[cfg(test)]
mod tests {
    use slackline_core::ids::{Incarnation, ServerId, WorkerId};
    use slackline_core::wire::{MemberRow, RefusedCounts, Text};

    use super::*;

    fn status(phase: Phase, members: u32) -> Status {
        let member = |worker| MemberRow {
            worker: WorkerId(worker),
            incarnation: Incarnation(1),
            address: Text::default(),
            clock: None,
            heard_ms: 0,
        };
        Status {
            server: ServerId(0),
            phase,
            progress: None,
            members: (0..members).map(member).collect(),
            members_hidden: 0,
            held: Vec::new(),
            shards: Vec::new(),
            refused: RefusedCounts::default(),
        }
    }

    #[test]
    fn a_run_is_hopeless_when_those_who_could_do_the_work_have_gone() {
        let before = Instant::now().checked_sub(STRAGGLERS * 2);
        let one = Ends { first_worker: before, ..Ends::default() };
        let all = Ends { last_worker: before, ..one };
        let waiting = || Phase::Waiting { here: 1, wanted: 2, since_ms: 0 };
        for (ends, phase, members, is_hopeless) in [
            (&Ends::default(), waiting(), 1, false),
            (&one, waiting(), 1, true),
            (&one, Phase::Running, 1, false),
            // One that has left the children but not the table was not told to go: its lease decides.
            (&all, Phase::Running, 1, false),
            (&all, Phase::Running, 0, true),
            (&all, Phase::Finished, 0, false),
        ] {
            let status = status(phase, members);
            assert_eq!(ends.hopeless(&status).is_some(), is_hopeless, "{ends:?} {:?}", status.phase);
        }
        // What was on its way when the last one ended is no news.
        let just_now = Ends { last_worker: Some(Instant::now()), ..Ends::default() };
        assert_eq!(just_now.hopeless(&status(Phase::Running, 0)), None);
    }
}
