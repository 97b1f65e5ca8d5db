//! The server's loop: control events in, effects out, until the run is over.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::config::{Config, OnBadGradient, Resolved};
use slackline_core::ids::{Moment, ServerId, SessionId, ShardId};
use slackline_core::limits::STATUS_ROWS_MAX;
use slackline_core::wire::{Status, ToPeer, ToServer};
use slackline_net::{
    BindError, CloseCode, Identity, KeysError, Listener, NetworkStopped, NetworkThread, Settings,
};
use slackline_server_core::control::{CoordinatorSettings, End};
use slackline_server_core::{Control, ControlEffect, ControlEvent, ControlSettings, Notice, ShardSettings};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::directory::{Directory, Outgoing};
use crate::files::{FileError, Heading, Results};
use crate::owner::{Owner, Task};
use crate::peers;
use crate::session::{self, Shared};

/// Control events that may wait; when it is full, sessions read no further.
const EVENTS_MAX: usize = 4096;

/// How long the end waits for peers to read what they were told.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a server is started with.
pub struct ServerOptions {
    /// Which server of the run.
    pub index: ServerId,
    /// The configuration of the run.
    pub resolved: Resolved,
    /// The address to bind.
    pub bind: SocketAddr,
    /// Folder of the keys.
    pub keys: PathBuf,
    /// Folder of the results; used by the coordinator only.
    pub out: PathBuf,
    /// Told the address that was bound, once peers can connect.
    pub ready: Box<dyn FnOnce(SocketAddr) + Send>,
}

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The run is complete, or somebody with the right to said stop.
    Well,
    /// A signal ended it.
    Interrupted,
}

/// Why a server cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The folder of the results.
    #[error(transparent)]
    File(#[from] FileError),
    /// The machine gives no thread.
    #[error("the system gives no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The network thread is gone.
    #[error(transparent)]
    Stopped(#[from] NetworkStopped),
    /// The run failed.
    #[error("{0}")]
    Run(String),
}

impl ServerError {
    /// Whether the one who started it can mend it (exit code 2), and not the world (1).
    #[must_use]
    pub const fn is_users(&self) -> bool {
        matches!(self, Self::Keys(_) | Self::Bind(_))
    }
}

/// Runs a server until the run is over; blocks the calling thread.
///
/// # Errors
/// [`ServerError`]; nothing is left running.
pub fn serve(options: ServerOptions) -> Result<Ended, ServerError> {
    let config = &options.resolved.config;
    let identity = Identity::load(&options.keys, slackline_net::Role::Server)?;
    let network = Settings::new(&config.transport, Duration::from_secs_f64(config.cluster.lease_s));
    let results = match options.index {
        ServerId(0) => Some(Results::begin(&options.out, &options.resolved.to_toml())?),
        _ => None,
    };
    let net = NetworkThread::start(&format!("server {}", options.index.0))?;
    let listener = {
        let _within = net.handle().enter();
        Listener::bind(options.bind, &identity, &network)?
    };
    let began = Instant::now();
    let directory = Arc::new(Directory::default());
    let (has_values, values_arrived) = mpsc::unbounded_channel();
    let mut owners = BTreeMap::new();
    let mut threads = Vec::new();
    for settings in shards(options.index, config) {
        let id = settings.id;
        let (owner, thread) = Owner::start(settings, began, directory.clone(), has_values.clone())?;
        owners.insert(id, owner);
        threads.push(thread);
    }
    let (control, events) = mpsc::channel(EVENTS_MAX);
    let shared = Arc::new(Shared { directory, owners, control, network });
    let now = Moment(began.elapsed().as_nanos() as u64);
    let daemon = Daemon {
        control: Control::new(control_settings(&options, &shared, began), now),
        heading: heading(&options.resolved),
        resolved: options.resolved,
        identity,
        shared,
        results,
        began,
        written: Instant::now(),
        end: None,
        broken: None,
    };
    (options.ready)(listener.local_address());
    let outcome = net.block_on(daemon.run(listener, events, values_arrived))?;
    net.stop();
    for thread in threads {
        if thread.join().is_err() {
            return Err(ServerError::Run("a shard's thread panicked; see the log above".to_owned()));
        }
    }
    outcome
}

fn shards(server: ServerId, config: &Config) -> Vec<ShardSettings> {
    let layout = Arc::new(config.layout());
    let (policy, optimizer) = (config.consistency.policy, config.optimizer);
    let settings = |(id, keys)| ShardSettings { id, keys, layout: layout.clone(), policy, optimizer };
    config.partition().shards_on(server).map(settings).collect()
}

fn heading(resolved: &Resolved) -> Heading {
    let config = &resolved.config;
    Heading {
        config_hash: resolved.hash(),
        seed: config.seed,
        policy: config.consistency.policy.to_string(),
        workers: config.workers,
        servers: config.servers,
        shards: config.partition().shards().count() as u64,
        model: config.model.name(),
        parameters: config.layout().len(),
    }
}

fn control_settings(options: &ServerOptions, shared: &Shared, began: Instant) -> ControlSettings {
    let config = &options.resolved.config;
    let layout = config.layout();
    ControlSettings {
        server: options.index,
        workers: config.workers,
        lease: Duration::from_secs_f64(config.cluster.lease_s),
        wait_report: Duration::from_secs_f64(config.cluster.wait_report_s),
        layout_hash: layout.hash(),
        layout_text: layout.to_string(),
        config_hash: options.resolved.hash(),
        boot: boot_number(began),
        shards: shared.owners.keys().copied().collect(),
        stop_on_bad_gradient: config.consistency.on_bad_gradient == OnBadGradient::Stop,
        coordinator: (options.index == ServerId(0)).then_some(CoordinatorSettings {
            policy: config.consistency.policy,
            batch: config.train.batch,
            epochs: config.train.epochs,
            evaluate_every_epochs: config.evaluate.every_epochs,
        }),
    }
}

/// A number that another start of the process does not have: the time and the process's own number.
fn boot_number(began: Instant) -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = since_epoch.as_nanos() as u64 ^ began.elapsed().as_nanos() as u64;
    nanoseconds.rotate_left(20) ^ u64::from(std::process::id())
}

