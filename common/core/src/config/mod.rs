//! The configuration of a run: typed, layered, with the origin of every value.
//!
//! One table, [`KEYS`], says everything about every key. Read in this order: [`Key`] and [`Kind`] (what a
//! key takes), [`Config::resolve`] (layers in, a checked configuration or every [`Problem`] out),
//! [`Resolved`] (showing, saving and fingerprinting it) and [`reference_toml`]. Reading files and the
//! environment is the program's part.

mod codec;
mod keeping;
mod kind;
mod nearest;
mod problem;
mod render;
mod resolve;
mod rules;
mod schema;
mod simulation;
mod store;
pub mod timers;
mod transport;
mod typed;
mod value;

pub use kind::Kind;
pub use problem::{Fault, Problem};
pub use render::reference_toml;
pub use resolve::{DEFAULT_LAYER, Layer, Resolved, SET_LAYER};
pub use schema::{Absent, KEYS, Key, SECTIONS, VARIABLE_PREFIX, key_of};
pub use simulation::{Incident, Simulation, What, Whom};
pub use store::{Etcd, Store};
pub use timers::Timers;
pub use value::Value;

use std::time::Duration;

use crate::codec::{CodecKind, CodecSpec};
use crate::collective::{Order, Topology};
use crate::consistency::{DelaySpec, PolicySpec};
use crate::ids::ServerId;
use crate::layout::Layout;
use crate::limits::SHARDS_PER_SERVER_MAX;
use crate::local::LocalSpec;
use crate::model::{DatasetSpec, ModelSpec};
use crate::optimizer::OptimizerSpec;
use crate::order::Priority;
use crate::partition::Partition;
use crate::schedule::Cut;
use crate::stragglers::Stragglers;

/// A checked configuration. [`KEYS`] says more about each value.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What everything random follows from.
    pub seed: u64,
    /// Workers of the run.
    pub workers: u32,
    /// Servers of the run.
    pub servers: u32,
    /// Folder of the results.
    pub out: String,
    /// Who belongs to the run and how long they wait for each other.
    pub cluster: Cluster,
    /// What is trained on.
    pub data: Data,
    /// What is trained.
    pub model: ModelSpec,
    /// How much of it, and in which pieces.
    pub train: Train,
    /// What a gradient does to the parameters: on the servers, or with local steps in the workers.
    pub optimizer: OptimizerSpec,
    /// Local steps; none where a worker pushes the gradient of each batch.
    pub local: Option<LocalSpec>,
    /// How far workers may run apart.
    pub consistency: Consistency,
    /// The allreduce between the workers; none where parameters live on servers.
    pub sync: Option<Allreduce>,
    /// How gradients and values are written on their way.
    pub codec: Codec,
    /// What a server does not let in.
    pub guard: Guard,
    /// What is kept for the day that something is lost.
    pub checkpoint: Checkpoint,
    /// When the model is measured.
    pub evaluate: Evaluate,
    /// What is recorded.
    pub metrics: Metrics,
    /// How long gradients take.
    pub stragglers: Stragglers,
    /// A file of recorded times that whoever reads files puts into [`Config::stragglers`].
    pub stragglers_file: Option<String>,
    /// What `slackline sim` puts in the place of machines and links.
    pub simulation: Simulation,
    /// Settings of QUIC.
    pub transport: Transport,
}

/// Section `cluster`.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// `host:port` of each server in order; empty for a run of one process (see [`Resolved::addresses`]).
    pub addresses: Vec<String>,
    /// Folder of the certificates.
    pub keys: String,
    /// Silence after which a worker leaves the clock table, in seconds.
    pub lease_s: f64,
    /// How long a server is looked for, in seconds.
    pub connect_timeout_s: f64,
    /// Time between two reports of one wait, in seconds.
    pub wait_report_s: f64,
    /// Shards of one server at least.
    pub shards_per_server: u32,
    /// Bytes of the values of a shard at most, as far as the number of shards allows.
    pub shard_bytes: u64,
    /// Whether the thread of a shard stays on one processor.
    pub pin_threads: bool,
    /// Whether a server ends when the run is complete.
    pub exit_when_done: bool,
    /// Workers that the run needs to begin and to go on; none for `workers` to begin and whoever is left to go on.
    pub min_workers: Option<u32>,
    /// Copies of each shard, 1 or 2.
    pub replicas: u32,
    /// What an acknowledged push has reached.
    pub durability: Durability,
    /// Whether the pieces of a step wait for each other.
    pub steps: Steps,
    /// Folder of the servers' own state; none for `state` among the results.
    pub state: Option<String>,
    /// Where the coordinator's memory is kept.
    pub store: Store,
    /// `host:port` of each candidate for the coordinator; empty where server 0 is it.
    pub coordinators: Vec<String>,
}

