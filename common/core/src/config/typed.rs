//! The typed values of checked entries, section by section.

use std::time::Duration;

use super::codec;
use super::resolve::Entries;
use super::simulation::Simulation;
use super::store;
use super::timers;
use super::transport;
use super::value::Value;
use super::{
    Allreduce, Checkpoint, CheckpointKind, Cluster, Config, Consistency, Data, Durability, Evaluate, Guard,
    Metrics, OnBadGradient, OnNorm, Steps, Train,
};
use crate::collective::{Order, Topology};
use crate::consistency::{DelaySpec, PolicySpec, Treatment};
use crate::local::{LocalSpec, Outer};
use crate::model::{DatasetSpec, ModelSpec};
use crate::optimizer::{OptimizerSpec, Per, RateSchedule, Rule, Shape};
use crate::stragglers::{Slowness, Stragglers};

impl Config {
    /// The typed values of checked entries.
    pub(super) fn from_entries(entries: &Entries) -> Self {
        Self {
            seed: entries.int("seed"),
            workers: entries.int("workers"),
            // All that an allreduce needs a server for is one place to meet.
            servers: if sync(entries).is_some() { 1 } else { entries.int("servers") },
            out: entries.text("out").to_owned(),
            cluster: cluster(entries),
            data: data(entries),
            model: model(entries),
            train: Train {
                epochs: entries.int("train.epochs"),
                batch: entries.int("train.batch"),
                microbatch: entries.int("train.microbatch"),
                threads: entries.int("train.threads"),
                overlap: entries.flag("train.overlap") && sync(entries).is_none(),
                proportional: entries.flag("train.proportional"),
            },
            optimizer: optimizer(entries),
            local: local(entries),
            consistency: consistency(entries),
            sync: sync(entries),
            codec: codec::of(entries),
            guard: guard(entries),
            checkpoint: checkpoint(entries),
            evaluate: evaluate(entries),
            metrics: Metrics { every_s: entries.float("metrics.every_s") },
            stragglers: stragglers(entries),
            stragglers_file: (entries.text("stragglers.kind") == "recorded")
                .then(|| entries.text("stragglers.file").to_owned()),
            simulation: simulation(entries),
            transport: transport::of(entries),
        }
    }
}

fn cluster(entries: &Entries) -> Cluster {
    let texts = |key: &str| {
        let text = |value: &Value| if let Value::Text(text) = value { Some(text.clone()) } else { None };
        entries.list(key).iter().filter_map(text).collect::<Vec<_>>()
    };
    let lease_s = entries.float("cluster.lease_s");
    // An allreduce has no shards that could be copied or kept.
    let has_shards = sync(entries).is_none();
    let store = store::of(entries);
    Cluster {
        addresses: texts("cluster.addresses"),
        keys: entries.text("cluster.keys").to_owned(),
        lease_s,
        connect_timeout_s: entries
            .float_or("cluster.connect_timeout_s")
            .unwrap_or_else(|| timers::search(Duration::from_secs_f64(lease_s), &store).as_secs_f64()),
        wait_report_s: entries.float_or("cluster.wait_report_s").unwrap_or(lease_s / 2.0),
        shards_per_server: entries.int("cluster.shards_per_server"),
        shard_bytes: entries.int("cluster.shard_bytes"),
        pin_threads: entries.flag("cluster.pin_threads"),
        exit_when_done: entries.flag("cluster.exit_when_done"),
        min_workers: entries.number("cluster.min_workers"),
        replicas: if has_shards { entries.int("cluster.replicas") } else { 1 },
        durability: match entries.text("cluster.durability") {
            "replicated" if has_shards => Durability::Replicated,
            "disk" if has_shards => Durability::Disk,
            _ => Durability::Memory,
        },
        steps: if has_shards && entries.text("cluster.steps") == "whole" {
            Steps::Whole
        } else {
            Steps::Parts
        },
        state: given(entries, "cluster.state"),
        store,
        coordinators: if has_shards { texts("cluster.coordinators") } else { Vec::new() },
    }
}

/// A text that may be left out.
fn given(entries: &Entries, key: &str) -> Option<String> {
    let text = entries.text(key);
    (!text.is_empty()).then(|| text.to_owned())
}