struct Daemon {
    control: Control,
    heading: Heading,
    resolved: Resolved,
    identity: Identity,
    shared: Arc<Shared>,
    results: Option<Results>,
    began: Instant,
    written: Instant,
    end: Option<End>,
    /// The first file that could not be written: the run goes on, the process ends with it.
    broken: Option<FileError>,
}

impl Daemon {
    async fn run(
        mut self,
        listener: Listener,
        mut events: mpsc::Receiver<ControlEvent>,
        mut values_arrived: mpsc::UnboundedReceiver<ShardId>,
    ) -> Result<Ended, ServerError> {
        let listener = Arc::new(listener);
        let accepting = tokio::spawn(accept(listener.clone(), self.shared.clone()));
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut ticks = tokio::time::interval(self.tick());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut interrupted = false;
        loop {
            let event = tokio::select! {
                Some(event) = events.recv() => event,
                Some(shard) = values_arrived.recv() => ControlEvent::HasValues { shard },
                _ = ticks.tick() => ControlEvent::Tick,
                _ = interrupt.recv() => { interrupted = true; ControlEvent::Interrupt { reason: "interrupted".to_owned() } }
                _ = terminate.recv() => { interrupted = true; ControlEvent::Interrupt { reason: "terminated".to_owned() } }
            };
            self.event(event).await;
            let stays = self.end == Some(End::Complete) && !self.resolved.config.cluster.exit_when_done;
            if interrupted || (self.end.is_some() && !stays) {
                break;
            }
        }
        accepting.abort();
        self.farewell(&mut events).await;
        listener.close(CloseCode::Done, "the server ends").await;
        match (self.end, self.broken) {
            (Some(End::Failed(text)), _) => Err(ServerError::Run(text)),
            (_, Some(broken)) => Err(broken.into()),
            (Some(End::Complete | End::Stopped(_)) | None, None) if !interrupted => Ok(Ended::Well),
            _ => Ok(Ended::Interrupted),
        }
    }

    /// Often enough that a lease ends on time and a metrics line is not late.
    fn tick(&self) -> Duration {
        let config = &self.resolved.config;
        Duration::from_secs_f64(
            (config.cluster.lease_s / 20.0).min(config.metrics.every_s / 2.0).clamp(0.01, 0.25),
        )
    }

    fn now(&self) -> Moment {
        Moment(self.began.elapsed().as_nanos() as u64)
    }

    async fn event(&mut self, event: ControlEvent) {
        let registers = match &event {
            ControlEvent::Message { session, message: ToServer::Register(_) } => Some(*session),
            _ => None,
        };
        let ticks = event == ControlEvent::Tick;
        let mut effects = Vec::new();
        self.control.handle(self.now(), event, &mut effects);
        if let Some(session) = registers {
            self.shared.directory.bind(session, self.control.worker_of(session));
        }
        for effect in effects {
            self.perform(effect).await;
        }
        if ticks && self.written.elapsed().as_secs_f64() >= self.resolved.config.metrics.every_s {
            self.written = Instant::now();
            if self.end.is_none() && self.control.is_started() {
                self.write_line(serde_json::json!({ "event": "progress" }));
            }
        }
    }

    async fn perform(&mut self, effect: ControlEffect) {
        match effect {
            ControlEffect::Send { session, message } => {
                self.shared.directory.send(session, Outgoing::Message(message));
            }
            ControlEffect::Close { session } => {
                self.shared.directory.send(session, Outgoing::Close(CloseCode::Refused, String::new()));
            }
            ControlEffect::Shards(event) => {
                for owner in self.shared.owners.values() {
                    let _ = owner.inbox.send(Task::Event(event.clone())).await;
                }
            }
            ControlEffect::Shard { shard, event } => {
                if let Some(owner) = self.shared.owners.get(&shard) {
                    let _ = owner.inbox.send(Task::Event(event)).await;
                }
            }
            ControlEffect::Status { session } => {
                tokio::spawn(send_status(session, self.control.status(self.now()), self.shared.clone()));
            }
            ControlEffect::Evaluated => {
                // The samples that workers have reported lag behind those that the values had seen.
                let evaluations = self.control.record().map_or(&[][..], |record| record.evaluations());
                let at_samples = evaluations.last().map(|evaluation| evaluation.samples);
                self.write_line(serde_json::json!({ "event": "evaluate", "at_samples": at_samples }));
            }
            ControlEffect::Notice(notice) => say(&notice),
            ControlEffect::End(end) => self.finish(end),
        }
    }