/// What an acknowledged push has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The memory of the primary.
    #[default]
    Memory,
    /// The memory of the backup too.
    Replicated,
    /// The disk of the primary.
    Disk,
}

/// When a shard applies its piece of a worker's step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steps {
    /// When it arrives.
    #[default]
    Parts,
    /// When every shard has its piece.
    Whole,
}

/// Section `codec`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    /// How gradients are written.
    pub push: CodecSpec,
    /// How values are written that are pulled for training.
    pub pull: CodecKind,
}

impl Codec {
    /// Everything as it is.
    pub const PLAIN: Self = Self { push: CodecSpec::F32, pull: CodecKind::F32 };
}

/// Section `guard`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guard {
    /// Largest norm of one shard's part of a gradient; none for no limit.
    pub norm_max: Option<f32>,
    /// What a larger one does.
    pub on_norm: OnNorm,
    /// Most pushes a second of one worker; none for no limit.
    pub pushes_per_s: Option<f64>,
}

/// What a gradient beyond the largest norm does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNorm {
    /// It is left out.
    #[default]
    Drop,
    /// It is shortened to the limit.
    Clip,
    /// It ends the run.
    Stop,
}

/// Section `checkpoint`.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Clocks between two; none for no checkpoints. For priority checkpoints already multiplied by the share.
    pub every: Option<u64>,
    /// Folder or URL; none for `checkpoints` among the results.
    pub at: Option<String>,
    /// How many are kept.
    pub keep: usize,
    /// What each saves.
    pub kind: CheckpointKind,
    /// Keys of one block.
    pub block: u64,
    /// How long a store may take nothing before it is named.
    pub report_after: Duration,
}

/// What a checkpoint saves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CheckpointKind {
    /// Everything.
    Full,
    /// This share of the blocks, those that moved furthest.
    Priority {
        /// The share, in (0, 1].
        share: f64,
    },
    /// The blocks that changed.
    Incremental,
}

/// Section `data`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The dataset.
    pub dataset: DatasetSpec,
    /// Folder of its files; none for the system's place.
    pub dir: Option<String>,
    /// Training samples taken; none for all.
    pub limit: Option<u64>,
}

/// Section `train`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// Passes over the training data.
    pub epochs: u64,
    /// Samples per worker per iteration.
    pub batch: u64,
    /// Samples computed at once; 0 for the whole batch, else a divisor of it.
    pub microbatch: u64,
    /// Threads that one worker computes with.
    pub threads: u32,
    /// Whether parts of a gradient leave before it is whole.
    pub overlap: bool,
    /// Whether batches follow the workers' measured speeds.
    pub proportional: bool,
}

/// Section `consistency`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Consistency {
    /// The policy with its bound.
    pub policy: PolicySpec,
    /// Iterations that values are pulled ahead: so many of the worker's own last pushes can be missing in them.
    pub prefetch: u32,
    /// What staleness does to a gradient.
    pub delay: DelaySpec,
    /// What a gradient that is not finite does.
    pub on_bad_gradient: OnBadGradient,
}

/// What a gradient that is not finite does. It is never applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBadGradient {
    /// It is dropped, named and counted.
    Drop,
    /// It stops the run.
    Stop,
}

/// Section `sync`, where `sync.method` is `allreduce`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allreduce {
    /// Who sends what to whom.
    pub topology: Topology,
    /// Bytes at which a bucket is closed; 0 for one bucket of everything.
    pub bucket_bytes: u64,
    /// Which tensors go first.
    pub order: Order,
    /// Whether the others go on without a lost worker, and take in new ones.
    pub elastic: bool,
    /// Address that a worker listens on for the others.
    pub listen: String,
    /// What the others are told; none for what the first server sees.
    pub advertise: Option<String>,
}

/// Section `evaluate`.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluate {
    /// Passes over the data between two measurements; 0 for one at the end.
    pub every_epochs: f64,
    /// Test accuracies, in `[0, 1]`, whose first time is reported.
    pub accuracies: Vec<f64>,
    /// Test losses whose first time is reported.
    pub losses: Vec<f64>,
}

/// Section `metrics`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics {
    /// Seconds between two rows.
    pub every_s: f64,
}

/// How a sender finds its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// [`Congestion::Cubic`] within a machine, [`Congestion::Steady`] between machines.
    #[default]
    Auto,
    /// By what the path delivers.
    Steady,
    /// CUBIC (RFC 9438).
    Cubic,
    /// NewReno (RFC 9002, section 7).
    NewReno,
    /// QUIC's library's own BBR.
    Bbr,
}

