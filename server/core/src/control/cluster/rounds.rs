//! Checkpoints, one at a time: a cut that no shard has passed, the parts of all shards, and then the manifest.
//!
//! The coordinator knows which clocks its workers were given work for, and no push can be of a later one. The cut lies a little above, by a
//! margin, since the marker takes its time to the shards; a shard that has passed it says so, and the next try has twice the margin.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bincode::{Decode, Encode};
use slackline_core::ids::{Clock, Moment, ServerId, ShardId, WorkerId};
use slackline_core::limits::PART_ENTRY_BYTES_MAX;
use slackline_core::wire::{FinalValues, Mark, ServerOrder};

use super::View;
use super::notice::ClusterNotice;
use crate::waits::{Unsaved, Wait, Waiting};

/// Clocks between what the workers were given and the cut, at first.
const MARGIN: u64 = 2;

/// Clocks between them at most.
const MARGIN_MAX: u64 = 64;

/// Tries of the last checkpoint of a run; and of one of the same values, where nobody is there any more to evaluate them.
const LAST_TRIES: u32 = 5;

/// What is to be committed: the mark, its clock, and each shard's part.
type Parts = (Mark, Clock, Vec<(ShardId, Vec<u8>)>);

/// One checkpoint that is being made.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Round {
    pub(super) mark: Mark,
    pub(super) clock: Clock,
    parts: BTreeMap<ShardId, Vec<u8>>,
    told: BTreeSet<ServerId>,
    /// Who had the shards when it began.
    homes: BTreeMap<ShardId, ServerId>,
    began: Moment,
    is_last: bool,
    pub(super) is_committing: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Rounds {
    every: u64,
    /// Number of the last checkpoint that was begun.
    number: u64,
    /// Marker clock of the last one that is in the store.
    last: Clock,
    /// The last one that is in the store.
    newest: Option<u64>,
    margin: u64,
    round: Option<Round>,
    not_before: Moment,
    /// The run is over and its values are final.
    is_ending: bool,
    /// The checkpoint of the final values is made, or given up.
    has_ended: bool,
    tries: u32,
    /// The newest one has the final values, whether or not the run is over.
    has_final: bool,
    /// Tries of one of the final values before the run is over.
    tries_left: u32,
    /// Rounds that were given up, for the assigner to hear of.
    dropped: bool,
}

impl Rounds {
    /// A checkpoint every so many clocks; `from` is the one that the run goes on from, with its marker clock.
    pub(super) fn new(every: u64, from: Option<(u64, Clock)>) -> Self {
        let (number, last) = from.unwrap_or_default();
        Self {
            every: every.max(1),
            number,
            last,
            newest: from.map(|(number, _)| number),
            margin: MARGIN,
            round: None,
            not_before: Moment(0),
            is_ending: false,
            has_ended: false,
            tries: 0,
            has_final: false,
            tries_left: LAST_TRIES,
            dropped: false,
        }
    }

    pub(super) const fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// The same with its marker clock.
    pub(super) fn newest_marker(&self) -> Option<(u64, Clock)> {
        self.newest.map(|number| (number, self.last))
    }

    pub(super) const fn round(&self) -> Option<&Round> {
        self.round.as_ref()
    }

    /// The run is over: its final values are to be kept. Returns whether that is news.
    pub(super) const fn finish(&mut self) -> bool {
        !std::mem::replace(&mut self.is_ending, true)
    }

    /// Whether a checkpoint is wanted now.
    fn is_wanted(&self, now: Moment, view: &View<'_>) -> bool {
        let is_due = view.is_running && view.progress.0 >= self.last.0.saturating_add(self.every);
        let is_due = is_due || self.keeps_final(view);
        now >= self.not_before && if self.is_ending { !self.has_ended } else { is_due }
    }

    /// Whether the final values are to be kept before the run is over: nobody is there to evaluate them.
    fn keeps_final(&self, view: &View<'_>) -> bool {
        view.is_left && self.final_values() == FinalValues::Keeping
    }

    /// Whether the one of the final values, which is wanted, has all that this one would have.
    fn is_overtaken(&self, round: &Round, view: &View<'_>) -> bool {
        let has_less =
            if self.is_ending { !round.is_last } else { self.keeps_final(view) && !round.is_open() };
        has_less && !round.is_committing
    }

    /// Where the final values are once nobody trains any more.
    pub(super) fn final_values(&self) -> FinalValues {
        match self.newest.filter(|_| self.has_final) {
            Some(number) => FinalValues::Kept { number },
            None if self.tries_left == 0 => FinalValues::Unkept,
            None => FinalValues::Keeping,
        }
    }

