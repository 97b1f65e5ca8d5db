//! `slackline run`: servers and workers on this machine, from the first key to the summary, and nothing left running.

mod before;
mod ends;
mod losses;

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use slackline_core::config::{Config, Value};
use slackline_core::wire::Status;
use slackline_net::{Identity, Role};
use tokio::process::Command;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

pub(crate) use self::before::refuse_apart;
use self::before::{PUSH_LOG, checkpoints_in, push_log_folder, refuse_own};
use self::ends::Ends;
use crate::child::{Child, Told};
use crate::cli::{Configured, RunArgs};
use crate::daemons::{ADDRESSES, READY};
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

/// How much longer where it may still be at the last checkpoint. A store that takes nothing is given up by the coordinator itself.
const SAVING: Duration = Duration::from_secs(300);

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Namespaces and addresses as bench/peers/netns.sh makes them.
const NAMESPACE: &str = "slackline-peer-";
const NETWORK: &str = "10.77.0.";

/// Exit codes of a run that a signal ended, as a shell says them.
const INTERRUPTED: u8 = 128 + 2;
const TERMINATED: u8 = 128 + 15;

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
    let resume = args.resume.as_deref().map(|at| checkpoints_in(at, &resolved)).transpose()?;
    if let Some((at, newest)) = &resume
        && slackline_server::stands(Path::new(out), newest)
    {
        let summary = summary::render(Path::new(out)).map_err(Failure::world)?;
        return print(&format!(
            "The run is complete with checkpoint {} in {at}: nothing is left to do, and its results stay as they are.\n{summary}",
            newest.number
        ));
    }
    let resume = resume.map(|(at, _)| at);
    traces::forget(Path::new(out))
        .map_err(|error| Failure::world(format!("the former traces in {out} cannot be removed: {error}")))?;
    if let Some(folder) = &args.push_log {
        push_log_folder(folder).map_err(|error| {
            Failure::user(format!(
                "--push-log {}: {error}; give a folder that can be written",
                folder.display()
            ))
        })?;
    }
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
            push_log: args.push_log.as_deref(),
            fresh: args.fresh,
            resume: resume.clone(),
            netns: args.netns,
            log,
            config: &resolved.config,
            keys: &key_folder,
            children: Vec::new(),
            addresses: Vec::new(),
            restarts: Vec::new(),
            sender,
            told,
            display: Display::new(),
            signals: (signal(SignalKind::interrupt()), signal(SignalKind::terminate())),
            blamed: None,
            lost: None,
        };
        let outcome = run.all(&identity).await;
        run.display.end();
        if let Ok(Ended::Interrupted(code)) = outcome {
            let left = run.children.iter().filter(|child| child.ended.is_none()).count();
            let how = if code == TERMINATED { "terminated" } else { "interrupted" };
            run.display.say(&format!("{how}: ending {left} processes"));
        }
        run.end_children().await;
        run.forget_states(&resolved);
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
    /// Folder of the push logs.
    push_log: Option<&'a Path>,
    /// Whether checkpoints of an earlier run are removed.
    fresh: bool,
    /// The checkpoints that the run goes on from.
    resume: Option<String>,
    /// Whether each process is in a network namespace of its own.
    netns: bool,
    log: Option<&'a str>,
    config: &'a Config,
    keys: &'a Path,
    /// Servers first, then workers.
    children: Vec<Child>,
    /// Where the servers are, once all are ready.
    addresses: Vec<String>,
    /// When each server was started again.
    restarts: Vec<Option<Instant>>,
    sender: UnboundedSender<Told>,
    told: UnboundedReceiver<Told>,
    display: Display,
    signals: (std::io::Result<SignalStream>, std::io::Result<SignalStream>),
    /// The error that the run fails with, as the child that ended first said it.
    blamed: Option<String>,
    /// How the last worker was lost, where what was trained may still be kept.
    lost: Option<Failure>,
}

