//! Whole steps: a shard keeps its piece of a worker's step aside until every shard has its own.
//!
//! Two phases, with the worker as the one who counts the votes (Gray 1978): a shard says that it has its piece, the worker says that all
//! have theirs. So where one shard has taken a step in, every shard has the piece, and a worker that dies in between is settled by the
//! cooperative termination of Skeen (1981): the coordinator asks all shards how far they are, and what one has taken in, all take in.
//! Until then the pieces of a worker that is gone gate nobody.
//!
//! Memory is bounded: a worker, also one that is gone, has at most [`slackline_core::limits::PUSH_PENDING_MAX`] gradients waiting.

use std::sync::Arc;

use slackline_core::codec::Payload;
use slackline_core::config::Steps;
use slackline_core::ids::{Incarnation, Moment, Sequence, SessionId, WorkerId};
use slackline_core::limits::PUSH_WINDOW;
use slackline_core::wire::Doubt;

use super::member::Member;
use super::push::{Facts, Piece};
use super::{Shard, ShardEffect};

impl Shard {
    /// Keeps a new piece aside, unless the word that all shards have theirs has come before it.
    pub(super) fn stage(
        &mut self,
        now: Moment,
        facts: Facts,
        session: SessionId,
        gradient: Option<Payload>,
        effects: &mut Vec<ShardEffect>,
    ) {
        let Facts { worker, sequence, .. } = facts;
        let gradient = gradient.map(|gradient| Arc::new(self.unpack(gradient, effects)));
        let Some(member) = self.members.get_mut(&worker) else { return };
        let piece = Piece { facts, session: Some(session), gradient };
        member.staged.insert(sequence, piece);
        self.take_committed(now, worker, effects);
        if self.members.get(&worker).is_some_and(|member| member.staged.contains_key(&sequence)) {
            effects.push(ShardEffect::Staged { session, sequence });
        }
    }

    /// Every shard has its pieces of this worker's steps up to `sequence`.
    pub(super) fn commit(
        &mut self,
        now: Moment,
        worker: WorkerId,
        incarnation: Incarnation,
        sequence: Sequence,
        effects: &mut Vec<ShardEffect>,
    ) {
        let member = self.members.get_mut(&worker).filter(|member| member.incarnation == incarnation);
        // One that is gone is settled by the coordinator alone: its word may have come before this one.
        let Some(member) = member else { return };
        // Nobody has pieces further ahead; more would only let a faulty worker break its own steps for ever.
        let furthest = member.window.watermark().0.saturating_add(PUSH_WINDOW as u64);
        member.committed = member.committed.max(sequence.min(Sequence(furthest)));
        self.take_committed(now, worker, effects);
    }

    /// Takes in, in order, what all shards have.
    pub(super) fn take_committed(&mut self, now: Moment, worker: WorkerId, effects: &mut Vec<ShardEffect>) {
        loop {
            let Some(member) = self.members.get_mut(&worker) else { return };
            let next = member.window.watermark().next();
            if next > member.committed {
                return;
            }
            let Some(piece) = member.staged.remove(&next) else { return };
            self.admit_piece(now, piece, effects);
        }
    }

    fn admit_piece(&mut self, now: Moment, piece: Piece, effects: &mut Vec<ShardEffect>) {
        let gradient = piece.gradient.map(|gradient| Payload::plain(Arc::unwrap_or_clone(gradient)));
        self.admit(now, &piece.facts, piece.session, gradient, effects);
    }

    /// A worker is gone: the coordinator hears what this shard has of it.
    pub(super) fn doubt(&mut self, worker: WorkerId, mut member: Member, effects: &mut Vec<ShardEffect>) {
        (member.read, member.session) = (None, None);
        effects.push(self.doubt_of(worker, &member));
        self.doubts.insert((worker, member.incarnation), member);
    }

    pub(super) fn doubt_of(&self, worker: WorkerId, member: &Member) -> ShardEffect {
        let (incarnation, applied) = (member.incarnation, member.window.watermark());
        let waiting = member.staged.keys().copied().collect();
        ShardEffect::Doubt(Doubt { shard: self.id, worker, incarnation, applied, waiting })
    }

    /// This incarnation is gone, whatever is known of it here.
    pub(super) fn fence(
        &mut self,
        worker: WorkerId,
        incarnation: Incarnation,
        effects: &mut Vec<ShardEffect>,
    ) {
        if self.member(worker, incarnation).is_some() {
            self.remove(worker, effects);
        } else if self.steps == Steps::Whole {
            let unknown = Member::new(incarnation, Sequence(0));
            let known = self.doubts.get(&(worker, incarnation)).unwrap_or(&unknown);
            effects.push(self.doubt_of(worker, known));
        }
    }

    /// The coordinator's word about a worker that is gone.
    pub(super) fn resolve(
        &mut self,
        now: Moment,
        worker: WorkerId,
        incarnation: Incarnation,
        through: Sequence,
        effects: &mut Vec<ShardEffect>,
    ) {
        if self.member(worker, incarnation).is_some() {
            // What was to tell this shard that the worker is gone was lost with a server.
            self.remove(worker, effects);
        }
        self.remember(worker, incarnation, None);
        let Some(member) = self.doubts.remove(&(worker, incarnation)) else { return };
        for (sequence, piece) in member.staged {
            if sequence <= through {
                self.admit_piece(now, piece, effects);
            } else {
                effects.extend(piece.gradient.and_then(Arc::into_inner).map(ShardEffect::Recycle));
            }
        }
    }

    /// The workers whose pieces wait, members and those that are gone, each with its first step that does.
    #[must_use]
    pub fn staged_steps(&self) -> Vec<(WorkerId, Sequence)> {
        let members = self.members.iter().map(|(worker, member)| (*worker, member));
        let all = members.chain(self.doubts.iter().map(|((worker, _), member)| (*worker, member)));
        all.filter_map(|(worker, member)| Some((worker, *member.staged.keys().next()?))).collect()
    }

    /// Pieces that wait, of members and of workers that are gone.
    #[must_use]
    pub fn staged_count(&self) -> usize {
        self.members.values().chain(self.doubts.values()).map(|member| member.staged.len()).sum()
    }
}
