//! The figures of a run, as `summary.json` and `metrics.jsonl` hold them.

use bincode::{Decode, Encode};
use serde::Serialize;
use slackline_core::consistency::PolicySpec;
use slackline_core::histogram::{Histogram, Spread};
use slackline_core::wire::Times;

/// What the figures are asked for with.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The policy: its bounds stand beside what was measured.
    pub policy: PolicySpec,
    /// Iterations that values are pulled ahead: one more version of staleness for each.
    pub prefetch: u64,
    /// Workers that the run began with.
    pub workers: u64,
    /// Test accuracies whose first time is wanted.
    pub accuracies: &'a [f64],
    /// Test losses whose first time is wanted.
    pub losses: &'a [f64],
    /// Whether all is wanted, as for the end; without, histograms and single workers are left out.
    pub whole: bool,
}

/// The measured part of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Iterations whose gradients are in the weights: batches done.
    pub iterations: u64,
    /// Samples of those batches.
    pub samples: u64,
    /// Passes over the training data.
    pub epochs: f64,
    /// Seconds from the first work handed out to the last batch done, with those that the run had taken up to the checkpoint that it
    /// goes on from. In a simulated run the seconds it took to simulate.
    pub wall_s: f64,
    /// The same in virtual time; none in a real run. Where it is there, all other times are virtual.
    pub virtual_s: Option<f64>,
    /// Samples a second over that time.
    pub samples_per_s: f64,
    /// At the end.
    pub r#final: Final,
    /// Best accuracy of all evaluations.
    pub best_test_accuracy: Option<f64>,
    /// When each accuracy was first seen.
    pub time_to_accuracy: Vec<TimeToAccuracy>,
    /// When each test loss was first seen.
    pub time_to_loss: Vec<TimeToLoss>,
    /// Set when the loss has left all bounds and not come back.
    pub diverged: Option<Diverged>,
    /// What went over the wire.
    pub bytes: Bytes,
    /// How stale reads and gradients were.
    pub staleness: Staleness,
    /// What worker time was spent on.
    pub time: TimeShares,
    /// Pushes, one per shard and iteration.
    pub pushes: Pushes,
    /// Pulls, one per shard and iteration.
    pub pulls: Pulls,
    /// What was decided about them, with the reasons.
    pub decisions: Decisions,
    /// Where each worker's time went; only at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workers_time: Vec<WorkerTime>,
    /// How long each loss of a worker stopped the others; only of an allreduce, and only at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recoveries: Option<Vec<Recovery>>,
    /// The topology that was chosen, and why, where that was left to be measured; only at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_chosen: Option<String>,
}

/// The figures at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Final {
    /// Mean training loss over the last epoch's worth of samples.
    pub train_loss: f64,
    /// Mean loss on the held-out examples.
    pub test_loss: Option<f64>,
    /// Share of them classified rightly.
    pub test_accuracy: Option<f64>,
}

/// See [`Figures::time_to_accuracy`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeToAccuracy {
    /// The accuracy.
    pub accuracy: f64,
    /// Seconds since the first work.
    pub wall_s: f64,
    /// Samples handed out by then.
    pub samples: u64,
}

/// See [`Figures::time_to_loss`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeToLoss {
    /// The loss.
    pub loss: f64,
    /// Seconds since the first work.
    pub wall_s: f64,
    /// Samples handed out by then.
    pub samples: u64,
}

/// See [`Figures::diverged`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Diverged {
    /// Iterations that the worker had completed which reported it first.
    pub clock: u64,
}

/// See [`Figures::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bytes {
    /// Gradients, without headers.
    pub pushed: u64,
    /// Values, without headers.
    pub pulled: u64,
    /// Datagrams that workers sent.
    pub wire_sent: u64,
    /// Datagrams that workers received.
    pub wire_received: u64,
}