fn guard(entries: &Entries) -> Guard {
    let has_shards = sync(entries).is_none();
    let limit = |key| Some(entries.float(key)).filter(|limit| has_shards && *limit > 0.0);
    Guard {
        norm_max: limit("guard.norm_max").map(|norm| norm as f32),
        on_norm: match entries.text("guard.on_norm") {
            "clip" => OnNorm::Clip,
            "stop" => OnNorm::Stop,
            _ => OnNorm::Drop,
        },
        pushes_per_s: limit("guard.pushes_per_s"),
    }
}

fn checkpoint(entries: &Entries) -> Checkpoint {
    let share = entries.float("checkpoint.share");
    let kind = match entries.text("checkpoint.kind") {
        "priority" => CheckpointKind::Priority { share },
        "incremental" => CheckpointKind::Incremental,
        _ => CheckpointKind::Full,
    };
    let every: u64 = if sync(entries).is_some() { 0 } else { entries.int("checkpoint.every_clocks") };
    let every = match kind {
        CheckpointKind::Priority { share } => {
            ((every as f64 * share).round() as u64).max(u64::from(every > 0))
        }
        CheckpointKind::Full | CheckpointKind::Incremental => every,
    };
    Checkpoint {
        every: (every > 0).then_some(every),
        at: given(entries, "checkpoint.at"),
        keep: entries.int::<u32>("checkpoint.keep") as usize,
        kind,
        block: entries.int("checkpoint.block"),
        report_after: Duration::from_secs_f64(entries.float("checkpoint.report_after_s")),
    }
}

pub(super) fn data(entries: &Entries) -> Data {
    let dir = entries.text("data.dir");
    Data {
        dataset: match entries.text("data.dataset") {
            "fashion-mnist" => DatasetSpec::FashionMnist,
            "noise" => DatasetSpec::Noise {
                dimensions: entries.int("data.dimensions"),
                samples: entries.int("data.samples"),
            },
            _ => DatasetSpec::Digits,
        },
        dir: (!dir.is_empty()).then(|| dir.to_owned()),
        limit: entries.number("data.limit"),
    }
}

pub(super) fn model(entries: &Entries) -> ModelSpec {
    let widths = entries.list("model.widths").iter().filter_map(|value| match value {
        Value::Int(width) => u64::try_from(*width).ok(),
        _ => None,
    });
    match entries.text("model.kind") {
        "mlp" => ModelSpec::Mlp { widths: widths.collect() },
        "quadratic" => ModelSpec::Quadratic {
            condition: entries.float("model.condition"),
            noise: entries.float("model.noise"),
        },
        _ => ModelSpec::Softmax,
    }
}

fn optimizer(entries: &Entries) -> OptimizerSpec {
    let momentum = entries.float("optimizer.momentum") as f32;
    OptimizerSpec {
        rule: match entries.text("optimizer.kind") {
            "momentum" => Rule::Momentum {
                momentum,
                nesterov: entries.flag("optimizer.nesterov"),
                per: match entries.text("optimizer.momentum_per") {
                    "clock" => Per::Clock,
                    "ordered" => Per::Ordered,
                    _ => Per::Push,
                },
            },
            _ => Rule::Sgd,
        },
        rate: entries.float("optimizer.rate") as f32,
        weight_decay: entries.float("optimizer.weight_decay") as f32,
        decay_per_clock: entries.text("optimizer.decay_per") == "clock",
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
            "essp" => PolicySpec::Essp { staleness: entries.int("consistency.staleness") },
            "dssp" => PolicySpec::Dssp {
                low: entries.int("consistency.low"),
                high: entries.int("consistency.high"),
            },
            "backup" => PolicySpec::Backup { late: entries.int("consistency.backup") },
            "quorum" => PolicySpec::Quorum {
                count: quorum(entries),
                grace: Duration::from_secs_f64(entries.float("consistency.grace_s")),
                holds: local(entries).is_none_or(|local| local.fragments == 1),
            },
            "buffer" => PolicySpec::Buffer { count: quorum(entries) },
            _ => PolicySpec::Ssp { staleness: entries.int("consistency.staleness") },
        },
        prefetch: if sync(entries).is_none() { entries.int("consistency.prefetch") } else { 0 },
        delay: delay(entries),
        on_bad_gradient: match entries.text("consistency.on_bad_gradient") {
            "stop" => OnBadGradient::Stop,
            _ => OnBadGradient::Drop,
        },
    }
}

fn evaluate(entries: &Entries) -> Evaluate {
    let floats = |key| {
        let float = |value: &Value| if let Value::Float(number) = value { Some(*number) } else { None };
        entries.list(key).iter().filter_map(float).collect()
    };
    Evaluate {
        every_epochs: entries.float("evaluate.every_epochs"),
        accuracies: floats("evaluate.accuracies"),
        losses: floats("evaluate.losses"),
    }
}

