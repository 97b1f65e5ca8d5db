//! Who may push and pull at a shard: entering, leaving, and the copy that becomes the primary.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::config::Steps;
use slackline_core::consistency::Standing;
use slackline_core::ids::{Clock, Incarnation, Moment, Sequence, SessionId, Version, WorkerId};
use slackline_core::limits::{PUSH_PENDING_MAX, PUSH_WINDOW, WORKER_COUNT_MAX};

use super::answers::Answers;
use super::held::HeldPulls;
use super::push::Piece;
use super::{Shard, ShardEffect};
use crate::dedup::PushWindow;

/// Incarnations that are remembered after they have gone. One that another server takes for a member still is among the last of them.
const GONE_MAX: usize = WORKER_COUNT_MAX as usize;

/// A worker that may push and pull here.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) incarnation: Incarnation,
    pub(super) window: PushWindow,
    /// The session of its last gated pull.
    pub(super) session: Option<SessionId>,
    /// What its last pulls were answered with.
    pub(super) answers: Answers,
    /// The values that it last read with their version, where gradients are corrected by them.
    pub(super) read: Option<(Version, Arc<Vec<f32>>)>,
    /// Where steps are whole: pieces that wait for those of the other shards.
    pub(super) staged: BTreeMap<Sequence, Piece>,
    /// Where steps are whole: every shard has its pieces up to here.
    pub(super) committed: Sequence,
    /// What it numbers after this push has at least this clock.
    pub(super) ahead: (Sequence, Clock),
    /// The highest clock of a push of it that was taken in.
    pub(super) reached: Option<Clock>,
}

impl Member {
    pub(super) fn new(incarnation: Incarnation, answered: Sequence) -> Self {
        Self {
            incarnation,
            window: PushWindow::after(answered),
            session: None,
            answers: Answers::default(),
            read: None,
            staged: BTreeMap::new(),
            committed: Sequence(0),
            // Its first pull says more: what it has not been answered can be of an earlier clock than that it enters at.
            ahead: (answered, Clock(0)),
            reached: None,
        }
    }

    /// Notes that whatever it numbers after `sequence` has at least this clock.
    pub(super) fn comes_to(&mut self, sequence: Sequence, clock: Clock) {
        let (known, at) = self.ahead;
        if sequence >= known {
            self.ahead = (sequence, clock.max(at));
        }
    }

    /// Whether one more push may wait.
    pub(super) fn has_room(&self) -> bool {
        self.window.pending() + self.staged.len() < PUSH_PENDING_MAX
    }

    /// Forgets the sessions of another server, and what that has answered.
    fn part(&mut self) {
        self.session = None;
        self.answers = Answers::default();
        for piece in self.staged.values_mut() {
            piece.session = None;
        }
    }
}

impl Shard {
    pub(super) fn member(&self, worker: WorkerId, incarnation: Incarnation) -> Option<&Member> {
        self.members.get(&worker).filter(|member| member.incarnation == incarnation)
    }

    /// The pushes of a member, or of a worker that is gone.
    pub(super) fn window(&mut self, worker: WorkerId, incarnation: Incarnation) -> Option<&mut PushWindow> {
        let member = self.members.get_mut(&worker).filter(|member| member.incarnation == incarnation);
        let member = member.or_else(|| self.doubts.get_mut(&(worker, incarnation)));
        let gone = self.gone.get_mut(&(incarnation, worker)).and_then(Option::as_mut);
        member.map(|member| &mut member.window).or(gone)
    }

    /// Remembers an incarnation that is gone.
    pub(super) fn remember(
        &mut self,
        worker: WorkerId,
        incarnation: Incarnation,
        window: Option<PushWindow>,
    ) {
        self.gone.insert((incarnation, worker), window);
        if self.gone.len() > GONE_MAX {
            self.gone.pop_first();
        }
    }

    /// A worker becomes a member; one that the shard knows already (it was restored, or took over, or had removed it alone) keeps its
    /// window, so that what it sends again gets its first answer.
    pub(super) fn enter(
        &mut self,
        (worker, incarnation): (WorkerId, Incarnation),
        clock: Clock,
        standing: Standing,
        answered: Sequence,
        effects: &mut Vec<ShardEffect>,
    ) {
        let is_former = self.members.get(&worker).is_some_and(|member| member.incarnation > incarnation);
        // The coordinator has heard how far a doubted one is, and decides with that: it must not get any further.
        let is_doubted = self.doubts.contains_key(&(worker, incarnation));
        if is_former || is_doubted || self.gone.get(&(incarnation, worker)) == Some(&None) {
            return;
        }
        self.held.forget(worker);
        self.watch(worker);
        if self.members.get(&worker).is_some_and(|member| member.incarnation < incarnation) {
            self.remove(worker, effects);
        }
        if let Some(window) = self.gone.remove(&(incarnation, worker)).flatten() {
            let member = Member::new(incarnation, window.watermark());
            self.members.insert(worker, Member { window, ..member });
        }
        if self.member(worker, incarnation).is_some() {
            let is_active = self.table.is_active(worker) || standing == Standing::Active;
            let known = self.table.clock_of(worker).unwrap_or(clock);
            self.is_behind |= known < clock;
            let clock = known.max(clock);
            let standing = if is_active { Standing::Active } else { Standing::Joining };
            self.table.enter(worker, clock, standing);
            return;
        }
        // Whoever has been answered was known here once: this state is of before that.
        self.is_behind |= answered > Sequence(0);
        self.members.insert(worker, Member::new(incarnation, answered));
        self.table.enter(worker, clock, standing);
    }

