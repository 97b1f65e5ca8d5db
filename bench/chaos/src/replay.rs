//! The pushes of a run again, on one machine: in the order of the versions that the shards answered, with the optimizer alone, up to the
//! version of the last checkpoint; and what that shows when it is compared with the servers' values bit by bit.
//!
//! A version that no answer names was made by a push whose worker was killed before it heard of it. Which one is found by trying: those
//! without an answer that could have made it, the latest first, until the values fit. So a version that nothing sent explains shows, and so
//! does a push that is in the values twice.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::ids::{Incarnation, Sequence, ShardId, Version, WorkerId};
use slackline_core::optimizer::{Optimizer, Step};

use crate::pushes::{Pushes, StepId};

/// Where a shard began.
#[derive(Clone, Debug)]
pub struct Start {
    /// Its initial values.
    pub values: Vec<f32>,
    /// The rule, at rest. Its schedule must be constant: how far the run was at a push is not recorded.
    pub optimizer: Optimizer,
}

/// What a shard came to, as the last checkpoint has it.
#[derive(Clone, Copy, Debug)]
pub struct Truth<'a> {
    /// Updates in the values.
    pub version: Version,
    /// The values.
    pub values: &'a [f32],
}

/// What the replay of one shard has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// The steps in the values, each with the version it made; rising.
    pub order: Vec<(Version, StepId)>,
    /// Steps that were answered as applied and are not in the values.
    pub lost: Vec<StepId>,
    /// Steps that are in the values more than once.
    pub doubled: Vec<StepId>,
    /// Versions that nothing explains that any worker has sent.
    pub unexplained: Vec<Version>,
    /// Versions whose step was found by trying.
    pub filled: u64,
    /// Values whose bits differ from the servers'.
    pub differing: u64,
}

impl Replayed {
    /// Whether the servers' values are exactly what the workers were told.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.lost.is_empty() && self.doubled.is_empty() && self.unexplained.is_empty() && self.differing == 0
    }
}

/// Versions before one that no answer names in which a doubled push is looked for.
const DOUBLES_WITHIN: usize = 256;

/// Replays a shard. `effort` bounds the updates that are applied while it tries, beyond one time through.
#[must_use]
pub fn replay(pushes: &Pushes, start: &Start, truth: Truth<'_>, effort: u64) -> Replayed {
    let mut claims: BTreeMap<Version, Vec<StepId>> = BTreeMap::new();
    for (step, versions) in pushes.answered() {
        for version in versions.iter().filter(|version| **version <= truth.version) {
            claims.entry(*version).or_default().push(*step);
        }
    }
    let mut search = Search {
        pushes,
        lives: lives(pushes),
        claims,
        truth,
        left: effort.saturating_add(truth.version.0),
        order: Vec::new(),
        places: BTreeMap::new(),
        first: None,
    };
    let state = State { values: start.values.clone(), optimizer: start.optimizer.clone() };
    let found = search.go(state).then(|| (std::mem::take(&mut search.order), 0));
    let (order, differing) = found.or(search.first.take()).unwrap_or_default();
    judge(pushes, &search.claims, &order, differing)
}

fn judge(
    pushes: &Pushes,
    claims: &BTreeMap<Version, Vec<StepId>>,
    order: &[(Version, Option<StepId>)],
    differing: u64,
) -> Replayed {
    let mut times: BTreeMap<StepId, u64> = BTreeMap::new();
    for step in order.iter().filter_map(|(_, step)| *step) {
        *times.entry(step).or_default() += 1;
    }
    Replayed {
        order: order.iter().filter_map(|(version, step)| Some((*version, (*step)?))).collect(),
        lost: pushes.answered().map(|(step, _)| *step).filter(|step| !times.contains_key(step)).collect(),
        doubled: times.iter().filter(|(_, times)| **times > 1).map(|(step, _)| *step).collect(),
        unexplained: order.iter().filter(|(_, step)| step.is_none()).map(|(version, _)| *version).collect(),
        filled: order.iter().filter(|(version, step)| step.is_some() && !claims.contains_key(version)).count()
            as u64,
        differing,
    }
}

type Life = (WorkerId, Incarnation);

/// The answered versions of each life, by sequence.
fn lives(pushes: &Pushes) -> BTreeMap<Life, BTreeMap<Sequence, Version>> {
    let mut lives: BTreeMap<Life, BTreeMap<Sequence, Version>> = BTreeMap::new();
    for (step, versions) in pushes.answered() {
        if let Some(version) = versions.first() {
            lives.entry(step.life()).or_default().insert(step.sequence, *version);
        }
    }
    lives
}

#[derive(Clone)]
struct State {
    values: Vec<f32>,
    optimizer: Optimizer,
}

type Order = Vec<(Version, Option<StepId>)>;

