//! What a simulation is made from, out of the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slackline_core::config::{OnBadGradient, OnNorm, Resolved, Store};
use slackline_core::layout::Layout;
use slackline_core::model::DatasetSpec;
use slackline_core::partition::Partition;
use slackline_core::schedule::DataOrder;
use slackline_core::stragglers::Slowness;
use slackline_worker::dataset::{self, DataSettings, Dataset};
use slackline_worker_core::GroupSettings;

use crate::allreduce::GroupPlan;
use crate::engine::Engine;
use crate::failure::SimFailure;
use crate::links::duration;
use crate::sizes::Sizes;
use crate::world::Plan;

/// Nobody reads reports of waits in virtual time.
pub(crate) const NEVER_REPORTED: Duration = Duration::from_nanos(u64::MAX / 4);

/// Time between two words of a member of a group to the coordinator.
const STEP_REPORT: Duration = Duration::from_millis(250);

/// Keys that begin a shard on a border of their own: the fewest that a shard can have.
const SHARD_KEYS_MIN: u64 = 16;

/// Training images of Fashion-MNIST, known without reading them.
const FASHION_SAMPLES: u64 = 60_000;

/// The configuration, with the recorded times in it where it names a file of them.
pub(crate) fn with_recorded_times(resolved: &Resolved) -> Result<Resolved, SimFailure> {
    let mut resolved = resolved.clone();
    // Nothing is lost for good in virtual time but what an incident says: server 0 coordinates.
    resolved.config.cluster.store = Store::Local;
    let is_empty =
        matches!(&resolved.config.stragglers.slowness, Slowness::Recorded { seconds } if seconds.is_empty());
    if let (true, Some(file)) = (is_empty, &resolved.config.stragglers_file) {
        let failed = |reason: String| SimFailure::Recorded { file: PathBuf::from(file), reason };
        let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        let recorded = Slowness::recorded(&text).map_err(|error| failed(error.to_string()))?;
        resolved.config.stragglers.slowness = recorded;
    }
    Ok(resolved)
}

/// The plan of a run and where its gradients come from.
pub(crate) fn plan(
    resolved: Resolved,
    timing_only: bool,
    threads: usize,
) -> Result<(Plan, Engine), SimFailure> {
    let config = &resolved.config;
    let loaded = load(&resolved, timing_only)?;
    let sample_count = match (&loaded, config.data.dataset) {
        (Some(loaded), _) => loaded.dataset.train.len() as u64,
        (None, spec) => limited(samples_of(spec), config.data.limit),
    };
    let order = DataOrder::new(config.seed, sample_count, config.cut().unit, config.train.epochs);
    let true_partition = config.partition();
    let data_hash = loaded.as_ref().map_or(0, |loaded| loaded.fingerprint);
    let (partition, layout, engine) = match loaded {
        None => {
            let (partition, layout) = smallest(&true_partition, config.layout());
            let engine = Engine::timing(layout.len());
            (partition, layout, engine)
        }
        Some(Loaded { dataset, .. }) => {
            let engine = Engine::real(config, dataset, order.clone(), threads)?;
            (true_partition.clone(), config.layout(), engine)
        }
    };
    let mut shard_bytes = vec![0; true_partition.shard_count() as usize];
    for (shard, keys) in true_partition.shards() {
        shard_bytes[shard.0 as usize] = 4 * keys.len;
    }
    let sizes = timing_only.then(|| Sizes::of(config));
    let tick = config.timers().tick.as_secs_f64().min(config.metrics.every_s / 2.0).max(0.01);
    let mut plan = Plan {
        shards: BTreeMap::new(),
        partition,
        layout: Arc::new(layout),
        shard_bytes,
        sizes,
        config_hash: resolved.hash(),
        data_hash,
        sample_count,
        order,
        lease: duration(config.cluster.lease_s),
        apply_s: config.simulation.apply_bytes_per_s.map_or(0.0, f64::recip),
        disk_s: config.simulation.disk_bytes_per_s.map_or(0.0, f64::recip),
        tick: duration(tick),
        group: config.sync.as_ref().map(|sync| GroupPlan::new(config, sync)),
        resolved,
    };
    plan.shards = plan.shard_settings();
    Ok((plan, engine))
}

/// Data in memory, with their fingerprint.
#[derive(Clone)]
struct Loaded {
    dataset: Arc<Dataset>,
    fingerprint: u64,
}

/// The data that were loaded last. A sweep simulates hundreds of runs on the same data in one process, several at once: they read
/// one copy, and it is read from the disk once.
static SHELF: Mutex<Option<(DataSettings, Loaded)>> = Mutex::new(None);

