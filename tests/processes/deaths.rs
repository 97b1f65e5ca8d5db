//! Processes that die without a word.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::by_hand::name_of;
use crate::cluster::Cluster;
use crate::stage::Stage;

#[test]
fn a_dead_worker_costs_the_others_one_lease_at_most() {
    // Case 4: one node went down and everybody else stood still. Case 9: its batches are done by others.
    let stage = Stage::new();
    let cluster =
        Cluster::start(&stage, &[("workers", "4"), ("cluster.lease_s", "1.0"), ("train.epochs", "40")]);
    let workers: Vec<_> = (0..4).map(|index| cluster.worker(&format!("worker {index}"), &[])).collect();
    let victim = name_of(&workers[3]);
    cluster.servers[0].line("test accuracy");
    let killed = Instant::now();
    workers[3].kill();
    for server in &cluster.servers {
        let waited = server.time_of("its lease is over").saturating_duration_since(killed);
        assert!(waited < Duration::from_secs(1 + 5), "{waited:?} until its death was seen");
        assert!(server.line("its lease is over").contains(&victim), "the dead one is named");
    }
    for worker in &workers[..3] {
        worker.end_well();
    }
    cluster.end_well();
    let summary = cluster.summary();
    assert!(summary["batches_repeated"].as_u64().unwrap() >= 1, "{summary}");
    assert!(cluster.has_trained_for(40));
    assert!(summary["staleness"]["clock_lead"]["max"].as_u64().unwrap() <= 2, "{summary}");
}

#[test]
fn a_server_that_comes_back_without_state_is_refused() {
    // Case 2: a server came back with new values, and workers went on as if nothing had happened.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("cluster.lease_s", "1.0"), ("train.epochs", "100000")]);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].kill();
    let again = cluster.start_server(1, &["--bind", &cluster.addresses[1]]);
    again.line(" is ready: ");
    for worker in workers {
        let ended = worker.end();
        assert_eq!(ended.code, 1, "{}", ended.error);
        assert!(ended.error.contains("shard 1 has no state: server 1 was restarted"), "{}", ended.error);
    }
    assert_eq!(cluster.servers[0].end().code, 1);
    again.signal(Signal::SIGTERM);
    again.end();
}

#[test]
fn a_server_that_is_gone_for_good_is_named_with_its_address() {
    // Case 1: one server died, and the whole job hung without a word. It waits, since the server may come back, and says for whom.
    let stage = Stage::new();
    let over = [("cluster.lease_s", "0.5"), ("train.epochs", "100000")];
    let cluster = Cluster::start(&stage, &over);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].kill();
    let line = cluster.servers[0].line("server 1 is silent for");
    assert!(line.contains(&cluster.addresses[1]), "{line}");
    cluster.servers[0].line("shard 1 has no server and waits for server 1");
    cluster.servers[0].signal(Signal::SIGTERM);
    for worker in workers {
        assert_eq!(worker.end().code, 1);
    }
}

#[test]
fn workers_of_a_server_that_is_told_to_go_say_so() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("train.epochs", "100000")]);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].signal(Signal::SIGTERM);
    cluster.servers[1].end_well();
    for worker in workers {
        let ended = worker.end();
        assert_eq!(ended.code, 1, "{}", ended.error);
        assert!(ended.error.contains("server 1 ends: terminated"), "{}", ended.error);
    }
}

#[test]
fn half_of_the_workers_can_die_and_the_others_end_well() {
    // Case 3 of the allreduce list: killing one host took the survivors with it.
    let over = [("workers", "4"), ("cluster.lease_s", "0.5"), ("train.epochs", "20")];
    for policy in ["\"bsp\"", "\"asp\""] {
        let stage = Stage::new();
        let cluster = Cluster::start(&stage, &[&over[..], &[("consistency.policy", policy)]].concat());
        let workers: Vec<_> = (0..4).map(|index| cluster.worker(&format!("worker {index}"), &[])).collect();
        cluster.servers[0].line("test accuracy");
        workers[0].kill();
        workers[2].kill();
        workers[1].end_well();
        workers[3].end_well();
        cluster.end_well();
        assert!(cluster.has_trained_for(20), "{policy}");
    }
}
