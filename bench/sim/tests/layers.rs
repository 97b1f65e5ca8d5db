//! Values that come and gradients that go layer by layer, in virtual time.
#![allow(clippy::unwrap_used)]

mod common;

use common::{number, run, timing};

/// A network of layers that are nearly of one size, in four shards; computing takes as long as its values take over the link.
const LAYERS: [(&str, &str); 12] = [
    ("workers", "1"),
    ("servers", "1"),
    ("cluster.shards_per_server", "4"),
    ("model.kind", "\"mlp\""),
    ("model.widths", "[64, 64, 64]"),
    ("consistency.policy", "\"bsp\""),
    ("train.batch", "1442"),
    ("train.epochs", "20"),
    ("stragglers.compute_s", "0.3"),
    ("stragglers.jitter", "0.0"),
    ("simulation.bandwidth_mbps", "1.4005"),
    ("simulation.latency_s", "0.0"),
];

/// Seconds of an iteration.
fn seconds(more: &[(&str, &str)]) -> f64 {
    number(&timing(&[&LAYERS[..], more].concat()), "/virtual_s") / 20.0
}

const OVERLAP: (&str, &str) = ("train.overlap", "true");
const FRONT: (&str, &str) = ("transport.order", "\"front-first\"");

// Push and pull of different shards pass each other on a link that goes both ways. A whole gradient waits for the last values, and its parts leave
// after it: 0.3 s of computing, 0.3 s for the link, and 0.075 s for the first part that goes and the last one that comes, with a first iteration
// of 0.9 s. Layer by layer the last values are computed on as they come, and the first parts that leave hide behind backward.
#[test]
fn layers_hide_what_they_come_and_go_with() {
    let whole = seconds(&[]);
    assert!((whole / 0.69 - 1.0).abs() < 0.03, "{whole}");
    assert_eq!(seconds(&[FRONT]), whole, "what is there at once goes from the front anyway");
    let layers = seconds(&[OVERLAP]);
    assert!((0.6..0.9 * whole).contains(&layers), "{layers}");
    let front = seconds(&[OVERLAP, FRONT]);
    assert!((0.6..layers).contains(&front), "{front} against {layers}");
}

#[test]
fn layers_and_their_order_change_no_bit() {
    let of = |more: &[(&str, &str)]| {
        let workers = [("workers", "3"), ("train.batch", "16"), ("train.epochs", "2")];
        let summary = run(&[&LAYERS[..], &workers, more].concat()).unwrap().summary;
        [summary["final"].clone(), summary["bytes"]["pushed"].clone(), summary["iterations"].clone()]
    };
    let whole = of(&[]);
    assert_eq!(of(&[OVERLAP]), whole);
    assert_eq!(of(&[OVERLAP, FRONT]), whole);
    assert_eq!(of(&[FRONT]), whole);
}

// A gradient that waits for values must not keep a run from being told as stuck.
#[test]
fn a_gradient_that_waits_for_a_server_that_is_gone_is_no_sign_of_life() {
    let more = [
        ("workers", "3"),
        ("servers", "2"),
        ("train.batch", "160"),
        ("cluster.lease_s", "2.0"),
        ("simulation.incidents", "[\"server 1 crash at 2.0\"]"),
        OVERLAP,
    ];
    let failure = run(&[&LAYERS[..], &more].concat()).unwrap_err().to_string();
    assert!(failure.contains("server 1 is gone and none comes back"), "{failure}");
}

#[test]
fn a_gradient_that_waits_for_values_outlives_what_befalls_the_run() {
    for incident in
        ["server 1 pause at 2.0 for 1.0", "worker 1 crash at 2.0 for 0.5", "worker 0 pause at 2.1 for 4.0"]
    {
        let incidents = format!("[\"{incident}\"]");
        let more = [
            ("workers", "3"),
            ("servers", "2"),
            ("train.batch", "160"),
            ("cluster.lease_s", "2.0"),
            ("codec.push", "\"int8\""),
            ("simulation.incidents", incidents.as_str()),
            OVERLAP,
            FRONT,
        ];
        let outcome = run(&[&LAYERS[..], &more].concat()).unwrap();
        assert_eq!(number(&outcome, "/samples"), 20.0 * 1442.0, "{incident}");
    }
}

// Under backup gradients are given up, also such as wait for values, after parts of them have left. A simulation had nothing to write of those
// in a codec.
#[test]
fn gradients_that_are_given_up_lose_no_sample_and_tell_the_same_time_without_values() {
    for codec in ["\"f32\"", "\"int8\""] {
        let more = [
            ("workers", "5"),
            ("servers", "2"),
            ("train.batch", "32"),
            ("train.epochs", "3"),
            ("stragglers.kind", "\"exp\""),
            ("consistency.policy", "\"backup\""),
            ("consistency.backup", "2"),
            ("codec.push", codec),
            OVERLAP,
            FRONT,
        ];
        let keys: Vec<_> =
            LAYERS.into_iter().filter(|(key, _)| *key != "stragglers.jitter").chain(more).collect();
        let (with, without) = (run(&keys).unwrap(), timing(&keys));
        assert_eq!(number(&with, "/samples"), 3.0 * 1442.0, "{codec}");
        assert_eq!(with.summary["virtual_s"], without.summary["virtual_s"], "{codec}");
        assert_eq!(with.summary["time"], without.summary["time"], "{codec}");
    }
}
