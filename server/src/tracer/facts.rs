//! What is kept of a push or a pull until it is answered, and the verdict that an answer is.

use slackline_core::consistency::DropReason;
use slackline_core::ids::{Clock, Incarnation, Moment, Sequence, SessionId, WorkerId};
use slackline_core::trace::{Dropped, Reading, Record, Verdict, What};
use slackline_core::wire::{PullKind, PushOutcome, Pushed};
use slackline_server_core::ShardEffect;
use slackline_server_core::shard::Push;

#[derive(Clone, Copy, Debug)]
pub(super) struct PullFacts {
    pub(super) session: SessionId,
    pub(super) reader: Option<(WorkerId, Incarnation)>,
    pub(super) request: u64,
    pub(super) kind: PullKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PushFacts {
    pub(super) session: SessionId,
    /// It waits for the pieces of the other shards.
    pub(super) is_staged: bool,
    /// The number of the pull that it brings with it, or zero.
    reply: u64,
    /// What a record says of it.
    pub(super) record: Record,
}

impl PushFacts {
    pub(super) fn of(push: &Push) -> Self {
        let record = Record {
            worker: Some(push.worker),
            incarnation: push.incarnation,
            clock: push.clock,
            sequence: push.sequence,
            pulled: push.pulled,
            batch: push.batch,
            samples: push.samples,
            ..Record::new(0, Moment(0), What::Push { empty: push.gradient.is_none() })
        };
        Self { session: push.session, is_staged: false, reply: push.reply, record }
    }

    /// The pull that it brings with it.
    pub(super) fn pull(&self) -> Option<PullFacts> {
        let Record { worker, incarnation, sequence, clock, .. } = self.record;
        let reader = worker.map(|worker| (worker, incarnation));
        let kind = PullKind::Gated { clock: clock.next(), after: sequence, ahead: 0 };
        (self.reply > 0).then_some(PullFacts { session: self.session, reader, request: self.reply, kind })
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        let name = |facts: &Self| (facts.record.worker, facts.record.incarnation, facts.record.sequence);
        name(self) == name(other)
    }

    /// Whether an answer over `session` is for it.
    /// Whether it was turned away or was no new one, by the effects that it led to.
    pub(super) fn is_repeated(&self, effects: &[&ShardEffect]) -> bool {
        effects.iter().any(|effect| match effect {
            ShardEffect::Answer { session, pushed } if self.is_asked_by(*session, pushed) => {
                pushed.duplicate || is_refused(pushed.outcome)
            }
            _ => false,
        })
    }

    pub(super) fn is_asked_by(&self, session: SessionId, pushed: &Pushed) -> bool {
        (self.session, self.record.sequence) == (session, pushed.sequence)
    }
}

impl PullFacts {
    pub(super) const fn reading(&self) -> Reading {
        match self.kind {
            PullKind::Snapshot => Reading::Snapshot,
            PullKind::Gated { .. } => Reading::Gated,
            PullKind::Fresher { .. } => Reading::Fresher,
        }
    }

    pub(super) const fn seen(&self) -> Option<Clock> {
        match self.kind {
            PullKind::Fresher { seen, .. } => Some(seen),
            PullKind::Gated { .. } | PullKind::Snapshot => None,
        }
    }

    pub(super) fn ahead(&self) -> u8 {
        match self.kind {
            PullKind::Gated { ahead, .. } => u8::try_from(ahead).unwrap_or(u8::MAX),
            PullKind::Fresher { .. } | PullKind::Snapshot => 0,
        }
    }

    pub(super) fn record(&self, now: Moment, what: What) -> Record {
        let (clock, sequence) = match self.kind {
            PullKind::Gated { clock, after, .. } | PullKind::Fresher { clock, after, .. } => (clock, after),
            PullKind::Snapshot => (Clock(0), Sequence(0)),
        };
        let (worker, incarnation) = self.reader.unzip();
        let incarnation = incarnation.unwrap_or_default();
        Record { worker, incarnation, clock, sequence, ..Record::new(0, now, what) }
    }
}

/// Whether a push was turned away: it is as if it had not come.
pub(super) const fn is_refused(outcome: PushOutcome) -> bool {
    matches!(outcome, PushOutcome::Fenced | PushOutcome::OutOfWindow | PushOutcome::WrongKeys)
}

pub(super) fn verdict_of(outcome: PushOutcome) -> Verdict {
    match outcome {
        PushOutcome::Applied { staleness, down_weighted, .. } => {
            Verdict::Applied { staleness, down_weighted }
        }
        PushOutcome::Gathered { staleness, down_weighted } => Verdict::Gathered { staleness, down_weighted },
        PushOutcome::Dropped(DropReason::LateClock { open }) => Verdict::Dropped(Dropped::LateClock { open }),
        PushOutcome::Dropped(DropReason::TooStale { staleness }) => {
            Verdict::Dropped(Dropped::TooStale { staleness })
        }
        PushOutcome::Nothing => Verdict::Nothing,
        PushOutcome::NotFinite { key } => Verdict::NotFinite { key },
        PushOutcome::Fenced => Verdict::Fenced,
        PushOutcome::OutOfWindow => Verdict::OutOfWindow,
        PushOutcome::WrongKeys => Verdict::WrongKeys,
        #[allow(unreachable_patterns, reason = "a new outcome is traced as one without a number")]
        _ => Verdict::Other,
    }
}
