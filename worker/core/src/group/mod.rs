//! The worker of an allreduce: in no group, or in one.
//!
//! ```text
//! Registered -> Ready -> Group -> Form -> Met -+-> (measure) Probe -> Measured -> Ready -> Group ...
//!                 ^                            +-> (behind) FetchState -> StateArrived -+
//!                 |                            +----------------------------------------+-> steps -> over
//!                 +------------- Regroup (at any time: Dissolve) ----------------------------/
//! ```
//!
//! What must not go wrong: two workers with different values under the same clock. Iterations of a group cannot be completed without
//! any of its members, so whoever belonged to every group since it began has values on the one line that all share, if perhaps older
//! ones. A worker whose lease ran out has perhaps not: the others may have done its last iteration again without it.

mod form;
mod over;
mod step;
mod words;

use std::collections::BTreeMap;

use slackline_core::ids::{Clock, Generation, Moment, ServerId};
use slackline_core::wire::{Group, LinkFigures, Ready, ToServer, Trouble};

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::event::Event;
use crate::ledger::Category;
use crate::notice::{Notice, PeerWait};
use crate::worker::Worker;

use step::{Phase, Step, Unfinished};
use words::Words;

/// How far a worker has come in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The connections are made.
    Meeting,
    /// The way to the right neighbour is measured.
    Probing,
    /// It is measured: the next group will be another one.
    Measured,
    /// Values and optimizer state of the source are on their way.
    Fetching,
    /// Iterations go on.
    Running,
    /// All units of the run are done.
    Over,
}

/// The group that the worker is in.
#[derive(Clone, Debug)]
struct Present {
    group: Group,
    position: u32,
    stage: Stage,
    /// When that stage began.
    since: Moment,
    step: Option<Step>,
    /// What the coordinator was told is wrong.
    trouble: Option<Trouble>,
}

impl Present {
    fn turn(&mut self, stage: Stage, now: Moment) {
        (self.stage, self.since) = (stage, now);
    }
}

/// A `Ready` that no group has answered.
#[derive(Clone, Copy, Debug)]
struct Said {
    ready: Ready,
    since: Moment,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grouping {
    /// The newest group that the worker has heard of.
    heard: Generation,
    /// The newest group whose values it had.
    shared: Generation,
    /// Units whose sums are in the worker's values; the worker's clock counts the iterations.
    units: u64,
    present: Option<Present>,
    ready: Option<Said>,
    /// Units that are loaded or on their way, with whether they are there.
    batches: BTreeMap<u64, bool>,
    /// The lease ran out since the worker last knew that it shares the others' values.
    was_fenced: bool,
    /// It was in no group since.
    is_new: bool,
    /// Since then, a group may have gone on without it.
    has_missed: bool,
    /// The values are of no use in the group whose clock and units these are, and were not replaced yet.
    adrift: Option<(Clock, u64)>,
    /// An iteration that was dissolved after this worker's part in it: another one may have completed it.
    unfinished: Option<Unfinished>,
    words: Words,
    /// Where this member last began an evaluation: a step that is done again brings it there once more, and the coordinator knows
    /// a result that it has heard by its place.
    measured_at: Option<u64>,
    /// The final values are evaluated.
    is_measured: bool,
}

impl Grouping {
    /// Whether a batch will still be computed with.
    pub(crate) fn wants(&self, unit: u64) -> bool {
        let step = self.present.as_ref().and_then(|present| present.step.as_ref());
        self.batches.contains_key(&unit) || step.is_some_and(|step| step.computes(unit))
    }

    /// A batch is in memory.
    pub(crate) fn loaded(&mut self, unit: u64) {
        if let Some(is_loaded) = self.batches.get_mut(&unit) {
            *is_loaded = true;
        }
    }

    /// Whether the worker is in a group.
    pub(crate) const fn is_present(&self) -> bool {
        self.present.is_some()
    }

    /// The group under way if it is that of an event.
    fn present_in(&mut self, generation: Generation) -> Option<&mut Present> {
        self.present.as_mut().filter(|present| present.group.generation == generation)
    }

