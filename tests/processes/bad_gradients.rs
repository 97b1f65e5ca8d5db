//! Gradients that are not finite.

use serde_json::Value;

use crate::cluster::configuration;
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
