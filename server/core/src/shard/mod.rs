//! One shard: a range of keys with its values, optimizer state, clock table and held pulls.
//!
//! The shard has one owner and is driven by events. A push goes `push.rs` -> seen before? -> where steps are whole: kept aside until
//! all shards have their piece (`staging.rs`) -> policy -> optimizer -> version + 1; a pull goes `pull.rs` -> held until the policy allows ->
//! served from a snapshot that all readers of one version share. `state.rs` and `facts.rs` say all that a shard is, for copies and
//! checkpoints; `cut.rs` makes the state of a checkpoint while the shard goes on.

mod answers;
mod cut;
mod event;
mod facts;
mod held;
mod member;
mod pull;
mod push;
mod snapshot;
mod staging;
mod state;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::codec::{BLOCK, CodecKind};
use slackline_core::config::{self, Steps};
use slackline_core::consistency::delay::Delay;
use slackline_core::consistency::{ClockTable, DelaySpec, Policy, PolicySpec, Room, Standing};
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, ShardId, Version, WorkerId,
};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{Optimizer, OptimizerSpec};
use slackline_core::wire::{PushOutcome, Pushed, ShardRow};

use answers::Blocks;
use cut::OpenCut;
pub use event::{Push, ShardEffect, ShardEvent};
pub use facts::{FormerShard, Joined, StateError};
pub use held::Held;
use held::HeldPulls;
pub(crate) use held::SNAPSHOTS_MAX;
use member::Member;
use push::Collected;
pub use snapshot::Snapshot;
use snapshot::Snapshots;
pub use state::{SLICE_COUNT, ShardState, StateArray};
use values::Values;

use crate::buffers::Buffers;
use crate::dedup::PushWindow;
use crate::guard::Guard;

/// What a shard is made from.
#[derive(Clone, Debug)]
pub struct ShardSettings {
    /// Which shard.
    pub id: ShardId,
    /// Its keys.
    pub keys: KeyRange,
    /// The model's layout: names of tensors, decay.
    pub layout: Arc<Layout>,
    /// The consistency policy.
    pub policy: PolicySpec,
    /// What staleness does to a gradient.
    pub delay: DelaySpec,
    /// The update rule.
    pub optimizer: OptimizerSpec,
    /// Workers of the run: the pushes of a clock, where each is applied alone.
    pub workers: u32,
    /// Samples of a whole batch where batches follow the workers' speeds: a push that is applied alone then counts by its share.
    pub batch: Option<u64>,
    /// Whether the pieces of a step wait for each other.
    pub steps: Steps,
    /// What is not let in.
    pub guard: config::Guard,
    /// How values are written that are pulled for training.
    pub pull: CodecKind,
    /// Where buffers of its length come from and go to.
    pub buffers: Buffers,
}

/// One shard.
#[derive(Clone)]
pub struct Shard {
    id: ShardId,
    keys: KeyRange,
    layout: Arc<Layout>,
    policy: Box<dyn Policy>,
    spec: PolicySpec,
    delay: Delay,
    optimizer: Optimizer,
    batch: Option<u64>,
    steps: Steps,
    guard: Guard,
    values: Values,
    snapshots: Snapshots,
    blocks: Blocks,
    version: Version,
    table: ClockTable,
    members: BTreeMap<WorkerId, Member>,
    /// Where steps are whole: workers that are gone, until it is known what becomes of their pieces.
    doubts: BTreeMap<(WorkerId, Incarnation), Member>,
    /// What is remembered of the last incarnations that are gone, however they went: another server can take one of them for a member
    /// still, and what it sends again must not count twice. None where it was decided what becomes of its last steps: it never comes back.
    gone: BTreeMap<(Incarnation, WorkerId), Option<PushWindow>>,
    /// The highest clock of a push that was taken in of each worker that has gone: a cut may not be below that.
    departed: BTreeMap<WorkerId, Clock>,
    /// Pushes kept until their clock closes, by clock.
    collected: BTreeMap<Clock, Vec<Collected>>,
    /// When the last of them came.
    collected_at: Moment,
    /// The oldest clock (under quorum: round) that is not closed: the highest that the policy's border ever was, or that a reader could
    /// count on.
    open: Clock,
    held: HeldPulls,
    /// Workers whose push has arrived or was settled: their own pulls may wait for that.
    woken: Vec<WorkerId>,
    started: bool,
    /// A worker is further than this shard knew, as it or its push says: what others did can be lost with a server, too.
    is_behind: bool,
    batch_count: u64,
    /// The furthest batch that was applied.
    furthest: BatchIndex,
    /// The cut that is being made.
    cut: Option<Box<OpenCut>>,
    /// The last checkpoint that was asked for.
    last_mark: u64,
}

