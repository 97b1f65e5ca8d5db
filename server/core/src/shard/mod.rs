//! One shard: a range of keys with its values, optimizer state, clock table and held pulls.
//!
//! The shard has one owner and is driven by events. A push goes `push.rs` -> seen before? -> policy -> optimizer -> version + 1;
//! a pull goes `pull.rs` -> held until the policy allows -> served from a snapshot that all readers of one version share.

mod pull;
mod push;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use slackline_core::consistency::{ClockTable, Policy, PolicySpec, Standing};
use slackline_core::ids::{
    BatchIndex, Clock, Incarnation, KeyRange, Moment, Sequence, SessionId, ShardId, Version, WorkerId,
};
use slackline_core::layout::Layout;
use slackline_core::optimizer::{Optimizer, OptimizerSpec};
use slackline_core::wire::{PullKind, PushOutcome, Pushed, Served, ShardRow};

pub use pull::Held;
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
    /// The update rule.
    pub optimizer: OptimizerSpec,
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
}

/// One shard.
pub struct Shard {
    id: ShardId,
    keys: KeyRange,
    layout: Arc<Layout>,
    policy: Box<dyn Policy>,
    spec: PolicySpec,
    optimizer: Optimizer,
    values: Values,
    version: Version,
    table: ClockTable,
    members: BTreeMap<WorkerId, Member>,
    /// Pushes kept until their clock closes, by clock.
    collected: BTreeMap<Clock, Vec<Collected>>,
    /// The oldest clock that is not closed: the highest that the minimum ever was, or that a reader could count on.
    open: Clock,
    held: Vec<Held>,
    started: bool,
    batch_count: u64,
}

impl Shard {
    /// A shard without values and members.
    #[must_use]
    pub fn new(settings: ShardSettings) -> Self {
        let ShardSettings { id, keys, layout, policy, optimizer } = settings;
        Self {
            id,
            keys,
            policy: policy.policy(),
            spec: policy,
            optimizer: Optimizer::new(optimizer, &layout, keys),
            layout,
            values: Values::default(),
            version: Version(0),
            table: ClockTable::default(),
            members: BTreeMap::new(),
            collected: BTreeMap::new(),
            open: Clock(0),
            held: Vec::new(),
            started: false,
            batch_count: 1,
        }
    }

    /// Takes one event in; what is to be done about it comes out in `effects`.
    pub fn handle(&mut self, now: Moment, event: ShardEvent, effects: &mut Vec<ShardEffect>) {
        match event {
            ShardEvent::Enter { worker, incarnation, clock, standing, batch_count } => {
                self.drop_holds_of(worker);
                self.members.insert(worker, Member { incarnation, window: PushWindow::default() });
                self.table.enter(worker, clock, standing);
                self.batch_count = batch_count.max(1);
            }
            ShardEvent::Reenter { worker, clock } if self.members.contains_key(&worker) => {
                self.table.enter(worker, clock, Standing::Joining);
            }
            ShardEvent::Reenter { .. } => {}
            ShardEvent::Finish { worker } => self.table.leave(worker),
            ShardEvent::Remove { worker } => {
                self.table.leave(worker);
                self.members.remove(&worker);
                self.drop_holds_of(worker);
            }
            ShardEvent::Start => self.started = true,
            ShardEvent::Initialize(values) => self.initialize(values, effects),
            ShardEvent::Push(push) => self.push(now, push, effects),
            ShardEvent::Pull { session, reader, request, kind } => {
                self.pull(now, Held::new(session, reader, request, kind, now), effects);
                return;
            }
        }
        self.close_clocks(now, effects);
        self.serve_held(now, effects);
    }

    fn initialize(&mut self, values: Vec<f32>, effects: &mut Vec<ShardEffect>) {
        if self.values.is_empty() && values.len() as u64 == self.keys.len {
            self.values = Values::new(values);
            effects.push(ShardEffect::HasValues);
        } else {
            effects.push(ShardEffect::Recycle(values));
        }
    }

    fn drop_holds_of(&mut self, worker: WorkerId) {
        self.held.retain(|held| held.reader.is_none_or(|(reader, _)| reader != worker));
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

    /// The pulls that wait, in order of arrival.
    #[must_use]
    pub fn held(&self) -> &[Held] {
        &self.held
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
        for held in &self.held {
            let ready = self.started && !self.values.is_empty();
            assert!(!ready || self.waits(held).is_some(), "a pull is held that could be served: {held:?}");
        }
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

#[cfg(test)]
mod tests;
