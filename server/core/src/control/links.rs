//! Control between its shards and the coordinator: words of the hosts go up, orders come down. On server 0 both by a function call.

use slackline_core::config::timers::RENEWALS;
use slackline_core::ids::{Clock, Incarnation, Moment, ServerId, SessionId, ShardId, WorkerId};
use slackline_core::wire::{Here, Mark, Placed, Refusal, RefusalCode, ServerOrder, ServerWord, Text, ToPeer};

use super::cluster::{Out, View};
use super::coordinator::{Coordinator, WentBack};
use super::event::{Commit, ControlEffect, ControlEvent, End};
use super::group::Gone;
use super::{Cluster, Control};
use crate::notice::Notice;
use crate::shard::ShardEvent;

/// Why a shard that took over cannot go on.
const NO_VALUES: &str = "its copy was made before it had values, and the server that had them is lost";

/// Why a shard has no part in a checkpoint that it heard of too late.
const TOO_LATE: &str = "the marker came when the cut was passed";

/// Gives what the cluster sees of the rest of control.
fn view(coordinator: &Coordinator, is_running: bool, is_left: bool, see: impl FnOnce(&View<'_>)) {
    let (done, in_hand) = coordinator.work();
    see(&View {
        progress: coordinator.minimum(),
        is_running: is_running && !coordinator.is_at_the_end(),
        is_left,
        done,
        in_hand,
        cut: &|number, margin| coordinator.cut(number, margin),
        is_reported: &|| coordinator.is_reported(),
    });
}

impl Control {
    /// What the hosts, the disks and the link say.
    pub(super) fn cluster_event(
        &mut self,
        now: Moment,
        event: ControlEvent,
        effects: &mut Vec<ControlEffect>,
    ) {
        let word = match event {
            ControlEvent::Leads { shard, generation, has_values, members } => {
                let had_begun = self.places.begun().is_some();
                self.places.leads(shard, generation, has_values);
                if let Some(number) = self.places.begun().filter(|_| !had_begun) {
                    self.say(now, ServerWord::Took { number }, effects);
                }
                if generation.0 > 0 {
                    self.take_up(now, shard, &members, effects);
                }
                return;
            }
            ControlEvent::CoordinatorOpened => return self.open_link(now, effects),
            ControlEvent::CoordinatorLost => {
                self.places.is_linked = false;
                return self.go_unanswered(effects);
            }
            ControlEvent::CoordinatorRefused(refusal) => return self.refused_by(&refusal, effects),
            ControlEvent::Ordered(order) => {
                (self.refusal, self.coordinator_heard) = (None, now);
                return self.ordered(now, order, effects);
            }
            ControlEvent::Persisted { number } => {
                return self.with_cluster(|cluster| cluster.persisted(number));
            }
            ControlEvent::Committed { number } => {
                self.coordinator.iter_mut().for_each(|coordinator| coordinator.committed(number));
                return self.with_cluster(|cluster| cluster.committed(now, number));
            }
            ControlEvent::NotCommitted { number, why } => {
                return self.with_cluster(|cluster| cluster.not_committed(now, number, why));
            }
            ControlEvent::InStep { shard, generation, backup } => {
                ServerWord::InStep { shard, generation, backup }
            }
            ControlEvent::OutOfReach { shard, generation, backup } => {
                ServerWord::OutOfReach { shard, generation, backup }
            }
            ControlEvent::Restored { shard, generation, version, clock } => {
                ServerWord::Restored { shard, generation, version, clock }
            }
            ControlEvent::NotRestored { shard, generation, why } => {
                ServerWord::NotRestored { shard, generation, why: Text::new(why) }
            }
            ControlEvent::Doubt(doubt) => ServerWord::Doubt(doubt),
            ControlEvent::Saved { number, shard, entry } => ServerWord::Saved { number, shard, entry },
            ControlEvent::NotSaved { number, shard, why } => {
                ServerWord::NotSaved { number, shard, why: Text::new(why) }
            }
            ControlEvent::CutMissed { number, shard } => {
                ServerWord::NotSaved { number, shard, why: Text::new(TOO_LATE) }
            }
            ControlEvent::Trouble(what) => ServerWord::Trouble(what.map(Text::new)),
            // The rest is no business of the servers among themselves.
            _ => return,
        };
        if self.places.note(&word) {
            self.say(now, word, effects);
        }
    }

    /// A worker that registers is at this clock. One above zero has read every shard: those that have no values here have lost them, which
    /// can be where nothing waits for the backup.
    pub(super) fn miss_values(&mut self, now: Moment, clock: Clock, effects: &mut Vec<ControlEffect>) {
        if clock == Clock(0) {
            return;
        }
        for (shard, generation) in self.places.without_values() {
            let word = ServerWord::NotRestored { shard, generation, why: Text::new(NO_VALUES) };
            if self.places.note(&word) {
                self.say(now, word, effects);
            }
        }
    }

    fn with_cluster(&mut self, change: impl FnOnce(&mut Cluster)) {
        if let Some(cluster) = &mut self.cluster {
            change(cluster);
        }
    }

    /// The members of a state that is led here now. Whoever is not known here has a lease to come; the shards wait so long.
    fn take_up(
        &mut self,
        now: Moment,
        shard: ShardId,
        members: &[(WorkerId, Incarnation)],
        effects: &mut Vec<ControlEffect>,
    ) {
        for (worker, incarnation) in members.iter().copied() {
            if self.members.incarnation_of(worker).is_some() {
                continue;
            }
            if self.coordinator.is_none() && self.members.is_new(worker, incarnation) {
                self.members.admit(worker, incarnation, now);
                self.members.expect(worker);
            } else {
                let event = if self.settings.is_whole() {
                    ShardEvent::Fence { worker, incarnation }
                } else {
                    ShardEvent::Remove { worker }
                };
                effects.push(ControlEffect::Shard { shard, event });
            }
        }
    }

    /// Says who this server is, and what the coordinator may not have heard.
    pub(super) fn open_link(&mut self, now: Moment, effects: &mut Vec<ControlEffect>) {
        self.places.is_linked = true;
        let settings = &self.settings;
        for word in self.places.words(settings.boot, settings.layout_hash, settings.config_hash) {
            self.say(now, word, effects);
        }
    }

    /// Tells the coordinator.
    pub(super) fn say(&mut self, now: Moment, word: ServerWord, effects: &mut Vec<ControlEffect>) {
        if self.settings.coordinator.is_some() {
            let own = self.settings.server;
            self.with_cluster(|cluster| cluster.word(now, own, word));
        } else if self.places.is_linked {
            self.places.said = now;
            effects.push(ControlEffect::Coordinator(word));
        }
    }

    /// Does what the coordinator orders.
    fn ordered(&mut self, now: Moment, order: ServerOrder, effects: &mut Vec<ControlEffect>) {
        match order {
            ServerOrder::Places { number, places, .. } => {
                let changes = match self.places.order(number, &places) {
                    Ok(Some(changes)) => changes,
                    Ok(None) => return,
                    Err(text) => return self.drop_out(End::Refused(text), effects),
                };
                for change in changes {
                    let is_loaded = change.place.is_some_and(|place| place.is_loaded());
                    let members = if is_loaded { Vec::new() } else { self.members.entered() };
                    let started = self.shards_started;
                    let (shard, place) = (change.shard, change.place);
                    effects.push(ControlEffect::Place { shard, place, members, started });
                }
                if let Some(number) = self.places.begun() {
                    self.say(now, ServerWord::Took { number }, effects);
                }
            }
            ServerOrder::Mark(mark) => effects.push(ControlEffect::Shards(ShardEvent::Mark(mark))),
            ServerOrder::Fence { worker, incarnation } => {
                self.fence(worker, incarnation, effects);
                effects.push(ControlEffect::Shards(ShardEvent::Fence { worker, incarnation }));
            }
            ServerOrder::Resolve { worker, incarnation, through } => {
                self.places.resolved(worker, incarnation);
                effects.push(ControlEffect::Shards(ShardEvent::Resolve { worker, incarnation, through }));
            }
            ServerOrder::Heard => {}
            ServerOrder::Go { is_missed } => self.go(is_missed, effects),
        }
    }

    /// The coordinator has removed a worker.
    fn fence(&mut self, worker: WorkerId, incarnation: Incarnation, effects: &mut Vec<ControlEffect>) {
        let is_member = self.members.is_member(worker, incarnation);
        let session = self.members.session_of(worker).filter(|_| is_member);
        self.members.fence(worker, incarnation);
        if let Some(session) = session {
            self.refused.fenced += 1;
            let text = format!("{worker} is no member any more: the coordinator has removed it");
            self.refuse(session, RefusalCode::Fenced, text, effects);
        }
    }

    /// Whether a server can be one of the run.
    fn may_be_one(&self, here: &Here, address: &str) -> Result<(), (RefusalCode, String)> {
        let (settings, server) = (&self.settings, here.server);
        let mismatch = |text| Err((RefusalCode::Mismatch, text));
        if server == settings.server || server.0 >= settings.servers {
            return mismatch(format!(
                "{server} is the coordinator itself or none of the {} servers of the run; start one process an index, with the same \
                 configuration",
                settings.servers
            ));
        }
        self.same_run(&server.to_string(), here.layout_hash, here.config_hash)?;
        let Some(cluster) = &self.cluster else {
            let text = format!(
                "{} coordinates no servers; compare `slackline config show` on both machines",
                settings.server
            );
            return Err((RefusalCode::OutOfPlace, text));
        };
        if cluster.is_replaced(here) {
            return mismatch(format!(
                "{server} is the process that calls from {} now; this one, which calls from {address}, was replaced; start one process an \
                 index",
                cluster.calls_from(server)
            ));
        }
        if cluster.is_of_another_run(here) {
            return mismatch(format!(
                "{server} has shards of a run that the coordinator knows nothing of: give the coordinator the state of that run again \
                 (cluster.state), or restart {server} with --fresh"
            ));
        }
        Ok(())
    }

    /// A word of another server.
    pub(super) fn server_word(
        &mut self,
        now: Moment,
        session: SessionId,
        word: ServerWord,
        effects: &mut Vec<ControlEffect>,
    ) {
        if let ServerWord::Here(here) = &word {
            let server = here.server;
            let address = self.sessions.get(&session).map(|peer| peer.address.clone()).unwrap_or_default();
            self.with_cluster(|cluster| cluster.may_be_late(here, session));
            if let Err((code, text)) = self.may_be_one(here, &address) {
                effects.push(ControlEffect::Notice(Notice::Refused { address, text: text.clone() }));
                return self.refuse(session, code, text, effects);
            }
            if let Some(peer) = self.sessions.get_mut(&session) {
                peer.server = Some(server);
            }
            self.with_cluster(|cluster| cluster.called_from(here, session, &address));
            let former = self.server_sessions.insert(server, session).filter(|former| *former != session);
            effects.extend(former.map(|session| ControlEffect::Close { session }));
        }
        let speaker = self.sessions.get(&session).and_then(|peer| peer.server);
        let Some(server) = speaker.filter(|server| self.server_sessions.get(server) == Some(&session)) else {
            // What still comes over a former session was sent before, and is said again over the new one.
            return;
        };
        if word == ServerWord::Going && self.ended.is_some() {
            let message = ToPeer::Cluster(ServerOrder::Go { is_missed: false });
            effects.push(ControlEffect::Send { session, message });
        }
        self.with_cluster(|cluster| cluster.word(now, server, word));
    }

    /// What follows for the servers, until nothing more does.
    pub(super) fn settle_cluster(&mut self, now: Moment, effects: &mut Vec<ControlEffect>) {
        loop {
            let gone = self.cluster.as_mut().map(Cluster::take_gone).unwrap_or_default();
            for (worker, incarnation) in gone {
                self.remove_gone(now, worker, incarnation, effects);
            }
            let (is_running, is_left) = (self.started && self.ended.is_none(), self.is_left());
            let (Some(cluster), Some(coordinator)) = (&mut self.cluster, &self.coordinator) else { return };
            let mut out = Vec::new();
            view(coordinator, is_running, is_left, |view| cluster.settle(now, view, &mut out));
            if out.is_empty() {
                return;
            }
            for out in out {
                self.carry_out(now, out, effects);
            }
        }
    }

    /// What the cluster did not look at because nothing that it was told of has changed must be what it was.
    pub(super) fn check_rest(&self) {
        let (Some(cluster), Some(coordinator), None) = (&self.cluster, &self.coordinator, &self.ended) else {
            return;
        };
        view(coordinator, self.started, self.is_left(), |view| cluster.check_rest(self.latest, view));
    }

    fn carry_out(&mut self, now: Moment, out: Out, effects: &mut Vec<ControlEffect>) {
        match out {
            Out::Order(server, order) if server == self.settings.server => self.ordered(now, order, effects),
            Out::Order(server, order) => {
                if let Some(session) = self.server_sessions.get(&server).copied() {
                    effects.push(ControlEffect::Send { session, message: ToPeer::Cluster(order) });
                }
            }
            Out::Persist(record) => effects.push(ControlEffect::Persist(record)),
            Out::Placed(placed) => self.tell_workers(&placed, effects),
            Out::Notice(notice) => effects.push(ControlEffect::Notice(Notice::Cluster(notice))),
            Out::Marked(mark) => self.mark(&mark),
            Out::Unmarked => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.unmark();
                }
            }
            Out::Commit { mark, clock, parts } => {
                let Some(coordinator) = &mut self.coordinator else { return };
                let position = coordinator.position(now, mark.number, clock);
                coordinator.writes(position.clone());
                let commit = Commit { number: mark.number, cut: mark, parts, position };
                effects.push(ControlEffect::Commit(Box::new(commit)));
            }
            Out::GoBack { number } => self.go_back(now, number, effects),
            Out::Fail(text) => self.end(End::Failed(text), effects),
        }
    }

    fn mark(&mut self, mark: &Mark) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.mark(mark);
        }
    }

    fn tell_workers(&self, placed: &[Placed], effects: &mut Vec<ControlEffect>) {
        let workers = self.sessions.iter().filter(|(_, peer)| peer.worker.is_some());
        let current = workers.filter(|(session, peer)| {
            peer.worker.is_some_and(|(worker, _)| self.members.session_of(worker) == Some(**session))
        });
        for (session, _) in current {
            let message = ToPeer::Placed(placed.to_vec());
            effects.push(ControlEffect::Send { session: *session, message });
        }
    }

    /// A server has removed a worker that the coordinator still has.
    fn remove_gone(
        &mut self,
        now: Moment,
        worker: WorkerId,
        incarnation: Incarnation,
        effects: &mut Vec<ControlEffect>,
    ) {
        if !self.members.is_member(worker, incarnation) {
            return;
        }
        let text = format!("{worker} is no member any more: a server has not heard it for a lease");
        self.turn_out(now, worker, text, effects);
    }

    /// A member is to join anew.
    fn turn_out(&mut self, now: Moment, worker: WorkerId, text: String, effects: &mut Vec<ControlEffect>) {
        if let Some(session) = self.members.session_of(worker) {
            self.refused.fenced += 1;
            let message =
                ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text: Text::new(text.clone()) });
            effects.push(ControlEffect::Send { session, message });
            effects.push(ControlEffect::Close { session });
        }
        self.remove(now, worker, &Gone::TurnedAway(text), effects);
    }

    /// Every shard has gone back to this checkpoint: the data go back to it as well. Workers know clocks, answers and batches that are of no
    /// run any more, so they join anew.
    fn go_back(&mut self, now: Moment, checkpoint: u64, effects: &mut Vec<ControlEffect>) {
        let went = self.coordinator.as_mut().and_then(|coordinator| coordinator.go_back(checkpoint));
        let Some(WentBack { samples, clock }) = went else { return };
        effects.push(ControlEffect::Notice(Notice::WentBack { checkpoint, samples }));
        for worker in self.members.ids() {
            let text =
                format!("{worker} is no member any more: the run has gone back to checkpoint {checkpoint}");
            self.turn_out(now, worker, text, effects);
        }
        self.coordinator.iter_mut().for_each(|coordinator| coordinator.begin_at(clock));
    }

    /// The shards serve pulls from now on: the run has begun, and all workers that their states know are here or gone.
    pub(super) fn start_shards(&mut self, effects: &mut Vec<ControlEffect>) {
        if self.started && !self.shards_started && !self.members.expects_any() {
            self.shards_started = true;
            effects.push(ControlEffect::Shards(ShardEvent::Start));
        }
    }

    /// What the link needs as time passes.
    pub(super) fn tick_links(&mut self, now: Moment, effects: &mut Vec<ControlEffect>) {
        if self.settings.coordinator.is_none()
            && self.places.is_linked
            && now.since(self.places.said) >= self.settings.lease / RENEWALS
        {
            self.say(now, ServerWord::Alive, effects);
        }
        self.tick_going(now, effects);
        self.with_cluster(|cluster| cluster.tick(now));
    }

    /// A session is over; it may have been another server's.
    pub(super) fn server_gone(&mut self, session: SessionId, server: Option<ServerId>) {
        if let Some(server) = server.filter(|server| self.server_sessions.get(server) == Some(&session)) {
            self.server_sessions.remove(&server);
            self.with_cluster(|cluster| cluster.disconnected(server));
        }
    }

    /// The coordinator's part for the servers.
    pub(super) const fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }
}
