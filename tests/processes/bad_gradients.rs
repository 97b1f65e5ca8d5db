//! Gradients that are not finite.

use serde_json::Value;
use slackline_core::ids::{Clock, Sequence};
use slackline_core::wire::{Ask, PushOutcome, ToPeer, ToServer, TransferHeader, TransferKind, Work};
use slackline_net::Role;

use crate::cluster::{Cluster, configuration, resolved};
use crate::peer::{Peer, push_header};
use crate::process::Ended;
use crate::stage::Stage;

/// Runs with a rate that throws the values out of all bounds within a few steps.
fn run_wild(stage: &Stage, on_bad_gradient: &str) -> Ended {
    let wild = [
        ("model.kind", "\"mlp\""),
        ("model.widths", "[32, 32, 32, 32, 32, 32]"),
        // In step, so that every run goes the same way.
        ("consistency.policy", "\"bsp\""),
        ("optimizer.kind", "\"sgd\""),
        ("optimizer.rate", "1000.0"),
        ("consistency.on_bad_gradient", on_bad_gradient),
    ];
    let config = stage.write("run.toml", &configuration(&wild));
    stage.run(&["run", &config, "--out", &stage.text_path("out")])
}

#[test]
fn a_gradient_that_is_not_finite_is_dropped_counted_and_named() {
    // Case 33: NaN appeared in asynchronous runs, and nothing said where from.
    let stage = Stage::new();
    let ended = run_wild(&stage, "\"drop\"");
    assert_eq!(ended.code, 0, "{}", ended.error);
    let summary: Value = serde_json::from_str(&stage.read("out/summary.json")).unwrap();
    let count = |name: &str| summary["pushes"][name].as_u64().unwrap();
    assert!(count("dropped") > 0, "{summary}");
    assert_eq!(count("sent"), count("applied") + count("dropped"), "{summary}");
    let warning = ended.output.lines().find(|line| line.starts_with("warning ")).unwrap();
    assert!(warning.contains("the run diverged at clock") && warning.contains("optimizer.rate"), "{warning}");
    let notice = ended.error.lines().find(|line| line.contains("is not finite")).unwrap();
    for part in ["worker ", "clock ", "tensor ", "left out"] {
        assert!(notice.contains(part), "{part} is not in {notice}");
    }
}

#[test]
fn one_value_that_is_no_number_is_named_by_worker_step_and_tensor() {
    // Case 33: the event lists who, when and where.
    let stage = Stage::new();
    let over = [("workers", "1"), ("servers", "1"), ("cluster.lease_s", "2.0")];
    let cluster = Cluster::start(&stage, &over);
    let run = resolved(&over);
    let layout = run.config.layout();
    let mut peer = Peer::connect(&stage.path("keys"), Role::Worker, &cluster.addresses[0]).unwrap();
    let member = peer.join(&run);
    for (shard, keys) in run.config.partition().shards() {
        let header = TransferHeader { kind: TransferKind::Initial, ..push_header(member, shard, keys) };
        peer.push(header, vec![0.0; keys.len as usize]);
    }
    peer.say(&ToServer::Ask(Ask { clock: Clock(0), results: Vec::new(), report: None }));
    let work = peer.next();
    assert!(matches!(work, Some(ToPeer::Work(Work::Batch { .. }))), "{work:?}");
    let (shard, keys) = run.config.partition().shards().next().unwrap();
    // Two good steps before it, so that the step is none that a counter begins with.
    for (sequence, bad) in [(1, None), (2, None), (3, Some(5))] {
        let (sequence, clock) = (Sequence(sequence), Clock(sequence - 1));
        let mut values = vec![0.0; keys.len as usize];
        if let Some(bad) = bad {
            values[bad] = f32::NAN;
        }
        peer.push(TransferHeader { sequence, clock, ..push_header(member, shard, keys) }, values);
        let answer = peer.next();
        let Some(ToPeer::Pushed(pushed)) = answer else { panic!("{answer:?}") };
        let expected = bad.map(|bad| PushOutcome::NotFinite { key: keys.start + bad as u64 });
        match expected {
            Some(expected) => assert_eq!((pushed.sequence, pushed.outcome), (sequence, expected)),
            None => assert!(matches!(pushed.outcome, PushOutcome::Applied { .. }), "{pushed:?}"),
        }
    }
    let tensor = &layout.tensor_of(keys.start + 5).unwrap().path;
    let said = cluster.servers[0].line("refused a gradient that is not finite");
    let named = format!("not finite: {}, {}, tensor {tensor} ({shard}, {}", member.0, Clock(2), Sequence(3));
    assert!(said.contains(&named), "{named:?} is not in {said}");
    drop(peer);
    cluster.still_trains();
}

#[test]
fn a_gradient_that_is_not_finite_stops_the_run_where_that_is_asked_for() {
    let stage = Stage::new();
    let ended = run_wild(&stage, "\"stop\"");
    assert_eq!(ended.code, 1, "{}", ended.error);
    let error = &ended.error[ended.error.find("error: ").unwrap()..];
    for part in ["worker ", "clock ", "on_bad_gradient"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    // Whoever ends first is reported; the worker that computed it also knows the tensor.
    assert!(ended.error.contains("not finite") && ended.error.contains("(tensor layer"), "{}", ended.error);
    assert!(stage.living().is_empty(), "{:?}", stage.living());
}
