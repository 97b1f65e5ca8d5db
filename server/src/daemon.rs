//! The server's loop: control events in, effects out, until the run is over.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::config::Resolved;
use slackline_core::ids::{Moment, ServerId, ShardId};
use slackline_core::wire::ToServer;
use slackline_net::{CloseCode, Identity, Listener, NetworkThread, Settings};
use slackline_server_core::control::End;
use slackline_server_core::record::Figures;
use slackline_server_core::{Control, ControlEffect, ControlEvent, Notice};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::directory::{Directory, Outgoing};
use crate::door::{Repeats, accept};
use crate::error::ServerError;
use crate::files::{FileError, Heading, Results, summary_of};
use crate::looks;
use crate::owner::{Owner, Task, Word};
use crate::parts::{asked, boot_number, control_settings, heading, shards};
use crate::peers;
use crate::session::Shared;
use crate::ticks::Ticks;
use crate::tracer;

/// Control events that may wait; when it is full, sessions read no further.
pub(crate) const EVENTS_MAX: usize = 4096;

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
    /// Folder of the results; used by the coordinator, and for traces.
    pub out: PathBuf,
    /// Whether each shard writes a trace.
    pub trace: bool,
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

/// Runs a server until the run is over; blocks the calling thread.
///
/// # Errors
/// [`ServerError`]; nothing is left running.
pub fn serve(options: ServerOptions) -> Result<Ended, ServerError> {
    let config = &options.resolved.config;
    if options.trace && config.sync.is_some() {
        return Err(ServerError::NothingToTrace);
    }
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
    let settings = shards(options.index, config);
    let mut tracers = match options.trace {
        true => tracer::create_all(&options.out, &options.resolved, options.index, &settings, began)?,
        false => BTreeMap::new(),
    };
    let directory = Arc::new(Directory::new(settings.len()));
    let (word_sender, words) = mpsc::unbounded_channel();
    let mut owners = BTreeMap::new();
    let mut threads = Vec::new();
    for settings in settings {
        let id = settings.id;
        let (directory, words, tracer) = (directory.clone(), word_sender.clone(), tracers.remove(&id));
        let (owner, thread) = Owner::start(settings, began, directory, words, tracer)?;
        owners.insert(id, owner);
        threads.push(thread);
    }
    let (control, events) = mpsc::channel(EVENTS_MAX);
    let shared = Arc::new(Shared { directory, owners, control, network });
    let ServerOptions { index, resolved, ready, .. } = options;
    let daemon = Daemon::new(index, resolved, identity, shared, results, began);
    ready(listener.local_address());
    let outcome = net.block_on(daemon.run(listener, events, words))?;
    net.stop();
    let panicked = threads.into_iter().filter_map(|thread| thread.join().err()).count();
    match outcome {
        Ok(_) if panicked > 0 => {
            Err(ServerError::Run("a shard's thread panicked; see the log above".to_owned()))
        }
        outcome => outcome,
    }
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
    /// Peers turned away, for the log.
    refusals: Repeats,
}

/// What the loop is woken by.
#[expect(clippy::large_enum_variant, reason = "it is made once and moved once; a box would cost more")]
enum Happening {
    Event(ControlEvent),
    Word(Word),
    Tick,
    Signal(&'static str),
}

impl Daemon {
    fn new(
        index: ServerId,
        resolved: Resolved,
        identity: Identity,
        shared: Arc<Shared>,
        results: Option<Results>,
        began: Instant,
    ) -> Self {
        let now = Moment(began.elapsed().as_nanos() as u64);
        let shards = shared.owners.keys().copied().collect();
        let settings = control_settings(index, &resolved, shards, boot_number(began));
        Self {
            control: Control::new(settings, now),
            heading: heading(&resolved),
            resolved,
            identity,
            shared,
            results,
            began,
            written: Instant::now(),
            end: None,
            broken: None,
            refusals: Repeats::default(),
        }
    }