    /// The gradient that is computed, with the time it began at.
    pub(crate) fn computing(&self) -> Option<(u64, Moment)> {
        let step = self.present.as_ref()?.step.as_ref()?;
        Some((step.unit?, step.since)).filter(|_| matches!(step.phase, Phase::Computing))
    }

    /// Since when a group is waited for.
    pub(crate) fn waits_for_group(&self) -> Option<Moment> {
        self.ready.map(|said| said.since)
    }

    /// What is waited for from other workers, since when.
    pub(crate) fn waits_for_peers(&self) -> Option<(Generation, PeerWait, Moment)> {
        let present = self.present.as_ref()?;
        let (what, since) = match (present.stage, &present.step) {
            (Stage::Meeting, _) => (PeerWait::Connections, present.since),
            (Stage::Probing, _) => (PeerWait::Figures, present.since),
            (Stage::Fetching, _) => (PeerWait::State, present.since),
            (Stage::Running, Some(step)) => match step.phase {
                Phase::Computed(_) => (PeerWait::Gradients, step.since),
                Phase::Gathered(_) => (PeerWait::Sums, step.since),
                Phase::Loading | Phase::Computing => return None,
            },
            (Stage::Running | Stage::Measured | Stage::Over, _) => return None,
        };
        Some((present.group.generation, what, since))
    }

    /// What the worker's time is spent on; none when it only waits for the end.
    pub(crate) fn category(&self) -> Option<Category> {
        let Some(present) = &self.present else { return Some(Category::Wait) };
        match (present.stage, &present.step) {
            (Stage::Fetching, _) => Some(Category::Pull),
            (Stage::Running, Some(step)) => Some(match step.phase {
                Phase::Loading => Category::Data,
                Phase::Computing => Category::Compute,
                Phase::Computed(_) => Category::Wait,
                Phase::Gathered(_) => Category::Push,
            }),
            (Stage::Over, _) => None,
            (Stage::Meeting | Stage::Probing | Stage::Measured | Stage::Running, _) => Some(Category::Wait),
        }
    }

    /// What holds after every event.
    pub(crate) fn check_invariants(&self, clock: Clock, is_member: bool) {
        assert!(is_member || (self.present.is_none() && self.ready.is_none()), "only members are in groups");
        assert!(self.batches.len() <= 2, "one batch is loaded ahead");
        let Some(present) = &self.present else { return };
        let is_asking = self.ready.is_some();
        assert_eq!(is_asking, present.stage == Stage::Measured, "whoever is ready is in no group that steps");
        assert_eq!(present.group.generation, self.heard, "the newest group is the present one");
        let is_running = present.stage == Stage::Running;
        assert_eq!(is_running, present.step.is_some(), "a group that runs steps");
        assert!(present.step.as_ref().is_none_or(|step| step.clock == clock), "a step is that of the clock");
        assert!(
            !is_running || self.adrift.is_none(),
            "nobody computes on values that the others do not share"
        );
    }
}

impl Worker {
    /// Whether this is the worker of an allreduce.
    pub(crate) const fn is_grouped(&self) -> bool {
        self.settings.group.is_some()
    }

    /// What concerns other workers.
    pub(crate) fn on_group_event(
        &mut self,
        event: Event,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        match event {
            Event::Met { generation } => self.on_met(generation, effects),
            Event::Measured { generation, figures } => self.on_measured(generation, figures, effects),
            Event::StateArrived { generation } => self.on_state(generation),
            Event::StepComputed { generation, clock, bad_key, loss, samples } => {
                let own = step::Own { bad_key, loss, samples };
                return self.on_step_computed((generation, clock), own, effects);
            }
            Event::Gathered { generation, clock } => self.on_gathered(generation, clock),
            Event::Reduced { generation, clock, bad_key, sent, received } => {
                return self.on_reduced((generation, clock), bad_key, (sent, received), effects);
            }
            Event::PeerTrouble { generation, worker, reason } => {
                let reason = slackline_core::wire::Text::new(reason);
                self.on_trouble(Trouble { generation, worker, reason }, effects);
            }
            Event::PeerRefused { reason } => return Err(WorkerError::Peer { reason }),
            _ => {}
        }
        Ok(())
    }

