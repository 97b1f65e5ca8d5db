//! Gradients beyond a limit, and workers that push too often: left out, shortened or the end of the run, and named in each case.

use std::sync::Arc;

use serde_json::Value;
use slackline_checkpoint::{Manifest, Store};
use slackline_core::ids::{Clock, KeyRange, Sequence};
use slackline_core::wire::{Guarded, PushOutcome, ToPeer, TransferHeader, TransferKind};
use slackline_net::Role;

use crate::cluster::{Cluster, configuration, resolved};
use crate::peer::{Peer, push_header};
use crate::process::Ended;
use crate::runs::number;
use crate::stage::Stage;

/// One shard and workers in step, whose values change by the rate times the gradient and nothing else.
const STEPS: &[(&str, &str)] =
    &[("servers", "1"), ("consistency.policy", "\"bsp\""), ("optimizer.kind", "\"sgd\"")];

fn run(stage: &Stage, over: &[(&str, &str)]) -> Ended {
    let config = stage.write("run.toml", &configuration(&[STEPS, over].concat()));
    stage.run(&["run", &config, "--out", &stage.text_path("out")])
}

fn summary(stage: &Stage) -> Value {
    serde_json::from_str(&stage.read("out/summary.json")).unwrap()
}

/// The line of a server that names what is beyond a limit: whose, of which step, and in which tensor.
fn named<'a>(ended: &'a Ended, parts: &[&str]) -> &'a str {
    let line = ended.error.lines().find(|line| line.contains("is beyond a limit")).unwrap_or_else(|| {
        panic!("nothing is named in {}", ended.error);
    });
    for part in ["a gradient of worker ", " at clock ", "(push ", "tensor layer0."].iter().chain(parts) {
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
    line
}

// Between the norms of the first gradients and those of later ones.
const SOME: (&str, &str) = ("guard.norm_max", "0.8");

#[test]
fn gradients_beyond_the_largest_norm_are_left_out_counted_and_named_and_the_run_goes_on() {
    let stage = Stage::new();
    let ended = run(&stage, &[SOME, ("optimizer.rate", "0.3")]);
    assert_eq!(ended.code, 0, "{}", ended.error);
    let summary = summary(&stage);
    let count = |path: &str| number(&summary, path);
    assert!(count("/pushes/applied") > 0.0 && count("/pushes/dropped") > 0.0, "{summary}");
    assert_eq!(count("/decisions/drop/guarded"), count("/pushes/dropped"), "{summary}");
    assert_eq!(count("/pushes/sent"), count("/pushes/applied") + count("/pushes/dropped"), "{summary}");
    // It would be beyond the limit again, so no batch is done twice for it.
    assert_eq!((count("/epochs"), count("/batches_repeated")), (4.0, 0.0), "{summary}");
    named(&ended, &["guard.norm_max is 8.0000e-1: it is left out"]);
    let told = format!("guarded {}", count("/pushes/dropped"));
    assert!(ended.output.contains(&told), "{told:?} is not in {}", ended.output);
}

/// Of each checkpoint of the run: updates up to it, and the values.
fn states(stage: &Stage, newest: &Manifest) -> Vec<(u64, Arc<Vec<f32>>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = Store::open(&stage.text_path("out/checkpoints")).unwrap();
    let state = |number| {
        runtime.block_on(async {
            // One is given up where a newer cut comes before the store has had time for it.
            let manifest = store.manifest(number).await.ok()?;
            let loaded = store.load(&manifest, KeyRange::new(0, manifest.stamp.keys)).await.unwrap();
            let array = loaded.arrays.into_iter().find(|array| array.name == "values").unwrap();
            Some((manifest.parts[0].version.0, array.values))
        })
    };
    let mut states: Vec<_> = (1..=newest.number).filter_map(state).collect();
    // The last of the intervals can be the end as well.
    states.dedup_by_key(|(updates, _)| *updates);
    states
}

#[test]
fn no_gradient_moves_the_values_by_more_than_the_norm_that_it_is_shortened_to() {
    let stage = Stage::new();
    let over = [
        ("guard.norm_max", "0.001"),
        ("guard.on_norm", "\"clip\""),
        ("optimizer.rate", "0.5"),
        ("checkpoint.every_clocks", "10"),
        ("checkpoint.keep", "100"),
    ];
    let ended = run(&stage, &over);
    assert_eq!(ended.code, 0, "{}", ended.error);
    let summary = summary(&stage);
    assert_eq!(number(&summary, "/pushes/dropped"), 0.0, "{summary}");
    assert_eq!(number(&summary, "/pushes/sent"), number(&summary, "/pushes/applied"), "{summary}");
    named(&ended, &["guard.norm_max is 1.0000e-3: it is shortened to that"]);
    let resolved = resolved(&[STEPS, &over].concat());
    let newest = slackline_server::resume(&stage.text_path("out/checkpoints"), &resolved).unwrap();
    let states = states(&stage, &newest);
    assert!(states.len() > 2, "{} checkpoints", states.len());
    for pair in states.windows(2) {
        let [(before, from), (after, to)] = pair else { unreachable!() };
        let squares = from.iter().zip(to.iter()).map(|(from, to)| f64::from(to - from).powi(2));
        let (moved, most) = (squares.sum::<f64>().sqrt(), 0.5 * 0.001 * (after - before) as f64);
        // Every gradient is longer than that, and none far off the way of the others.
        assert!((0.3 * most..1.001 * most).contains(&moved), "{moved} of {most} from {before} to {after}");
    }
}

