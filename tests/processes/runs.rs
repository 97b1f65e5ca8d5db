//! `slackline run`, from the first key to the summary.

use serde_json::Value;

use crate::cluster::configuration;
use crate::process::Ended;
use crate::stage::{REPOSITORY, Stage};

fn quickstart(stage: &Stage, more: &[&str]) -> Ended {
    let config = format!("{REPOSITORY}/configs/quickstart.toml");
    let out = stage.text_path("out");
    let ended = stage.run(&[&["run", &config, "--out", &out], more].concat());
    assert_eq!(ended.code, 0, "{}", ended.error);
    ended
}

fn summary(stage: &Stage, folder: &str) -> Value {
    serde_json::from_str(&stage.read(&format!("{folder}/summary.json"))).unwrap()
}

pub(crate) fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} of {value} is no number"))
}

/// Runs the small configuration with `over` over it, and returns its summary.
fn run(stage: &Stage, out: &str, over: &[(&str, &str)], more: &[&str]) -> Value {
    run_as(stage, "run", out, over, more)
}

/// The same with another command that leaves a summary.
pub(crate) fn run_as(stage: &Stage, command: &str, out: &str, over: &[(&str, &str)], more: &[&str]) -> Value {
    let config = stage.write(&format!("{out}.toml"), &configuration(over));
    let ended = stage.run(&[&[command, &config, "--out", &stage.text_path(out)], more].concat());
    assert_eq!(ended.code, 0, "{}", ended.error);
    summary(stage, out)
}

#[test]
fn the_quickstart_learns_the_digits() {
    let stage = Stage::new();
    let ended = quickstart(&stage, &[]);
    let summary = summary(&stage, "out");
    assert!(number(&summary, "/final/test_accuracy") >= 0.95, "{summary}");
    for part in ["accuracy", "clock lead", "bound 2", "worker time", &stage.text_path("out")] {
        assert!(ended.output.contains(part), "{part} is not in\n{}", ended.output);
    }
}

#[test]
fn a_run_leaves_no_process_and_no_key_behind() {
    let stage = Stage::new();
    quickstart(&stage, &[]);
    assert!(stage.living().is_empty(), "{:?}", stage.living());
    assert!(stage.files_named("slackline-keys").is_empty());
    assert!(stage.files_named("unfinished").is_empty());
}

#[test]
fn a_summary_has_every_figure_of_a_run() {
    let stage = Stage::new();
    quickstart(&stage, &["--seed", "7"]);
    let summary = summary(&stage, "out");
    // The samples of the run are those of 20 epochs: nothing was lost, nothing was done twice.
    let exact = [
        ("/seed", 7.0),
        ("/workers", 2.0),
        ("/servers", 2.0),
        ("/shards", 2.0),
        ("/parameters", 6570.0),
        ("/epochs", 20.0),
        ("/staleness/clock_lead/bound", 2.0),
        ("/staleness/version/bound", 5.0),
        ("/pushes/duplicate", 0.0),
        ("/pushes/dropped", 0.0),
        ("/batches_repeated", 0.0),
    ];
    for (path, expected) in exact {
        assert_eq!(number(&summary, path), expected, "{path}");
    }
    assert_eq!((&summary["policy"], &summary["model"]), (&Value::from("ssp(2)"), &Value::from("mlp-64-32")));
    let iterations = number(&summary, "/iterations");
    for path in ["/pushes/sent", "/pushes/applied", "/pulls/served"] {
        assert_eq!(number(&summary, path), 2.0 * iterations, "{path}: one for each shard and iteration");
    }
    assert!(number(&summary, "/pulls/held") <= number(&summary, "/pulls/served"));
    let (samples, wall) = (number(&summary, "/samples"), number(&summary, "/wall_s"));
    assert!((number(&summary, "/samples_per_s") - samples / wall).abs() < 1.0, "{summary}");
    for path in ["/final/train_loss", "/final/test_loss"] {
        assert!((0.0..0.5).contains(&number(&summary, path)), "{path}");
    }
    assert!(number(&summary, "/best_test_accuracy") >= number(&summary, "/final/test_accuracy"));
    // Every parameter goes both ways in every iteration; the wire carries more than that, but not twice as much.
    for (values, wire) in [("pushed", "wire_sent"), ("pulled", "wire_received")] {
        let values = number(&summary, &format!("/bytes/{values}"));
        assert!(values >= iterations * 4.0 * 6570.0, "{summary}");
        assert!((values..2.0 * values).contains(&number(&summary, &format!("/bytes/{wire}"))), "{summary}");
    }
    let reached = summary["time_to_accuracy"].as_array().unwrap();
    assert_eq!(reached.iter().map(|row| number(row, "/accuracy")).collect::<Vec<_>>(), [0.9, 0.95]);
    assert!(reached.iter().all(|row| number(row, "/wall_s") <= wall && number(row, "/samples") <= samples));
}

