//! The server's loop: control events in, effects out, until the run is over.

mod deciding;
mod keeping;
mod leaving;
mod troubles;
mod voice;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::config::Resolved;
use slackline_core::ids::{Moment, ShardId};
use slackline_net::{CloseCode, Identity, Listener};
use slackline_server_core::control::{Commit, End};
use slackline_server_core::record::Figures;
use slackline_server_core::{Control, ControlEffect, ControlEvent, HostEffect};
use tokio::sync::{mpsc, watch};

use crate::coordinator_link::{self, Words};
use crate::directory::Outgoing;
use crate::door::{Repeats, accept};
use crate::error::ServerError;
use crate::files::{FileError, Heading, Results, summary_of};
use crate::home::Home;
use crate::parts::{asked, heading};
use crate::session::Shared;
use crate::signals::Signals;
use crate::start::Ended;
use crate::ticks::Ticks;
use crate::words::Word;
use crate::{looks, saver};

pub(crate) use keeping::Memory;
use troubles::{Place, Troubles};
use voice::{repeated, result_line};

/// Control events that may wait; when it is full, sessions read no further.
pub(crate) const EVENTS_MAX: usize = 4096;

/// The control loop and what it acts on.
pub(crate) struct Daemon {
    control: Control,
    heading: Heading,
    resolved: Resolved,
    identity: Identity,
    home: Home,
    /// The way to the coordinator; nothing is said there on the coordinator's own server.
    words: Words,
    results: Option<Results>,
    memory: Memory,
    signals: Signals,
    /// Another candidate coordinates, or will, or a later process: nothing of this one counts any more.
    is_deposed: bool,
    /// A signal came.
    is_interrupted: bool,
    began: Instant,
    /// What control has asked for before the loop begins.
    first: Vec<ControlEffect>,
    /// What control is to hear next: what follows from its own effects.
    next: VecDeque<ControlEvent>,
    troubles: Troubles,
    written: Instant,
    end: Option<End>,
    /// The first file that could not be written: the run goes on, the process ends with it.
    broken: Option<FileError>,
    /// Peers turned away, for the log.
    refusals: Repeats,
    /// What control waits for, for the log, and when it was last told.
    told: watch::Sender<looks::Told>,
    told_at: Instant,
}

/// What the loop is woken by.
#[expect(clippy::large_enum_variant, reason = "it is made once and moved once; a box would cost more")]
enum Happening {
    Event(ControlEvent),
    Word(Word),
    Tick,
    Signal(&'static str),
    Deposed,
}

impl Daemon {
    pub(crate) fn new(
        (control, first): (Control, Vec<ControlEffect>),
        resolved: Resolved,
        identity: Identity,
        home: Home,
        results: Option<Results>,
        memory: Memory,
        signals: Signals,
    ) -> Self {
        Self {
            control,
            heading: heading(&resolved),
            resolved,
            identity,
            began: home.surroundings.began,
            home,
            words: Words::default(),
            results,
            memory,
            signals,
            is_deposed: false,
            is_interrupted: false,
            first,
            next: VecDeque::new(),
            troubles: Troubles::default(),
            written: Instant::now(),
            end: None,
            broken: None,
            refusals: Repeats::default(),
            told: watch::Sender::default(),
            told_at: Instant::now(),
        }
    }

