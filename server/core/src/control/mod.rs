//! The control of one server: sessions and what their roles allow, members and their leases, and on server 0 the coordinator's part.
//!
//! Control sees every message; the shards see what it passes on. A worker is a member of each server on its own account: it
//! registers, renews its lease with whatever it sends, and is removed when it leaves or when the lease runs out.

mod allreduce;
mod coordinator;
mod group;
mod members;
mod messages;

use std::collections::BTreeMap;
use std::time::Duration;

use slackline_core::ids::{Clock, Incarnation, Moment, ServerId, SessionId, ShardId, WorkerId};
use slackline_core::role::Role;
use slackline_core::wire::{Phase, Refusal, RefusedCounts, Text, ToPeer, ToServer};

use coordinator::Coordinator;
pub use coordinator::CoordinatorSettings;
pub use group::AllreduceSettings;
use group::Gone;
use members::Members;

use crate::notice::Notice;
use crate::record::Record;
use crate::shard::ShardEvent;

/// What control is made from.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    /// Which server.
    pub server: ServerId,
    /// Workers that the run begins with.
    pub workers: u32,
    /// A member that is silent for so long is removed.
    pub lease: Duration,
    /// How often a wait is reported.
    pub wait_report: Duration,
    /// Fingerprint of the model's layout.
    pub layout_hash: u64,
    /// The layout in words, for the refusal of another one.
    pub layout_text: String,
    /// Fingerprint of the configuration.
    pub config_hash: u64,
    /// A number drawn when the process began.
    pub boot: u64,
    /// The shards with keys on this server.
    pub shards: Vec<ShardId>,
    /// Whether a gradient that is not finite ends the run.
    pub stop_on_bad_gradient: bool,
    /// The coordinator's part; only on server 0.
    pub coordinator: Option<CoordinatorSettings>,
}

/// What can happen to control.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "an event is made once and moved once; a box would cost more")]
pub enum ControlEvent {
    /// A peer has connected.
    Opened {
        /// Its session.
        session: SessionId,
        /// The role in its certificate.
        role: Role,
        /// Where it connects from.
        address: String,
    },
    /// A peer has sent a message.
    Message {
        /// Its session.
        session: SessionId,
        /// What.
        message: ToServer,
    },
    /// A session is over.
    Closed {
        /// Which.
        session: SessionId,
    },
    /// Bytes that were no message, or a handshake that failed.
    TurnedAway {
        /// Its address.
        address: String,
        /// Why, in words.
        text: String,
        /// Whether it failed in the handshake.
        handshake: bool,
    },
    /// A shard has values now.
    HasValues {
        /// Which.
        shard: ShardId,
    },
    /// Time has passed.
    Tick,
    /// This server was itself at a standstill (its process was stopped, its machine had no time for it): nobody could be heard.
    Late {
        /// For so long.
        by: Duration,
    },
    /// The process is to end.
    Interrupt {
        /// Why.
        reason: String,
    },
}

/// What control asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlEffect {
    /// Send a message.
    Send {
        /// To whom.
        session: SessionId,
        /// What.
        message: ToPeer,
    },
    /// Close a session after what was sent.
    Close {
        /// Which.
        session: SessionId,
    },
    /// Tell all shards of this server.
    Shards(ShardEvent),
    /// Tell one shard.
    Shard {
        /// Which.
        shard: ShardId,
        /// What.
        event: ShardEvent,
    },
    /// Send the status; the shards' rows are to be filled in.
    Status {
        /// To whom.
        session: SessionId,
    },
    /// An evaluation is in the record.
    Evaluated,
    /// For the log.
    Notice(Notice),
    /// The process has nothing more to do.
    End(End),
}

/// How a server ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The run is complete.
    Complete,
    /// The coordinator or an admin said so, or a signal.
    Stopped(String),
    /// The run has failed.
    Failed(String),
}

/// A connected peer.
#[derive(Clone, Debug)]
struct Session {
    role: Role,
    address: String,
    worker: Option<(WorkerId, Incarnation)>,
}

/// The control of one server.
#[derive(Debug)]
pub struct Control {
    settings: ControlSettings,
    sessions: BTreeMap<SessionId, Session>,
    members: Members,
    coordinator: Option<Coordinator>,
    refused: RefusedCounts,
    shards_with_values: BTreeMap<ShardId, bool>,
    began: Moment,
    reported: Moment,
    started: bool,
    /// Batches of the run, as the first worker that registered counted them.
    batch_count: Option<u64>,
    ended: Option<End>,
}

impl Control {
    /// Control without members.
    #[must_use]
    pub fn new(settings: ControlSettings, now: Moment) -> Self {
        Self {
            members: Members::new(settings.lease),
            coordinator: settings
                .coordinator
                .clone()
                .map(|part| Coordinator::new(part, settings.boot, settings.workers)),
            shards_with_values: settings.shards.iter().map(|shard| (*shard, false)).collect(),
            settings,
            sessions: BTreeMap::new(),
            refused: RefusedCounts::default(),
            began: now,
            reported: now,
            started: false,
            batch_count: None,
            ended: None,
        }
    }

