//! The facts of a state: encoding them, and building a shard from them with every one checked.
//!
//! They come from disks and from other servers, so damage must end in an error here: not in a panic, and not in a shard that breaks later.

mod join;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bincode::{Decode, Encode};
use slackline_core::codec::BLOCK;
use slackline_core::consistency::{Memory, Standing};
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, ShardId, Version, WorkerId,
};
use slackline_core::limits::{PUSH_PENDING_MAX, PUSH_WINDOW};
use slackline_core::wire::{self, WireError};

use super::answers::{Answers, Blocks};
use super::member::Member;
use super::push::{Collected, Facts, Piece};
use super::values::Values;
use super::{Shard, ShardSettings, ShardState};
use crate::dedup::PushWindow;
use crate::guard::Window;

pub use join::{FormerShard, Joined};

/// Of the layout of the facts; raised whenever it changes.
const FORMAT: u32 = 2;

/// Why a state is none of this shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// It is that of another shard.
    #[error(
        "the state is of {theirs} with keys {their_keys:?}, not of {ours} with keys {our_keys:?}; was the number of shards changed?"
    )]
    OtherShard {
        /// Its shard.
        theirs: ShardId,
        /// Its keys.
        their_keys: KeyRange,
        /// The one to be restored.
        ours: ShardId,
        /// With these keys.
        our_keys: KeyRange,
    },
    /// The facts are no facts.
    #[error("the state of {shard} cannot be read: {why}")]
    Unreadable {
        /// The shard.
        shard: ShardId,
        /// Why.
        why: WireError,
    },
    /// Facts of another version of the program.
    #[error("the state of {shard} has format {theirs}, this program reads {FORMAT}")]
    Format {
        /// The shard.
        shard: ShardId,
        /// Its format.
        theirs: u32,
    },
    /// An array that must be there is not, one too many is, or one has the wrong length.
    #[error(
        "the state of {shard} is damaged: the array {name} is missing, of a wrong length, or does not belong there"
    )]
    Array {
        /// The shard.
        shard: ShardId,
        /// Its name.
        name: String,
    },
    /// Facts that contradict each other or the configuration.
    #[error("the state of {shard} is damaged or of another configuration: {what}")]
    Contradiction {
        /// The shard.
        shard: ShardId,
        /// What is wrong.
        what: &'static str,
    },
}

/// All facts of a shard.
#[derive(Debug, Encode, Decode)]
pub(super) struct Kept {
    format: u32,
    rows: Vec<(WorkerId, Clock, Standing)>,
    members: Vec<(WorkerId, KeptMember)>,
    doubts: Vec<(WorkerId, KeptMember)>,
    gone: BTreeMap<(Incarnation, WorkerId), Option<PushWindow>>,
    departed: BTreeMap<WorkerId, Clock>,
    collected: Vec<(Clock, KeptCollected)>,
    collected_at: Moment,
    open: Clock,
    started: bool,
    is_behind: bool,
    batch_count: u64,
    furthest: BatchIndex,
    memory: Memory,
    guarded: BTreeMap<WorkerId, Window>,
}

#[derive(Debug, Encode, Decode)]
struct KeptMember {
    incarnation: Incarnation,
    window: PushWindow,
    read: Option<Version>,
    /// With whether they have a gradient.
    staged: Vec<(Facts, bool)>,
    committed: Sequence,
    ahead: (Sequence, Clock),
    reached: Option<Clock>,
}

#[derive(Debug, Encode, Decode)]
struct KeptCollected {
    facts: Facts,
    since: Moment,
    weight: f32,
    is_answered: bool,
}