/// See [`Figures::staleness`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Staleness {
    /// How far the reader's clock lay above the minimum, at each pull.
    pub clock_lead: Bounded,
    /// Versions that passed between a pull and the apply of its gradient.
    pub version: Bounded,
}

/// A spread and the bound it must keep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bounded {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
    /// The bound of the policy; none where it has none.
    pub bound: Option<u64>,
    /// How often each value was seen, as (value, count); above 255 by sixteenths. Only at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<(u64, u64)>,
}

impl Bounded {
    pub(super) fn new(counts: &Histogram, bound: Option<u64>, whole: bool) -> Self {
        let Spread { mean, p50, p99, max } = counts.spread();
        let histogram = if whole { counts.rows().collect() } else { Vec::new() };
        Self { mean, p50, p99, max, bound, histogram }
    }
}

/// Shares of worker time; they add up to one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeShares {
    /// Computing gradients.
    pub compute: f64,
    /// Waiting for other workers' clocks.
    pub wait_for_clock: f64,
    /// Sending pushes and waiting for their answers.
    pub push: f64,
    /// Waiting for servers that were busy.
    pub busy: f64,
    /// Pulling.
    pub pull: f64,
    /// Waiting for work or data.
    pub data: f64,
    /// Evaluating.
    pub evaluate: f64,
}

impl TimeShares {
    pub(super) fn new(times: &Times) -> Self {
        let part = |us: u64| share(us, times.total_us);
        Self {
            compute: part(times.compute_us),
            wait_for_clock: part(times.wait_for_clock_us),
            push: part(times.push_us),
            busy: part(times.busy_us),
            pull: part(times.pull_us),
            data: part(times.data_us),
            evaluate: part(times.evaluate_us),
        }
    }
}

/// `part / whole`; zero of nothing.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// See [`Figures::pushes`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pushes {
    /// Sent, retries left out.
    pub sent: u64,
    /// In the values.
    pub applied: u64,
    /// Sent again and known already.
    pub duplicate: u64,
    /// Dropped by the policy, or refused.
    pub dropped: u64,
}

/// See [`Figures::pulls`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pulls {
    /// Answered.
    pub served: u64,
    /// Held first.
    pub held: u64,
}

/// See [`Figures::decisions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decisions {
    /// Pushes applied at their full rate, alone or within a mean.
    pub apply: u64,
    /// Pushes applied at less than their rate, for their staleness.
    pub down_weight: u64,
    /// Pushes dropped.
    pub drop: Drops,
    /// Pulls held by the policy.
    pub hold: Holds,
}

/// Why pushes were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Drops {
    /// Their clock was closed when they came.
    pub late: u64,
    /// Their worker was told that its clock was closed, and left them.
    pub abandoned: u64,
    /// They were too stale.
    pub stale: u64,
    /// They were not finite.
    pub not_finite: u64,
    /// A guard of the server left them out.
    pub guarded: u64,
}

/// What held pulls waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holds {
    /// The slowest worker's clock.
    pub clock: u64,
    /// A clock to close.
    pub round: u64,
    /// A quorum.
    pub quorum: u64,
}

impl Holds {
    pub(super) fn new(policy: PolicySpec, held: u64) -> Self {
        let mut holds = Self::default();
        *match policy {
            PolicySpec::Backup { .. } => &mut holds.round,
            PolicySpec::Quorum { .. } => &mut holds.quorum,
            _ => &mut holds.clock,
        } = held;
        holds
    }
}

/// See [`Figures::recoveries`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Encode, Decode)]
pub struct Recovery {
    /// The worker that was lost.
    pub worker: u32,
    /// Iterations after which the others went on.
    pub clock: u64,
    /// Seconds from its last word until another had completed a later iteration without it.
    pub seconds: f64,
}

/// See [`Figures::workers_time`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WorkerTime {
    /// Which worker.
    pub worker: u32,
    /// Seconds of its time that were reported.
    pub total_s: f64,
    /// What they were spent on.
    #[serde(flatten)]
    pub time: TimeShares,
}