    /// Takes one event in; what is to be done about it comes out in `effects`.
    pub fn handle(&mut self, now: Moment, event: ControlEvent, effects: &mut Vec<ControlEffect>) {
        match event {
            ControlEvent::Opened { session, role, address } => {
                self.sessions.insert(session, Session { role, address, worker: None });
                let (server, boot) = (self.settings.server, self.settings.boot);
                let message = ToPeer::Welcome { protocol: slackline_core::wire::PROTOCOL, server, boot };
                effects.push(ControlEffect::Send { session, message });
            }
            ControlEvent::Message { session, message } => {
                self.heard(now, session);
                self.message(now, session, message, effects);
            }
            ControlEvent::Closed { session } => {
                let peer = self.sessions.remove(&session);
                let worker = peer.and_then(|peer| peer.worker).map(|(worker, _)| worker);
                let has_left = worker.filter(|worker| {
                    self.members.session_of(*worker) == Some(session) && self.leaves(*worker)
                });
                self.members.unbind(session);
                if let Some(worker) = has_left {
                    self.let_go(now, worker, effects);
                }
            }
            ControlEvent::TurnedAway { address, text, handshake } => {
                *(if handshake { &mut self.refused.handshake } else { &mut self.refused.malformed }) += 1;
                effects.push(ControlEffect::Notice(Notice::Refused { address, text }));
            }
            ControlEvent::HasValues { shard } => {
                self.shards_with_values.insert(shard, true);
            }
            ControlEvent::Tick => self.tick(now, effects),
            ControlEvent::Late { by } => self.members.forgive(by, now),
            ControlEvent::Interrupt { reason } => self.end(End::Stopped(reason), effects),
        }
        self.settle(now, effects);
    }

    fn heard(&mut self, now: Moment, session: SessionId) {
        if let Some((worker, _)) = self.sessions.get(&session).and_then(|session| session.worker) {
            self.members.renew(worker, session, now);
        }
    }

    fn tick(&mut self, now: Moment, effects: &mut Vec<ControlEffect>) {
        for expired in self.members.expire(now) {
            let worker = expired.worker;
            let clock = self.coordinator.as_ref().and_then(|coordinator| coordinator.lost_after(worker));
            let silent = now.since(expired.heard);
            let incarnation = expired.incarnation;
            effects.push(ControlEffect::Notice(Notice::Expired { worker, incarnation, clock, silent }));
            self.remove(now, worker, &Gone::Silent(silent), effects);
            if let Some(session) = expired.session {
                self.refused.fenced += 1;
                let text =
                    format!("the lease of {worker} is over ({:.1} s without a word)", silent.as_secs_f64());
                self.refuse(session, slackline_core::wire::RefusalCode::Fenced, text, effects);
            }
        }
        if now.since(self.reported) >= self.settings.wait_report {
            self.reported = now;
            effects.extend(self.wait(now).map(ControlEffect::Notice));
        }
    }

    /// What the whole run waits for, if it does.
    fn wait(&self, now: Moment) -> Option<Notice> {
        let coordinator = self.coordinator.as_ref()?;
        if self.ended.is_some() {
            return None;
        }
        if self.started {
            if let Some(wait) = coordinator.groups.as_ref().and_then(|groups| groups.wait(now)) {
                return Some(wait);
            }
            let batches = coordinator.batches_left();
            return (self.members.is_empty() && !coordinator.is_over())
                .then_some(Notice::NobodyLeft { batches });
        }
        let (here, wanted) = (self.members.registered(), self.settings.workers);
        let missing = (0..wanted).map(WorkerId).filter(|worker| !self.members.is_registered(*worker));
        Some(Notice::Awaiting {
            here,
            wanted,
            missing: missing.take(4).collect(),
            since: now.since(self.began),
        })
    }