fn sync(entries: &Entries) -> Option<Allreduce> {
    let advertise = entries.text("sync.advertise");
    (entries.text("sync.method") == "allreduce").then(|| Allreduce {
        topology: entries.text("sync.topology").parse().unwrap_or(Topology::Ring),
        bucket_bytes: entries.int::<u64>("sync.bucket_kib") << 10,
        order: if entries.text("sync.order") == "forward" { Order::Forward } else { Order::Backward },
        elastic: entries.flag("sync.elastic"),
        listen: entries.text("sync.listen").to_owned(),
        advertise: (!advertise.is_empty()).then(|| advertise.to_owned()),
    })
}

/// Gradients of a quorum; as many as there are workers are all.
fn quorum(entries: &Entries) -> Option<u32> {
    let workers: u32 = entries.int("workers");
    entries.number("consistency.quorum").filter(|count| *count < workers)
}

fn delay(entries: &Entries) -> DelaySpec {
    let strength = entries.float("consistency.delay_strength") as f32;
    let drop_at: u64 = entries.int("consistency.drop_at");
    DelaySpec {
        treatment: match entries.text("consistency.delay") {
            "inverse" => Treatment::Inverse,
            "inverse-root" => Treatment::InverseRoot,
            "compensate" => Treatment::Compensate { strength },
            "compensate-adaptive" => Treatment::CompensateAdaptive { strength },
            _ => Treatment::None,
        },
        drop_at: (drop_at > 0).then_some(drop_at),
    }
}

fn local(entries: &Entries) -> Option<LocalSpec> {
    let is_elastic = match entries.text("local.mode") {
        "difference" => false,
        "elastic" => true,
        _ => return None,
    };
    let rate = entries.float("local.outer_rate") as f32;
    Some(LocalSpec {
        steps: entries.int("local.steps"),
        outer: match entries.text("local.outer") {
            "sgd" if !is_elastic => Outer::Sgd { rate },
            "nesterov" if !is_elastic => {
                Outer::Nesterov { rate, momentum: entries.float("local.outer_momentum") as f32 }
            }
            _ => Outer::Average,
        },
        fragments: if is_elastic { 1 } else { entries.int("local.fragments") },
        elastic: is_elastic.then(|| entries.float("local.elasticity")),
    })
}

fn stragglers(entries: &Entries) -> Stragglers {
    let factor = entries.float("stragglers.factor");
    Stragglers {
        compute_s: entries.float("stragglers.compute_s"),
        jitter: entries.float("stragglers.jitter"),
        slowness: match entries.text("stragglers.kind") {
            "exp" => Slowness::Exponential,
            "lognormal" => Slowness::Lognormal { sigma: entries.float("stragglers.sigma") },
            "pareto" => Slowness::Pareto { alpha: entries.float("stragglers.alpha") },
            "transient" => {
                Slowness::Transient { probability: entries.float("stragglers.probability"), factor }
            }
            "rotating" => Slowness::Rotating { factor, burst: entries.int("stragglers.burst") },
            "permanent" => Slowness::Permanent { factor, count: entries.int("stragglers.slow") },
            "recorded" => Slowness::Recorded { seconds: Vec::new() },
            _ => Slowness::None,
        },
    }
}

fn simulation(entries: &Entries) -> Simulation {
    let bytes = |key| {
        let megabits = entries.float(key);
        (megabits > 0.0).then_some(megabits * 1e6 / 8.0)
    };
    let above_zero = |key| Some(entries.float(key)).filter(|seconds| *seconds > 0.0);
    let incidents = entries.list("simulation.incidents").iter().filter_map(|value| match value {
        Value::Text(text) => text.parse().ok(),
        _ => None,
    });
    Simulation {
        bandwidth: bytes("simulation.bandwidth_mbps"),
        latency_s: entries.float("simulation.latency_s"),
        loss: entries.float("simulation.loss"),
        apply_bytes_per_s: bytes("simulation.apply_mbps"),
        disk_bytes_per_s: bytes("simulation.disk_mbps"),
        incidents: incidents.collect(),
        worker_mtbf_s: above_zero("simulation.worker_mtbf_s"),
        // An allreduce has no servers but the one where its workers meet.
        server_mtbf_s: above_zero("simulation.server_mtbf_s").filter(|_| sync(entries).is_none()),
        down_s: entries.float("simulation.down_s"),
    }
}
