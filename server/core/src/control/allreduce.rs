//! What control does about the messages of an allreduce, and what it tells its members.

use slackline_core::ids::{Moment, SessionId, WorkerId};
use slackline_core::wire::{Join, Ready, RefusalCode, Stepped, Text, ToPeer, ToServer, Trouble};

use super::coordinator::HAS_ALL;
use super::group::{Claim, Gone, Groups};
use super::{Control, ControlEffect, End};
use crate::notice::Notice;

impl Control {
    fn groups(&mut self) -> Option<&mut Groups> {
        self.coordinator.as_mut()?.groups.as_mut()
    }

    /// Whether a message belongs to the other way of bringing gradients together: through servers, or among workers.
    pub(super) fn is_of_other_method(&self, message: &ToServer) -> bool {
        let is_allreduce = self.coordinator.as_ref().is_some_and(|coordinator| coordinator.groups.is_some());
        match message {
            ToServer::Ready(_) | ToServer::Trouble(_) | ToServer::Stepped(_) => !is_allreduce,
            ToServer::Enter { .. }
            | ToServer::Finish
            | ToServer::Ask(_)
            | ToServer::Pull(_)
            | ToServer::PushNothing { .. } => is_allreduce,
            _ => false,
        }
    }

    /// Refuses such a message.
    pub(super) fn refuse_method(&self, session: SessionId, name: &str, effects: &mut Vec<ControlEffect>) {
        let is_allreduce = self.coordinator.as_ref().is_some_and(|coordinator| coordinator.groups.is_some());
        let why = if is_allreduce {
            "an allreduce (sync.method = \"allreduce\"): no server holds values or gives out work"
        } else {
            "one with parameter servers (sync.method = \"server\"): it has no groups of workers"
        };
        self.refuse(session, RefusalCode::OutOfPlace, format!("cannot {name}: this run is {why}"), effects);
    }

    /// Where other workers reach one that joins; none where nobody asks.
    pub(super) fn peers_address(&self, session: SessionId, join: &Join) -> Result<Option<Text>, Claim> {
        if self.coordinator.as_ref().is_none_or(|coordinator| coordinator.groups.is_none()) {
            return Ok(None);
        }
        let seen_at = self.sessions.get(&session).map_or("", |peer| peer.address.as_str());
        Groups::address(join.peers_at.as_ref(), seen_at).map(Some)
    }

    pub(super) fn ready(
        &mut self,
        now: Moment,
        session: SessionId,
        worker: WorkerId,
        ready: &Ready,
        effects: &mut Vec<ControlEffect>,
    ) {
        let verdict = self.groups().map_or(Ok(()), |groups| groups.ready(now, worker, ready));
        if let Err(claim) = verdict {
            self.refuse_claim(now, session, worker, claim, effects);
        }
    }

    pub(super) fn trouble(
        &mut self,
        now: Moment,
        session: SessionId,
        worker: WorkerId,
        trouble: &Trouble,
        effects: &mut Vec<ControlEffect>,
    ) {
        let verdict = self.groups().map_or(Ok(()), |groups| groups.trouble(now, worker, trouble));
        if let Err(claim) = verdict {
            self.refuse_claim(now, session, worker, claim, effects);
        }
    }

    pub(super) fn stepped(
        &mut self,
        now: Moment,
        session: SessionId,
        worker: WorkerId,
        stepped: &Stepped,
        effects: &mut Vec<ControlEffect>,
    ) {
        let Some(coordinator) = &mut self.coordinator else { return };
        if let Err(claim) = coordinator.stepped(now, worker, stepped) {
            self.refuse_claim(now, session, worker, claim, effects);
        }
    }

    /// A worker that says what cannot be is no member any more: what it did with others is not to be trusted.
    pub(super) fn refuse_claim(
        &mut self,
        now: Moment,
        session: SessionId,
        worker: WorkerId,
        (code, text): Claim,
        effects: &mut Vec<ControlEffect>,
    ) {
        self.refuse(session, code, text.clone(), effects);
        self.remove(now, worker, &Gone::TurnedAway(text), effects);
    }

    /// A worker goes since all is done; whether that is so. It is answered later.
    pub(super) fn leave_group(&mut self, worker: WorkerId) -> bool {
        self.groups().is_some_and(|groups| groups.leave(worker))
    }

    /// Whether a worker has said that it goes, and waits for the answer.
    pub(super) fn leaves(&self, worker: WorkerId) -> bool {
        let groups = self.coordinator.as_ref().and_then(|coordinator| coordinator.groups.as_ref());
        groups.is_some_and(|groups| groups.leaves(worker))
    }

    /// A worker that has said so goes.
    pub(super) fn let_go(&mut self, now: Moment, worker: WorkerId, effects: &mut Vec<ControlEffect>) {
        let how = "its work is done".to_owned();
        effects.push(ControlEffect::Notice(Notice::Left { worker, how: how.clone() }));
        if let Some(session) = self.members.session_of(worker) {
            effects.push(ControlEffect::Send { session, message: ToPeer::Goodbye });
        }
        self.remove(now, worker, &Gone::Left(how), effects);
    }

    /// What follows for the groups of an allreduce, and what their members are told.
    pub(super) fn settle_groups(&mut self, now: Moment, effects: &mut Vec<ControlEffect>) {
        let members = &self.members;
        let Some(coordinator) = &mut self.coordinator else { return };
        coordinator.settle_groups(now);
        let Some(groups) = &mut coordinator.groups else { return };
        effects.extend(groups.take_notices().into_iter().map(ControlEffect::Notice));
        for (worker, message) in groups.tell(|worker| members.session_of(worker).is_some()) {
            if let Some(session) = members.session_of(worker) {
                effects.push(ControlEffect::Send { session, message });
            }
        }
        let (surplus, dismissed) = (groups.take_surplus(), groups.dismissed());
        let unreachable = groups.take_unreachable();
        let failure = groups.failure().map(str::to_owned);
        for worker in surplus {
            if let Some(session) = self.members.session_of(worker) {
                self.refuse(session, RefusalCode::Full, HAS_ALL.to_owned(), effects);
            }
            self.remove(now, worker, &Gone::TurnedAway(HAS_ALL.to_owned()), effects);
        }
        for (worker, text) in unreachable {
            let session = self.members.session_of(worker);
            let peer = session.and_then(|session| self.sessions.get(&session));
            let address = peer.map_or_else(|| worker.to_string(), |peer| peer.address.clone());
            effects.push(ControlEffect::Notice(Notice::Refused { address, text: text.clone() }));
            if let Some(session) = session {
                self.refuse(session, RefusalCode::Mismatch, text.clone(), effects);
            }
            self.remove(now, worker, &Gone::TurnedAway(text), effects);
        }
        for worker in dismissed {
            self.let_go(now, worker, effects);
        }
        if let Some(text) = failure {
            self.end(End::Failed(text), effects);
        }
    }
}