impl Run<'_> {
    async fn all(&mut self, identity: &Identity) -> Result<Ended, Failure> {
        let servers = self.config.servers as usize;
        for index in 0..servers {
            let bind = format!("{}:0", self.host("server", index));
            let mut extra = self.of_server(index, bind);
            extra.extend(self.fresh.then(|| "--fresh".to_owned()));
            let child = self.start("server", index, index, &extra)?;
            self.children.push(child);
        }
        self.restarts = vec![None; servers];
        self.addresses = match self.await_ready(servers).await? {
            Ok(addresses) => addresses,
            Err(interrupted) => return Ok(interrupted),
        };
        let told = format!("{ADDRESSES}{}", self.addresses.join(" "));
        for child in &mut self.children {
            child.tell(&told).await;
        }
        let list = Value::List(self.addresses.iter().cloned().map(Value::Text).collect());
        for index in 0..self.config.workers as usize {
            let mut extra = vec!["--set".to_owned(), format!("cluster.addresses={list}")];
            if self.config.sync.is_some() {
                // Nobody else is to reach the workers of one machine.
                let listen = format!("sync.listen={}:0", self.host("worker", index));
                extra.extend(["--set", &listen, "--set", "sync.advertise="].map(str::to_owned));
            }
            if let Some(folder) = self.push_log {
                let file = folder.join(format!("worker-{index}.{PUSH_LOG}"));
                extra.extend(["--push-log".to_owned(), file.display().to_string()]);
            }
            let child = self.start("worker", index, servers + index, &extra)?;
            self.children.push(child);
        }
        let mut looks = self.looks(identity, &self.addresses[0]);
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

    /// Starts a process, which speaks as the `number`th child.
    fn start(&self, role: &str, index: usize, number: usize, extra: &[String]) -> Result<Child, Failure> {
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
        Child::start(number, name.clone(), command, &self.sender)
            .map_err(|error| Failure::world(format!("{name} could not be started: {error}")))
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
            let Ok(connector) = connector else { return };
            let mut ticks = tokio::time::interval(LOOK_EVERY);
            let mut observer = None;
            // A coordinator that was started again is looked at anew.
            while !sender.is_closed() {
                ticks.tick().await;
                let session = match observer.take() {
                    Some(session) => Ok(session),
                    None => Observer::connect(&connector, &address).await,
                };
                let Ok(mut session) = session else { continue };
                if let Ok(status) = session.status().await {
                    observer = Some(session);
                    // The receiver ends with the run.
                    let _ = sender.send(status);
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
        let last = if self.config.checkpoint.every.is_some() { LAST + SAVING } else { LAST };
        loop {
            tokio::select! {
                Some(told) = self.told.recv() => match told {
                    Told::Line(..) => {}
                    Told::Log(line) => self.display.say(&line),
                    Told::Ended(index, status) => {
                        self.ended(index, status, servers, &ends).await?;
                        ends.note(&self.children[0], &self.children[servers..]);
                        if ends.coordinator.is_some() && ends.last_worker.is_some() {
                            return Ok(Ended::Well);
                        }
                    }
                },
                Some(status) = looks.recv() => {
                    self.display.show(&status);
                    if let Some(text) = ends.hopeless(&status, self.lost.is_some()) {
                        return Err(self.given_up(&text));
                    }
                }
                code = interrupted(&mut self.signals) => return Ok(Ended::Interrupted(code)),
                () = reached(ends.coordinator, STRAGGLERS) => {
                    for child in self.children[servers..].iter().filter(|child| child.ended.is_none()) {
                        self.display.say(&format!("{} did not end with the run and is ended now", child.name));
                    }
                    return Ok(Ended::Well);
                }
                () = reached(ends.last_worker, last) => {
                    let text = format!("all workers ended, and server 0 did not within {} s", last.as_secs());
                    return Err(self.given_up(&text));
                }
            }
        }
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
