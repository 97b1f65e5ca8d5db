//! What a server's parts are made from, out of the configuration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::config::{Config, OnBadGradient, Resolved};
use slackline_core::ids::ServerId;
use slackline_server_core::control::CoordinatorSettings;
use slackline_server_core::{ControlSettings, ShardSettings};

use crate::files::Heading;
use crate::session::Shared;

pub(crate) fn shards(server: ServerId, config: &Config) -> Vec<ShardSettings> {
    let layout = Arc::new(config.layout());
    let (policy, optimizer) = (config.consistency.policy, config.optimizer);
    let settings = |(id, keys)| ShardSettings { id, keys, layout: layout.clone(), policy, optimizer };
    config.partition().shards_on(server).map(settings).collect()
}

pub(crate) fn heading(resolved: &Resolved) -> Heading {
    let config = &resolved.config;
    Heading {
        config_hash: resolved.hash(),
        seed: config.seed,
        policy: config.consistency.policy.to_string(),
        workers: config.workers,
        servers: config.servers,
        shards: config.partition().shards().count() as u64,
        model: config.model.name(),
        parameters: config.layout().len(),
    }
}

pub(crate) fn control_settings(
    index: ServerId,
    resolved: &Resolved,
    shared: &Shared,
    began: Instant,
) -> ControlSettings {
    let config = &resolved.config;
    let layout = config.layout();
    ControlSettings {
        server: index,
        workers: config.workers,
        lease: Duration::from_secs_f64(config.cluster.lease_s),
        wait_report: Duration::from_secs_f64(config.cluster.wait_report_s),
        layout_hash: layout.hash(),
        layout_text: layout.to_string(),
        config_hash: resolved.hash(),
        boot: boot_number(began),
        shards: shared.owners.keys().copied().collect(),
        stop_on_bad_gradient: config.consistency.on_bad_gradient == OnBadGradient::Stop,
        coordinator: (index == ServerId(0)).then_some(CoordinatorSettings {
            policy: config.consistency.policy,
            batch: config.train.batch,
            epochs: config.train.epochs,
            evaluate_every_epochs: config.evaluate.every_epochs,
        }),
    }
}

/// A number that another start of the process does not have: the time and the process's own number.
fn boot_number(began: Instant) -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let nanoseconds = since_epoch.as_nanos() as u64 ^ began.elapsed().as_nanos() as u64;
    nanoseconds.rotate_left(20) ^ u64::from(std::process::id())
}