    /// A worker is no member any more, whatever the reason.
    fn remove(&mut self, now: Moment, worker: WorkerId, gone: &Gone, effects: &mut Vec<ControlEffect>) {
        self.members.remove(worker);
        effects.push(ControlEffect::Shards(ShardEvent::Remove { worker }));
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.forget(now, worker, gone);
        }
    }

    /// What follows from the state: the run begins, work is handed out, the run ends.
    fn settle(&mut self, now: Moment, effects: &mut Vec<ControlEffect>) {
        if !self.started && self.members.is_empty() {
            // Nobody is left who could stand by what the first worker said of its data.
            self.batch_count = None;
            if let Some(coordinator) = &mut self.coordinator {
                coordinator.forget_data();
            }
        }
        let wanted = self.settings.workers;
        let all_ask = |coordinator: &Coordinator| coordinator.asking() >= wanted;
        if !self.started && self.coordinator.as_ref().is_some_and(all_ask) {
            self.start(effects);
        }
        self.settle_groups(now, effects);
        let Some(coordinator) = &mut self.coordinator else { return };
        for (worker, work) in coordinator.settle(now) {
            if let Some(session) = self.members.session_of(worker) {
                effects.push(ControlEffect::Send { session, message: ToPeer::Work(work) });
            }
        }
        if coordinator.is_over() && self.members.is_empty() {
            self.end(End::Complete, effects);
        }
    }

    /// The run begins here. At the coordinator, when as many workers as it begins with have asked for work: a worker asks once it is
    /// registered with every server, so all servers know all of them. Elsewhere with the first gated pull: only a worker that was
    /// given work pulls. (Counting its own registrations, a server would wait for ever for one that died on its way.)
    fn start(&mut self, effects: &mut Vec<ControlEffect>) {
        self.started = true;
        effects.push(ControlEffect::Shards(ShardEvent::Start));
        effects.push(ControlEffect::Notice(Notice::Started { workers: self.settings.workers }));
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.begin();
        }
    }

    fn end(&mut self, end: End, effects: &mut Vec<ControlEffect>) {
        // A server that stays after the run is complete can still be told to go.
        let stays = self.ended == Some(End::Complete) && matches!(end, End::Stopped(_));
        if self.ended.is_some() && !stays {
            return;
        }
        let text = match &end {
            End::Complete => "the run is complete",
            End::Stopped(reason) | End::Failed(reason) => reason.as_str(),
        };
        let text = format!("{} ends: {text}", self.settings.server);
        let workers: Vec<SessionId> =
            self.sessions.iter().filter(|(_, peer)| peer.role == Role::Worker).map(|(id, _)| *id).collect();
        for session in workers {
            self.refuse(session, slackline_core::wire::RefusalCode::Stopped, text.clone(), effects);
        }
        self.ended = Some(end.clone());
        effects.push(ControlEffect::End(end));
    }

    fn refuse(
        &self,
        session: SessionId,
        code: slackline_core::wire::RefusalCode,
        text: String,
        effects: &mut Vec<ControlEffect>,
    ) {
        let message = ToPeer::Refused(Refusal { code, text: Text::new(text) });
        effects.push(ControlEffect::Send { session, message });
        effects.push(ControlEffect::Close { session });
    }

    /// The worker that a session speaks for.
    #[must_use]
    pub fn worker_of(&self, session: SessionId) -> Option<(WorkerId, Incarnation)> {
        self.sessions.get(&session)?.worker
    }

    /// The record of the run; only on server 0, once the first worker has joined.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.coordinator.as_ref()?.record()
    }

    /// Batches that were handed out again, after a crash or a drop.
    #[must_use]
    pub fn batches_repeated(&self) -> u64 {
        self.coordinator.as_ref().map_or(0, Coordinator::batches_repeated)
    }

    /// Peers and messages turned away so far.
    #[must_use]
    pub const fn refused(&self) -> RefusedCounts {
        self.refused
    }

    /// Whether the run has begun.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        self.started
    }

    /// How it ended, if it did.
    #[must_use]
    pub const fn ended(&self) -> Option<&End> {
        self.ended.as_ref()
    }

    /// Where the run is.
    #[must_use]
    pub fn phase(&self, now: Moment) -> Phase {
        match &self.ended {
            Some(End::Failed(text)) => Phase::Failed(Text::new(text.clone())),
            Some(_) => Phase::Finished,
            None if !self.started => Phase::Waiting {
                here: self.members.registered(),
                wanted: self.settings.workers,
                since_ms: now.since(self.began).as_millis() as u64,
            },
            None => Phase::Running,
        }
    }

    /// The status without the shards' rows; those are filled in by whoever owns the shards.
    #[must_use]
    pub fn status(&self, now: Moment) -> slackline_core::wire::Status {
        let most = slackline_core::limits::STATUS_ROWS_MAX;
        let clock = |worker| self.coordinator.as_ref().and_then(|coordinator| coordinator.clock_of(worker));
        let (members, hidden) = self.members.rows(now, most, clock, |session| {
            self.sessions.get(&session).map_or_else(String::new, |peer| peer.address.clone())
        });
        slackline_core::wire::Status {
            server: self.settings.server,
            phase: self.phase(now),
            progress: self.record().map(|record| record.progress(now)),
            members,
            members_hidden: hidden,
            held: Vec::new(),
            shards: Vec::new(),
            refused: self.refused,
        }
    }

    /// What must hold after every event.
    ///
    /// # Panics
    /// When it does not hold: for tests and the simulated world.
    pub fn check_invariants(&self) {
        for (session, peer) in &self.sessions {
            if let Some((worker, incarnation)) = peer.worker
                && self.members.session_of(worker) == Some(*session)
            {
                assert!(self.members.is_member(worker, incarnation), "{session} speaks for a stranger");
            }
        }
        if let Some(coordinator) = &self.coordinator {
            coordinator.check_invariants();
        }
    }

    /// The clock at which a newcomer enters, as far as this server knows.
    fn entry_clock(&self) -> Clock {
        self.coordinator.as_ref().map_or(Clock(0), Coordinator::minimum)
    }
}

#[cfg(test)]
mod tests;