struct Search<'a> {
    pushes: &'a Pushes,
    lives: BTreeMap<Life, BTreeMap<Sequence, Version>>,
    claims: BTreeMap<Version, Vec<StepId>>,
    truth: Truth<'a>,
    /// Updates that may still be applied.
    left: u64,
    order: Order,
    /// How often each step stands in the order.
    places: BTreeMap<StepId, u32>,
    /// The first order that was complete, and how many values differed.
    first: Option<(Order, u64)>,
}

impl Search<'_> {
    /// Goes on from the order so far; true when the values fit at its end. The depth is that of the versions with a choice.
    fn go(&mut self, mut state: State) -> bool {
        let depth = self.order.len();
        loop {
            let version = Version(self.order.len() as u64 + 1);
            if version > self.truth.version {
                if self.is_fitting(&state) {
                    return true;
                }
                break;
            }
            if self.left == 0 && self.first.is_some() {
                break;
            }
            let choices = self.choices(version);
            if let [choice] = choices[..] {
                self.place(version, choice, &mut state);
                continue;
            }
            for choice in choices {
                let mut state = state.clone();
                self.place(version, choice, &mut state);
                if self.go(state) {
                    return true;
                }
                self.take_back_to(version.0 as usize - 1);
            }
            break;
        }
        self.take_back_to(depth);
        false
    }

    fn is_fitting(&mut self, state: &State) -> bool {
        let pairs = state.values.iter().zip(self.truth.values);
        let length = state.values.len().abs_diff(self.truth.values.len()) as u64;
        let differing = length + pairs.filter(|(own, its)| own.to_bits() != its.to_bits()).count() as u64;
        if self.first.is_none() {
            self.first = Some((self.order.clone(), differing));
        }
        differing == 0
    }

    fn place(&mut self, version: Version, choice: Option<StepId>, state: &mut State) {
        self.left = self.left.saturating_sub(1);
        self.order.push((version, choice));
        let Some(step) = choice else { return };
        *self.places.entry(step).or_default() += 1;
        // An answer to a push that no log has is left out; the values will tell.
        let Some(piece) = self.pushes.piece(&step) else { return };
        if piece.gradient.len() == state.values.len() {
            let step = Step { progress: 0.0, weight: 1.0, version: version.0 - 1, pulled: piece.pulled.0 };
            state.optimizer.apply(&mut state.values, &piece.gradient, &step);
        }
    }

    fn take_back_to(&mut self, length: usize) {
        for (_, step) in self.order.split_off(length) {
            if let Some(count) = step.and_then(|step| self.places.get_mut(&step)) {
                *count -= 1;
            }
        }
    }

    /// What can have made a version, the likeliest first. Never empty.
    fn choices(&self, version: Version) -> Vec<Option<StepId>> {
        if let Some(claimed) = self.claims.get(&version) {
            return claimed.iter().copied().map(Some).collect();
        }
        let is_free = |step: &StepId| self.places.get(step).copied().unwrap_or_default() == 0;
        let mut sent: Vec<_> = self
            .pushes
            .unanswered()
            .filter(|(step, piece)| piece.pulled < version && is_free(step) && self.fits(step, version))
            .map(|(step, piece)| (piece.pulled, *step))
            .collect();
        // The latest pull first: its push was on the way at that time.
        sent.sort_by_key(|(pulled, step)| (std::cmp::Reverse(*pulled), *step));
        let mut choices: Vec<_> = sent.into_iter().map(|(_, step)| Some(step)).collect();
        if choices.is_empty() {
            let mut seen = BTreeSet::new();
            let recent = self.order.iter().rev().take(DOUBLES_WITHIN).filter_map(|(_, step)| *step);
            choices.extend(recent.filter(|step| seen.insert(*step)).map(Some));
            choices.push(None);
        }
        choices
    }

    /// Whether the pushes of one life would still be in order.
    fn fits(&self, step: &StepId, version: Version) -> bool {
        let Some(life) = self.lives.get(&step.life()) else { return true };
        let before = life.range(..step.sequence).next_back();
        let after = life.range(step.sequence..).next();
        before.is_none_or(|(_, made)| *made < version) && after.is_none_or(|(_, made)| *made > version)
    }
}

/// Steps that some shards have and others have not, each with the shards that lack it.
#[must_use]
pub fn disagreements(replayed: &BTreeMap<ShardId, Replayed>) -> Vec<(StepId, Vec<ShardId>)> {
    let sets: BTreeMap<ShardId, BTreeSet<StepId>> = replayed
        .iter()
        .map(|(shard, replayed)| (*shard, replayed.order.iter().map(|(_, step)| *step).collect()))
        .collect();
    let all: BTreeSet<StepId> = sets.values().flatten().copied().collect();
    all.into_iter()
        .filter_map(|step| {
            let lacking: Vec<_> =
                sets.iter().filter(|(_, set)| !set.contains(&step)).map(|(shard, _)| *shard).collect();
            (!lacking.is_empty()).then_some((step, lacking))
        })
        .collect()
}

#[cfg(test)]
mod tests;