impl Shard {
    /// A shard without values and members.
    #[must_use]
    pub fn new(settings: ShardSettings) -> Self {
        let ShardSettings {
            id,
            keys,
            layout,
            policy,
            delay,
            optimizer,
            workers,
            batch,
            steps,
            guard,
            pull,
            buffers,
        } = settings;
        let steps_per_clock = if policy.takes_means() { 1 } else { workers };
        Self {
            id,
            keys,
            policy: policy.policy(),
            spec: policy,
            delay: Delay::new(delay, keys.len as usize),
            optimizer: Optimizer::new(optimizer, &layout, keys, steps_per_clock),
            batch,
            steps,
            guard: Guard::new(guard),
            snapshots: Snapshots::new(pull, &layout, id, keys),
            layout,
            values: Values::of(None, buffers),
            blocks: Blocks::changed((keys.len as usize).div_ceil(BLOCK), Version(0)),
            version: Version(0),
            table: ClockTable::default(),
            members: BTreeMap::new(),
            doubts: BTreeMap::new(),
            gone: BTreeMap::new(),
            departed: BTreeMap::new(),
            collected: BTreeMap::new(),
            collected_at: Moment(0),
            open: Clock(0),
            held: HeldPulls::default(),
            woken: Vec::new(),
            started: false,
            is_behind: false,
            batch_count: 1,
            furthest: BatchIndex(0),
            cut: None,
            last_mark: 0,
        }
    }

    /// Takes one event in; what is to be done about it comes out in `effects`.
    pub fn handle(&mut self, now: Moment, event: ShardEvent, effects: &mut Vec<ShardEffect>) {
        if let ShardEvent::Pull { session, reader: None, request, have, kind } = event {
            // No copy hears of it, so nothing may follow from it, not even what is due by now: a round that closed here would take in
            // a push less than the same round of a copy, which closes with the next entry.
            return self.pull(now, Held::new(session, None, (request, have), kind, now), effects);
        }
        let touched = self.cut.as_ref().and_then(|_| event.worker());
        self.mirror(now, &event);
        match event {
            ShardEvent::Enter { worker, incarnation, clock, standing, batch_count, answered } => {
                self.batch_count = batch_count.max(1);
                self.enter((worker, incarnation), clock, standing, answered, effects);
                self.take_answered(now, worker, incarnation, answered, effects);
            }
            ShardEvent::Reenter { worker, clock } => self.reenter(worker, clock),
            ShardEvent::Tick => {}
            ShardEvent::Finish { worker } => self.table.leave(worker),
            ShardEvent::Remove { worker } => self.remove(worker, effects),
            ShardEvent::Fence { worker, incarnation } => self.fence(worker, incarnation, effects),
            ShardEvent::Start => self.started = true,
            ShardEvent::Initialize(values) => self.initialize(values, effects),
            ShardEvent::Push(push) => {
                if let Some(pull) = self.push(now, push, effects) {
                    // As if it had come by itself, after the push.
                    self.settle_all(now, effects);
                    self.pull(now, pull, effects);
                }
            }
            ShardEvent::Commit { worker, incarnation, sequence } => {
                self.commit(now, worker, incarnation, sequence, effects);
            }
            ShardEvent::Resolve { worker, incarnation, through } => {
                self.resolve(now, worker, incarnation, through, effects);
            }
            ShardEvent::Mark(mark) => self.mark(now, mark, effects),
            ShardEvent::Lead { members, started } => self.lead(&members, started, effects),
            ShardEvent::Pull { session, reader, request, have, kind } => {
                self.pull(now, Held::new(session, reader, (request, have), kind, now), effects);
            }
        }
        self.settle_all(now, effects);
        if self.cut.is_some() {
            self.settle_cut(now, touched, effects);
        }
    }

