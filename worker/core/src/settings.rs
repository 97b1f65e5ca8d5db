//! What a worker must know before it starts; plain values, taken from the configuration by the shell.

use std::time::Duration;

use slackline_core::config::Steps;
use slackline_core::ids::ServerId;
use slackline_core::layout::Layout;
use slackline_core::partition::Partition;

/// The settings of one worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which shard holds which keys, and which server holds which shard.
    pub partition: Partition,
    /// The model's tensors: its fingerprint must be that of the servers, and its names go into what the user reads.
    pub layout: Layout,
    /// The server that decides about membership and hands out work; with its memory in etcd it is none of those with shards.
    pub coordinator: ServerId,
    /// Fingerprint of the configuration.
    pub config_hash: u64,
    /// Fingerprint of the training data.
    pub data_hash: u64,
    /// Training samples.
    pub sample_count: u64,
    /// Units of the whole run, of which batches are made.
    pub batch_count: u64,
    /// Most units of one batch: what is larger would be memory that was not reckoned with.
    pub units_max: u32,
    /// Iterations that values are pulled ahead, 0 or 1.
    pub prefetch: u32,
    /// Whether computing begins when the values of the first shard are there. Not with what pulls ahead, pulls anew or walks on its own.
    pub begins_early: bool,
    /// Whether values are pulled anew while others are waited for (essp).
    pub refreshes: bool,
    /// Parts that the parameters are pushed in, one an iteration in turn; 1 for all of them each time.
    pub fragments: u32,
    /// Whether the pieces of a step wait for each other.
    pub steps: Steps,
    /// Whether shards have copies on other servers: then the worker registers with every server, since a shard can move to any.
    pub has_copies: bool,
    /// A server that has not heard a worker for so long takes it for dead.
    pub lease: Duration,
    /// How long a server is looked for before the worker gives up. A server that the worker has been registered with is looked for without
    /// end, since the coordinator knows whether the run can go on; the coordinator itself is not.
    pub connect_timeout: Duration,
    /// How often a wait is reported.
    pub wait_report: Duration,
    /// The allreduce; none where gradients go to servers.
    pub group: Option<GroupSettings>,
    /// Whether a gradient that is not finite stops the run; otherwise it is dropped and counted.
    pub stop_on_bad_gradient: bool,
    /// Whether a gradient beyond the largest norm stops the run.
    pub stop_on_norm: bool,
}

/// What a worker of an allreduce must know besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// Where other workers reach it: `host:port`, or `:port` at the address that the coordinator sees it at.
    pub peers_at: String,
    /// Samples of one unit, which is one batch.
    pub unit: u64,
    /// Samples of the whole run, repeats counted.
    pub sample_total: u64,
    /// Samples between two evaluations; zero for one at the end only.
    pub evaluate_every: u64,
    /// Time between two words to the coordinator about how far the worker is.
    pub step_report: Duration,
}
