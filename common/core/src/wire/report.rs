//! What a worker tells the coordinator of its work: times, counts and histograms, as differences since it last did.

use bincode::{Decode, Encode};

use crate::histogram::Histogram;

/// Microseconds of worker time, by what they were spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Times {
    /// Computing gradients.
    pub compute_us: u64,
    /// Waiting for other workers' clocks.
    pub wait_for_clock_us: u64,
    /// Sending pushes and waiting for their answers.
    pub push_us: u64,
    /// Waiting for servers that were busy: their pushes lay there before the shard took them up.
    pub busy_us: u64,
    /// Pulling, the gate's hold left out.
    pub pull_us: u64,
    /// Waiting for work or for a batch to be loaded.
    pub data_us: u64,
    /// Evaluating.
    pub evaluate_us: u64,
    /// All of the worker's time, from its first work on.
    pub total_us: u64,
}

/// What a worker did since its last report: all fields are differences.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode)]
pub struct Report {
    /// Iterations completed.
    pub iterations: u64,
    /// Samples used.
    pub samples: u64,
    /// Sum over samples of their loss.
    pub loss_sum: f64,
    /// Time spent.
    pub times: Times,
    /// Bytes of gradients sent, headers left out.
    pub bytes_pushed: u64,
    /// Bytes of values received, headers left out.
    pub bytes_pulled: u64,
    /// Bytes of datagrams sent.
    pub wire_sent: u64,
    /// Bytes of datagrams received.
    pub wire_received: u64,
    /// Pushes (one per shard and iteration) sent, retries left out.
    pub pushes_sent: u64,
    /// Pushes that servers applied.
    pub pushes_applied: u64,
    /// Pushes that were sent again and known already.
    pub pushes_duplicate: u64,
    /// Pushes that were dropped or refused, for whatever reason.
    pub pushes_dropped: u64,
    /// Of the applied ones, those with less than their rate.
    pub pushes_down_weighted: u64,
    /// Of the dropped ones, those that came after their clock was closed.
    pub dropped_late: u64,
    /// Of the dropped ones, those that were too stale.
    pub dropped_stale: u64,
    /// Of the dropped ones, those whose gradient was not finite.
    pub dropped_not_finite: u64,
    /// Of the dropped ones, those whose worker left its gradient because its clock was closed.
    pub dropped_abandoned: u64,
    /// Of the dropped ones, those that a guard of the server left out.
    pub dropped_guarded: u64,
    /// Pulls answered.
    pub pulls_served: u64,
    /// Pulls that the gate held first.
    pub pulls_held: u64,
    /// For every pull, how far the reader's clock lay above the minimum.
    pub clock_lead: Histogram,
    /// For every applied push, how many versions had passed since its pull.
    pub version_staleness: Histogram,
}

impl Times {
    /// Adds the times of another report.
    pub fn merge(&mut self, more: &Self) {
        let Self { compute_us, wait_for_clock_us, push_us, busy_us, pull_us, data_us, evaluate_us, total_us } =
            *more;
        add(&mut self.compute_us, compute_us);
        add(&mut self.wait_for_clock_us, wait_for_clock_us);
        add(&mut self.push_us, push_us);
        add(&mut self.busy_us, busy_us);
        add(&mut self.pull_us, pull_us);
        add(&mut self.data_us, data_us);
        add(&mut self.evaluate_us, evaluate_us);
        add(&mut self.total_us, total_us);
    }
}

impl Report {
    /// Adds another report. Counts saturate: they can come from a peer.
    pub fn merge(&mut self, more: &Self) {
        self.loss_sum += more.loss_sum;
        self.times.merge(&more.times);
        add(&mut self.iterations, more.iterations);
        add(&mut self.samples, more.samples);
        add(&mut self.bytes_pushed, more.bytes_pushed);
        add(&mut self.bytes_pulled, more.bytes_pulled);
        add(&mut self.wire_sent, more.wire_sent);
        add(&mut self.wire_received, more.wire_received);
        add(&mut self.pushes_sent, more.pushes_sent);
        add(&mut self.pushes_applied, more.pushes_applied);
        add(&mut self.pushes_duplicate, more.pushes_duplicate);
        add(&mut self.pushes_dropped, more.pushes_dropped);
        add(&mut self.pushes_down_weighted, more.pushes_down_weighted);
        add(&mut self.dropped_late, more.dropped_late);
        add(&mut self.dropped_stale, more.dropped_stale);
        add(&mut self.dropped_not_finite, more.dropped_not_finite);
        add(&mut self.dropped_abandoned, more.dropped_abandoned);
        add(&mut self.dropped_guarded, more.dropped_guarded);
        add(&mut self.pulls_served, more.pulls_served);
        add(&mut self.pulls_held, more.pulls_held);
        self.clock_lead.merge(&more.clock_lead);
        self.version_staleness.merge(&more.version_staleness);
    }
}

const fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}
