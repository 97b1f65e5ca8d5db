//! What a group is made of: the buckets of the model, and for each group who sends which part of them to whom.

use std::sync::Arc;

use slackline_core::collective::{Bucket, Misfit, Order, Packing, Schedule, Topology, buckets};
use slackline_core::config::{Allreduce, Config};
use slackline_core::ids::Generation;
use slackline_core::layout::Layout;
use slackline_core::optimizer::Rule;
use slackline_core::stragglers::ready_share;

/// What does not change while the run lasts.
#[derive(Debug)]
pub(crate) struct GroupPlan {
    /// The true layout, also where the cores see a small one.
    pub(super) layout: Arc<Layout>,
    /// In the order in which they are reduced.
    pub(super) buckets: Vec<Bucket>,
    /// For each bucket, the share of a gradient's time after which it exists.
    pub(super) ready: Vec<f64>,
    /// Bytes of values and optimizer state.
    pub(super) state_bytes: u64,
}

impl GroupPlan {
    pub(crate) fn new(config: &Config, sync: &Allreduce) -> Self {
        let layout = config.layout();
        let buckets = buckets(&layout, sync.bucket_bytes, sync.order);
        let mut done = 0;
        let ready = buckets
            .iter()
            .map(|bucket| {
                done += bucket.keys.len;
                match sync.order {
                    Order::Backward => ready_share(done, layout.len()),
                    Order::Forward => 1.0,
                }
            })
            .collect();
        let copies = match config.optimizer.rule {
            Rule::Sgd => 1,
            Rule::Momentum { .. } => 2,
        };
        let state_bytes = 4 * copies * layout.len();
        Self { layout: Arc::new(layout), buckets, ready, state_bytes }
    }
}

/// Who sends what to whom in one group.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) generation: Generation,
    pub(super) schedule: Arc<Schedule>,
    pub(super) packing: Packing,
    /// Lengths of the parts of each bucket.
    pub(super) part_lens: Vec<Vec<u64>>,
}

impl Form {
    pub(super) fn new(
        plan: &GroupPlan,
        generation: Generation,
        topology: Topology,
        members: u32,
    ) -> Result<Self, Misfit> {
        let schedule = Arc::new(Schedule::new(topology, members)?);
        let packing = Packing::new(schedule.parts());
        let part_lens = plan.buckets.iter().map(|bucket| packing.part_lens(bucket.keys)).collect();
        Ok(Self { generation, schedule, packing, part_lens })
    }
}
