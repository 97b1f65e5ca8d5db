//! Workers that come late, go early, or were not heard for a while.

use nix::sys::signal::Signal;

use crate::by_hand::name_of;
use crate::cluster::Cluster;
use crate::process::until;
use crate::stage::Stage;

#[test]
fn a_worker_that_comes_late_helps_and_may_leave() {
    // Case 1 of the allreduce list: joining and leaving while others train blocked everybody.
    let stage = Stage::new();
    let long = [("workers", "1"), ("cluster.lease_s", "60.0"), ("train.epochs", "40")];
    let cluster = Cluster::start(&stage, &long);
    let first = cluster.worker("first", &[]);
    cluster.servers[0].line("test accuracy");
    // While the first stands still, the late one can only go as far as the bound: it is seen there.
    first.signal(Signal::SIGSTOP);
    let late = cluster.worker("late", &[]);
    assert_eq!(name_of(&late), "worker 1");
    let waits = until("the late worker at the bound", || {
        let status = cluster.status().output;
        status
            .lines()
            .find(|line| line.contains("worker 1 at clock") && line.contains("waits for worker 0"))
            .map(str::to_owned)
    });
    let clocks: Vec<u64> = waits
        .split("clock ")
        .skip(1)
        .map(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap())
        .collect();
    assert!(clocks[0] > clocks[1], "it has trained since it came: {waits}");
    late.signal(Signal::SIGTERM);
    late.end_well();
    cluster.servers[0].line("worker 1 left: it was told to go");
    first.signal(Signal::SIGCONT);
    first.end_well();
    cluster.end_well();
    assert_eq!(cluster.summary()["final"]["test_accuracy"].as_f64().map(|share| share > 0.9), Some(true));
}

#[test]
fn a_worker_that_was_frozen_for_longer_than_its_lease_joins_again() {
    let stage = Stage::new();
    let alone = [("workers", "1"), ("cluster.lease_s", "0.5"), ("train.epochs", "20")];
    let cluster = Cluster::start(&stage, &alone);
    let worker = cluster.worker("worker", &[]);
    cluster.servers[0].line("test accuracy");
    worker.signal(Signal::SIGSTOP);
    for server in &cluster.servers {
        server.line("worker 0 (incarnation 1");
        server.line("its lease is over");
    }
    worker.signal(Signal::SIGCONT);
    worker.line("joining again");
    worker.line("joined as worker 0 (incarnation 2)");
    worker.end_well();
    cluster.end_well();
    let summary = cluster.summary();
    assert!(summary["batches_repeated"].as_u64().unwrap() >= 1, "its batch was given out again: {summary}");
    assert!(cluster.has_trained_for(20));
}

#[test]
fn a_worker_that_is_told_to_go_twice_goes_at_once() {
    let stage = Stage::new();
    let cluster =
        Cluster::start(&stage, &[("workers", "1"), ("train.epochs", "100000"), ("cluster.lease_s", "60.0")]);
    let worker = cluster.worker("worker", &[]);
    cluster.servers[0].line("test accuracy");
    // Server 1 cannot say goodbye.
    cluster.servers[1].signal(Signal::SIGSTOP);
    worker.signal(Signal::SIGINT);
    cluster.servers[0].line("worker 0 left: it was told to go");
    worker.signal(Signal::SIGINT);
    worker.end_well();
    cluster.servers[1].signal(Signal::SIGCONT);
}
