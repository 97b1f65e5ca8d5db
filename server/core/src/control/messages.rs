//! What control does about each message of a peer.

use slackline_core::consistency::Standing;
use slackline_core::ids::{BatchIndex, Incarnation, Moment, SessionId, ShardId, Version, WorkerId};
use slackline_core::limits::{PLACED_MAX, WORKER_EVER_MAX};
use slackline_core::role::Role;
use slackline_core::wire::{
    Ask, Evaluated, Join, Leave, Outcome, Pull, PullKind, RefusalCode, Register, ToPeer, ToServer,
};

use super::group::Gone;
use super::{Cluster, Control, ControlEffect, End};
use crate::notice::Notice;
use crate::shard::{Push, ShardEvent};

/// What a message is called in a refusal, and who may send it.
const fn allowed(message: &ToServer) -> (&'static str, &'static [Role]) {
    const WORKER: &[Role] = &[Role::Worker];
    match message {
        ToServer::Join(_) => ("join", WORKER),
        ToServer::Register(_) => ("register", WORKER),
        ToServer::Renew => ("renew", WORKER),
        ToServer::Enter { .. } => ("enter", WORKER),
        ToServer::Finish => ("finish", WORKER),
        ToServer::Ask(_) => ("ask for work", WORKER),
        ToServer::Pull(Pull { kind: PullKind::Gated { .. }, .. }) => ("pull", WORKER),
        ToServer::Pull(_) => ("pull a snapshot", &[Role::Worker, Role::Observer, Role::Admin]),
        ToServer::PushNothing { .. } => ("push", WORKER),
        ToServer::Evaluated(_) => ("report an evaluation", WORKER),
        ToServer::Leave(_) => ("leave", WORKER),
        ToServer::Ready(_) => ("be ready for a group", WORKER),
        ToServer::Trouble(_) => ("report trouble in a group", WORKER),
        ToServer::Stepped(_) => ("report steps of a group", WORKER),
        ToServer::Commit { .. } => ("commit a step", WORKER),
        ToServer::Cluster(_) => ("speak for a server", &[Role::Server]),
        ToServer::Status => ("status", &Role::ALL),
        ToServer::Stop { .. } => ("stop", &[Role::Server, Role::Admin]),
    }
}

impl Control {
    pub(super) fn message(
        &mut self,
        now: Moment,
        session: SessionId,
        message: ToServer,
        effects: &mut Vec<ControlEffect>,
    ) {
        let Some(peer) = self.sessions.get(&session) else { return };
        let (name, roles) = allowed(&message);
        if !roles.contains(&peer.role) {
            let (role, address) = (peer.role, peer.address.clone());
            self.refused.role += 1;
            effects.push(ControlEffect::Notice(Notice::WrongRole { role, address, message: name }));
            let text = format!("the role {role} may not {name}");
            self.refuse(session, RefusalCode::Role, text, effects);
            return;
        }
        let worker = peer.worker;
        match (message, worker) {
            (ToServer::Join(join), _) => self.join(now, session, &join, effects),
            (ToServer::Register(register), _) => self.register(now, session, &register, effects),
            (ToServer::Status, _) => effects.push(ControlEffect::Status { session }),
            (ToServer::Cluster(word), _) => self.server_word(now, session, word, effects),
            (ToServer::Stop { reason }, _) => {
                effects.push(ControlEffect::Send { session, message: ToPeer::Goodbye });
                self.end(End::Stopped(reason.shown()), effects);
            }
            (_, Some(speaker)) if self.is_former_session(session, speaker) => {}
            (message, _) if self.is_of_other_method(&message) => self.refuse_method(session, name, effects),
            (ToServer::Pull(Pull { shard, request, have, kind }), reader) => {
                let is_gated = matches!(kind, PullKind::Gated { .. });
                if is_gated && reader.is_some() && !self.started && self.coordinator.is_none() {
                    self.start(effects);
                }
                let event = ShardEvent::Pull { session, reader, request, have, kind };
                self.to_shard(session, shard, event, reader.is_some(), effects);
            }
            (message, Some((worker, incarnation))) if self.members.is_member(worker, incarnation) => {
                self.worker_message(now, session, worker, message, effects);
            }
            (_, Some((worker, _))) => {
                self.refused.fenced += 1;
                let text = format!("{worker} is no member any more: its lease ran out or it was replaced");
                self.refuse(session, RefusalCode::Fenced, text, effects);
            }
            (_, None) => {
                let text = format!("a worker must register before it can {name}");
                self.refuse(session, RefusalCode::OutOfPlace, text, effects);
            }
        }
    }

