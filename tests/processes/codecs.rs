//! Runs in which gradients and values are written in fewer bytes.

use serde_json::Value;

use crate::runs::{number, run_as};
use crate::stage::Stage;

/// Two workers in step: then the values depend on nothing but the configuration.
const KEYS: &[(&str, &str)] = &[("workers", "2"), ("servers", "2"), ("consistency.policy", "\"bsp\"")];

/// What a codec has to show.
struct Case {
    name: &'static str,
    sets: &'static [&'static str],
    /// The bytes of a push against plain ones, at most.
    share: f64,
    /// The accuracy in the end, at least; plain values come to 95 %.
    accuracy: f64,
}

const fn case(name: &'static str, sets: &'static [&'static str], share: f64, accuracy: f64) -> Case {
    Case { name, sets, share, accuracy }
}

const CASES: &[Case] = &[
    case("f16", &[], 0.501, 0.9),
    case("bf16", &["codec.stochastic=true"], 0.501, 0.9),
    case("int8", &["codec.block=256"], 0.27, 0.9),
    case("one-bit", &[], 0.1, 0.8),
    case("top-k", &["codec.share=0.1"], 0.21, 0.85),
    // A fifth of 650 values.
    case("relative-k", &["codec.budget_bytes=520"], 0.21, 0.85),
    case("random-k", &["codec.share=0.25"], 0.26, 0.8),
    case("qsgd", &[], 0.3, 0.8),
    case("power-sgd", &["codec.rank=2"], 0.5, 0.8),
    case("sufficient-factor", &["train.batch=4"], 0.7, 0.9),
    case("significance", &[], 1.0, 0.8),
    case("rows", &[], 1.0, 0.9),
];

fn sets<'a>(push: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [push, "codec.pull=bf16"].into_iter().chain(more.iter().copied()).flat_map(|set| ["--set", set]).collect()
}

#[test]
fn every_codec_learns_in_fewer_bytes() {
    let stage = Stage::new();
    let bytes = |summary: &Value| number(summary, "/bytes/pushed") / number(summary, "/iterations");
    for Case { name, sets: more, share, accuracy } in CASES {
        let (push, plain) = (format!("codec.push={name}"), "codec.push=f32");
        let batch: Vec<&str> = more.iter().copied().filter(|set| set.starts_with("train")).collect();
        let plain = run_as(&stage, "run", &format!("{name}-plain"), KEYS, &sets(plain, &batch));
        let packed = run_as(&stage, "run", name, KEYS, &sets(&push, more));
        let (is, was) = (bytes(&packed), bytes(&plain));
        assert!(is <= share * was, "{name}: {is} bytes an iteration against {was}");
        let reached = number(&packed, "/final/test_accuracy");
        assert!(reached >= *accuracy, "{name}: {reached}");
        println!("{name:<18} {:.3} of the bytes, accuracy {reached:.3}", is / was);
    }
}

// What a worker keeps follows from the batches that it was given, and which those are depends on time. Where nothing is kept, nothing does.
#[test]
fn in_step_virtual_time_sends_the_same_bytes_and_comes_to_the_same_values() {
    let stage = Stage::new();
    let bare: &[&str] = &["codec.error_feedback=false"];
    let budget: &[&str] = &["codec.error_feedback=false", "codec.budget_bytes=520"];
    // Of batches of four, factors are fewer bytes than the gradient.
    let cases: [(_, &[&str]); _] = [
        ("f16", bare),
        ("bf16", bare),
        ("int8", bare),
        ("one-bit", bare),
        // The values that it goes by are the same as well.
        ("relative-k", budget),
        ("rows", &[]),
        ("sufficient-factor", &["train.batch=4"]),
    ];
    for (name, more) in cases {
        let push = format!("codec.push={name}");
        let both = ["run", "sim"]
            .map(|command| run_as(&stage, command, &format!("{name}-{command}"), KEYS, &sets(&push, more)));
        for path in ["/final/test_loss", "/bytes/pushed"] {
            let figures = both.each_ref().map(|summary| summary.pointer(path).unwrap().to_string());
            assert_eq!(figures[0], figures[1], "{name}: {path}");
        }
    }
}

#[test]
fn what_has_not_changed_since_the_last_pull_is_not_sent_again() {
    let stage = Stage::new();
    let keys = [
        ("model.kind", "\"mlp\""),
        ("model.widths", "[2048]"),
        ("train.epochs", "1"),
        ("optimizer.kind", "\"sgd\""),
        ("consistency.prefetch", "1"),
        ("evaluate.every_epochs", "0"),
    ];
    let bytes = |name: &str, codec: &[&str]| {
        let more: Vec<_> = codec.iter().flat_map(|set| ["--set", set]).collect();
        let summary = run_as(&stage, "run", name, &keys, &more);
        number(&summary, "/bytes/pulled") / number(&summary, "/iterations")
    };
    let plain = bytes("plain", &["codec.push=f32"]);
    let sparse = bytes("sparse", &["codec.push=top-k", "codec.share=0.0001"]);
    assert!(sparse < 0.4 * plain, "{sparse} bytes an iteration against {plain}");
}
