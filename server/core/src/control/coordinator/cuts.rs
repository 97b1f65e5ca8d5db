//! Where the data stand at the cuts of checkpoints: taken when one is made, and gone back to when it is all that is left of the run.

use bincode::{Decode, Encode};
use slackline_core::consistency::PolicySpec;
use slackline_core::ids::{Clock, Moment, WorkerId};
use slackline_core::limits::CUTS_MAX;
use slackline_core::wire::Mark;

use super::Coordinator;
use crate::assign::{Assigner, PastEvaluation, Position};

/// Where the data stand in checkpoints of this run.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub(super) struct Saved {
    /// The one whose manifest is being written.
    writing: Option<Position>,
    /// The newest that is in the store.
    newest: Option<Position>,
    /// The one before it: shards can be going back to that while a newer one is committed.
    before: Option<Position>,
}

/// What going back to a checkpoint came to.
pub(in super::super) struct WentBack {
    /// Samples that are done again.
    pub(in super::super) samples: u64,
    /// The clock at which workers enter.
    pub(in super::super) clock: Clock,
}

impl Coordinator {
    /// A cut that no push of what was given out has passed, by a margin; and its marker clock.
    pub(in super::super) fn cut(&self, number: u64, margin: u64) -> (Mark, Clock) {
        let beyond = |(worker, clock): (WorkerId, Clock)| {
            let given = self.assigner.as_ref().map_or(clock, |assigner| assigner.beyond(worker));
            (worker, Clock(given.max(clock).0.saturating_add(margin)))
        };
        let cuts: Vec<(WorkerId, Clock)> = self.clocks.iter().map(beyond).collect();
        let closes_together = matches!(self.settings.policy, PolicySpec::Bsp | PolicySpec::Backup { .. });
        if closes_together || cuts.is_empty() || cuts.len() > CUTS_MAX {
            let furthest = cuts.iter().map(|(_, cut)| *cut).max().unwrap_or(self.minimum);
            return (Mark { number, cuts: Vec::new(), rest: Some(furthest) }, furthest);
        }
        let slowest = cuts.iter().map(|(_, cut)| *cut).min().unwrap_or(self.minimum);
        (Mark { number, cuts, rest: None }, slowest)
    }

    pub(in super::super) fn mark(&mut self, mark: &Mark) {
        self.assigner.iter_mut().for_each(|assigner| assigner.mark(mark));
    }

    pub(in super::super) fn unmark(&mut self) {
        self.assigner.iter_mut().for_each(Assigner::unmark);
    }

    /// Whether everything was heard of the batches before the cut.
    pub(in super::super) fn is_reported(&self) -> bool {
        self.assigner.as_ref().is_some_and(Assigner::is_reported)
    }

    /// The worker that is furthest from its cut, with its clock and the cut.
    pub(in super::super) fn behind(&self) -> Option<(WorkerId, Clock, Clock)> {
        self.assigner.as_ref()?.behind(|worker| self.clocks.get(worker))
    }

    /// Where the run stands at the cut.
    pub(in super::super) fn position(&self, now: Moment, number: u64, clock: Clock) -> Position {
        let (Some(assigner), Some(record)) = (&self.assigner, &self.record) else {
            return Position::default();
        };
        let position = assigner.position();
        let before = assigner.samples_before(&position);
        let is_all = before == position.sample_total;
        // An evaluation beside a batch that is to be done again is made again.
        let of_cut = |evaluation: &&PastEvaluation| evaluation.samples < before || is_all;
        Position {
            number,
            clock,
            epoch_samples: self.data.map_or(0, |data| data.sample_count),
            evaluations: record.past_evaluations().iter().filter(of_cut).copied().collect(),
            wall_ns: record.wall(now).as_nanos() as u64,
            incarnation: self.incarnations,
            ..position
        }
    }

    /// The manifest of a checkpoint is being written, with this position.
    pub(in super::super) fn writes(&mut self, position: Position) {
        self.saved.writing = Some(position);
    }

    /// It is in the store.
    pub(in super::super) fn committed(&mut self, number: u64) {
        if let Some(position) = self.saved.writing.take_if(|position| position.number == number) {
            self.saved.before = self.saved.newest.replace(position);
        }
    }

    /// Every shard has gone back to this checkpoint: so do the data. None where they cannot, or the run is over. The members are to be removed,
    /// and then [`Self::begin_at`] says where others enter.
    pub(in super::super) fn go_back(&mut self, number: u64) -> Option<WentBack> {
        let known = [&self.saved.newest, &self.saved.before, &self.settings.resume].into_iter().flatten();
        let position = known.into_iter().find(|position| position.number == number)?.clone();
        let (Some(assigner), Some(record)) = (&mut self.assigner, &mut self.record) else { return None };
        if assigner.is_over() {
            return None;
        }
        // It was made of these data, or they were taken up from it.
        let samples = assigner.go_back(&position).ok()?;
        record.go_back(assigner.samples_before(&position));
        record.done(assigner.batches_done(), assigner.samples_done());
        Some(WentBack { samples, clock: position.clock })
    }

    /// Nobody is there, and whoever comes enters at this clock.
    pub(in super::super) const fn begin_at(&mut self, clock: Clock) {
        self.minimum = clock;
    }

    /// Batches that are done, and those that are in somebody's hands.
    pub(in super::super) fn work(&self) -> (u64, u64) {
        self.assigner.as_ref().map_or((0, 0), |assigner| (assigner.batches_done(), assigner.in_hand()))
    }
}