    fn write_line(&mut self, event: serde_json::Value) {
        let figures = self.figures();
        if let (Some(results), Some(figures)) = (&mut self.results, figures)
            && let Err(error) = results.line(event, &figures)
        {
            self.note_broken(error);
        }
    }

    fn figures(&self) -> Option<slackline_server_core::record::Figures> {
        let config = &self.resolved.config;
        let (policy, workers) = (config.consistency.policy, u64::from(config.workers));
        let record = self.control.record()?;
        Some(record.figures(self.now(), policy, workers, &config.evaluate.accuracies))
    }

    fn note_broken(&mut self, error: FileError) {
        if self.broken.is_none() {
            tracing::error!("{error}");
            self.broken = Some(error);
        }
    }

    fn finish(&mut self, end: End) {
        if end == End::Complete
            && let (Some(results), Some(figures)) = (&self.results, self.figures())
        {
            let refused = self.control.refused();
            let extra = serde_json::json!({
                "batches_repeated": self.control.batches_repeated(),
                "refused": {
                    "handshake": refused.handshake, "role": refused.role,
                    "malformed": refused.malformed, "fenced": refused.fenced,
                },
            });
            if let Err(error) = results.summary(&self.heading, &figures, extra) {
                self.note_broken(error);
            }
        }
        self.end = Some(end);
    }

    /// Ends all sessions after what they were told; the coordinator ends the other servers.
    async fn farewell(&mut self, events: &mut mpsc::Receiver<ControlEvent>) {
        for session in self.shared.directory.sessions() {
            self.shared
                .directory
                .send(session, Outgoing::Close(CloseCode::Done, "the server ends".to_owned()));
        }
        let config = &self.resolved.config;
        let complete = self.end == Some(End::Complete) || matches!(self.end, Some(End::Failed(_)));
        if complete && self.results.is_some() {
            let others = config.cluster.addresses.iter().skip(1).cloned().collect::<Vec<_>>();
            peers::stop(&others, &self.identity, &self.shared.network, "the run is over").await;
        }
        let shared = self.shared.clone();
        let all_gone = async { while !shared.directory.is_empty() && events.recv().await.is_some() {} };
        let _ = tokio::time::timeout(FAREWELL, all_gone).await;
    }
}

/// Each thing once, at the level of who must act.
fn say(notice: &Notice) {
    match notice {
        Notice::Joined { worker, incarnation, clock, .. } => {
            tracing::info!(worker = worker.0, incarnation = incarnation.0, clock = clock.0, "{notice}");
        }
        Notice::Expired { worker, .. } | Notice::BadGradient { worker, .. } => {
            tracing::warn!(worker = worker.0, "{notice}");
        }
        Notice::WrongRole { .. } | Notice::Refused { .. } | Notice::Awaiting { .. } => {
            tracing::warn!("{notice}")
        }
        Notice::Left { worker, .. } => tracing::info!(worker = worker.0, "{notice}"),
        Notice::Started { .. } | Notice::Evaluated { .. } => tracing::info!("{notice}"),
    }
}

async fn accept(listener: Arc<Listener>, shared: Arc<Shared>) {
    let mut last = SessionId(0);
    while let Some(handshake) = listener.accept().await {
        last = last.next();
        let (session, shared) = (last, shared.clone());
        tokio::spawn(async move {
            match handshake.complete().await {
                Ok(connection) => session::serve(session, connection, shared).await,
                Err(error) => {
                    let (address, text) = (error.remote.to_string(), error.to_string());
                    let event = ControlEvent::TurnedAway { address, text, handshake: true };
                    let _ = shared.control.send(event).await;
                }
            }
        });
    }
}

/// Fills in the shards' rows and sends the status. A shard that is busy for over a second is left out.
async fn send_status(session: SessionId, mut status: Status, shared: Arc<Shared>) {
    for owner in shared.owners.values().take(STATUS_ROWS_MAX) {
        let (answer, rows) = oneshot::channel();
        if owner.inbox.send(Task::Look(answer)).await.is_err() {
            continue;
        }
        if let Ok(Ok((row, held))) = tokio::time::timeout(Duration::from_secs(1), rows).await {
            status.shards.push(row);
            status.held.extend(held);
        }
    }
    // The rows of all shards together must fit one message.
    status.held.truncate(STATUS_ROWS_MAX);
    status.shards.truncate(STATUS_ROWS_MAX);
    shared.directory.send(session, Outgoing::Message(ToPeer::Status(Box::new(status))));
}
