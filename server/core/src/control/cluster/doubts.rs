//! What becomes of the last steps of workers that are gone, where steps are whole.
//!
//! A worker can be lost between the shards: one has its piece of a step and the word that all have theirs, another has the piece alone.
//! So that all shards apply the same steps, a worker that is gone is fenced at every server first; then every shard says how far its steps
//! are applied there, and the furthest of them counts for all: some shard applied that step, so every shard has its piece.

use std::collections::{BTreeMap, BTreeSet};

use bincode::{Decode, Encode};
use slackline_core::ids::{Incarnation, Sequence, ServerId, ShardId, WorkerId};
use slackline_core::wire::{Doubt, ServerOrder};

/// Workers whose end is remembered, for shards that ask again.
const RESOLVED_MAX: usize = 4096;

type Gone = (WorkerId, Incarnation);

/// One worker that is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
struct Open {
    /// How far each shard has applied its steps.
    applied: BTreeMap<ShardId, Sequence>,
    /// The servers that were told that it is gone, with the map that they had been told then.
    fenced: BTreeMap<ServerId, u64>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct Doubts {
    open: BTreeMap<Gone, Open>,
    /// The last step that is applied of those that are gone.
    resolved: BTreeMap<Gone, Sequence>,
    /// The same, oldest first.
    order: std::collections::VecDeque<Gone>,
    /// Shards that asked once more.
    again: BTreeSet<(ServerId, WorkerId, Incarnation)>,
}

impl Doubts {
    /// Whether the last steps of all that are gone are decided.
    pub(super) fn is_settled(&self) -> bool {
        self.open.is_empty()
    }

    /// A worker is gone.
    pub(super) fn open(&mut self, gone: Gone) {
        if !self.resolved.contains_key(&gone) {
            self.open.entry(gone).or_default();
        }
    }

    /// A shard of this server says how far it is. Returns whether the coordinator has to fence that worker too.
    pub(super) fn hear(&mut self, server: ServerId, doubt: &Doubt) -> bool {
        let gone = (doubt.worker, doubt.incarnation);
        if self.resolved.contains_key(&gone) {
            self.again.insert((server, doubt.worker, doubt.incarnation));
            return false;
        }
        let is_known = self.open.contains_key(&gone);
        self.open.entry(gone).or_default().applied.insert(doubt.shard, doubt.applied);
        !is_known
    }

    /// The session of a server is a new one: what it was told may be lost.
    pub(super) fn forget_told(&mut self, server: ServerId) {
        for open in self.open.values_mut() {
            open.fenced.remove(&server);
        }
    }

    /// What servers are to be told: `told` has those that can be told something, each with the map that it knows, and `homes` the shards
    /// with their primaries in the map that is in force.
    pub(super) fn settle(
        &mut self,
        told: &BTreeMap<ServerId, u64>,
        homes: &BTreeMap<ShardId, ServerId>,
        orders: &mut Vec<(ServerId, ServerOrder)>,
    ) {
        for (server, worker, incarnation) in std::mem::take(&mut self.again) {
            if let Some(through) = self.resolved.get(&(worker, incarnation)) {
                let through = *through;
                orders.push((server, ServerOrder::Resolve { worker, incarnation, through }));
            }
        }
        let mut done = Vec::new();
        for ((worker, incarnation), open) in &mut self.open {
            let (worker, incarnation) = (*worker, *incarnation);
            if homes.keys().all(|shard| open.applied.contains_key(shard)) {
                done.push(((worker, incarnation), open.applied.values().max().copied().unwrap_or_default()));
                continue;
            }
            for (server, number) in told {
                // A server that was given a shard after it was told has to say it for that one too.
                let lacks = |(shard, home): (&ShardId, &ServerId)| {
                    home == server && !open.applied.contains_key(shard)
                };
                let is_new = match open.fenced.get(server) {
                    None => true,
                    Some(before) => before < number && homes.iter().any(lacks),
                };
                if is_new {
                    open.fenced.insert(*server, *number);
                    orders.push((*server, ServerOrder::Fence { worker, incarnation }));
                }
            }
        }
        for (gone, through) in done {
            self.open.remove(&gone);
            self.resolve(gone, through);
            let (worker, incarnation) = gone;
            let order = ServerOrder::Resolve { worker, incarnation, through };
            orders.extend(told.keys().map(|server| (*server, order.clone())));
        }
    }

    fn resolve(&mut self, gone: Gone, through: Sequence) {
        self.resolved.insert(gone, through);
        self.order.push_back(gone);
        if self.order.len() > RESOLVED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.resolved.remove(&oldest);
        }
    }
}
