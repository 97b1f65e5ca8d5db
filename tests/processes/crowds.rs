//! Many workers at once.

use std::collections::BTreeSet;

use slackline_core::ids::{Clock, WorkerId};
use slackline_core::wire::{Ask, Refusal, RefusalCode, ToPeer, ToServer, Work};
use slackline_net::Role;

use crate::by_hand::name_of;
use crate::cluster::{Cluster, resolved};
use crate::peer::{Papers, Peer};
use crate::stage::Stage;

/// Workers of the crowd.
const CROWD: u64 = 200;

/// What the system says of a process: KiB in memory, and threads.
fn figures(stage: &Stage, role: &str) -> (u64, u64) {
    let living = stage.living();
    let pid = living.iter().find(|process| process.is(role)).unwrap().pid;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let figure = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (figure("VmRSS:"), figure("Threads:"))
}

#[test]
fn two_hundred_workers_without_work_cost_a_server_little_and_all_of_them_hear_what_happens() {
    // Number 10 of the traps found in sources (Boesen): how many clients there can be was decided when the program was built.
    let stage = Stage::new();
    let count = CROWD.to_string();
    let over = [
        ("workers", count.as_str()),
        ("servers", "1"),
        ("cluster.lease_s", "60.0"),
        ("train.epochs", "100000"),
    ];
    let cluster = Cluster::start(&stage, &over);
    let papers = Papers::of(&resolved(&over));
    let mut peers = vec![Peer::connect(&stage.path("keys"), Role::Worker, &cluster.addresses[0]).unwrap()];
    // The first one is there before what a server needs anyway is counted.
    let mut ids = BTreeSet::from([peers[0].join_with(&papers)]);
    let (alone_kib, threads) = figures(&stage, "server");
    for _ in 1..CROWD {
        let mut peer = peers[0].another(&cluster.addresses[0]).unwrap();
        ids.insert(peer.join_with(&papers));
        peers.push(peer);
    }
    let workers: BTreeSet<WorkerId> = ids.iter().map(|(worker, _)| *worker).collect();
    let incarnations: BTreeSet<_> = ids.iter().map(|(_, incarnation)| *incarnation).collect();
    assert_eq!((workers.len(), incarnations.len()), (peers.len(), peers.len()));
    // Each has its lease and a connection, in less than a 256th of what a worker that trains may make a server hold, and no thread.
    let (kib, threads_now) = figures(&stage, "server");
    let each = kib.saturating_sub(alone_kib) / (CROWD - 1);
    assert!(each < 256, "{each} KiB for each of them: {alone_kib} KiB with one, {kib} KiB with all");
    assert_eq!(threads_now, threads);
    let status = cluster.status();
    assert_eq!(status.code, 0, "{}", status.error);
    assert!(status.output.contains("waiting for workers, 200 of 200 here"), "{}", status.output);
    for number in [0, CROWD - 1] {
        assert!(status.output.contains(&format!("worker {number} (incarnation ")), "{}", status.output);
    }
    // When the last of them has asked for work the run begins, and everyone is given some.
    for peer in &mut peers {
        peer.say(&ToServer::Ask(Ask { clock: Clock(0), results: Vec::new(), report: None }));
    }
    let mut batches = BTreeSet::new();
    for peer in &mut peers {
        let given = peer.next();
        let Some(ToPeer::Work(Work::Batch { batch, .. })) = given else { panic!("{given:?}") };
        assert!(batches.insert(batch), "{batch:?} is given twice");
    }
    cluster.servers[0].line("all 200 workers are here, the run begins");
    let status = cluster.status();
    assert!(status.code == 0 && status.output.contains(": running"), "{} {}", status.output, status.error);
    assert_eq!(cluster.stop(&["--reason", "enough of them"]).code, 0);
    for peer in &mut peers {
        let told = peer.next();
        let Some(ToPeer::Refused(Refusal { code: RefusalCode::Stopped, text })) = told else {
            panic!("{told:?}")
        };
        assert!(text.shown().contains("enough of them"), "{text}");
    }
    cluster.end_well();
}

#[test]
fn eight_workers_that_are_started_at_once_are_one_cohort() {
    // Case 13 of the allreduce list: peers that were started together met in two groups, or hung. Case 20 there: ids came from two files.
    for time in 0..3 {
        let stage = Stage::new();
        let cluster = Cluster::start(&stage, &[("workers", "8"), ("train.epochs", "2")]);
        let workers: Vec<_> = (0..8).map(|number| cluster.worker(&format!("start {number}"), &[])).collect();
        let names: BTreeSet<String> = workers.iter().map(name_of).collect();
        assert!(names.into_iter().eq((0..8).map(|number| format!("worker {number}"))), "time {time}");
        for worker in &workers {
            worker.end_well();
            assert!(!worker.has_said("joining again"));
        }
        cluster.servers[0].line("all 8 workers are here, the run begins");
        cluster.end_well();
        assert!(cluster.has_trained_for(2));
    }
}