    /// Whether another session speaks for the worker by now. What still comes over this one was sent before and is sent again over
    /// the new one; taken late, it would undo what came since (a `Finish` after an `Enter`, an older ask after a newer).
    fn is_former_session(&self, session: SessionId, (worker, incarnation): (WorkerId, Incarnation)) -> bool {
        self.members.is_member(worker, incarnation)
            && self.members.session_of(worker).is_some_and(|present| present != session)
    }

    fn to_shard(
        &self,
        session: SessionId,
        shard: ShardId,
        event: ShardEvent,
        is_worker: bool,
        effects: &mut Vec<ControlEffect>,
    ) {
        let is_known = self.settings.shards.iter().any(|(known, _)| *known == shard);
        if self.places.is_led(shard) {
            effects.push(ControlEffect::Shard { shard, event });
        } else if !is_known || !is_worker {
            let text = format!("{shard} does not lie on {}", self.settings.server);
            self.refuse(session, RefusalCode::OutOfPlace, text, effects);
        }
        // A worker hears of the coordinator where the shard is, and says it again there.
    }

    fn join(&mut self, now: Moment, session: SessionId, join: &Join, effects: &mut Vec<ControlEffect>) {
        let verdict = self.may_join(join).and_then(|()| self.peers_address(session, join));
        let (Ok(address), Some(coordinator)) = (&verdict, &mut self.coordinator) else {
            if let Err((code, text)) = verdict {
                self.refuse(session, code, text, effects);
            }
            return;
        };
        let incarnation = coordinator.next_incarnation();
        let worker = match join.former {
            // Its id can be another's by now: before the run begins ids are given again. A member that never registered is of this
            // worker's own earlier join, whose answer was lost.
            Some((former, before)) if former.0 < WORKER_EVER_MAX && !self.is_taken(former, before) => {
                if self.members.incarnation_of(former).is_some() {
                    self.remove(now, former, &Gone::Replaced, effects);
                }
                former
            }
            _ => self.members.free_id(self.started),
        };
        let clock = self.entry_clock(worker);
        self.members.admit(worker, incarnation, now);
        if let (Some(coordinator), Some(address)) = (&mut self.coordinator, address) {
            coordinator.joined(worker, incarnation, address.clone());
        }
        effects.push(ControlEffect::Send { session, message: ToPeer::Joined { worker, incarnation, clock } });
    }

    fn is_taken(&self, worker: WorkerId, before: Incarnation) -> bool {
        self.members.is_registered(worker) && !self.members.is_member(worker, before)
    }

    fn may_join(&mut self, join: &Join) -> Result<(), (RefusalCode, String)> {
        self.same_run("the worker", join.layout_hash, join.config_hash)?;
        let (server, at) = (self.settings.server, self.settings.coordinator_at);
        let Some(coordinator) = &mut self.coordinator else {
            return Err((RefusalCode::OutOfPlace, format!("{server} is not the coordinator; join at {at}")));
        };
        if coordinator.is_over() {
            return Err((RefusalCode::RunOver, "the run is complete".to_owned()));
        }
        coordinator.has_room(self.started)?;
        let most = coordinator.workers_max() as usize;
        if self.members.len() >= most || self.members.ever() >= WORKER_EVER_MAX as usize {
            return Err((RefusalCode::Full, format!("the run has its {most} workers")));
        }
        coordinator.agree_on_data(join).map_err(|text| (RefusalCode::Mismatch, text))
    }

    /// Whether somebody has the model and the configuration of the run.
    pub(super) fn same_run(
        &self,
        who: &str,
        layout_hash: u64,
        config_hash: u64,
    ) -> Result<(), (RefusalCode, String)> {
        let settings = &self.settings;
        if layout_hash != settings.layout_hash {
            let text = format!(
                "{who}'s model has another layout (fingerprint {layout_hash:016x}) than the run: {} ({:016x}); give both \
                 the same [model]",
                settings.layout_text, settings.layout_hash
            );
            return Err((RefusalCode::Mismatch, text));
        }
        if config_hash != settings.config_hash {
            let text = format!(
                "{who}'s configuration (fingerprint {config_hash:016x}) differs from that of {} ({:016x}); compare \
                 `slackline config show` on both machines",
                settings.server, settings.config_hash
            );
            return Err((RefusalCode::Mismatch, text));
        }
        Ok(())
    }

