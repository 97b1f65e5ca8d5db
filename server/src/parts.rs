//! What a server's parts are made from, out of the configuration: for the daemon and for the simulator.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::collective::buckets;
use slackline_core::config::{Allreduce, Config, Durability, OnBadGradient, OnNorm, Resolved};
use slackline_core::consistency::PolicySpec;
use slackline_core::ids::{ServerId, ShardId};
use slackline_core::layout::Layout;
use slackline_server_core::control::{AllreduceSettings, CoordinatorSettings};
use slackline_server_core::record::Asked;
use slackline_server_core::{Buffers, ControlSettings, HostSettings, ShardSettings};

use crate::files::Heading;

/// All shards with keys; none in an allreduce, where all workers have all values.
#[must_use]
pub fn all_shards(config: &Config) -> BTreeMap<ShardId, ShardSettings> {
    if config.sync.is_some() {
        return BTreeMap::new();
    }
    let layout = Arc::new(config.layout());
    let settings = |(id, keys)| {
        let settings = ShardSettings {
            id,
            keys,
            layout: layout.clone(),
            policy: config.consistency.policy,
            delay: config.consistency.delay,
            optimizer: config.server_optimizer(),
            workers: config.workers,
            batch: config.train.proportional.then_some(config.cut().unit * config.cut().units),
            steps: config.cluster.steps,
            guard: config.guard,
            pull: config.codec.pull,
            buffers: Default::default(),
        };
        (id, settings)
    };
    config.partition().shards().map(settings).collect()
}

/// The shards with keys that lie on one server in the beginning.
#[must_use]
pub fn shards(server: ServerId, config: &Config) -> Vec<ShardSettings> {
    let mut all = all_shards(config);
    config.partition().shards_on(server).filter_map(|(id, _)| all.remove(&id)).collect()
}

/// What the host of a shard on a server is made from; none for a shard that the model does not have.
#[must_use]
pub fn host_settings(server: ServerId, config: &Config, shard: ShardId) -> Option<HostSettings> {
    let shard = all_shards(config).remove(&shard)?;
    let (durability, replicas) = (config.cluster.durability, config.cluster.replicas);
    Some(HostSettings { server, shard, durability, replicas })
}

/// Gradients of one shard that are kept for reuse at most, where all have been in use at once.
const BUFFERS_PER_SHARD: usize = 64;

/// The buffers of a server, on which each of these shards can come to lie.
#[must_use]
pub fn buffers(shards: &BTreeMap<ShardId, ShardSettings>) -> Buffers {
    let longest = shards.values().map(|settings| settings.keys.len).max().unwrap_or_default();
    Buffers::new(longest as usize, BUFFERS_PER_SHARD * shards.len())
}

/// What the summary of a run begins with.
#[must_use]
pub fn heading(resolved: &Resolved) -> Heading {
    let config = &resolved.config;
    Heading {
        config_hash: resolved.hash(),
        seed: config.seed,
        policy: config.policy_text(),
        workers: config.workers,
        servers: config.servers,
        shards: if config.sync.is_some() { 0 } else { config.partition().shards().count() as u64 },
        model: config.model.name(),
        parameters: config.layout().len(),
    }
}

/// The control of one server that begins without anything; `boot` is a number that another start of the process does not have.
#[must_use]
pub fn control_settings(index: ServerId, resolved: &Resolved, boot: u64) -> ControlSettings {
    let config = &resolved.config;
    let layout = config.layout();
    let servers = (0..config.servers).map(ServerId);
    let partition = config.partition();
    let placed =
        servers.flat_map(|server| partition.shards_on(server).map(move |(shard, _)| (shard, server)));
    let shards = if config.sync.is_some() { Vec::new() } else { placed.collect() };
    ControlSettings {
        server: index,
        workers: config.workers,
        min_workers: config.cluster.min_workers,
        lease: Duration::from_secs_f64(config.cluster.lease_s),
        layout_hash: layout.hash(),
        layout_text: layout.to_string(),
        config_hash: resolved.hash(),
        boot,
        servers: config.servers,
        shards,
        steps: config.cluster.steps,
        disk: Vec::new(),
        on_disk: config.cluster.durability == Durability::Disk,
        stop_on_bad_gradient: config.consistency.on_bad_gradient == OnBadGradient::Stop
            || config.guard.on_norm == OnNorm::Stop,
        coordinator_at: config.coordinator(),
        coordinator: (index == config.coordinator()).then_some(CoordinatorSettings {
            policy: config.consistency.policy,
            cut: config.cut(),
            epochs: config.train.epochs,
            evaluate_every_epochs: config.evaluate.every_epochs,
            blind_loss: config.blind_loss(),
            sync: config.sync.as_ref().map(|sync| allreduce(sync, &layout)),
            replicas: config.cluster.replicas,
            keeps_map: false,
            checkpoint_every: config.checkpoint.every,
            resume: None,
        }),
    }
}

fn allreduce(sync: &Allreduce, layout: &Layout) -> AllreduceSettings {
    let count = buckets(layout, sync.bucket_bytes, sync.order).len().max(1) as u64;
    let bytes = layout.len() * size_of::<f32>() as u64;
    AllreduceSettings { topology: sync.topology, elastic: sync.elastic, bucket_bytes: bytes.div_ceil(count) }
}

/// What the figures of a run are asked for with.
#[must_use]
pub fn asked(config: &Config, whole: bool) -> Asked<'_> {
    Asked {
        // All members of an allreduce read the values of the same iteration, as under bsp.
        policy: if config.sync.is_some() { PolicySpec::Bsp } else { config.consistency.policy },
        prefetch: u64::from(config.consistency.prefetch),
        workers: u64::from(config.workers),
        accuracies: &config.evaluate.accuracies,
        losses: &config.evaluate.losses,
        whole,
    }
}

/// A number that another start of the process does not have, on any machine: the time, the process's own number, and what the system has
/// drawn for it, since clocks can be set back.
pub(crate) fn boot_number(began: Instant) -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = since_epoch.as_nanos() as u64 ^ began.elapsed().as_nanos() as u64;
    let drawn = RandomState::new().build_hasher().finish();
    nanoseconds.rotate_left(20) ^ u64::from(std::process::id()) ^ drawn
}