    pub(crate) async fn run(
        mut self,
        listener: Listener,
        mut events: mpsc::Receiver<ControlEvent>,
        mut words: mpsc::UnboundedReceiver<Word>,
    ) -> Result<Ended, ServerError> {
        let listener = Arc::new(listener);
        let accepting = tokio::spawn(accept(listener.clone(), self.shared().clone()));
        let wait_report = Duration::from_secs_f64(self.resolved.config.cluster.wait_report_s);
        let told = self.told.subscribe();
        let reporting = tokio::spawn(looks::report_waits(self.shared().clone(), wait_report, told));
        let linking = self.link();
        let lease = Duration::from_secs_f64(self.resolved.config.cluster.lease_s);
        let mut ticks = Ticks::new(Instant::now(), self.tick(), lease);
        for effect in std::mem::take(&mut self.first) {
            self.perform(effect).await;
        }
        loop {
            // In this order: what peers have said is heard before the time is looked at, else a lease could end with its renewal
            // waiting in the queue.
            let happening = tokio::select! {
                biased;
                signal = self.signals.recv() => Happening::Signal(signal),
                () = Memory::lost(&mut self.memory.lost) => Happening::Deposed,
                Some(word) = words.recv() => Happening::Word(word),
                Some(event) = events.recv(), if ticks.let_events_first() => Happening::Event(event),
                () = ticks.due() => Happening::Tick,
            };
            match happening {
                Happening::Event(event) => {
                    ticks.count_event(Instant::now());
                    self.next.push_back(event);
                    // With those that wait behind it, where they are written together.
                    while self.next.len() < self.together()
                        && ticks.let_events_first()
                        && let Ok(event) = events.try_recv()
                    {
                        ticks.count_event(Instant::now());
                        self.next.push_back(event);
                    }
                    self.handle_next().await;
                }
                Happening::Word(Word::Ended(shard)) => self.fail(shard).await,
                Happening::Word(word) => {
                    let committed = match &word {
                        Word::Committed { number, outcome: Ok(()) } => Some(*number),
                        _ => None,
                    };
                    if let Some(event) = self.heard(word) {
                        self.event(event).await;
                    }
                    if let (Some(number), Some(saver), false) =
                        (committed, &self.home.surroundings.saver, self.is_deposed)
                    {
                        saver.tidy(number);
                    }
                }
                Happening::Tick => self.tell_time(ticks.take(Instant::now())).await,
                Happening::Deposed => self.is_deposed = true,
                // Nobody is told of the end of this process: another candidate goes on.
                Happening::Signal(_) if self.memory.lost.is_some() => self.is_interrupted = true,
                Happening::Signal(reason) => {
                    self.is_interrupted = true;
                    self.event(ControlEvent::Leave { reason: reason.to_owned() }).await;
                    if self.control.is_going() {
                        tracing::info!(
                            "{reason}: goes when the coordinator knows; once more ends it at once"
                        );
                    }
                }
            }
            let stays = self.end == Some(End::Complete) && !self.resolved.config.cluster.exit_when_done;
            let leaves = self.is_interrupted && !self.control.is_going();
            if leaves || self.is_deposed || (self.end.is_some() && !stays) {
                break;
            }
        }
        accepting.abort();
        reporting.abort();
        if let Some(linking) = linking {
            linking.abort();
        }
        self.hand_over().await;
        let (code, why) = self.last_word();
        self.farewell(code, why, &mut events).await;
        self.let_go().await;
        self.forget();
        self.home.surroundings.links.close().await;
        listener.close(code, why).await;
        if self.is_deposed && !self.is_interrupted {
            tracing::warn!("this candidate coordinates no more; it stands by");
            return Ok(Ended::Deposed);
        }
        match (self.end, self.broken) {
            (Some(End::Failed(text)), _) => Err(ServerError::Run(text)),
            (Some(End::Refused(text)), _) => Err(ServerError::Refused(text)),
            (_, Some(broken)) => Err(broken.into()),
            (Some(End::Complete | End::Stopped(_)) | None, None) if !self.is_interrupted => Ok(Ended::Well),
            _ => Ok(Ended::Interrupted),
        }
    }

    /// Often enough that a lease ends on time and a metrics line is not late.
    fn tick(&self) -> Duration {
        let config = &self.resolved.config;
        let metrics = Duration::from_secs_f64(config.metrics.every_s / 2.0);
        config.timers().tick.min(metrics).max(Duration::from_millis(10))
    }