    async fn run(
        mut self,
        listener: Listener,
        mut events: mpsc::Receiver<ControlEvent>,
        mut words: mpsc::UnboundedReceiver<Word>,
    ) -> Result<Ended, ServerError> {
        let listener = Arc::new(listener);
        let accepting = tokio::spawn(accept(listener.clone(), self.shared.clone()));
        let wait_report = Duration::from_secs_f64(self.resolved.config.cluster.wait_report_s);
        let reporting = tokio::spawn(looks::report_holds(self.shared.clone(), wait_report));
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let lease = Duration::from_secs_f64(self.resolved.config.cluster.lease_s);
        let mut ticks = Ticks::new(Instant::now(), self.tick(), lease);
        let mut interrupted = false;
        loop {
            // In this order: what peers have said is heard before the time is looked at, else a lease could end with its renewal
            // waiting in the queue.
            let happening = tokio::select! {
                biased;
                _ = interrupt.recv() => Happening::Signal("interrupted"),
                _ = terminate.recv() => Happening::Signal("terminated"),
                Some(word) = words.recv() => Happening::Word(word),
                Some(event) = events.recv(), if ticks.let_events_first() => Happening::Event(event),
                () = ticks.due() => Happening::Tick,
            };
            match happening {
                Happening::Event(event) => {
                    ticks.count_event(Instant::now());
                    self.event(event).await;
                }
                Happening::Word(Word::HasValues(shard)) => {
                    self.event(ControlEvent::HasValues { shard }).await
                }
                Happening::Word(Word::Ended(shard)) => self.fail(shard).await,
                Happening::Tick => self.tell_time(ticks.take(Instant::now())).await,
                Happening::Signal(reason) => {
                    interrupted = true;
                    self.event(ControlEvent::Interrupt { reason: reason.to_owned() }).await;
                }
            }
            let stays = self.end == Some(End::Complete) && !self.resolved.config.cluster.exit_when_done;
            if interrupted || (self.end.is_some() && !stays) {
                break;
            }
        }
        accepting.abort();
        reporting.abort();
        self.farewell(&mut events, interrupted).await;
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

    /// A tick; before it, where the server stood still, for how long it did.
    async fn tell_time(&mut self, late: Option<Duration>) {
        if let Some(by) = late {
            let seconds = by.as_secs_f64();
            tracing::warn!("this server stood still for {seconds:.1} s; all leases are extended by that");
            self.event(ControlEvent::Late { by }).await;
        }
        self.event(ControlEvent::Tick).await;
        if let Some(unsaid) = self.refusals.take_unsaid(Instant::now()) {
            tracing::warn!("turned {unsaid} more away");
        }
        if self.written.elapsed().as_secs_f64() >= self.resolved.config.metrics.every_s {
            self.written = Instant::now();
            if self.end.is_none() && self.control.is_started() {
                self.write_line(serde_json::json!({ "event": "progress" }));
            }
        }
    }

    /// A shard has lost its thread, and with it its values: nobody can go on.
    async fn fail(&mut self, shard: ShardId) {
        let text =
            format!("the thread of {shard} has ended: it panicked, see the log above; the run has failed");
        tracing::error!(shard = shard.0, "{text}");
        self.event(ControlEvent::Interrupt { reason: text.clone() }).await;
        self.end = Some(End::Failed(text));
    }

    fn now(&self) -> Moment {
        Moment(self.began.elapsed().as_nanos() as u64)
    }

    async fn event(&mut self, event: ControlEvent) {
        let registers = match &event {
            ControlEvent::Message { session, message: ToServer::Register(_) } => Some(*session),
            _ => None,
        };
        let mut effects = Vec::new();
        self.control.handle(self.now(), event, &mut effects);
        if let Some(session) = registers {
            self.shared.directory.bind(session, self.control.worker_of(session));
        }
        for effect in effects {
            self.perform(effect).await;
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
            // A shard without its thread says so itself, and that ends the run.
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
                if self.shared.directory.begin_status(session) {
                    let status = self.control.status(self.now());
                    tokio::spawn(looks::send_status(session, status, self.shared.clone()));
                }
            }
            ControlEffect::Evaluated => {
                // The samples that workers have reported lag behind those that the values had seen.
                let evaluations = self.control.record().map_or(&[][..], |record| record.evaluations());
                let at_samples = evaluations.last().map(|evaluation| evaluation.samples);
                self.write_line(serde_json::json!({ "event": "evaluate", "at_samples": at_samples }));
            }
            ControlEffect::Notice(notice) => self.say(&notice),
            ControlEffect::End(end) => self.finish(end),
        }
    }

    fn write_line(&mut self, event: serde_json::Value) {
        let figures = self.figures(false);
        if let (Some(results), Some(figures)) = (&mut self.results, figures)
            && let Err(error) = results.line(event, &figures)
        {
            self.note_broken(error);
        }
    }

    fn figures(&self, whole: bool) -> Option<Figures> {
        let record = self.control.record()?;
        Some(record.figures(self.now(), &asked(&self.resolved.config, whole)))
    }

    fn note_broken(&mut self, error: FileError) {
        // Metrics fail again and again; the first time says it.
        if self.broken.is_none() {
            tracing::error!("{error}");
            self.broken = Some(error);
        }
    }