    /// What follows from the state: clocks close, pulls are released, until nothing more does.
    fn settle_all(&mut self, now: Moment, effects: &mut Vec<ShardEffect>) {
        loop {
            self.close_clocks(now, effects);
            if !self.serve_released(now, effects) {
                return;
            }
        }
    }

    /// When a [`ShardEvent::Tick`] is due although nothing happens; none for never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.policy.deadline(&self.room())
    }

    /// What the policy sees.
    fn room(&self) -> Room<'_> {
        room(&self.table, self.open, &self.collected, self.collected_at)
    }

    fn initialize(&mut self, values: Vec<f32>, effects: &mut Vec<ShardEffect>) {
        if self.values.is_empty() && values.len() as u64 == self.keys.len {
            self.values.begin(values);
            effects.push(ShardEffect::HasValues);
        } else {
            effects.push(ShardEffect::Recycle(values));
        }
    }

    /// Which shard it is.
    #[must_use]
    pub const fn id(&self) -> ShardId {
        self.id
    }

    /// Its keys.
    #[must_use]
    pub const fn keys(&self) -> KeyRange {
        self.keys
    }

    /// Updates applied so far.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The values, once it has them.
    #[must_use]
    pub fn values(&self) -> Option<&[f32]> {
        self.values.current()
    }

    /// The clocks of its members.
    #[must_use]
    pub const fn table(&self) -> &ClockTable {
        &self.table
    }

    /// The pulls that wait.
    pub fn held(&self) -> impl Iterator<Item = &Held> {
        self.held.all()
    }

    /// The row that a status shows.
    #[must_use]
    pub fn row(&self) -> ShardRow {
        ShardRow {
            shard: self.id,
            keys: self.keys,
            version: self.version,
            minimum: self.table.minimum(),
            has_values: !self.values.is_empty(),
        }
    }

    /// What must hold after every event.
    ///
    /// # Panics
    /// When it does not hold: for tests and the simulated world.
    pub fn check_invariants(&self) {
        let minimum = self.table.minimum().unwrap_or_default();
        for (worker, clock, standing) in self.table.rows() {
            assert!(self.members.contains_key(&worker), "{worker} is in the clock table but no member");
            if let (Standing::Active, Some(bound), false) = (standing, self.spec.lead_bound(), self.is_behind)
            {
                assert!(
                    clock.0 - minimum.0 <= bound,
                    "{worker} at {clock} leads {minimum} by more than {bound}"
                );
            }
        }
        self.held.check(self.started && !self.values.is_empty(), self.table.minimum(), self.open);
        self.check_members();
        self.check_cut();
        for clock in self.collected.keys() {
            assert!(*clock >= self.open, "{clock} was closed but pushes of it are kept");
        }
    }

    fn pushed(&self, sequence: Sequence, worker: WorkerId, outcome: PushOutcome) -> Pushed {
        let clock = self.table.clock_of(worker).unwrap_or_default();
        Pushed { shard: self.id, sequence, duplicate: false, clock, outcome, held_us: 0, busy_us: 0 }
    }
}

/// What a policy sees, of parts that can be borrowed beside it.
fn room<'a>(
    table: &'a ClockTable,
    open: Clock,
    collected: &BTreeMap<Clock, Vec<Collected>>,
    collected_at: Moment,
) -> Room<'a> {
    let gathered = collected.get(&open).map_or(0, |kept| kept.len() as u32);
    let last = collected.keys().next_back().copied();
    Room { table, open, gathered, gathered_at: collected_at, last }
}

#[cfg(test)]
pub(crate) mod tests;
