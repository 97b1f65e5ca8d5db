//! `slackline chaos`: a cluster of real processes over real QUIC, what a plan does to it, and what must hold afterwards.
//!
//! Every process reaches every server through a relay of its own (`slackline_chaos::relay`), which cuts, loses and delays packets on any
//! machine and for any user; network namespaces with netem are not used. Read in this order: `cluster` (the processes and their links),
//! `storm` (one run: with faults, or calm), `follow` (what the workers' push logs say while they are written), `disk` (one that can be full),
//! `measure` (times and throughput), `examine` (the replay, the policy, the traces).

mod cluster;
mod disk;
mod examine;
mod follow;
mod measure;
mod storm;
mod stretches;

use std::path::Path;

use slackline_chaos::plan::Plan;
use slackline_chaos::report::Report;
use slackline_chaos::schedule::draw;
use slackline_core::config::{Config, Resolved};
use slackline_core::schedule::DataOrder;
use slackline_worker::dataset::{self, DataSettings};

use crate::cli::ChaosArgs;
use crate::failure::{Failure, WORLD};
use crate::launch::refuse_apart;
use crate::{configuration, keys, print, say, sweep};
use cluster::Site;
use measure::Measured;
use storm::{Ended, Storm};

/// What chooses a scale of the plan in the place of a key.
const SCALE: &str = "scale";

/// What is decided here, whatever the file says.
const OWN: [&str; 7] = [
    "out",
    "train.epochs",
    "checkpoint.at",
    "cluster.addresses",
    "cluster.exit_when_done",
    "cluster.keys",
    "cluster.state",
];

pub(crate) fn run(args: &ChaosArgs) -> Result<u8, Failure> {
    let (scale, sets) = scale_of(&args.sets)?;
    let plan = Plan::read(&args.plan, scale.as_deref()).map_err(Failure::user)?;
    let setup = Setup::new(args, sets, &plan)?;
    refuse_apart(&setup.resolved.config)?;
    let Config { workers, servers, .. } = setup.resolved.config;
    let faults = draw(&plan, args.seed, workers, servers);
    let keys = keys::throw_away(&std::env::temp_dir())
        .map_err(|error| Failure::world(format!("no temporary folder for the keys: {error}")))?;
    let key_folder = keys.path().join("keys");
    slackline_net::keys::init(&key_folder).map_err(Failure::world)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::world)?;
    let site = |name: &str| Site {
        file: args.file.clone(),
        sets: setup.sets.clone(),
        out: args.out.join(name),
        keys: key_folder.clone(),
        workers,
        servers,
        seed: args.seed,
    };
    say(&format!("without faults: {:.0} s", setup.seconds));
    let calm = runtime.block_on(Storm::calm(site("calm"), setup.patience_s()))?;
    if let Ended::Interrupted(code) = calm.ended {
        return Ok(code);
    }
    say(&format!("with {} faults: {:.0} s or somewhat more", faults.len(), setup.seconds));
    let rough = runtime.block_on(Storm::rough(site("rough"), setup.patience_s(), &plan, &faults))?;
    if let Ended::Interrupted(code) = rough.ended {
        return Ok(code);
    }
    let report = judge(args, &setup, &calm, &rough)?;
    let path = args.out.join("chaos.json");
    std::fs::write(&path, report.json())
        .map_err(|error| Failure::world(format!("{} cannot be written: {error}", path.display())))?;
    print(&format!("{report}results    {}\n", path.display()))?;
    let broken = report.must_hold().iter().any(|verdict| !verdict.holds);
    let missed = report.aims().iter().any(|verdict| !verdict.holds);
    Ok(if broken || (args.check_timing && missed) { WORLD } else { 0 })
}

/// What both runs have in common.
struct Setup {
    /// Everything said over the file.
    sets: Vec<String>,
    resolved: Resolved,
    /// How long a run without faults is.
    seconds: f64,
    /// Batches of a run.
    batches: u64,
    test_samples: u64,
}

