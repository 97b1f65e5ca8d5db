//! One shard: a range of keys with its values, optimizer state, clock table and held pulls.
//!
//! The shard has one owner and is driven by events. A push goes `push.rs` -> seen before? -> policy -> optimizer -> version + 1;
//! a pull goes `pull.rs` -> held until the policy allows -> served from a snapshot that all readers of one version share.

mod held;
mod pull;
mod push;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::consistency::delay::Delay;
use slackline_core::consistency::{ClockTable, DelaySpec, Policy, PolicySpec, Room, Standing};
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, SessionId, ShardId, Version, WorkerId,
};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{Optimizer, OptimizerSpec};
use slackline_core::wire::{PullKind, PushOutcome, Pushed, Served, ShardRow};

pub use held::Held;
use held::HeldPulls;
use push::Collected;
use values::Values;

use crate::dedup::PushWindow;
use crate::notice::Notice;

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
}

/// What can happen to a shard.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardEvent {
    /// A worker became a member.
    Enter {
        /// The worker.
        worker: WorkerId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Its clock.
        clock: Clock,
        /// Active for those that the run begins with, joining for later ones.
        standing: Standing,
        /// Batches of the run.
        batch_count: u64,
    },
    /// A member that had finished has work again.
    Reenter {
        /// The worker.
        worker: WorkerId,
        /// Its clock.
        clock: Clock,
    },
    /// A member has no work: out of the clock table, still a member.
    Finish {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker is no member any more.
    Remove {
        /// The worker.
        worker: WorkerId,
    },
    /// All workers that the run begins with are members.
    Start,
    /// A worker brought the initial values; only the first time counts.
    Initialize(Vec<f32>),
    /// A push has arrived.
    Push(Push),
    /// Time has passed: at the latest at [`Shard::next_deadline`].
    Tick,
    /// A pull has arrived.
    Pull {
        /// The session to answer.
        session: SessionId,
        /// The worker that reads; none for an observer.
        reader: Option<(WorkerId, Incarnation)>,
        /// Number of the pull.
        request: u64,
        /// Gated or not.
        kind: PullKind,
    },
}

/// A push with its facts.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    /// The session to answer.
    pub session: SessionId,
    /// Who pushed.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Number of the push.
    pub sequence: Sequence,
    /// Iterations the worker had completed before this one.
    pub clock: Clock,
    /// The version the gradient was computed on.
    pub pulled: Version,
    /// The batch it is of.
    pub batch: BatchIndex,
    /// Samples it is the mean of.
    pub samples: u32,
    /// The gradient, one value a key; none when the iteration has nothing for this shard.
    pub gradient: Option<Vec<f32>>,
}

/// What a shard asks for.
#[derive(Clone, Debug)]
pub enum ShardEffect {
    /// Tell a worker what became of its push.
    Answer {
        /// The session to tell.
        session: SessionId,
        /// What.
        pushed: Pushed,
    },
    /// Send values.
    Serve {
        /// The session that pulled.
        session: SessionId,
        /// The worker that reads; none for an observer.
        reader: Option<(WorkerId, Incarnation)>,
        /// Number of the pull.
        request: u64,
        /// The values: all who pull one version share one buffer.
        values: Arc<Vec<f32>>,
        /// The facts beside them.
        served: Served,
    },
    /// Tell a worker that its clock was closed without it.
    Overtaken {
        /// The session it pulled over.
        session: SessionId,
        /// The clock that is open.
        open: Clock,
    },
    /// The shard has values now.
    HasValues,
    /// A gradient's buffer is free again.
    Recycle(Vec<f32>),
    /// For the log.
    Notice(Notice),
}

/// A worker that may push and pull here.
#[derive(Clone, Debug)]
struct Member {
    incarnation: Incarnation,
    window: PushWindow,
    /// The session of its last gated pull.
    session: Option<SessionId>,
    /// The values that it last read with their version, where gradients are corrected by them.
    read: Option<(Version, Arc<Vec<f32>>)>,
}

impl Member {
    fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, window: PushWindow::default(), session: None, read: None }
    }
}