    /// What a member was answered is in, and so are its pieces of these steps: a shard that was restored, or took over, can lack the word.
    pub(super) fn take_answered(
        &mut self,
        now: Moment,
        worker: WorkerId,
        incarnation: Incarnation,
        answered: Sequence,
        effects: &mut Vec<ShardEffect>,
    ) {
        self.commit(now, worker, incarnation, answered, effects);
        let member = self.members.get_mut(&worker).filter(|member| member.incarnation == incarnation);
        let Some(member) = member else { return };
        member.window.raise(answered);
        let left = member.staged.split_off(&member.window.watermark().next());
        for piece in std::mem::replace(&mut member.staged, left).into_values() {
            effects.extend(piece.gradient.and_then(Arc::into_inner).map(ShardEffect::Recycle));
        }
        self.take_committed(now, worker, effects);
    }

    pub(super) fn reenter(&mut self, worker: WorkerId, clock: Clock) {
        if let Some(member) = self.members.get_mut(&worker) {
            let (sequence, _) = member.ahead;
            member.comes_to(sequence, clock);
            self.table.enter(worker, clock, Standing::Joining);
            self.watch(worker);
        }
    }

    /// A worker is no member any more. Where steps are whole, its pieces wait for the coordinator's word.
    pub(super) fn remove(&mut self, worker: WorkerId, effects: &mut Vec<ShardEffect>) {
        self.table.leave(worker);
        self.held.forget(worker);
        self.guard.forget(worker);
        if let Some(member) = self.members.remove(&worker) {
            if let Some(reached) = member.reached {
                let known = self.departed.entry(worker).or_insert(reached);
                *known = reached.max(*known);
            }
            match self.steps {
                Steps::Whole => self.doubt(worker, member, effects),
                Steps::Parts => {
                    let Member { incarnation, mut window, .. } = member;
                    window.shrink();
                    self.remember(worker, incarnation, Some(window));
                }
            }
        }
    }

    /// This copy leads from now on.
    pub(super) fn lead(
        &mut self,
        members: &[(WorkerId, Incarnation, Clock)],
        started: bool,
        effects: &mut Vec<ShardEffect>,
    ) {
        // Their sessions were those of another server: whoever waited asks again here.
        self.held = HeldPulls::default();
        self.members.values_mut().chain(self.doubts.values_mut()).for_each(Member::part);
        self.collected.values_mut().flatten().for_each(|kept| kept.session = None);
        // Who asked what becomes of the pieces that wait is gone, too.
        effects.extend(self.doubts.iter().map(|((worker, _), member)| self.doubt_of(*worker, member)));
        let has_begun = started || self.started;
        self.started = started;
        let standing = if has_begun { Standing::Joining } else { Standing::Active };
        for (worker, incarnation, clock) in members.iter().copied() {
            let known = self.members.get(&worker).map(|member| member.incarnation);
            if known.is_none_or(|known| known < incarnation) {
                self.enter((worker, incarnation), clock, standing, Sequence(0), effects);
            }
        }
    }

    /// The members that the shard knows.
    pub fn members(&self) -> impl Iterator<Item = (WorkerId, Incarnation)> + '_ {
        self.members.iter().map(|(worker, member)| (*worker, member.incarnation))
    }

    pub(super) fn check_members(&self) {
        let gone = self.doubts.iter().map(|((worker, _), member)| (worker, member));
        for (worker, member) in self.members.iter().chain(gone) {
            let (len, most) = (member.window.len(), 2 * PUSH_WINDOW);
            assert!(len <= most, "{len} answers are kept for {worker}, more than {most}");
            let waiting = member.window.pending() + member.staged.len();
            assert!(waiting <= PUSH_PENDING_MAX, "{waiting} pushes of {worker} wait");
            for sequence in member.staged.keys() {
                assert!(!member.window.has_all_to(*sequence), "{worker} has {sequence} staged and taken in");
            }
            let next = member.window.watermark().next();
            let is_due = member.staged.contains_key(&next) && next <= member.committed;
            assert!(
                !is_due || self.member(*worker, member.incarnation).is_none(),
                "{worker} waits for nothing"
            );
        }
    }
}