    /// A tick; before it, where the server stood still, for how long it did.
    async fn tell_time(&mut self, late: Option<Duration>) {
        if let Some(by) = late {
            let seconds = by.as_secs_f64();
            tracing::warn!("this server stood still for {seconds:.1} s; all leases are extended by that");
            self.event(ControlEvent::Late { by }).await;
        }
        self.event(ControlEvent::Tick).await;
        self.tell_waits();
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

    /// Tells whoever writes the log of waits what control waits for.
    fn tell_waits(&mut self) {
        if self.told_at.elapsed() >= self.resolved.config.timers().wait_report / 2 {
            self.told_at = Instant::now();
            // A run tells them when all its servers are ready.
            self.control.set_addresses(self.home.surroundings.links.addresses());
            let now = self.moment();
            self.told.send_replace(looks::Told {
                waits: self.control.waits(now),
                heard: self.control.heard_ago(now),
            });
        }
    }

    /// A shard has lost its thread, and with it its values: this process cannot go on.
    async fn fail(&mut self, shard: ShardId) {
        let why = format!("the thread of {shard} has ended: it panicked, see the log above");
        tracing::error!(shard = shard.0, "{why}");
        self.event(ControlEvent::Broken { why }).await;
    }

    fn now(&self) -> Moment {
        Moment(self.began.elapsed().as_nanos() as u64)
    }

    /// Now, in the time of the run: that of this process is another one where the coordinator was restarted.
    fn moment(&self) -> Moment {
        self.control.moment(self.now())
    }

    const fn shared(&self) -> &Arc<Shared> {
        &self.home.shared
    }

    /// The session with the coordinator, on every server but its own.
    fn link(&self) -> Option<tokio::task::JoinHandle<()>> {
        let coordinator = self.resolved.config.coordinator();
        let is_needed = self.home.surroundings.server != coordinator;
        let links = self.home.surroundings.links.clone();
        let (words, control) = (self.words.clone(), self.shared().control.clone());
        is_needed.then(|| tokio::spawn(coordinator_link::keep(coordinator, links, words, control)))
    }

    /// What control is to know of a word of the other threads.
    fn heard(&mut self, word: Word) -> Option<ControlEvent> {
        Some(match word {
            Word::HasValues(shard) => ControlEvent::HasValues { shard },
            Word::Ended(_) => return None,
            Word::Host(shard, effect) => return told_of(shard, effect),
            Word::OutOfReach { shard, generation, backup } => {
                ControlEvent::OutOfReach { shard, generation, backup }
            }
            Word::Doubt(doubt) => ControlEvent::Doubt(doubt),
            Word::CutMissed { shard, number } => ControlEvent::CutMissed { number, shard },
            Word::Saved { shard, number, entry } => ControlEvent::Saved { number, shard, entry },
            Word::NotSaved { shard, number, why } => ControlEvent::NotSaved { number, shard, why },
            Word::Committed { number, outcome: Ok(()) } => ControlEvent::Committed { number },
            Word::Committed { number, outcome: Err(why) } => ControlEvent::NotCommitted { number, why },
            Word::Trouble(shard, text) => {
                return self.troubles.note(Place::Journal(shard), text).map(ControlEvent::Trouble);
            }
            Word::StoreTrouble(text) => {
                return self.troubles.note(Place::Store, text).map(ControlEvent::Trouble);
            }
        })
    }

    /// One event, after those that follow from control's own effects, and what follows from it.
    async fn event(&mut self, event: ControlEvent) {
        self.next.push_back(event);
        self.handle_next().await;
    }

    async fn perform(&mut self, effect: ControlEffect) {
        match effect {
            ControlEffect::Send { session, message } => {
                self.shared().directory.send(session, Outgoing::Message(message));
            }
            ControlEffect::Close { session } => {
                self.shared().directory.send(session, Outgoing::Close(CloseCode::Refused, String::new()));
            }
            ControlEffect::Shards(event) => self.home.tell(None, event).await,
            ControlEffect::Shard { shard, event } => self.home.tell(Some(shard), event).await,
            ControlEffect::Place { shard, place, members, started } => {
                if let Err(error) = self.home.place(&self.resolved, shard, place, members, started).await {
                    self.next.push_back(ControlEvent::Broken { why: error.to_string() });
                }
            }
            ControlEffect::Coordinator(word) => self.words.say(word),
            ControlEffect::Persist(map) => {
                let number = map.number;
                if self.keep_map(&map).await {
                    self.next.push_back(ControlEvent::Persisted { number });
                }
            }
            ControlEffect::Commit(commit) => self.commit(*commit),
            ControlEffect::Status { session } => {
                if self.shared().directory.begin_status(session) {
                    let status = self.control.status(self.moment());
                    tokio::spawn(looks::send_status(session, status, self.shared().clone()));
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

    fn commit(&mut self, commit: Commit) {
        let Commit { number, parts, position, .. } = commit;
        let Some(saver) = &self.home.surroundings.saver else {
            let why = "no checkpoints are made in this run".to_owned();
            self.next.push_back(ControlEvent::NotCommitted { number, why });
            return;
        };
        let (clock, samples_done) = (position.clock, position.samples_done);
        // Numbers, texts and lists of them can always be written as JSON.
        let position = serde_json::to_value(&position).unwrap_or_default();
        saver.commit(saver::Commit { number, clock, samples_done, parts, position });
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
        Some(record.figures(self.moment(), &asked(&self.resolved.config, whole)))
    }

    fn note_broken(&mut self, error: FileError) {
        // Metrics fail again and again; the first time says it.
        if self.broken.is_none() {
            tracing::error!("{error}");
            self.broken = Some(error);
        }
    }

    fn finish(&mut self, end: End) {
        if end == End::Complete
            && let (Some(results), Some(figures)) = (&self.results, self.figures(true))
        {
            let refused = self.control.refused();
            let extra = serde_json::json!({
                "batches_repeated": self.control.batches_repeated(),
                "repeated": self.control.repeats().map(repeated),
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
}

/// What control is to know of what a host tells.
fn told_of(shard: ShardId, effect: HostEffect) -> Option<ControlEvent> {
    Some(match effect {
        HostEffect::InStep { generation, backup } => ControlEvent::InStep { shard, generation, backup },
        HostEffect::Leads { generation, has_values, members } => {
            ControlEvent::Leads { shard, generation, has_values, members }
        }
        HostEffect::Restored { generation, version, clock } => {
            ControlEvent::Restored { shard, generation, version, clock }
        }
        HostEffect::NotRestored { generation, why } => ControlEvent::NotRestored { shard, generation, why },
        HostEffect::Differs { shard, index } => {
            tracing::error!(
                shard = shard.0,
                "the copies of {shard} differ at entry {}: a fault of the program; the backup is given the state anew",
                index.0
            );
            return None;
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