/// One shard.
pub struct Shard {
    id: ShardId,
    keys: KeyRange,
    layout: Arc<Layout>,
    policy: Box<dyn Policy>,
    spec: PolicySpec,
    delay: Delay,
    optimizer: Optimizer,
    batch: Option<u64>,
    values: Values,
    version: Version,
    table: ClockTable,
    members: BTreeMap<WorkerId, Member>,
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
    batch_count: u64,
    /// The furthest batch that was applied.
    furthest: BatchIndex,
}

impl Shard {
    /// A shard without values and members.
    #[must_use]
    pub fn new(settings: ShardSettings) -> Self {
        let ShardSettings { id, keys, layout, policy, delay, optimizer, workers, batch } = settings;
        let steps_per_clock = if policy.takes_means() { 1 } else { workers };
        Self {
            id,
            keys,
            policy: policy.policy(),
            spec: policy,
            delay: Delay::new(delay, keys.len as usize),
            optimizer: Optimizer::new(optimizer, &layout, keys, steps_per_clock),
            batch,
            layout,
            values: Values::default(),
            version: Version(0),
            table: ClockTable::default(),
            members: BTreeMap::new(),
            collected: BTreeMap::new(),
            collected_at: Moment(0),
            open: Clock(0),
            held: HeldPulls::default(),
            woken: Vec::new(),
            started: false,
            batch_count: 1,
            furthest: BatchIndex(0),
        }
    }

    /// Takes one event in; what is to be done about it comes out in `effects`.
    pub fn handle(&mut self, now: Moment, event: ShardEvent, effects: &mut Vec<ShardEffect>) {
        match event {
            ShardEvent::Enter { worker, incarnation, clock, standing, batch_count } => {
                self.held.forget(worker);
                self.members.insert(worker, Member::new(incarnation));
                self.table.enter(worker, clock, standing);
                self.batch_count = batch_count.max(1);
            }
            ShardEvent::Reenter { worker, clock } if self.members.contains_key(&worker) => {
                self.table.enter(worker, clock, Standing::Joining);
            }
            ShardEvent::Reenter { .. } | ShardEvent::Tick => {}
            ShardEvent::Finish { worker } => self.table.leave(worker),
            ShardEvent::Remove { worker } => {
                self.table.leave(worker);
                self.members.remove(&worker);
                self.held.forget(worker);
            }
            ShardEvent::Start => self.started = true,
            ShardEvent::Initialize(values) => self.initialize(values, effects),
            ShardEvent::Push(push) => self.push(now, push, effects),
            ShardEvent::Pull { session, reader, request, kind } => {
                self.pull(now, Held::new(session, reader, request, kind, now), effects);
            }
        }
        self.settle_all(now, effects);
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
            self.values = Values::new(values);
            effects.push(ShardEffect::HasValues);
        } else {
            effects.push(ShardEffect::Recycle(values));
        }
    }

    fn member(&self, worker: WorkerId, incarnation: Incarnation) -> Option<&Member> {
        self.members.get(&worker).filter(|member| member.incarnation == incarnation)
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
            if let (Standing::Active, Some(bound)) = (standing, self.spec.lead_bound()) {
                assert!(
                    clock.0 - minimum.0 <= bound,
                    "{worker} at {clock} leads {minimum} by more than {bound}"
                );
            }
        }
        self.held.check(self.started && !self.values.is_empty(), self.table.minimum(), self.open);
        for (worker, member) in &self.members {
            let (len, most) = (member.window.len(), 2 * slackline_core::limits::PUSH_WINDOW);
            assert!(len <= most, "{len} answers are kept for {worker}, more than {most}");
        }
        for clock in self.collected.keys() {
            assert!(*clock >= self.open, "{clock} was closed but pushes of it are kept");
        }
    }

    fn pushed(&self, sequence: Sequence, worker: WorkerId, outcome: PushOutcome) -> Pushed {
        let clock = self.table.clock_of(worker).unwrap_or_default();
        Pushed { shard: self.id, sequence, duplicate: false, clock, outcome, held_us: 0 }
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
mod tests;
