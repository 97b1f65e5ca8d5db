//! What a run with faults has left, looked at: all pushes again on one machine against the last checkpoint, the policy, the traces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use slackline_chaos::bound;
use slackline_chaos::pushes::{Piece, Pushes, StepId};
use slackline_chaos::replay::{Replayed, Start, Truth, disagreements, replay};
use slackline_chaos::report::{ShardReport, TraceReport};
use slackline_checkpoint::Store;
use slackline_core::config::{CheckpointKind, Config, Guard};
use slackline_core::consistency::{PolicySpec, Treatment};
use slackline_core::ids::{BatchIndex, KeyRange, ShardId, Version};
use slackline_core::optimizer::{Optimizer, Shape};
use slackline_core::wire::PushOutcome;
use slackline_worker::model;
use slackline_worker::push_log::{PushLog, PushRecord};

use super::Setup;
use super::cluster::PUSHES;
use super::follow::log_of;
use super::storm::Storm;
use super::stretches;
use crate::failure::Failure;
use crate::say;

/// Updates that a replay may apply while it looks for steps that no answer names, beyond one time through.
const EFFORT: u64 = 2_000_000;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) shards: Vec<ShardReport>,
    pub(super) disagreements: Vec<String>,
    /// Used, of how many, and used again.
    pub(super) batches: (u64, u64, u64),
    pub(super) traces: Option<TraceReport>,
}

/// Whether the order of versions alone says what the values must be; if not, what of the configuration must be otherwise.
pub(super) fn can_be_replayed(config: &Config) -> Result<(), &'static str> {
    let schedule = config.optimizer.schedule;
    let delay = config.consistency.delay;
    let conditions = [
        (config.sync.is_none(), "it needs sync.method=server"),
        (config.local.is_none(), "it needs local.mode=off"),
        (
            !config.consistency.policy.takes_means(),
            "it needs a policy that applies each push alone: ssp, essp, dssp or asp",
        ),
        (
            schedule.shape == Shape::Constant && schedule.warmup == 0.0,
            "it needs optimizer.schedule=constant without optimizer.warmup",
        ),
        (
            delay.treatment == Treatment::None && delay.drop_at.is_none(),
            "it needs consistency.delay=none and no drop_at",
        ),
        (!config.train.proportional, "it needs train.proportional=false"),
        (config.guard == Guard::default(), "it needs no guard"),
        (config.checkpoint.every.is_some(), "it needs checkpoints: checkpoint.every_clocks above 0"),
        (config.checkpoint.kind == CheckpointKind::Full, "it needs checkpoint.kind=full"),
    ];
    conditions.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, why)| Err(*why))
}

pub(super) fn examine(out: &Path, setup: &Setup, storm: &Storm) -> Result<Found, Failure> {
    let config = &setup.resolved.config;
    let run = out.join("rough");
    let pushes = read_all(&run.join(PUSHES), config.workers)?;
    let mut found = Found { traces: Some(stretches::check(out, storm, config)), ..Found::default() };
    let finals = match finals(&run, setup) {
        Ok(finals) => finals,
        Err(why) => {
            say(&format!("no final values: {why}"));
            return Ok(found);
        }
    };
    let mut replayed = BTreeMap::new();
    for (shard, keys) in config.partition().shards() {
        let empty = Pushes::default();
        let pushes = pushes.get(&shard).unwrap_or(&empty);
        let version = finals.versions.get(&shard).copied().unwrap_or_default();
        let truth = Truth { version, values: &finals.values[keys.as_indices()] };
        let shown = replay(pushes, &start(config, keys), truth, EFFORT);
        found.shards.push(report(shard, pushes, &shown, version, config));
        replayed.insert(shard, shown);
    }
    found.disagreements = disagreements(&replayed)
        .into_iter()
        .map(|(step, lacking)| format!("{step} is not in {}", listed(&lacking)))
        .collect();
    if let Some((shard, first)) = replayed.first_key_value() {
        found.batches = batches(pushes.get(shard), first, setup.batches);
    }
    Ok(found)
}