    /// Whether none is to be begun or committed, as far as the run goes on by itself.
    pub(super) fn rests(&self, now: Moment, view: &View<'_>) -> bool {
        let rests = |round: &Round| !round.is_ready(view) && !self.is_overtaken(round, view);
        self.round.as_ref().map_or_else(|| !self.is_wanted(now, view), rests)
    }

    /// Whether nothing of checkpoints holds the run up any more.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Begins one if it is due.
    pub(super) fn begin(
        &mut self,
        now: Moment,
        view: &View<'_>,
        homes: &BTreeMap<ShardId, ServerId>,
    ) -> Option<Mark> {
        if self.round.as_ref().is_some_and(|round| self.is_overtaken(round, view)) {
            self.round = None;
        }
        if self.round.is_some() || !self.is_wanted(now, view) {
            return None;
        }
        self.number += 1;
        let (mark, clock) = if self.is_ending || self.keeps_final(view) {
            // Nobody is there any more: whatever was pushed is in it.
            let clock = view.progress;
            (Mark { number: self.number, cuts: Vec::new(), rest: Some(Clock(u64::MAX)) }, clock)
        } else {
            (view.cut)(self.number, self.margin)
        };
        self.round = Some(Round {
            mark: mark.clone(),
            clock,
            parts: BTreeMap::new(),
            told: BTreeSet::new(),
            homes: homes.clone(),
            began: now,
            is_last: self.is_ending,
            is_committing: false,
        });
        Some(mark)
    }

    /// Tells the servers that have shards and can be told.
    pub(super) fn tell(
        &mut self,
        reached: &BTreeMap<ServerId, u64>,
        orders: &mut Vec<(ServerId, ServerOrder)>,
    ) {
        let Some(round) = &mut self.round else { return };
        for server in round.homes.values().copied().collect::<BTreeSet<_>>() {
            if reached.contains_key(&server) && round.told.insert(server) {
                orders.push((server, ServerOrder::Mark(round.mark.clone())));
            }
        }
    }

    /// The session of a server is a new one: what it was told may be lost.
    pub(super) fn forget_told(&mut self, server: ServerId) {
        if let Some(round) = &mut self.round {
            round.told.remove(&server);
        }
    }

    /// A part is in the store.
    pub(super) fn saved(&mut self, number: u64, shard: ShardId, entry: Vec<u8>) {
        if let Some(round) = self.round.as_mut().filter(|round| round.mark.number == number)
            && round.homes.contains_key(&shard)
            && entry.len() <= PART_ENTRY_BYTES_MAX
        {
            round.parts.insert(shard, entry);
        }
    }

    /// There will be no part of this shard.
    pub(super) fn not_saved(
        &mut self,
        now: Moment,
        number: u64,
        why: String,
        pause: Duration,
        notices: &mut Vec<ClusterNotice>,
    ) {
        if self.round.as_ref().is_some_and(|round| round.mark.number == number && !round.is_committing) {
            self.margin = (2 * self.margin).min(MARGIN_MAX);
            self.give_up(now, why, pause, notices);
        }
    }

    /// A checkpoint whose shards move while it is made is given up.
    pub(super) fn check(
        &mut self,
        now: Moment,
        homes: &BTreeMap<ShardId, ServerId>,
        is_whole: bool,
        notices: &mut Vec<ClusterNotice>,
    ) {
        let moved = self.round.as_ref().is_some_and(|round| !round.is_committing && round.homes != *homes);
        let broken = self.round.as_ref().is_some_and(|round| !round.is_committing && !is_whole);
        if moved || broken {
            self.give_up(now, "a shard has moved meanwhile".to_owned(), Duration::ZERO, notices);
        }
    }

    fn give_up(&mut self, now: Moment, why: String, pause: Duration, notices: &mut Vec<ClusterNotice>) {
        let Some(round) = self.round.take() else { return };
        self.dropped = true;
        self.not_before = now.after(pause);
        notices.push(ClusterNotice::NotSaved { number: round.mark.number, why });
        if round.is_last {
            self.tries += 1;
            self.has_ended = self.tries >= LAST_TRIES;
        } else if round.is_open() {
            self.tries_left = self.tries_left.saturating_sub(1);
        }
    }

    /// The run has gone back to a checkpoint: unless that has the final values itself, none has them any more.
    pub(super) fn goes_back(&mut self, number: u64) {
        self.has_final &= self.newest == Some(number);
        self.tries_left = LAST_TRIES;
    }

    /// Whether a round was given up since this was last asked.
    pub(super) fn take_dropped(&mut self) -> bool {
        std::mem::take(&mut self.dropped)
    }

