//! Servers that die while a run goes on, and come back or not: nothing that was acknowledged is lost.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::cluster::{Cluster, PACED};
use crate::process::until;
use crate::stage::Stage;

/// A run that is long enough to lose something in its middle.
const LONG: &[(&str, &str)] =
    &[("cluster.lease_s", "1.0"), ("train.epochs", "20"), ("cluster.steps", "\"whole\"")];

/// Its lease.
const LEASE: Duration = Duration::from_secs(1);

/// Every shard has two equal copies.
const COPIES: &[(&str, &str)] = &[("cluster.replicas", "2"), ("cluster.durability", "\"replicated\"")];

/// The epochs of such a run.
const EPOCHS: u64 = 20;

fn over<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [LONG, PACED, more].concat()
}

#[test]
fn the_backup_of_a_server_that_dies_goes_on_and_so_again_when_that_is_back_and_dies_once_more() {
    // Case 1: one server was killed and the whole job hung, although replicas were asked for.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(COPIES));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let coordinator = &cluster.servers[0];
    coordinator.line("shard 1 has an equal copy at server 0");
    coordinator.line("test accuracy");
    cluster.servers[1].kill();
    let killed = Instant::now();
    let took = coordinator.time_of("in place of server 1").saturating_duration_since(killed);
    assert!(took <= 2 * LEASE + Duration::from_secs(1), "it took {took:?}");
    // The copy at the new process is made while training goes on.
    let again = cluster.start_server(1, &[]);
    coordinator.line("shard 1 has an equal copy at server 1");
    again.kill();
    coordinator.line("shard 1 goes on at server 0 without its copy at server 1");
    for worker in workers {
        worker.end_well();
    }
    coordinator.end_well();
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn a_server_that_is_started_again_goes_on_with_what_its_disk_has() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(&[("cluster.durability", "\"disk\"")]));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].kill();
    let again = cluster.start_server(1, &[]);
    for worker in workers {
        worker.end_well();
    }
    cluster.servers[0].end_well();
    again.end_well();
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn the_coordinator_is_started_again_and_the_run_goes_on() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(&[("cluster.durability", "\"disk\"")]));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[0].kill();
    let again = cluster.start_server(0, &[]);
    for worker in workers {
        worker.end_well();
    }
    again.end_well();
    cluster.servers[1].end_well();
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn a_lost_shard_is_restored_alone_from_the_newest_checkpoint() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(&[("checkpoint.every_clocks", "100")]));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("is in the store");
    let evaluations = || cluster.servers[0].transcript().matches("test accuracy").count();
    let then = evaluations();
    // An epoch lies between two of them: something is lost.
    until("two more evaluations", || (evaluations() >= then + 2).then_some(()));
    cluster.servers[1].kill();
    let again = cluster.start_server(1, &[]);
    let restored = cluster.servers[0].line("clocks of it are lost");
    assert!(restored.contains("is restored from checkpoint"), "{restored}");
    for worker in workers {
        worker.end_well();
    }
    cluster.servers[0].end_well();
    again.end_well();
}

#[test]
fn a_server_that_was_frozen_is_harmless_when_it_thaws() {
    let stage = Stage::new();
    let copies = over(&[("cluster.replicas", "2"), ("cluster.durability", "\"replicated\"")]);
    let cluster = Cluster::start(&stage, &copies);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("has an equal copy at");
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].signal(Signal::SIGSTOP);
    cluster.servers[0].line(" now, in place of server 1");
    cluster.servers[1].signal(Signal::SIGCONT);
    for worker in workers {
        worker.end_well();
    }
    cluster.end_well();
    assert!(cluster.has_trained_for(EPOCHS));
}
