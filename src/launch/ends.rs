//! When those ended without which a run may go on, and whether it can still become complete.

use slackline_core::wire::{FinalValues, Phase, Status};
use tokio::time::Instant;

use super::STRAGGLERS;
use crate::child::Child;

/// When those ended without which a run may go on, or which it may end without.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) coordinator: Option<Instant>,
    pub(super) first_worker: Option<Instant>,
    pub(super) last_worker: Option<Instant>,
}

impl Ends {
    pub(super) fn note(&mut self, coordinator: &Child, workers: &[Child]) {
        let now = |is_so: bool| is_so.then(Instant::now);
        let has_ended = |child: &Child| child.ended.is_some();
        self.coordinator = self.coordinator.or(now(has_ended(coordinator)));
        self.first_worker = self.first_worker.or(now(workers.iter().any(has_ended)));
        self.last_worker = self.last_worker.or(now(workers.iter().all(has_ended)));
    }

    /// Why a run that is in this state will never be complete. A worker ends well also when somebody told it to go. `was_killed` is whether the
    /// last one was killed instead: then nobody waits for its lease but where what was trained is kept after it.
    pub(super) fn hopeless(&self, status: &Status, was_killed: bool) -> Option<String> {
        let long_ago = |end: Option<Instant>| end.is_some_and(|end| end.elapsed() > STRAGGLERS);
        match status.phase {
            Phase::Waiting { .. } if long_ago(self.first_worker) => {
                Some("a worker ended before the run began".to_owned())
            }
            // With all samples used the coordinator still writes the last checkpoint, which takes as long as the store does.
            Phase::Running
                if long_ago(self.last_worker)
                    && (status.members.is_empty() || was_killed)
                    && has_work_left(status) =>
            {
                Some("all workers ended before the work was done".to_owned())
            }
            Phase::Left(values) if long_ago(self.last_worker) => {
                let end = "all workers ended before the final evaluation was made";
                match values {
                    FinalValues::Keeping => None,
                    FinalValues::Unkept => Some(end.to_owned()),
                    FinalValues::Kept { number } => Some(format!(
                        "{end}; checkpoint {number} has what they have trained, and --resume goes on from it"
                    )),
                }
            }
            _ => None,
        }
    }
}

fn has_work_left(status: &Status) -> bool {
    status.progress.as_ref().is_none_or(|progress| progress.samples < progress.samples_total)
}

#[cfg(test)]
mod tests {
    use slackline_core::ids::{Incarnation, ServerId, WorkerId};
    use slackline_core::wire::{MemberRow, Progress, RefusedCounts, Text};

    use super::*;

    fn status(phase: Phase, members: u32) -> Status {
        let member = |worker| MemberRow {
            worker: WorkerId(worker),
            incarnation: Incarnation(1),
            address: Text::default(),
            clock: None,
            heard_ms: 0,
        };
        Status {
            server: ServerId(0),
            phase,
            progress: None,
            members: (0..members).map(member).collect(),
            members_hidden: 0,
            held: Vec::new(),
            shards: Vec::new(),
            refused: RefusedCounts::default(),
            servers: Vec::new(),
            servers_hidden: 0,
            places: Vec::new(),
            waits: Vec::new(),
        }
    }

    #[test]
    fn a_run_is_hopeless_when_those_who_could_do_the_work_have_gone() {
        let before = Instant::now().checked_sub(STRAGGLERS * 2);
        let one = Ends { first_worker: before, ..Ends::default() };
        let all = Ends { last_worker: before, ..one };
        let waiting = || Phase::Waiting { here: 1, wanted: 2, since_ms: 0 };
        for (ends, phase, members, is_hopeless) in [
            (&Ends::default(), waiting(), 1, false),
            (&one, waiting(), 1, true),
            (&one, Phase::Running, 1, false),
            // One that has left the children but not the table was not told to go: its lease decides.
            (&all, Phase::Running, 1, false),
            (&all, Phase::Running, 0, true),
            (&all, Phase::Finished, 0, false),
        ] {
            let status = status(phase, members);
            assert_eq!(ends.hopeless(&status, false).is_some(), is_hopeless, "{ends:?} {:?}", status.phase);
        }
        // Nobody waits for the lease of one that was killed.
        assert!(all.hopeless(&status(Phase::Running, 1), true).is_some());
        // The last checkpoint is under way.
        let mut saving = status(Phase::Running, 0);
        for (samples, is_hopeless) in [(9, true), (10, false)] {
            saving.progress = Some(Progress { samples, samples_total: 10, ..Progress::default() });
            for was_killed in [false, true] {
                assert_eq!(
                    all.hopeless(&saving, was_killed).is_some(),
                    is_hopeless,
                    "{samples} of 10 samples"
                );
            }
        }
        // So is that of values that nobody is there to evaluate.
        for (values, said) in [
            (FinalValues::Keeping, None),
            (FinalValues::Unkept, Some("final evaluation was made")),
            (FinalValues::Kept { number: 7 }, Some("checkpoint 7 has what they have trained")),
        ] {
            let left = status(Phase::Left(values), 0);
            let hopeless = all.hopeless(&left, false);
            assert_eq!(hopeless.is_some(), said.is_some(), "{values:?}");
            assert!(hopeless.unwrap_or_default().contains(said.unwrap_or_default()));
            assert_eq!(Ends::default().hopeless(&left, false), None, "whoever runs makes it");
        }
        // What was on its way when the last one ended is no news.
        let just_now = Ends { last_worker: Some(Instant::now()), ..Ends::default() };
        assert_eq!(just_now.hopeless(&status(Phase::Running, 0), true), None);
    }
}