    /// Each thing once, at the level of who must act.
    fn say(&mut self, notice: &Notice) {
        match notice {
            Notice::Joined { worker, incarnation, clock, .. } => {
                tracing::info!(worker = worker.0, incarnation = incarnation.0, clock = clock.0, "{notice}");
            }
            Notice::Expired { worker, .. }
            | Notice::BadGradient { worker, .. }
            | Notice::Trouble { worker, .. } => {
                tracing::warn!(worker = worker.0, "{notice}");
            }
            Notice::WrongRole { role, message, .. } => self.say_refusal(&format!("{role} {message}"), notice),
            Notice::Refused { text, .. } => self.say_refusal(text, notice),
            Notice::Awaiting { .. }
            | Notice::NobodyLeft { .. }
            | Notice::Regrouping { .. }
            | Notice::Misfit { .. } => tracing::warn!("{notice}"),
            Notice::Left { worker, .. } | Notice::Recovered { worker, .. } => {
                tracing::info!(worker = worker.0, "{notice}");
            }
            Notice::Grouped { generation, .. } => tracing::info!(group = generation.0, "{notice}"),
            Notice::Started { .. } | Notice::Evaluated { .. } | Notice::Chosen { .. } => {
                tracing::info!("{notice}");
            }
        }
    }

    fn say_refusal(&mut self, kind: &str, notice: &Notice) {
        match self.refusals.may_say(kind, Instant::now()) {
            Some(0) => tracing::warn!("{notice}"),
            Some(unsaid) => tracing::warn!("{notice}; {unsaid} more were before it"),
            None => {}
        }
    }

    fn finish(&mut self, end: End) {
        if end == End::Complete
            && let (Some(results), Some(figures)) = (&self.results, self.figures(true))
        {
            let refused = self.control.refused();
            let extra = serde_json::json!({
                "batches_repeated": self.control.batches_repeated(),
                "refused": {
                    "handshake": refused.handshake, "role": refused.role,
                    "malformed": refused.malformed, "fenced": refused.fenced,
                },
            });
            let summary = summary_of(&self.heading, &figures, extra);
            match results.summary(&summary) {
                Ok(()) => tracing::info!("{}", result_line(&figures, results.folder())),
                Err(error) => {
                    // What hours of work have brought must not be lost with the disk.
                    tracing::error!("the figures of the run, which are in no file: {summary}");
                    if self.broken.is_some() {
                        tracing::error!("{error}");
                    }
                    self.note_broken(error);
                }
            }
        }
        self.end = Some(end);
    }

    /// Ends all sessions after what they were told; the coordinator ends the other servers.
    async fn farewell(&mut self, events: &mut mpsc::Receiver<ControlEvent>, interrupted: bool) {
        for session in self.shared.directory.sessions() {
            self.shared
                .directory
                .send(session, Outgoing::Close(CloseCode::Done, "the server ends".to_owned()));
        }
        let config = &self.resolved.config;
        let is_over = matches!(self.end, Some(End::Complete | End::Failed(_)));
        if (is_over || interrupted) && self.results.is_some() {
            let others = config.cluster.addresses.iter().skip(1).cloned().collect::<Vec<_>>();
            let reason = if is_over { "the run is over" } else { "server 0 was interrupted" };
            peers::stop(&others, &self.identity, &self.shared.network, reason).await;
        }
        let shared = self.shared.clone();
        let all_gone = async { while !shared.directory.is_empty() && events.recv().await.is_some() {} };
        let _ = tokio::time::timeout(FAREWELL, all_gone).await;
    }
}

/// The end of a run in one line.
fn result_line(figures: &Figures, folder: &Path) -> String {
    let accuracy = match figures.r#final.test_accuracy {
        Some(accuracy) => format!("test accuracy {:.2} %", 100.0 * accuracy),
        None => "no evaluation".to_owned(),
    };
    let Figures { samples, wall_s, .. } = figures;
    format!(
        "the run is complete: {accuracy}, {samples} samples in {wall_s:.1} s; summary.json, metrics.jsonl and config.toml are in {}",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair;

    #[tokio::test]
    async fn a_shard_without_its_thread_fails_the_run() {
        let folder = pair::key_folder();
        let (control, events) = mpsc::channel(EVENTS_MAX);
        let (word_sender, words) = mpsc::unbounded_channel();
        let directory = Arc::new(Directory::new(1));
        let shared = Shared { directory, owners: BTreeMap::new(), control, network: Settings::default() };
        let resolved = pair::resolved();
        let identity = Identity::load(folder.path(), slackline_net::Role::Server).unwrap();
        let daemon = Daemon::new(ServerId(0), resolved, identity, Arc::new(shared), None, Instant::now());
        word_sender.send(Word::HasValues(ShardId(3))).unwrap();
        word_sender.send(Word::Ended(ShardId(3))).unwrap();
        let error = daemon.run(pair::listener(&folder), events, words).await.unwrap_err();
        assert!(
            !error.is_users() && error.to_string().contains("the thread of shard 3 has ended"),
            "{error}"
        );
    }
}