    /// Tells the coordinator that the worker is in no group.
    fn say_ready(&mut self, measured: Option<LinkFigures>, effects: &mut Vec<Effect>) {
        let group = &mut self.group;
        // Whoever was told to replace its values stands where that group began; the coordinator knows that it has not done so.
        let (clock, units) = group.adrift.unwrap_or((self.clock, group.units));
        // In a new life nobody knows that any more: it belongs to the group that it last had the values of.
        let is_stray = group.is_new && group.adrift.is_some();
        let generation = if is_stray { group.shared } else { group.heard };
        let ready = Ready { generation, clock, units, measured };
        let since = group.ready.map_or(self.now, |said| said.since);
        group.ready = Some(Said { ready, since });
        self.send(self.settings.coordinator, ToServer::Ready(ready), effects);
    }

    /// The session with the coordinator speaks for this worker again, or for the first time: what it has perhaps not heard is said.
    pub(crate) fn resume_group(&mut self, effects: &mut Vec<Effect>) {
        let trouble = self.group.present.as_ref().and_then(|present| present.trouble.clone());
        match self.group.ready {
            Some(Said { ready, .. }) => self.send(self.settings.coordinator, ToServer::Ready(ready), effects),
            None if self.group.present.is_none() => self.say_ready(None, effects),
            None => {
                if let Some(trouble) = trouble {
                    self.send(self.settings.coordinator, ToServer::Trouble(trouble), effects);
                }
            }
        }
        self.say_word(effects);
    }

    /// The group cannot go on as it is. The coordinator will dissolve it; until then, what can go on goes on.
    fn on_trouble(&mut self, trouble: Trouble, effects: &mut Vec<Effect>) {
        let Some(present) = self.group.present_in(trouble.generation) else { return };
        // Whoever has nothing more to do here does not need the others; they say it themselves if they need it.
        if present.trouble.is_none() && !matches!(present.stage, Stage::Measured | Stage::Over) {
            present.trouble = Some(trouble.clone());
            self.send(self.settings.coordinator, ToServer::Trouble(trouble), effects);
        }
    }

    /// A group is dissolved: nothing of an unfinished iteration is applied.
    pub(crate) fn on_regroup(
        &mut self,
        server: ServerId,
        generation: Generation,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        if server != self.settings.coordinator || !self.is_grouped() {
            return Err(WorkerError::OutOfPlace { server, what: "word of a group" });
        }
        if generation < self.group.heard {
            return Ok(());
        }
        // The news of a group can be lost with a connection, and so can the answer. After a fence, a group that this worker does not
        // know may have stepped without it.
        self.group.has_missed |= self.group.was_fenced && generation > self.group.heard;
        self.group.heard = generation;
        let measured = self.group.ready.and_then(|said| said.ready.measured);
        self.dissolve(effects);
        self.say_ready(measured, effects);
        Ok(())
    }

    /// Leaves the group, if there is one.
    pub(crate) fn dissolve(&mut self, effects: &mut Vec<Effect>) {
        if let Some(present) = self.group.present.take() {
            let generation = present.group.generation;
            effects.push(Effect::Dissolve { generation });
            effects.push(Effect::Notice(Notice::Dissolved { generation }));
            // One of a group before stays: it is settled by the first group that steps again.
            let unfinished = present.step.and_then(|step| step.unfinished());
            self.group.unfinished = unfinished.or(self.group.unfinished);
        }
    }

    /// The lease ran out: the others may go on without this worker. Its values stay, and the coordinator is told which they are.
    pub(crate) fn forget_group(&mut self, effects: &mut Vec<Effect>) {
        self.dissolve(effects);
        self.recover_words();
        let group = &mut self.group;
        group.ready = None;
        group.unfinished = None;
        (group.measured_at, group.is_measured) = (None, false);
        (group.was_fenced, group.is_new) = (true, true);
    }
}
