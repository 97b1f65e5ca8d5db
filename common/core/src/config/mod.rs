//! The configuration of a run: typed, layered, with the origin of every value.
//!
//! One table, [`KEYS`], says everything about every key. Read in this order: [`Key`] and [`Kind`] (what a
//! key takes), [`Config::resolve`] (layers in, a checked configuration or every [`Problem`] out),
//! [`Resolved`] (showing, saving and fingerprinting it) and [`reference_toml`]. Reading files and the
//! environment is the program's part.

mod kind;
mod nearest;
mod problem;
mod render;
mod resolve;
mod rules;
mod schema;
mod value;

pub use kind::Kind;
pub use problem::{Fault, Problem};
pub use render::reference_toml;
pub use resolve::{DEFAULT_LAYER, Layer, Resolved, SET_LAYER};
pub use schema::{Absent, KEYS, Key, SECTIONS, VARIABLE_PREFIX, key_of};
pub use value::Value;

use crate::consistency::PolicySpec;
use crate::layout::Layout;
use crate::model::{DatasetSpec, ModelSpec};
use crate::optimizer::{OptimizerSpec, RateSchedule, Rule, Shape};
use crate::partition::Partition;
use resolve::Entries;

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
    /// What a gradient does to the parameters.
    pub optimizer: OptimizerSpec,
    /// How far workers may run apart.
    pub consistency: Consistency,
    /// When the model is measured.
    pub evaluate: Evaluate,
    /// What is recorded.
    pub metrics: Metrics,
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
    /// Shards of one server.
    pub shards_per_server: u32,
    /// Whether a server ends when the run is complete.
    pub exit_when_done: bool,
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
}

/// Section `consistency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consistency {
    /// The policy with its bound.
    pub policy: PolicySpec,
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

/// Section `evaluate`.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluate {
    /// Passes over the data between two measurements; 0 for one at the end.
    pub every_epochs: f64,
    /// Test accuracies, in `[0, 1]`, whose first time is reported.
    pub accuracies: Vec<f64>,
}

/// Section `metrics`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics {
    /// Seconds between two rows.
    pub every_s: f64,
}

/// Section `transport`. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
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
    /// Buffers asked for a UDP socket.
    pub socket_buffer_bytes: u64,
}

impl Config {
    /// The layout of the model for the dataset.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.model.layout(self.data.dataset.input_count(), self.data.dataset.class_count())
    }

    /// The division of the model over the servers.
    #[must_use]
    pub fn partition(&self) -> Partition {
        Partition::new(self.layout().len(), self.servers, self.cluster.shards_per_server)
    }

    /// The typed values of checked entries.
    fn from_entries(entries: &Entries) -> Self {
        Self {
            seed: entries.int("seed"),
            workers: entries.int("workers"),
            servers: entries.int("servers"),
            out: entries.text("out").to_owned(),
            cluster: cluster(entries),
            data: data(entries),
            model: model(entries),
            train: Train {
                epochs: entries.int("train.epochs"),
                batch: entries.int("train.batch"),
                microbatch: entries.int("train.microbatch"),
                threads: entries.int("train.threads"),
            },
            optimizer: optimizer(entries),
            consistency: consistency(entries),
            evaluate: evaluate(entries),
            metrics: Metrics { every_s: entries.float("metrics.every_s") },
            transport: transport(entries),
        }
    }
}

fn cluster(entries: &Entries) -> Cluster {
    let addresses = entries.list("cluster.addresses").iter().filter_map(|value| match value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    });
    Cluster {
        addresses: addresses.collect(),
        keys: entries.text("cluster.keys").to_owned(),
        lease_s: entries.float("cluster.lease_s"),
        connect_timeout_s: entries.float("cluster.connect_timeout_s"),
        wait_report_s: entries.float("cluster.wait_report_s"),
        shards_per_server: entries.int("cluster.shards_per_server"),
        exit_when_done: entries.flag("cluster.exit_when_done"),
    }
}

fn data(entries: &Entries) -> Data {
    let dir = entries.text("data.dir");
    Data {
        dataset: match entries.text("data.dataset") {
            "fashion-mnist" => DatasetSpec::FashionMnist,
            _ => DatasetSpec::Digits,
        },
        dir: (!dir.is_empty()).then(|| dir.to_owned()),
        limit: entries.number("data.limit"),
    }
}

fn model(entries: &Entries) -> ModelSpec {
    let widths = entries.list("model.widths").iter().filter_map(|value| match value {
        Value::Int(width) => u64::try_from(*width).ok(),
        _ => None,
    });
    match entries.text("model.kind") {
        "mlp" => ModelSpec::Mlp { widths: widths.collect() },
        _ => ModelSpec::Softmax,
    }
}

fn optimizer(entries: &Entries) -> OptimizerSpec {
    let momentum = entries.float("optimizer.momentum") as f32;
    OptimizerSpec {
        rule: match entries.text("optimizer.kind") {
            "momentum" => Rule::Momentum { momentum, nesterov: entries.flag("optimizer.nesterov") },
            _ => Rule::Sgd,
        },
        rate: entries.float("optimizer.rate") as f32,
        weight_decay: entries.float("optimizer.weight_decay") as f32,
        schedule: RateSchedule {
            shape: match entries.text("optimizer.schedule") {
                "linear" => Shape::Linear,
                "cosine" => Shape::Cosine,
                _ => Shape::Constant,
            },
            warmup: entries.float("optimizer.warmup") as f32,
            final_share: entries.float("optimizer.final_rate") as f32,
        },
    }
}

fn consistency(entries: &Entries) -> Consistency {
    Consistency {
        policy: match entries.text("consistency.policy") {
            "bsp" => PolicySpec::Bsp,
            "asp" => PolicySpec::Asp,
            _ => PolicySpec::Ssp { staleness: entries.int("consistency.staleness") },
        },
        on_bad_gradient: match entries.text("consistency.on_bad_gradient") {
            "stop" => OnBadGradient::Stop,
            _ => OnBadGradient::Drop,
        },
    }
}

fn evaluate(entries: &Entries) -> Evaluate {
    let accuracies = entries.list("evaluate.accuracies").iter().filter_map(|value| match value {
        Value::Float(share) => Some(*share),
        _ => None,
    });
    Evaluate { every_epochs: entries.float("evaluate.every_epochs"), accuracies: accuracies.collect() }
}

fn transport(entries: &Entries) -> Transport {
    Transport {
        datagram_bytes: entries.number("transport.datagram_bytes"),
        initial_window_bytes: entries.int("transport.initial_window_bytes"),
        stripe_bytes: entries.int("transport.stripe_bytes"),
        streams: entries.int("transport.streams"),
        stream_window_bytes: entries.int("transport.stream_window_bytes"),
        connection_window_bytes: entries.int("transport.connection_window_bytes"),
        send_window_bytes: entries.int("transport.send_window_bytes"),
        socket_buffer_bytes: entries.int("transport.socket_buffer_bytes"),
    }
}

#[cfg(test)]
mod tests;