impl Setup {
    fn new(args: &ChaosArgs, mut sets: Vec<String>, plan: &Plan) -> Result<Self, Failure> {
        let load = |sets: &[String]| {
            configuration::load(&args.file, sets, std::env::vars_os()).map_err(Failure::user)
        };
        let config = load(&sets)?.config;
        examine::can_be_replayed(&config).map_err(|why| {
            Failure::user(format!("{}: {why}, or its runs cannot be replayed", args.file.display()))
        })?;
        let data = dataset::load(&DataSettings {
            spec: config.data.dataset,
            dir: config.data.dir.as_ref().map(Into::into),
            limit: config.data.limit,
        })
        .map_err(Failure::user)?;
        let (samples, test_samples) = (data.train.len() as u64, data.test.len() as u64);
        let seconds = plan.calm_s + plan.duration_s + plan.calm_s;
        let rate = f64::from(config.workers) * config.train.batch as f64 / config.stragglers.compute_s;
        // Faults make it longer, never shorter: when the plan is through, some calm is left.
        let epochs = (seconds * rate / samples as f64).ceil().max(1.0) as u64;
        sets.push(format!("train.epochs={epochs}"));
        let order = DataOrder::new(config.seed, samples, config.cut().unit, epochs);
        Ok(Self { resolved: load(&sets)?, sets, seconds, batches: order.batch_count(), test_samples })
    }

    /// When a run that is not over is given up.
    fn patience_s(&self) -> f64 {
        60.0 + 3.0 * self.seconds
    }
}

fn judge(args: &ChaosArgs, setup: &Setup, calm: &Storm, rough: &Storm) -> Result<Report, Failure> {
    let config = &setup.resolved.config;
    let Measured { faults, throughput, stalls, samples_each_s } = measure::measure(calm, rough, config);
    let found = examine::examine(&args.out, setup, rough)?;
    let scale = args.sets.iter().map(|set| format!(" --set {set}")).collect::<String>();
    let mut broken_off = rough.ended.why();
    if let (None, Some(why)) = (&broken_off, calm.ended.why()) {
        broken_off = Some(format!("without faults: {why}"));
    }
    let mut exits = calm.exits.clone();
    exits.iter_mut().for_each(|exit| exit.name = format!("without faults, {}", exit.name));
    exits.extend(rough.exits.iter().cloned());
    let (file, plan) = (args.file.display(), args.plan.display());
    Ok(Report {
        command: format!("slackline chaos {file} --plan {plan} --seed {}{scale}", args.seed),
        cluster: (config.workers, config.servers),
        lease_s: config.cluster.lease_s,
        broken_off,
        faults,
        throughput,
        stalls,
        samples_each_s,
        shards: found.shards,
        disagreements: found.disagreements,
        steps_are_whole: config.cluster.steps == slackline_core::config::Steps::Whole,
        batches: found.batches,
        traces: found.traces,
        exits,
        accuracy: (accuracy(&args.out.join("rough")), accuracy(&args.out.join("calm"))),
        test_samples: setup.test_samples,
    })
}

/// The final accuracy of a run, as its summary has it.
fn accuracy(run: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(run.join("summary.json")).ok()?;
    let summary: serde_json::Value = serde_json::from_str(&text).ok()?;
    summary.pointer("/final/test_accuracy")?.as_f64()
}

/// The scale, and what else is set; refuses what would have no effect.
fn scale_of(sets: &[String]) -> Result<(Option<String>, Vec<String>), Failure> {
    let key_of = |set: &str| set.split_once('=').map(|(key, _)| key.trim().to_owned());
    if let Some(own) = sets.iter().filter_map(|set| key_of(set)).find(|key| OWN.contains(&key.as_str())) {
        return Err(Failure::user(format!(
            "--set {own}: has no effect, since `chaos` decides that itself; leave it out"
        )));
    }
    let scale = sweep::overlay(sets)?.scale;
    let others = sets.iter().filter(|set| key_of(set).as_deref() != Some(SCALE)).cloned().collect();
    Ok((scale, others))
}
