//! Links that lose packets and take their time.

use std::time::Duration;

use slackline_chaos::relay::Weather;

use crate::cluster::Cluster;
use crate::stage::Stage;
use crate::stops::Links;

/// What a run in step has learnt over such links, and how many packets were lost on them.
fn learnt(weather: Weather) -> (String, u64) {
    let stage = Stage::new();
    let over = [
        ("consistency.policy", "\"bsp\""),
        ("cluster.lease_s", "20.0"),
        ("train.epochs", "2"),
        ("train.batch", "64"),
    ];
    let cluster = Cluster::start(&stage, &over);
    let links = [(); 2].map(|()| Links::to(&cluster.addresses));
    links.iter().for_each(|links| links.set(weather));
    let workers = ["a", "b"].iter().zip(&links);
    let workers: Vec<_> =
        workers.map(|(name, links)| cluster.worker_at(name, &links.addresses, &[])).collect();
    for worker in &workers {
        worker.end_well();
        assert!(!worker.has_said("joining again"), "a loss below QUIC is nobody's end");
    }
    cluster.end_well();
    let summary = cluster.summary();
    assert_eq!(summary["batches_repeated"], 0, "{summary}");
    (summary["final"]["test_loss"].to_string(), links.iter().map(Links::lost).sum())
}

#[test]
fn a_run_in_step_over_links_that_lose_packets_learns_the_same_to_the_last_bit() {
    // Case 15: messages were lost, and after ten tries the process aborted.
    let (calm, none) = learnt(Weather::default());
    let rough = Weather { loss: 0.05, delay: Duration::from_millis(10), ..Weather::default() };
    let (rough, lost) = learnt(rough);
    assert!(none == 0 && lost > 0, "{none} and {lost} packets were lost");
    assert_eq!(rough, calm);
}