    /// The parts, once all are there and the manifest is to be written: once a round.
    pub(super) fn commit(&mut self, view: &View<'_>) -> Option<Parts> {
        let round = self.round.as_mut().filter(|round| round.is_ready(view))?;
        round.is_committing = true;
        let parts = round.parts.iter().map(|(shard, entry)| (*shard, entry.clone())).collect();
        Some((round.mark.clone(), round.clock, parts))
    }

    /// The manifest is in the store.
    pub(super) fn committed(&mut self, now: Moment, number: u64, notices: &mut Vec<ClusterNotice>) -> bool {
        let Some(round) = self.round.take_if(|round| round.mark.number == number && round.is_committing)
        else {
            return false;
        };
        (self.last, self.newest, self.margin) = (round.clock, Some(number), MARGIN);
        self.has_ended |= round.is_last;
        self.has_final |= round.is_open();
        self.dropped = true;
        notices.push(ClusterNotice::Saved { number, clock: round.clock, after: now.since(round.began) });
        true
    }

    /// The manifest could not be written.
    pub(super) fn not_committed(
        &mut self,
        now: Moment,
        number: u64,
        why: String,
        pause: Duration,
        notices: &mut Vec<ClusterNotice>,
    ) {
        if self.round.as_ref().is_some_and(|round| round.mark.number == number) {
            self.give_up(now, why, pause, notices);
        }
    }

    /// What the checkpoint that is being made lacks, when that is to be told: at the end at once, before it after `quiet`. `behind` is the
    /// worker that is furthest from its cut, with its clock and the cut.
    pub(super) fn waits(
        &self,
        now: Moment,
        quiet: Duration,
        behind: Option<(WorkerId, Clock, Clock)>,
        is_reported: impl FnOnce() -> bool,
    ) -> Vec<Waiting> {
        let Some(round) = &self.round else {
            let (number, is_last, lacks) = (self.number + 1, true, Unsaved::Beginning);
            let wait = Wait::Checkpoint { number, is_last, lacks };
            let is_wanted = self.is_ending && !self.has_ended;
            return is_wanted.then_some(Waiting { wait, since: Duration::ZERO }).into_iter().collect();
        };
        let since = now.since(round.began);
        if !self.is_ending && since < quiet {
            return Vec::new();
        }
        let (number, is_last) = (round.mark.number, round.is_last);
        let lacks = round.lacks(behind, is_reported);
        let wait = |lacks| Waiting { wait: Wait::Checkpoint { number, is_last, lacks }, since };
        lacks.into_iter().map(wait).collect()
    }

    /// The process was restarted: nobody waits for an answer to what it asked for.
    pub(super) const fn restart(&mut self) {
        if let Some(round) = &mut self.round {
            round.is_committing = false;
        }
    }
}

impl Round {
    fn lacks(
        &self,
        behind: Option<(WorkerId, Clock, Clock)>,
        is_reported: impl FnOnce() -> bool,
    ) -> Vec<Unsaved> {
        if self.is_committing {
            return vec![Unsaved::Manifest];
        }
        // Before the cut is complete no server can have anything to write.
        if let Some((worker, at, needs)) = behind {
            return vec![Unsaved::Cut { worker, at, needs }];
        }
        let missing = self.homes.iter().filter(|(shard, _)| !self.parts.contains_key(shard));
        let mut parts: BTreeMap<ServerId, Vec<ShardId>> = BTreeMap::new();
        missing.for_each(|(shard, server)| parts.entry(*server).or_default().push(*shard));
        if parts.is_empty() && !self.is_open() && !is_reported() {
            return vec![Unsaved::Results];
        }
        parts.into_iter().map(|(server, shards)| Unsaved::Parts { server, shards }).collect()
    }

    /// Whether it is that of the final values, which has no cut.
    fn is_open(&self) -> bool {
        self.mark.rest == Some(Clock(u64::MAX))
    }

    /// Whether every shard has its part in the store.
    fn has_all(&self) -> bool {
        self.homes.keys().all(|shard| self.parts.contains_key(shard))
    }

    /// Whether its manifest is to be written. The last one waits for no results: nobody is there who could have some.
    fn is_ready(&self, view: &View<'_>) -> bool {
        !self.is_committing && self.has_all() && (self.is_open() || (view.is_reported)())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Found by reading: a checkpoint of values that were lost went on to be called that of the final ones.
    #[test]
    fn a_run_that_has_gone_back_has_its_final_values_still_to_keep() {
        let mut rounds = Rounds::new(50, None);
        (rounds.newest, rounds.has_final, rounds.tries_left) = (Some(7), true, 0);
        rounds.goes_back(7);
        assert_eq!(rounds.final_values(), FinalValues::Kept { number: 7 });
        rounds.goes_back(6);
        assert_eq!(rounds.final_values(), FinalValues::Keeping);
    }
}