impl Kept {
    pub(super) fn of(shard: &Shard) -> Self {
        let collected =
            shard.collected.iter().flat_map(|(clock, kept)| kept.iter().map(|push| (*clock, push)));
        Self {
            format: FORMAT,
            rows: shard.table.rows().collect(),
            members: shard.members.iter().map(|(worker, member)| (*worker, KeptMember::of(member))).collect(),
            doubts: shard
                .doubts
                .iter()
                .map(|((worker, _), member)| (*worker, KeptMember::of(member)))
                .collect(),
            gone: shard.gone.clone(),
            departed: shard.departed.clone(),
            collected: collected.map(|(clock, push)| (clock, KeptCollected::of(push))).collect(),
            collected_at: shard.collected_at,
            open: shard.open,
            started: shard.started,
            is_behind: shard.is_behind,
            batch_count: shard.batch_count,
            furthest: shard.furthest,
            memory: shard.policy.memory(),
            guarded: shard.guard.windows().clone(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Whole also where that is over the limit, which takes far more workers than may be members: whoever saves or reads it names that.
        wire::encode_whole(self)
    }
}

impl KeptMember {
    fn of(member: &Member) -> Self {
        Self {
            incarnation: member.incarnation,
            window: member.window.clone(),
            read: member.read.as_ref().map(|(version, _)| *version),
            staged: member.staged.values().map(|piece| (piece.facts, piece.gradient.is_some())).collect(),
            committed: member.committed,
            ahead: member.ahead,
            reached: member.reached,
        }
    }
}

impl KeptCollected {
    const fn of(push: &Collected) -> Self {
        let Collected { facts, since, weight, is_answered, .. } = *push;
        Self { facts, since, weight, is_answered }
    }
}

/// The arrays of a state, each taken once.
struct Arrays {
    shard: ShardId,
    len: usize,
    left: BTreeMap<String, Arc<Vec<f32>>>,
}

impl Arrays {
    fn take(&mut self, name: String) -> Result<Arc<Vec<f32>>, StateError> {
        match self.left.remove(&name) {
            Some(values) if values.len() == self.len => Ok(values),
            _ => Err(StateError::Array { shard: self.shard, name }),
        }
    }

    fn take_if_there(&mut self, name: &str) -> Result<Option<Arc<Vec<f32>>>, StateError> {
        if self.left.contains_key(name) { self.take(name.to_owned()).map(Some) } else { Ok(None) }
    }
}

impl Shard {
    /// A shard of these settings in this state. Its sessions are none: whoever waited for an answer asks again.
    ///
    /// # Errors
    /// [`StateError`], whatever the bytes are: that it is another shard's, of another format or configuration, or damaged.
    pub fn restore(settings: ShardSettings, state: ShardState) -> Result<Self, StateError> {
        let (shard, keys) = (settings.id, settings.keys);
        if (state.shard, state.keys) != (shard, keys) {
            let (theirs, their_keys) = (state.shard, state.keys);
            return Err(StateError::OtherShard { theirs, their_keys, ours: shard, our_keys: keys });
        }
        let kept: Kept =
            wire::decode_state(&state.facts).map_err(|why| StateError::Unreadable { shard, why })?;
        if kept.format != FORMAT {
            return Err(StateError::Format { shard, theirs: kept.format });
        }
        let count = state.arrays.len();
        let left: BTreeMap<_, _> = state.arrays.into_iter().map(|array| (array.name, array.values)).collect();
        let wrong = |what| StateError::Contradiction { shard, what };
        if left.len() != count {
            return Err(wrong("two arrays have one name"));
        }
        let mut arrays = Arrays { shard, len: keys.len as usize, left };
        let buffers = settings.buffers.clone();
        let mut restored = Self::new(settings);
        restored.values = Values::of(arrays.take_if_there("values")?, buffers);
        let slots = arrays.take_if_there("slots")?.unwrap_or_default();
        let delay = arrays.take_if_there("delay")?.unwrap_or_default();
        if !restored.optimizer.restore_shared(slots) || !restored.delay.restore(delay) {
            return Err(wrong("the optimizer's or the delay's memory is not that of the configured rule"));
        }
        if restored.values.is_empty() && state.version != Version(0) {
            return Err(wrong("it counts updates of values that it does not have"));
        }
        restored.put_facts(state.version, kept, &mut arrays)?;
        if let Some(name) = arrays.left.into_keys().next() {
            return Err(StateError::Array { shard, name });
        }
        restored.check_facts().map_err(wrong)?;
        if state.clock != restored.table.minimum().unwrap_or(restored.open) {
            return Err(wrong("its clock is not the smallest of its workers"));
        }
        Ok(restored)
    }

    fn put_facts(&mut self, version: Version, kept: Kept, arrays: &mut Arrays) -> Result<(), StateError> {
        let shard = self.id;
        let wrong = |what| StateError::Contradiction { shard, what };
        self.version = version;
        self.blocks = Blocks::changed((self.keys.len as usize).div_ceil(BLOCK), version);
        (self.collected_at, self.open, self.started) = (kept.collected_at, kept.open, kept.started);
        (self.batch_count, self.furthest) = (kept.batch_count.max(1), kept.furthest);
        self.is_behind = kept.is_behind;
        for (number, (clock, push)) in kept.collected.into_iter().enumerate() {
            let KeptCollected { facts, since, weight, is_answered } = push;
            let gradient = arrays.take(format!("collected.{number}"))?;
            let push = Collected { facts, session: None, gradient, since, weight, is_answered };
            self.collected.entry(clock).or_default().push(push);
        }
        let everyone = kept.members.iter().chain(&kept.doubts);
        let reads: BTreeSet<Version> = everyone.filter_map(|(_, member)| member.read).collect();
        let mut read = BTreeMap::new();
        for (number, version) in reads.into_iter().enumerate() {
            read.insert(version, arrays.take(format!("read.{number}"))?);
        }
        let mut staged = 0;
        for (worker, member) in kept.members {
            let member = restored_member(worker, member, &read, &mut staged, arrays)?;
            if self.members.insert(worker, member).is_some() {
                return Err(wrong("a worker is a member twice"));
            }
        }
        for (worker, member) in kept.doubts {
            let name = (worker, member.incarnation);
            let member = restored_member(worker, member, &read, &mut staged, arrays)?;
            if self.doubts.insert(name, member).is_some() {
                return Err(wrong("a worker is gone twice"));
            }
        }
        for (worker, clock, standing) in kept.rows {
            if self.table.clock_of(worker).is_some() {
                return Err(wrong("a worker has two clocks"));
            }
            self.table.enter(worker, clock, standing);
        }
        (self.departed, self.gone) = (kept.departed, kept.gone);
        self.guard.restore(kept.guarded);
        if !self.policy.recall(&kept.memory) {
            return Err(wrong("the policy's memory is that of another policy"));
        }
        Ok(())
    }

    /// What pushes can have led to.
    fn check_facts(&self) -> Result<(), &'static str> {
        if self.table.rows().any(|(worker, _, _)| !self.members.contains_key(&worker)) {
            return Err("a worker has a clock and is no member");
        }
        if !self.guard.windows().keys().all(|worker| self.members.contains_key(worker)) {
            return Err("pushes of a worker are counted that is no member");
        }
        if !self.everyone().all(is_sound) || !self.gone.values().flatten().all(PushWindow::is_sound) {
            return Err("a window of pushes is none");
        }
        if self.collected.keys().next().is_some_and(|clock| *clock < self.open) {
            return Err("pushes of a closed clock wait for it");
        }
        let all = || self.collected.values().flatten();
        if all().any(|push| !(0.0..=1.0).contains(&push.weight)) {
            return Err("a gradient's weight is none");
        }
        let mut waiting = BTreeSet::new();
        for push in all().filter(|push| !push.is_answered) {
            let Facts { worker, incarnation, sequence, .. } = push.facts;
            if !waiting.insert((worker, incarnation, sequence)) {
                return Err("a push is collected twice");
            }
        }
        let members =
            self.members.iter().map(|(worker, member)| (*worker, member.incarnation, &member.window));
        let doubts = self.doubts.iter();
        let doubts = doubts.map(|((worker, incarnation), member)| (*worker, *incarnation, &member.window));
        let gone = self.gone.iter();
        let gone = gone
            .filter_map(|((incarnation, worker), window)| Some((*worker, *incarnation, window.as_ref()?)));
        for (worker, incarnation, window) in members.chain(doubts).chain(gone) {
            let all = (worker, incarnation, Sequence(0))..=(worker, incarnation, Sequence(u64::MAX));
            let collected = waiting.range(all).map(|(_, _, sequence)| *sequence);
            if !window.unanswered().eq(collected) {
                return Err("a push waits for its answer and is not there, or is there and does not wait");
            }
        }
        Ok(())
    }
}

fn restored_member(
    worker: WorkerId,
    kept: KeptMember,
    read: &BTreeMap<Version, Arc<Vec<f32>>>,
    number: &mut usize,
    arrays: &mut Arrays,
) -> Result<Member, StateError> {
    let wrong =
        StateError::Contradiction { shard: arrays.shard, what: "a piece of a step is another worker's" };
    let mut staged = BTreeMap::new();
    for (facts, has_gradient) in kept.staged {
        let mut gradient = None;
        if has_gradient {
            gradient = Some(arrays.take(format!("staged.{number}"))?);
            *number += 1;
        }
        let is_its_own = (facts.worker, facts.incarnation) == (worker, kept.incarnation);
        let piece = Piece { facts, session: None, gradient };
        if !is_its_own || staged.insert(facts.sequence, piece).is_some() {
            return Err(wrong);
        }
    }
    let read = kept.read.and_then(|version| Some((version, read.get(&version)?.clone())));
    let KeptMember { incarnation, window, committed, ahead, reached, .. } = kept;
    let (session, answers) = (None, Answers::default());
    Ok(Member { incarnation, window, session, answers, read, staged, committed, ahead, reached })
}

fn is_sound(member: &Member) -> bool {
    let watermark = member.window.watermark();
    let furthest = watermark.0.saturating_add(PUSH_WINDOW as u64);
    member.window.is_sound()
        && member.window.pending() + member.staged.len() <= PUSH_PENDING_MAX
        && member.staged.keys().all(|sequence| *sequence > watermark && sequence.0 <= furthest)
}