/// The data; none where only their number matters and is known.
fn load(resolved: &Resolved, timing_only: bool) -> Result<Option<Loaded>, SimFailure> {
    if timing_only {
        return Ok(None);
    }
    let data = &resolved.config.data;
    let settings =
        DataSettings { spec: data.dataset, dir: data.dir.as_ref().map(PathBuf::from), limit: data.limit };
    // What is loaded is put there whole, so a panic elsewhere spoils nothing.
    let mut shelf = SHELF.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, loaded)) = shelf.as_ref().filter(|(of, _)| *of == settings) {
        return Ok(Some(loaded.clone()));
    }
    let dataset = Arc::new(dataset::load(&settings)?);
    let loaded = Loaded { fingerprint: dataset.fingerprint(), dataset };
    *shelf = Some((settings, loaded.clone()));
    Ok(Some(loaded))
}

fn samples_of(spec: DatasetSpec) -> u64 {
    match spec {
        DatasetSpec::Digits => DIGITS_SAMPLES,
        DatasetSpec::FashionMnist => FASHION_SAMPLES,
        DatasetSpec::Noise { samples, .. } => samples,
    }
}

fn limited(samples: u64, limit: Option<u64>) -> u64 {
    limit.map_or(samples, |limit| samples.min(limit))
}

/// Training samples of the bundled digits.
const DIGITS_SAMPLES: u64 = 1442;

/// As many shards with keys, each as small as can be: without gradients only their number matters to the cores.
fn smallest(partition: &Partition, layout: Layout) -> (Partition, Layout) {
    let shards = partition.shard_count();
    let keys = SHARD_KEYS_MIN * u64::from(shards);
    if keys >= partition.key_count() {
        // It is so small itself that some shards may have no keys.
        return (partition.clone(), layout);
    }
    let servers = partition.server_count();
    let mut small = Layout::new();
    small.parameter("values", &[keys], false);
    (Partition::new(keys, servers, shards / servers), small)
}

impl Plan {
    /// The settings of a worker's core.
    pub(crate) fn worker_settings(&self) -> slackline_worker_core::Settings {
        let config = self.config();
        slackline_worker_core::Settings {
            partition: self.partition.clone(),
            layout: self.layout.as_ref().clone(),
            coordinator: config.coordinator(),
            config_hash: self.config_hash,
            data_hash: self.data_hash,
            sample_count: self.sample_count,
            batch_count: self.order.batch_count(),
            lease: self.lease,
            connect_timeout: duration(config.cluster.connect_timeout_s),
            wait_report: NEVER_REPORTED,
            units_max: u32::try_from(config.cut().units_max()).unwrap_or(u32::MAX),
            prefetch: config.consistency.prefetch,
            begins_early: config.begins_early(),
            refreshes: config.consistency.policy.refreshes(),
            steps: config.cluster.steps,
            has_copies: config.cluster.replicas > 1,
            fragments: config.local.map_or(1, |local| local.fragments),
            group: config.sync.as_ref().map(|_| GroupSettings {
                // Who meets whom is known here by name.
                peers_at: "simulated:1".to_owned(),
                unit: config.cut().unit,
                sample_total: self.sample_count * config.train.epochs,
                evaluate_every: (config.evaluate.every_epochs * self.sample_count as f64) as u64,
                step_report: STEP_REPORT,
            }),
            stop_on_bad_gradient: config.consistency.on_bad_gradient == OnBadGradient::Stop,
            stop_on_norm: config.guard.on_norm == OnNorm::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_number_of_digits_is_the_true_one() {
        let digits = DataSettings { spec: DatasetSpec::Digits, dir: None, limit: None };
        assert_eq!(dataset::load(&digits).unwrap().train.len() as u64, DIGITS_SAMPLES);
    }

    #[test]
    fn small_shards_are_as_many_as_the_true_ones_and_lie_on_the_same_servers() {
        for (keys, servers, per_server) in [(535_818, 3, 2), (7_850, 16, 4), (20, 5, 1), (64, 4, 1)] {
            let partition = Partition::new(keys, servers, per_server);
            let mut layout = Layout::new();
            layout.parameter("all", &[keys], true);
            let (small, layout) = smallest(&partition, layout);
            assert_eq!(small.key_count(), layout.len());
            let shards = |partition: &Partition| -> Vec<_> {
                partition.shards().map(|(shard, _)| (shard, partition.server_of(shard))).collect()
            };
            assert_eq!(shards(&small), shards(&partition), "{keys} keys, {servers} servers");
        }
    }
}