fn listed(shards: &[ShardId]) -> String {
    shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn report(
    shard: ShardId,
    pushes: &Pushes,
    replayed: &Replayed,
    version: Version,
    config: &Config,
) -> ShardReport {
    let staleness = match config.consistency.policy {
        PolicySpec::Ssp { staleness } | PolicySpec::Essp { staleness } => Some(staleness),
        PolicySpec::Dssp { high, .. } => Some(high),
        _ => None,
    };
    let prefetch = config.consistency.prefetch as usize;
    let bounded = bound::check(pushes, &replayed.order, staleness, prefetch);
    let names = |steps: &[StepId]| steps.iter().map(ToString::to_string).collect();
    ShardReport {
        shard: shard.0,
        version: version.0,
        answered: pushes.answered().count() as u64,
        lost: names(&replayed.lost),
        doubled: names(&replayed.doubled),
        unexplained: replayed.unexplained.len() as u64,
        filled: replayed.filled,
        differing: replayed.differing,
        lead_max: bounded.lead_max,
        breaches: bounded.breaches,
        first_breach: bounded.first,
    }
}

/// Batches in the values, of how many, and how many times one was used again.
fn batches(pushes: Option<&Pushes>, replayed: &Replayed, all: u64) -> (u64, u64, u64) {
    let of = |step: &StepId| pushes.and_then(|pushes| pushes.piece(step)).map(|piece| piece.batch);
    let used: Vec<BatchIndex> = replayed.order.iter().filter_map(|(_, step)| of(step)).collect();
    let distinct = used.iter().collect::<BTreeSet<_>>().len() as u64;
    (distinct, all, used.len() as u64 - distinct)
}

/// What all logs say, by shard.
fn read_all(folder: &Path, workers: u32) -> Result<BTreeMap<ShardId, Pushes>, Failure> {
    let mut all: BTreeMap<ShardId, Pushes> = BTreeMap::new();
    for worker in 0..workers {
        let path = log_of(folder, worker);
        if !path.exists() {
            continue;
        }
        for record in PushLog::open(&path).map_err(Failure::world)? {
            match record.map_err(Failure::world)? {
                PushRecord::Push { header, gradient } => {
                    let (worker, incarnation, sequence) =
                        (header.worker, header.incarnation, header.sequence);
                    let (clock, pulled) = (header.clock, header.version);
                    let piece =
                        Piece { clock, pulled, batch: header.batch, samples: header.samples, gradient };
                    let step = StepId { worker, incarnation, sequence };
                    all.entry(header.shard).or_default().sent(step, piece);
                }
                PushRecord::Answer { worker, incarnation, pushed, .. } => {
                    let step = StepId { worker, incarnation, sequence: pushed.sequence };
                    let shard = all.entry(pushed.shard).or_default();
                    match pushed.outcome {
                        PushOutcome::Applied { version, .. } => shard.applied(step, version),
                        // A life that was fenced may have been heard before that; what was applied then is found as if unanswered.
                        PushOutcome::Fenced | PushOutcome::OutOfWindow => {}
                        _ => shard.left_out(step),
                    }
                }
            }
        }
    }
    Ok(all)
}

/// The values of the whole model in the last checkpoint, and the shards' versions.
struct Finals {
    values: Vec<f32>,
    versions: BTreeMap<ShardId, Version>,
}

fn finals(run: &Path, setup: &Setup) -> Result<Finals, String> {
    let at = run.join(slackline_server::CHECKPOINTS).display().to_string();
    let manifest = slackline_server::resume(&at, &setup.resolved).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let keys = KeyRange::new(0, manifest.stamp.keys);
    let loaded = runtime
        .block_on(async { Store::open(&at)?.load(&manifest, keys).await })
        .map_err(|error| error.to_string())?;
    let values = loaded.arrays.iter().find(|array| array.name == "values").ok_or("it has no values")?;
    let versions = loaded.sources.iter().map(|source| (source.shard, source.version)).collect();
    Ok(Finals { values: values.values.to_vec(), versions })
}

/// A shard before its first push.
fn start(config: &Config, keys: KeyRange) -> Start {
    let layout = config.layout();
    let mut values = vec![0.0; KeyRange::new(0, layout.len()).len as usize];
    let (inputs, classes) = (config.data.dataset.input_count(), config.data.dataset.class_count());
    model::build(&config.model, inputs, classes, 1).initialize(config.seed, &mut values);
    let optimizer = Optimizer::new(config.server_optimizer(), &layout, keys, config.workers);
    Start { values: values[keys.as_indices()].to_vec(), optimizer }
}
