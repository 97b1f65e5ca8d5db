//! The control of one server: sessions and what their roles allow, members and their leases, and on server 0 the coordinator's part.
//!
//! Control sees every message; the shards see what it passes on. A worker is a member of each server on its own account: it
//! registers, renews its lease with whatever it sends, and is removed when it leaves or when the lease runs out.

mod allreduce;
mod clocks;
mod cluster;
mod coordinator;
mod counting;
mod event;
mod going;
mod group;
mod left;
mod links;
mod looks;
mod members;
mod messages;
mod places;
mod refusals;
mod state;
mod waiting;

use std::collections::BTreeMap;
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::config::Steps;
use slackline_core::ids::{Clock, Incarnation, Moment, ServerId, SessionId, ShardId, WorkerId};
use slackline_core::role::Role;
use slackline_core::wire::{Holding, Mark, Refusal, RefusedCounts, Text, ToPeer};

use cluster::{Cluster, ClusterSettings};
pub use cluster::{ClusterNotice, MapRecord};
use coordinator::Coordinator;
pub use coordinator::CoordinatorSettings;
pub use event::{Commit, ControlEffect, ControlEvent, End};
use going::Going;
pub use group::AllreduceSettings;
use group::Gone;
use members::Members;
use places::Places;
pub use state::StateError;
use waiting::Lacks;

use crate::notice::Notice;
use crate::shard::ShardEvent;

/// What control is made from.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    /// Which server.
    pub server: ServerId,
    /// Workers that are wanted, and that the run begins with.
    pub workers: u32,
    /// Workers that the run needs to begin and to go on; none for all of them to begin and whoever is left to go on.
    pub min_workers: Option<u32>,
    /// A member that is silent for so long is removed.
    pub lease: Duration,
    /// Fingerprint of the model's layout.
    pub layout_hash: u64,
    /// The layout in words, for the refusal of another one.
    pub layout_text: String,
    /// Fingerprint of the configuration.
    pub config_hash: u64,
    /// A number drawn when the process began.
    pub boot: u64,
    /// Servers of the run.
    pub servers: u32,
    /// All shards of the run that have keys, each with the server where it begins; none in an allreduce.
    pub shards: Vec<(ShardId, ServerId)>,
    /// Whether the pieces of a step wait for each other.
    pub steps: Steps,
    /// States that lay on this server's disk when the process began.
    pub disk: Vec<Holding>,
    /// Whether servers keep what they take in on their disks, and go on with it when they are started again.
    pub on_disk: bool,
    /// Whether a worker that leaves for a gradient of its own (not finite, beyond the largest norm) ends the run.
    pub stop_on_bad_gradient: bool,
    /// The server that coordinates: server 0, or one that has no shards and stands behind the others in the count.
    pub coordinator_at: ServerId,
    /// The coordinator's part; only there.
    pub coordinator: Option<CoordinatorSettings>,
}

/// A connected peer.
#[derive(Clone, Debug, Encode, Decode)]
struct Session {
    role: Role,
    address: String,
    worker: Option<(WorkerId, Incarnation)>,
    server: Option<ServerId>,
}

impl ControlSettings {
    fn is_whole(&self) -> bool {
        self.steps == Steps::Whole
    }

    /// What the coordinator's part for the servers is made from; none where there are no shards, or on another server.
    fn cluster(&self) -> Option<ClusterSettings> {
        let coordinator = self.coordinator.as_ref().filter(|_| !self.shards.is_empty())?;
        Some(ClusterSettings {
            own: self.server,
            shards: self.shards.clone(),
            servers: self.servers,
            lease: self.lease,
            replicas: coordinator.replicas,
            is_whole: self.is_whole(),
            keeps_map: coordinator.keeps_map,
            every: coordinator.checkpoint_every,
            from: coordinator.resume.as_ref().map(|position| (position.number, position.clock)),
            run: coordinator.resume.as_ref().map_or(self.boot, |position| position.run),
            on_disk: self.on_disk,
        })
    }
}