#[test]
fn a_gradient_beyond_the_largest_norm_stops_the_run_where_that_is_asked_for() {
    let stage = Stage::new();
    let ended = run(&stage, &[("guard.norm_max", "0.001"), ("guard.on_norm", "\"stop\"")]);
    assert_eq!(ended.code, 1, "{}", ended.error);
    named(&ended, &["guard.norm_max is 1.0000e-3: the run is stopped"]);
    let error = &ended.error[ended.error.find("error: ").unwrap()..];
    for part in ["the gradient of worker ", " at clock 0 (push 1)", "guard.norm_max", "shard 0"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
    assert!(!stage.path("out/summary.json").exists(), "a run that was stopped has no summary");
    assert!(stage.living().is_empty(), "{:?}", stage.living());
}

#[test]
fn a_worker_that_pushes_too_often_is_kept_to_its_rate_and_no_sample_is_lost() {
    let stage = Stage::new();
    // Ten pushes of each worker in ten seconds, of the 23 batches of both.
    let over = [("guard.pushes_per_s", "1.0"), ("train.batch", "64"), ("train.epochs", "1")];
    let ended = run(&stage, &over);
    assert_eq!(ended.code, 0, "{}", ended.error);
    let summary = summary(&stage);
    let count = |path: &str| number(&summary, path);
    // It does not try in vain again and again, nor is each time a line of the log.
    let (in_vain, lines) = (count("/decisions/drop/guarded"), ended.error.lines().count());
    assert!(in_vain > 0.0 && in_vain <= 100.0 && lines <= 100, "{lines} lines, {summary}");
    assert_eq!(count("/pushes/sent"), count("/pushes/applied") + count("/pushes/dropped"), "{summary}");
    assert_eq!((count("/epochs"), count("/pushes/applied")), (1.0, 23.0), "{summary}");
    named(&ended, &["it is push 11 of ten seconds", "guard.pushes_per_s allows 10", "to come again"]);
}

/// A worker by hand, of one server and one shard.
struct Rogue {
    peer: Peer,
    header: TransferHeader,
}

impl Rogue {
    fn join(stage: &Stage, cluster: &Cluster<'_>, over: &[(&str, &str)]) -> Self {
        let run = resolved(over);
        let mut peer = Peer::connect(&stage.path("keys"), Role::Worker, &cluster.addresses[0]).unwrap();
        let member = peer.join(&run);
        let (shard, keys) = run.config.partition().shards().next().unwrap();
        let header = push_header(member, shard, keys);
        let initial = TransferHeader { kind: TransferKind::Initial, ..header };
        peer.push(initial, vec![0.0; keys.len as usize]);
        Self { peer, header: TransferHeader { sequence: Sequence(0), ..header } }
    }

    /// Pushes zeros, but for one value.
    fn push(&mut self, value: f32) -> PushOutcome {
        let clock = Clock(self.header.sequence.0);
        self.header = TransferHeader { sequence: self.header.sequence.next(), clock, ..self.header };
        let mut values = vec![0.0; self.header.keys.len as usize];
        values[5] = value;
        self.peer.push(self.header, values);
        let answer = self.peer.next();
        let Some(ToPeer::Pushed(pushed)) = answer else { panic!("{answer:?}") };
        assert_eq!(pushed.sequence, self.header.sequence);
        pushed.outcome
    }
}

/// One server that waits for one worker.
fn alone(over: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&[("servers", "1"), ("workers", "1")], over].concat()
}

#[test]
fn what_no_limit_can_shorten_is_left_out_beside_what_is_shortened() {
    let stage = Stage::new();
    let over = alone(&[("guard.norm_max", "4.0"), ("guard.on_norm", "\"clip\"")]);
    let cluster = Cluster::start(&stage, &over);
    let mut rogue = Rogue::join(&stage, &cluster, &over);
    let key = rogue.header.keys.start + 5;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(rogue.push(bad), PushOutcome::NotFinite { key }, "{bad}");
    }
    for (applied, large) in [f32::MAX, -f32::MAX, 4.5, 3.5].into_iter().enumerate() {
        let outcome = rogue.push(large);
        let is_next =
            matches!(outcome, PushOutcome::Applied { version, .. } if version.0 == applied as u64 + 1);
        assert!(is_next, "{large}: {outcome:?}");
    }
    let worker = rogue.header.worker;
    let said = |words: String| cluster.servers[0].line(&words);
    said(format!("not finite: {worker}, clock 0, tensor "));
    let line = said(format!("a gradient of {worker} at clock 3 (push 4, "));
    let words = "its norm is 3.4028e38, and guard.norm_max is 4.0000e0: it is shortened to that";
    assert!(line.contains(words) && line.contains("tensor "), "{words:?} is not in {line}");
    drop(rogue);
    cluster.still_trains();
}

#[test]
fn a_worker_beyond_its_rate_is_named_and_the_others_are_not_the_ones_to_suffer() {
    let stage = Stage::new();
    // A real worker makes far less than the hundred pushes of ten seconds.
    let over = alone(&[("guard.pushes_per_s", "10.0"), ("train.batch", "128")]);
    let cluster = Cluster::start(&stage, &over);
    let mut rogue = Rogue::join(&stage, &cluster, &over);
    let mut taken = 0;
    while matches!(rogue.push(0.0), PushOutcome::Applied { .. }) {
        taken += 1;
        assert!(taken <= 100_000, "it is never too often");
    }
    assert!(taken >= 100, "{taken}");
    let clock = rogue.header.clock;
    let line = cluster.servers[0].line("is beyond a limit");
    let words = format!("a gradient of {} at {clock} ({}, ", rogue.header.worker, rogue.header.sequence);
    assert!(line.contains(&words), "{words:?} is not in {line}");
    assert!(line.contains("it is push 101 of ten seconds, and guard.pushes_per_s allows 100"), "{line}");
    assert_eq!(rogue.push(0.0), PushOutcome::Guarded(Guarded::Rate));
    drop(rogue);
    cluster.still_trains();
}