#[test]
fn staleness_keeps_its_bounds_and_the_shares_of_time_are_a_whole() {
    let stage = Stage::new();
    quickstart(&stage, &[]);
    let summary = summary(&stage, "out");
    for measure in ["clock_lead", "version"] {
        let at = |figure: &str| number(&summary, &format!("/staleness/{measure}/{figure}"));
        assert!(at("p50") <= at("p99") && at("p99") <= at("max"), "{summary}");
        assert!(at("max") <= at("bound") && at("mean") <= at("max"), "{summary}");
    }
    let parts = ["compute", "wait_for_clock", "push", "busy", "pull", "data", "evaluate"];
    let shares = parts.map(|part| number(&summary, &format!("/time/{part}")));
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 0.05, "{shares:?}");
}

#[test]
fn metrics_are_whole_lines_that_only_grow() {
    let stage = Stage::new();
    quickstart(&stage, &["--set", "metrics.every_s=0.02"]);
    let text = stage.read("out/metrics.jsonl");
    assert!(text.ends_with('\n'));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in ["progress", "evaluate"] {
        assert!(lines.iter().any(|line| line["event"] == event), "no line of {event}");
    }
    let evaluated = lines.iter().filter(|line| line["event"] == "evaluate");
    let at: Vec<f64> = evaluated.map(|line| number(line, "/at_samples")).collect();
    // Two workers can measure at once, and the later values can be done first.
    let mut sorted = at.clone();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup();
    assert!(
        sorted.len() == at.len() && at.last() == Some(&28840.0),
        "each accuracy stands at its samples: {at:?}"
    );
    for path in ["/wall_s", "/samples", "/iterations", "/pushes/applied", "/bytes/pulled"] {
        let values: Vec<f64> = lines.iter().map(|line| number(line, path)).collect();
        assert!(values.is_sorted(), "{path}: {values:?}");
    }
}

#[test]
fn the_saved_configuration_is_that_of_the_run() {
    let stage = Stage::new();
    quickstart(&stage, &["--set", "train.batch=48", "--seed", "9"]);
    let hash = summary(&stage, "out")["config_hash"].as_str().unwrap().to_owned();
    let checked = stage.run(&["config", "check", &stage.text_path("out/config.toml")]);
    assert_eq!(checked.code, 0, "{}", checked.error);
    assert!(checked.output.contains(&hash), "{} has not {hash}", checked.output);
}

#[test]
fn every_policy_trains() {
    let stage = Stage::new();
    let four = [("workers", "4"), ("servers", "3"), ("consistency.staleness", "4"), ("train.epochs", "8")];
    for (policy, lead, version) in [
        ("bsp", Value::from(0), Value::from(0)),
        ("ssp", Value::from(4), Value::from(27)),
        ("essp", Value::from(4), Value::from(27)),
        ("dssp", Value::from(8), Value::from(51)),
        ("asp", Value::Null, Value::Null),
        ("backup", Value::Null, Value::from(0)),
        ("quorum", Value::Null, Value::Null),
        ("buffer", Value::Null, Value::Null),
    ] {
        let policy = format!("consistency.policy={policy}");
        let summary = run(&stage, &policy, &four, &["--set", &policy]);
        assert!(number(&summary, "/final/test_accuracy") > 0.85, "{policy}: {summary}");
        assert_eq!(summary["staleness"]["clock_lead"]["bound"], lead, "{policy}");
        assert_eq!(summary["staleness"]["version"]["bound"], version, "{policy}");
        assert_eq!(number(&summary, "/epochs"), 8.0, "{policy}");
        for measure in ["clock_lead", "version"] {
            let bound = summary["staleness"][measure]["bound"].as_u64().unwrap_or(u64::MAX);
            assert!(summary["staleness"][measure]["max"].as_u64().unwrap() <= bound, "{policy}: {summary}");
        }
    }
}