    fn register(
        &mut self,
        now: Moment,
        session: SessionId,
        register: &Register,
        effects: &mut Vec<ControlEffect>,
    ) {
        if let Err((code, text)) = self.same_run("the worker", register.layout_hash, register.config_hash) {
            self.refuse(session, code, text, effects);
            return;
        }
        // A coordinator apart has no shards, and nobody orders it any.
        let is_apart = self.settings.coordinator.is_some() && self.settings.server.0 >= self.settings.servers;
        if !self.settings.shards.is_empty() && !is_apart && !self.places.is_ready() {
            let text = format!("{} has not all of its shards yet; come again", self.settings.server);
            self.refuse(session, RefusalCode::NotReady, text, effects);
            return;
        }
        // The rate's schedule follows from it, so one worker must not decide it for the others.
        let agreed = *self.batch_count.get_or_insert(register.batch_count);
        if agreed != register.batch_count {
            let text = format!("the worker counts {} batches, the run has {agreed}", register.batch_count);
            self.refuse(session, RefusalCode::Mismatch, text, effects);
            return;
        }
        let (worker, incarnation) = (register.worker, register.incarnation);
        let known = self.members.is_member(worker, incarnation);
        if known && self.members.session_of(worker).is_some_and(|present| present > session) {
            // It came late; a later session speaks for the worker already.
            return;
        }
        // At the coordinator only a join makes members; elsewhere an incarnation that is later than all before does.
        let welcome = known || (self.coordinator.is_none() && self.members.is_new(worker, incarnation));
        if !welcome {
            self.refused.fenced += 1;
            let text = format!("{worker} ({incarnation}) is no member: its lease ran out or it was replaced");
            self.refuse(session, RefusalCode::Fenced, text, effects);
            return;
        }
        if !known {
            if self.members.ever() >= WORKER_EVER_MAX as usize || worker.0 >= WORKER_EVER_MAX {
                self.refuse(session, RefusalCode::Full, "too many workers".to_owned(), effects);
                return;
            }
            if self.members.incarnation_of(worker).is_some() {
                self.remove(now, worker, &Gone::Replaced, effects);
            }
            self.members.admit(worker, incarnation, now);
        }
        if let Some(peer) = self.sessions.get_mut(&session) {
            peer.worker = Some((worker, incarnation));
        }
        let (registered_before, former) = self.members.bind(worker, session, now);
        effects.extend(former.map(|session| ControlEffect::Close { session }));
        self.members.came(worker, register.clock);
        // Also of one that is known: a shard that has come here, or has a state of before, must hear from whoever registers once more
        // what it has been answered, and how many batches there are.
        effects.push(ControlEffect::Shards(self.entering(register)));
        if !registered_before {
            self.enter(session, register, effects);
        } else if let Some(coordinator) = &mut self.coordinator {
            coordinator.reconnect(worker);
        }
        self.miss_values(now, register.clock, effects);
        let has_values = self.places.has_values();
        effects.push(ControlEffect::Send { session, message: ToPeer::Registered { has_values } });
        let moved = self.cluster.as_ref().map(Cluster::moved).unwrap_or_default();
        let told = moved.chunks(PLACED_MAX).map(|placed| ToPeer::Placed(placed.to_vec()));
        effects.extend(told.map(|message| ControlEffect::Send { session, message }));
    }

    /// What the shards are told of a worker that registers.
    fn entering(&self, register: &Register) -> ShardEvent {
        let Register { worker, incarnation, clock, batch_count, answered, .. } = *register;
        // A server that was restarted may not know yet that the run has begun: its shards' places say so. Whoever counts in their states
        // goes on to.
        let has_begun = self.shards_started || self.places.go_on();
        let standing = if has_begun { Standing::Joining } else { Standing::Active };
        ShardEvent::Enter { worker, incarnation, clock, standing, batch_count, answered }
    }

