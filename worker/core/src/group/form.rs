//! From the word that there is a group to its first iteration.

use slackline_core::collective::Topology;
use slackline_core::ids::{Generation, ServerId, WorkerId};
use slackline_core::limits::GROUP_COUNT_MAX;
use slackline_core::wire::{Group, LinkFigures};

use super::{Present, Stage};
use crate::effect::Effect;
use crate::error::WorkerError;
use crate::join::CLOCK_MAX;
use crate::notice::Notice;
use crate::worker::Worker;

impl Worker {
    /// The coordinator names the group that the worker belongs to from now on.
    pub(crate) fn on_group(
        &mut self,
        server: ServerId,
        group: Group,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let refuse = |what| WorkerError::OutOfPlace { server, what };
        if server != self.settings.coordinator || !self.is_grouped() {
            return Err(refuse("a group"));
        }
        if group.generation <= self.group.heard {
            // It comes again after a loss.
            return Ok(());
        }
        if self.group.ready.is_none() {
            return Err(refuse("a group before this worker was ready for one"));
        }
        let position = self.position_in(&group).map_err(refuse)?;
        // After a fence, a group that formed without this worker can have done its last iteration again, in another way.
        self.group.has_missed |= self.group.was_fenced && group.generation != self.group.heard.next();
        let lacks_values = self.lacks_values(&group);
        if lacks_values && self.source_of(&group).is_none() {
            return Err(refuse(
                "a group at another clock than this worker's, and nobody to get the values from",
            ));
        }
        if !lacks_values {
            self.share_values();
        } else if self.group.adrift.is_some() || self.clock >= group.clock {
            self.group.adrift = Some((group.clock, group.units));
        }
        self.group.heard = group.generation;
        if !lacks_values {
            self.group.shared = group.generation;
        }
        self.group.is_new = false;
        self.group.ready = None;
        self.notice_group(&group, effects);
        effects.push(Effect::Form { group: group.clone(), position });
        self.load_first(&group, position, effects);
        // Whoever has everything needs nobody. The connections are made for those who lack it.
        let is_done = group.units >= self.settings.batch_count && group.topology != Topology::Auto;
        let stage = if is_done && !lacks_values { Stage::Running } else { Stage::Meeting };
        let since = self.now;
        self.group.present = Some(Present { group, position, stage, since, step: None, trouble: None });
        Ok(())
    }

    /// Checks what a group says, and finds the worker's place in it.
    fn position_in(&self, group: &Group) -> Result<u32, &'static str> {
        let Some(member) = self.member else { return Err("a group for nobody") };
        let members = &group.members;
        if members.len() > GROUP_COUNT_MAX as usize {
            return Err("a group that is too large");
        }
        if !members.is_sorted_by(|left, right| left.worker < right.worker) {
            return Err("a group whose members are out of order");
        }
        let position = group.position_of(member.worker).ok_or("a group without this worker")?;
        let is_this_life =
            members.iter().any(|one| (one.worker, one.incarnation) == (member.worker, member.incarnation));
        if !is_this_life {
            return Err("a group with another lifetime of this worker");
        }
        if group.topology.fits(members.len() as u32).is_err() {
            return Err("a group that its topology does not fit");
        }
        if group.clock.0 > CLOCK_MAX || group.units > self.settings.batch_count {
            return Err("a group beyond the end of the run");
        }
        if group.source.is_some_and(|source| group.position_of(source).is_none()) {
            return Err("a group with a source outside");
        }
        Ok(position)
    }

    /// Whether the worker has to get the group's values from another member.
    fn lacks_values(&self, group: &Group) -> bool {
        let is_elsewhere = group.clock != self.clock || group.units != self.group.units;
        let is_doubtful = self.group.has_missed && self.source_of(group).is_some();
        is_elsewhere || is_doubtful || self.group.adrift.is_some()
    }

    /// The values are those that the whole group has.
    fn share_values(&mut self) {
        (self.group.was_fenced, self.group.has_missed, self.group.adrift) = (false, false, None);
    }

    /// The member to get the values from, if that is another.
    fn source_of(&self, group: &Group) -> Option<WorkerId> {
        let own = self.member.map(|member| member.worker);
        group.source.filter(|source| Some(*source) != own)
    }

    fn notice_group(&self, group: &Group, effects: &mut Vec<Effect>) {
        effects.push(Effect::Notice(Notice::Grouped {
            generation: group.generation,
            topology: group.topology,
            members: group.members.len() as u32,
            clock: group.clock,
        }));
    }

    /// The connections stand.
    pub(super) fn on_met(&mut self, generation: Generation, effects: &mut Vec<Effect>) {
        let Some(present) = self.group.present_in(generation) else { return };
        if present.stage != Stage::Meeting {
            return;
        }
        let group = present.group.clone();
        if group.topology == Topology::Auto {
            if group.members.len() < 2 {
                // There is nothing to measure.
                return self.finish_measuring(None, effects);
            }
            self.turn(Stage::Probing);
            effects.push(Effect::Probe { generation });
            return;
        }
        if self.lacks_values(&group) {
            if let Some(source) = self.source_of(&group) {
                self.turn(Stage::Fetching);
                effects.push(Effect::FetchState { generation, source, clock: group.clock });
            }
        } else {
            self.turn(Stage::Running);
        }
    }

    fn turn(&mut self, stage: Stage) {
        if let Some(present) = &mut self.group.present {
            present.turn(stage, self.now);
        }
    }

    /// The way to the right neighbour is measured. The connections stay as they are, since others may still measure.
    pub(super) fn on_measured(
        &mut self,
        generation: Generation,
        figures: LinkFigures,
        effects: &mut Vec<Effect>,
    ) {
        if self.group.present_in(generation).is_some_and(|present| present.stage == Stage::Probing) {
            self.finish_measuring(Some(figures), effects);
        }
    }

    fn finish_measuring(&mut self, figures: Option<LinkFigures>, effects: &mut Vec<Effect>) {
        self.turn(Stage::Measured);
        self.say_ready(figures, effects);
    }

    /// The values of the source are here.
    pub(super) fn on_state(&mut self, generation: Generation) {
        let Some(present) = self.group.present_in(generation) else { return };
        if present.stage != Stage::Fetching {
            return;
        }
        let (clock, units) = (present.group.clock, present.group.units);
        self.count_if_completed(clock);
        self.clock = clock;
        self.group.units = units;
        self.share_values();
        self.group.shared = generation;
        self.turn(Stage::Running);
    }
}