#[test]
fn workers_that_walk_on_their_own_train_under_every_outer_rule() {
    let stage = Stage::new();
    let base = [
        ("workers", "3"),
        ("servers", "2"),
        ("consistency.policy", "\"bsp\""),
        ("optimizer.kind", "\"sgd\""),
        ("optimizer.rate", "0.1"),
        ("train.epochs", "20"),
        ("local.steps", "4"),
    ];
    for (name, sets) in [
        ("average", &["local.mode=difference"][..]),
        (
            "nesterov",
            &[
                "local.mode=difference",
                "local.outer=nesterov",
                "local.outer_rate=0.5",
                "local.outer_momentum=0.5",
            ],
        ),
        (
            "fragments",
            &[
                "local.mode=difference",
                "local.fragments=2",
                "consistency.policy=quorum",
                "consistency.quorum=2",
            ],
        ),
        ("elastic", &["local.mode=elastic", "local.elasticity=0.3", "consistency.policy=asp"]),
    ] {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let summary = run(&stage, name, &base, &sets);
        assert!(number(&summary, "/final/test_accuracy") > 0.85, "{name}: {summary}");
        assert_eq!(number(&summary, "/epochs"), 20.0, "{name}");
        assert_eq!(number(&summary, "/decisions/drop/not_finite"), 0.0, "{name}");
    }
}

// A worker that is always slow gets smaller batches, and so pushes as often as the others.
#[test]
fn work_follows_the_speed_of_the_workers() {
    let stage = Stage::new();
    let slow = [
        ("workers", "2"),
        ("consistency.policy", "\"asp\""),
        ("train.proportional", "true"),
        ("train.batch", "64"),
        ("train.epochs", "6"),
        ("stragglers.kind", "\"permanent\""),
        ("stragglers.factor", "4.0"),
        ("stragglers.compute_s", "0.01"),
    ];
    let summary = run(&stage, "proportional", &slow, &[]);
    assert!(number(&summary, "/final/test_accuracy") > 0.8, "{summary}");
    // Every sample once, whoever had it.
    assert_eq!((number(&summary, "/samples"), number(&summary, "/epochs")), (6.0 * 1442.0, 6.0));
}

#[test]
fn two_runs_in_step_from_one_seed_are_equal_to_the_last_bit() {
    let stage = Stage::new();
    let bsp = [("consistency.policy", "\"bsp\""), ("workers", "3")];
    // The training loss is a mean over the last reports, which come when they come.
    let last = |out: &str, seed: &str| {
        let summary = run(&stage, out, &bsp, &["--seed", seed]);
        ["test_loss", "test_accuracy"].map(|figure| summary["final"][figure].to_string())
    };
    let finals = ["first", "second"].map(|out| last(out, "3"));
    assert_eq!(finals[0], finals[1]);
    assert_ne!(finals[0], last("third", "4"), "another seed is another run");
}

// What a session may make a server hold decides when a push is read and in how many pieces it comes, and nothing else.
#[test]
fn pieces_that_wait_for_room_change_no_bit_of_a_run_in_step() {
    let stage = Stage::new();
    // 1.1 million values on two servers.
    let large = [
        ("consistency.policy", "\"bsp\""),
        ("workers", "2"),
        ("train.epochs", "1"),
        ("model.kind", "\"mlp\""),
        ("model.widths", "[2000, 500]"),
    ];
    let small_pieces = [("cluster.shard_bytes", "131072"), ("transport.session_bytes", "1048576")];
    let last = |out: &str, more: &[(&str, &str)]| {
        let summary = run(&stage, out, &[&large[..], more].concat(), &[]);
        let figures = ["test_loss", "test_accuracy"].map(|figure| summary["final"][figure].to_string());
        (number(&summary, "/shards"), figures)
    };
    let (whole, pieces) = (last("whole", &[]), last("pieces", &small_pieces));
    assert_eq!((whole.0, pieces.0), (2.0, 36.0));
    assert_eq!(whole.1, pieces.1);
}