/// The control of one server.
#[derive(Clone, Debug)]
pub struct Control {
    settings: ControlSettings,
    sessions: BTreeMap<SessionId, Session>,
    members: Members,
    coordinator: Option<Coordinator>,
    refused: RefusedCounts,
    /// What this server was ordered.
    places: Places,
    /// The coordinator's part in keeping what servers have; only where there are shards.
    cluster: Option<Cluster>,
    /// The session of each other server.
    server_sessions: BTreeMap<ServerId, SessionId>,
    began: Moment,
    /// Since when fewer workers are there than the run needs to go on.
    too_few_since: Option<Moment>,
    /// Since when shards lack what they lack.
    lacks: Lacks,
    started: bool,
    /// The shards were told so.
    shards_started: bool,
    /// Where the servers are, as far as it is known: for people, who look for one that is silent.
    addresses: Vec<String>,
    /// When the coordinator last said something to this server, or this one began; of no use on the coordinator's own.
    coordinator_heard: Moment,
    /// Nanoseconds that are added to a moment of this process, modulo 2^64: a coordinator that was restarted goes on in the time that it had.
    offset: u64,
    /// The last moment of the run that was heard of.
    latest: Moment,
    /// Batches of the run, as the first worker that registered counted them.
    batch_count: Option<u64>,
    /// It was asked to end.
    going: Option<Going>,
    /// Why the coordinator does not take this server in, as it was said last.
    refusal: Option<String>,
    ended: Option<End>,
}

impl Control {
    /// Control without members.
    #[must_use]
    pub fn new(settings: ControlSettings, now: Moment) -> Self {
        let mut control = Self {
            members: Members::new(settings.lease),
            places: Places::new(settings.server, settings.disk.clone()),
            cluster: settings.cluster().map(Cluster::new),
            server_sessions: BTreeMap::new(),
            coordinator: settings
                .coordinator
                .clone()
                .map(|part| Coordinator::new(part, settings.boot, settings.workers, settings.min_workers)),
            settings,
            sessions: BTreeMap::new(),
            refused: RefusedCounts::default(),
            began: now,
            too_few_since: None,
            lacks: Lacks::default(),
            started: false,
            shards_started: false,
            addresses: Vec::new(),
            coordinator_heard: now,
            offset: 0,
            latest: now,
            batch_count: None,
            going: None,
            refusal: None,
            ended: None,
        };
        if control.settings.coordinator.is_some() {
            // Nothing leaves: the words stay on this server.
            control.open_link(now, &mut Vec::new());
        }
        control
    }

    /// Tells where the servers are; nothing but words follows from it.
    pub fn set_addresses(&mut self, addresses: Vec<String>) {
        self.addresses = addresses;
    }

    /// A moment of this process in the time of the run: the two differ where a coordinator was restarted.
    #[must_use]
    pub const fn moment(&self, now: Moment) -> Moment {
        Moment(now.0.wrapping_add(self.offset))
    }

    /// What a session begins with.
    #[must_use]
    pub const fn welcome(&self) -> ToPeer {
        let (server, boot) = (self.settings.server, self.settings.boot);
        ToPeer::Welcome { protocol: slackline_core::wire::PROTOCOL, server, boot }
    }

    /// Takes one event in; what is to be done about it comes out in `effects`.
    pub fn handle(&mut self, now: Moment, event: ControlEvent, effects: &mut Vec<ControlEffect>) {
        self.take(self.moment(now), event, effects);
    }