    fn enter(&mut self, session: SessionId, register: &Register, effects: &mut Vec<ControlEffect>) {
        let Register { worker, incarnation, clock, .. } = *register;
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.enter(worker, clock);
        }
        let address = self.sessions.get(&session).map_or_else(String::new, |peer| peer.address.clone());
        effects.push(ControlEffect::Notice(Notice::Joined { worker, incarnation, clock, address }));
    }

    /// A message of a member over the session that speaks for it.
    fn worker_message(
        &mut self,
        now: Moment,
        session: SessionId,
        worker: WorkerId,
        message: ToServer,
        effects: &mut Vec<ControlEffect>,
    ) {
        match message {
            ToServer::Enter { clock } => {
                effects.push(ControlEffect::Shards(ShardEvent::Reenter { worker, clock }))
            }
            ToServer::Finish => effects.push(ControlEffect::Shards(ShardEvent::Finish { worker })),
            ToServer::Ask(ask) => self.ask(now, session, worker, &ask, effects),
            ToServer::Evaluated(evaluated) => self.evaluated(now, session, worker, &evaluated, effects),
            ToServer::PushNothing { shard, sequence, clock, reply, have } => {
                let Some(incarnation) = self.members.incarnation_of(worker) else { return };
                let (pulled, batch) = (Version(0), BatchIndex(0));
                let gradient = None;
                let push = Push {
                    session,
                    worker,
                    incarnation,
                    sequence,
                    clock,
                    pulled,
                    batch,
                    samples: 0,
                    reply,
                    have,
                    gradient,
                };
                self.to_shard(session, shard, ShardEvent::Push(push), true, effects);
            }
            ToServer::Commit { sequence } => {
                let Some(incarnation) = self.members.incarnation_of(worker) else { return };
                effects.push(ControlEffect::Shards(ShardEvent::Commit { worker, incarnation, sequence }));
            }
            ToServer::Leave(leave) => self.leave(now, session, worker, &leave, effects),
            ToServer::Ready(ready) => self.ready(now, session, worker, &ready, effects),
            ToServer::Trouble(trouble) => self.trouble(now, session, worker, &trouble, effects),
            ToServer::Stepped(stepped) => self.stepped(now, session, worker, &stepped, effects),
            ToServer::Renew => effects.push(ControlEffect::Send { session, message: ToPeer::Renewed }),
            // The rest was handled before.
            _ => {}
        }
    }

    fn ask(
        &mut self,
        now: Moment,
        session: SessionId,
        worker: WorkerId,
        ask: &Ask,
        effects: &mut Vec<ControlEffect>,
    ) {
        let Some(coordinator) = &mut self.coordinator else {
            let text = format!("{} is not the coordinator and has no work", self.settings.server);
            self.refuse(session, RefusalCode::OutOfPlace, text, effects);
            return;
        };
        for work in coordinator.ask(now, worker, ask) {
            effects.push(ControlEffect::Send { session, message: ToPeer::Work(work) });
        }
    }

    fn evaluated(
        &mut self,
        now: Moment,
        session: SessionId,
        worker: WorkerId,
        evaluated: &Evaluated,
        effects: &mut Vec<ControlEffect>,
    ) {
        let Some(coordinator) = &mut self.coordinator else { return };
        match coordinator.evaluated(now, worker, evaluated) {
            Ok(true) => {}
            Ok(false) => return,
            Err(claim) => return self.refuse_claim(now, session, worker, claim, effects),
        }
        let Evaluated { at_samples, loss, accuracy, .. } = *evaluated;
        effects.push(ControlEffect::Evaluated);
        effects.push(ControlEffect::Notice(Notice::Evaluated { at_samples, loss, accuracy }));
    }

    fn leave(
        &mut self,
        now: Moment,
        session: SessionId,
        worker: WorkerId,
        leave: &Leave,
        effects: &mut Vec<ControlEffect>,
    ) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.report(now, worker, leave.report.as_ref());
        }
        if leave.outcome == Outcome::Done && self.leave_group(worker) {
            return;
        }
        let how = match &leave.outcome {
            Outcome::Done => "its work is done".to_owned(),
            Outcome::Interrupted | Outcome::Unfinished { .. } => "it was told to go".to_owned(),
            Outcome::BadGradient(text) | Outcome::Failed(text) => text.shown(),
        };
        effects.push(ControlEffect::Notice(Notice::Left { worker, how: how.clone() }));
        effects.push(ControlEffect::Send { session, message: ToPeer::Goodbye });
        let incarnation = self.members.incarnation_of(worker);
        let unheard = match leave.outcome {
            Outcome::Interrupted => Some(None),
            Outcome::Unfinished { batch } => Some(Some(batch)),
            _ => None,
        };
        if let (Some(coordinator), Some(unheard)) = (&mut self.coordinator, unheard) {
            coordinator.give_back(worker, unheard);
        }
        self.remove(now, worker, &Gone::Left(how.clone()), effects);
        if let (Some(cluster), Some(incarnation)) = (&mut self.cluster, incarnation)
            && leave.outcome != Outcome::Done
        {
            cluster.fence(worker, incarnation);
        }
        if matches!(leave.outcome, Outcome::BadGradient(_))
            && self.settings.stop_on_bad_gradient
            && self.coordinator.is_some()
        {
            self.end(End::Failed(how), effects);
        }
    }
}
