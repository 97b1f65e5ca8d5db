//! Workers that come late, go early, or were not heard for a while.

use nix::sys::signal::Signal;

use crate::by_hand::name_of;
use crate::cluster::{Cluster, PACED};
use crate::process::until;
use crate::stage::Stage;

#[test]
fn a_worker_that_comes_late_helps_and_may_leave() {
    // Case 1 of the allreduce list: joining and leaving while others train blocked everybody. Case 23 there: whoever came looked for somebody
    // who was not too busy to give it the state.
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
fn a_run_that_needs_two_workers_stands_still_with_one_and_says_so() {
    // Case 19 of the allreduce list: a hidden least number of peers, and a silent wait for it. Case 1 there: whoever came in the place of
    // one that had left politely waited for ever.
    let stage = Stage::new();
    let needs =
        [("workers", "2"), ("cluster.min_workers", "2"), ("train.epochs", "12"), ("cluster.lease_s", "1.0")];
    let cluster = Cluster::start(&stage, &[&needs[..], PACED].concat());
    let (stays, leaves) = (cluster.worker("stays", &[]), cluster.worker("leaves", &[]));
    let gone = name_of(&leaves);
    cluster.servers[0].line("test accuracy");
    leaves.signal(Signal::SIGTERM);
    leaves.end_well();
    cluster.servers[0].line(&format!("{gone} left: it was told to go"));
    let waits = cluster.servers[0].line("waiting for workers: 1 of 2 (min_workers)");
    assert!(waits.contains(&gone), "the missing one is named: {waits}");
    let comes = cluster.worker("comes", &[]);
    stays.end_well();
    comes.end_well();
    cluster.end_well();
    assert!(cluster.has_trained_for(12));
}

#[test]
fn a_worker_that_is_started_again_twenty_times_joins_twenty_times() {
    // Case 15 of the allreduce list, and cases 11 and 16: a peer that was started again could not come back, or was taken for the one before.
    const TIMES: u64 = 20;
    let stage = Stage::new();
    let over = [("workers", "2"), ("cluster.lease_s", "0.5"), ("train.epochs", "100000")];
    let cluster = Cluster::start(&stage, &[&over[..], PACED].concat());
    let stays = cluster.worker("stays", &[]);
    assert_eq!(name_of(&stays), "worker 0");
    for time in 0..=TIMES {
        let again = cluster.worker(&format!("start {time}"), &[]);
        cluster.servers[0].line(&format!("(incarnation {},", time + 2));
        if time < TIMES {
            // The first one makes the run begin.
            cluster.servers[0].line("the run begins");
            again.kill();
        } else {
            // The last one trains: it is heard at a clock beyond the one it came at.
            let row = format!("{} (incarnation {}", name_of(&again), time + 2);
            let clock = || {
                let status = cluster.status().output;
                let row = status.lines().find(|line| line.trim().starts_with(&row))?;
                row.split("clock ")
                    .nth(1)?
                    .split(|letter: char| !letter.is_ascii_digit())
                    .next()?
                    .parse()
                    .ok()
            };
            let came: u64 = until("the row of the last one", clock);
            until("steps of the last one", || clock().filter(|clock| *clock > came + 3));
        }
    }
    assert_eq!(cluster.stop(&[]).code, 0);
    assert!(!stays.has_said("joining again"), "the other was never removed");
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