    /// The same at a moment of the run.
    fn take(&mut self, now: Moment, event: ControlEvent, effects: &mut Vec<ControlEffect>) {
        // Other servers keep no events, and begin with the first pull.
        let counts = self.coordinator.is_none() || self.counts(now, &event);
        if counts {
            self.latest = self.latest.max(now);
        }
        match event {
            ControlEvent::Opened { session, role, address } => {
                self.sessions.insert(session, Session { role, address, worker: None, server: None });
                effects.push(ControlEffect::Send { session, message: self.welcome() });
            }
            ControlEvent::Message { session, message } => {
                if counts {
                    self.heard(now, session);
                }
                self.message(now, session, message, effects);
            }
            ControlEvent::Closed { session } => {
                let peer = self.sessions.remove(&session);
                self.server_gone(session, peer.as_ref().and_then(|peer| peer.server));
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
            ControlEvent::TurnedAwayUnheard { handshakes, malformed } => {
                self.refused.handshake = self.refused.handshake.saturating_add(handshakes);
                self.refused.malformed = self.refused.malformed.saturating_add(malformed);
            }
            ControlEvent::HasValues { shard } => self.places.got_values(shard),
            ControlEvent::Tick => self.tick(now, effects),
            ControlEvent::Late { by } => {
                self.members.forgive(by, now);
                self.cluster.iter_mut().for_each(|cluster| cluster.forgive(by, now));
                self.coordinator_heard = self.coordinator_heard.after(by).min(now);
            }
            ControlEvent::Broken { why } => self.drop_out(End::Failed(why), effects),
            ControlEvent::Leave { reason } => self.told_to_go(now, reason, effects),
            event => self.cluster_event(now, event, effects),
        }
        if counts {
            self.settle(now, effects);
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
        self.tick_links(now, effects);
        self.watch(now);
    }

    /// A worker is no member any more, whatever the reason.
    fn remove(&mut self, now: Moment, worker: WorkerId, gone: &Gone, effects: &mut Vec<ControlEffect>) {
        let incarnation = self.members.incarnation_of(worker);
        self.note_gone(worker, incarnation, gone, effects);
        self.members.remove(worker);
        effects.push(ControlEffect::Shards(ShardEvent::Remove { worker }));
        if let (Some(cluster), Some(incarnation)) = (&mut self.cluster, incarnation)
            && !matches!(gone, Gone::Left(_))
        {
            cluster.fence(worker, incarnation);
        }
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
        if self.may_begin(now) {
            self.start(effects);
        }
        let too_few = self.pauses(now);
        self.start_shards(effects);
        self.settle_groups(now, effects);
        let Some(coordinator) = &mut self.coordinator else { return };
        coordinator.pause(too_few);
        for (worker, work) in coordinator.settle(now) {
            if let Some(session) = self.members.session_of(worker) {
                effects.push(ControlEffect::Send { session, message: ToPeer::Work(work) });
            }
        }
        let is_over = coordinator.is_over() && self.members.is_empty();
        if let Some(cluster) = self.cluster.as_mut().filter(|_| is_over) {
            cluster.finish();
        }
        if self.ended.is_none() {
            self.settle_cluster(now, effects);
        }
        if is_over && self.cluster.as_mut().is_none_or(Cluster::finish) {
            self.end(End::Complete, effects);
        }
    }

    /// The run begins here. At the coordinator, when as many workers as it begins with have asked for work: a worker asks once it is
    /// registered with every server, so all servers know all of them. Elsewhere with the first gated pull: only a worker that was
    /// given work pulls. (Counting its own registrations, a server would wait for ever for one that died on its way.)
    fn start(&mut self, effects: &mut Vec<ControlEffect>) {
        self.started = true;
        effects.push(ControlEffect::Notice(Notice::Started {
            workers: self.members.registered(),
            wanted: self.settings.workers,
        }));
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.begin();
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.trained();
        }
        self.start_shards(effects);
    }

    fn end(&mut self, end: End, effects: &mut Vec<ControlEffect>) {
        // A server that stays after the run is complete can still be told to go.
        let stays = self.ended == Some(End::Complete) && matches!(end, End::Stopped(_));
        if self.ended.is_some() && !stays {
            return;
        }
        let text = match &end {
            End::Complete => "the run is complete",
            End::Stopped(reason) | End::Failed(reason) | End::Refused(reason) => reason.as_str(),
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
        if let Some(cluster) = &self.cluster {
            cluster.check_invariants();
        }
        self.check_rest();
    }

    /// The clock at which a worker enters, as far as this server knows: not before its cut of a checkpoint that is being made, which is that
    /// of its id where a former incarnation of it is named.
    fn entry_clock(&self, worker: WorkerId) -> Clock {
        let minimum = self.coordinator.as_ref().map_or(Clock(0), Coordinator::minimum);
        let cut_of = |mark: &Mark| {
            let named = mark.cuts.iter().find(|(named, _)| *named == worker).map(|(_, cut)| *cut);
            named.or(mark.rest)
        };
        let mark = self.cluster.as_ref().and_then(Cluster::mark);
        let cut = mark.and_then(cut_of).filter(|cut| cut.0 < u64::MAX);
        cut.map_or(minimum, |cut| minimum.max(cut))
    }
}

#[cfg(test)]
mod tests;
