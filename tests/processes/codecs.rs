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
    case("random-k", &["codec.share=0.25"], 0.26, 0.8),
    case("qsgd", &[], 0.3, 0.8),
    case("power-sgd", &["codec.rank=2"], 0.5, 0.8),
    case("sufficient-factor", &["train.batch=4"], 1.0, 0.9),
    case("significance", &[], 1.0, 0.8),
    case("rows", &[], 1.0, 0.9),
];

#[test]
fn every_codec_learns_in_fewer_bytes_and_virtual_time_sends_the_same() {
    let stage = Stage::new();
    let plain = run_as(&stage, "run", "plain", KEYS, &[]);
    let bytes = |summary: &Value| number(summary, "/bytes/pushed");
    for Case { name, sets, share, accuracy } in CASES {
        let push = format!("codec.push={name}");
        let mut more = vec!["--set", &push, "--set", "codec.pull=bf16"];
        more.extend(sets.iter().flat_map(|set| ["--set", *set]));
        let real = run_as(&stage, "run", &format!("{name}-real"), KEYS, &more);
        let simulated = run_as(&stage, "sim", &format!("{name}-simulated"), KEYS, &more);
        let loss = [&real, &simulated].map(|summary| summary["final"]["test_loss"].to_string());
        assert_eq!(loss[0], loss[1], "{name}: the same values to the last bit");
        assert_eq!(bytes(&real), bytes(&simulated), "{name}");
        let pushes = number(&real, "/iterations") / number(&plain, "/iterations");
        let (is, was) = (bytes(&real), pushes * bytes(&plain));
        assert!(is <= share * was, "{name}: {is} bytes against {was}");
        let reached = number(&real, "/final/test_accuracy");
        assert!(reached >= *accuracy, "{name}: {reached}");
        println!("{name:<18} {:.3} of the bytes, accuracy {reached:.3}", is / was);
    }
}