/// Section `transport`. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// How a sender finds its rate.
    pub congestion: Congestion,
    /// Payload of one UDP datagram; none to find it.
    pub datagram_bytes: Option<u16>,
    /// In flight on a connection that does not know its path yet.
    pub initial_window_bytes: u64,
    /// One piece of a transfer.
    pub stripe_bytes: u64,
    /// Streams that one transfer is spread over at most.
    pub streams: u32,
    /// Unread bytes of one stream.
    pub stream_window_bytes: u64,
    /// Unread bytes of one connection.
    pub connection_window_bytes: u64,
    /// Unacknowledged bytes of one connection.
    pub send_window_bytes: u64,
    /// What one session may make a server hold.
    pub session_bytes: u64,
    /// Buffers asked for a UDP socket.
    pub socket_buffer_bytes: u64,
    /// Which transfers go first.
    pub order: Priority,
    /// Bytes of a worker's transfers that are under way on one connection at once.
    pub credit_bytes: u64,
    /// Bytes a second that a worker pushes to one server at most; 0 for no bound.
    pub push_bytes_per_s: u64,
}

impl Config {
    /// Which server coordinates.
    #[must_use]
    pub const fn coordinator(&self) -> ServerId {
        self.cluster.store.coordinator(self.servers)
    }

    /// The layout of the model for the dataset.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.model.layout(self.data.dataset.input_count(), self.data.dataset.class_count())
    }

    /// Whether computing begins with the values of the first layers, while others are on their way: not where the next ones are pulled ahead, or
    /// anew as long as others are waited for, nor where all are in one shard.
    #[must_use]
    pub fn begins_early(&self) -> bool {
        let pulls_otherwise = self.consistency.prefetch > 0 || self.consistency.policy.refreshes();
        self.train.overlap && !pulls_otherwise && self.partition().shard_count() > 1
    }

    /// The division of the model over the servers.
    #[must_use]
    pub fn partition(&self) -> Partition {
        let cluster = &self.cluster;
        division(self.layout().len(), self.servers, cluster.shards_per_server, cluster.shard_bytes)
    }

    /// How batches are cut: see [`Cut`].
    #[must_use]
    pub const fn cut(&self) -> Cut {
        match (self.local, self.train.proportional) {
            (Some(local), proportional) => Cut { unit: self.train.batch, units: local.steps, proportional },
            (None, false) => Cut { unit: self.train.batch, units: 1, proportional: false },
            (None, true) => Cut::proportional(self.train.batch),
        }
    }

    /// The optimizer of the servers: [`Config::optimizer`], or with local steps that of [`LocalSpec::outer`].
    #[must_use]
    pub fn server_optimizer(&self) -> OptimizerSpec {
        self.local.map_or(self.optimizer, |local| OptimizerSpec::outer(local.outer))
    }

    /// Mean loss of a model that knows nothing: that of equally likely classes, or of the quadratic's first point.
    #[must_use]
    pub fn blind_loss(&self) -> f64 {
        match (&self.model, self.data.dataset) {
            (ModelSpec::Quadratic { condition, .. }, DatasetSpec::Noise { dimensions, .. }) => {
                let last = dimensions.saturating_sub(1).max(1) as f64;
                0.5 * (0..dimensions).map(|index| condition.powf(-(index as f64) / last)).sum::<f64>()
            }
            (_, dataset) => (dataset.class_count() as f64).ln(),
        }
    }

    /// The policy in words, with what belongs to it.
    #[must_use]
    pub fn policy_text(&self) -> String {
        if let Some(sync) = &self.sync {
            let elastic = if sync.elastic { "elastic " } else { "" };
            return format!("{elastic}allreduce({})", sync.topology);
        }
        let policy = self.consistency.policy;
        match self.local {
            None if self.consistency.prefetch > 0 => {
                format!("prefetch({}) + {policy}", self.consistency.prefetch)
            }
            None => policy.to_string(),
            Some(LocalSpec { steps, elastic: Some(share), .. }) => {
                format!("elastic({share}, {steps}) + {policy}")
            }
            Some(LocalSpec { steps, fragments: 1, .. }) => format!("local({steps}) + {policy}"),
            Some(LocalSpec { steps, fragments, .. }) => {
                format!("local({steps}, {fragments} fragments) + {policy}")
            }
        }
    }
}

/// The division of so many keys: more shards a server than wanted where these would have more than `shard_bytes`.
fn division(len: u64, servers: u32, shards_per_server: u32, shard_bytes: u64) -> Partition {
    let bytes = len.div_ceil(u64::from(servers.max(1))) * size_of::<f32>() as u64;
    let needed = bytes.div_ceil(shard_bytes.max(1)).min(SHARDS_PER_SERVER_MAX.into());
    Partition::new(len, servers, shards_per_server.max(needed as u32))
}

#[cfg(test)]
mod tests;
