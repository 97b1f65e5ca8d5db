//! Disks that are full while a run goes on: what waits for them has a name, and goes on when there is room.

use nix::sys::signal::Signal;

use crate::cluster::{Cluster, PACED};
use crate::process::{Process, until};
use crate::stage::Stage;

/// Whatever is acknowledged is on the disks; only the end is evaluated, and metrics are not written meanwhile.
const KEPT: &[(&str, &str)] = &[
    ("cluster.durability", "\"disk\""),
    ("cluster.steps", "\"whole\""),
    ("train.epochs", "6"),
    ("evaluate.every_epochs", "0.0"),
    ("metrics.every_s", "600.0"),
];

const EPOCHS: u64 = 6;

/// A run of two workers that trains.
fn in_the_middle(stage: &Stage) -> (Cluster<'_>, [Process; 2]) {
    let cluster = Cluster::start(stage, &[KEPT, PACED].concat());
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    until("the training", || cluster.status().output.contains("clock 5").then_some(()));
    (cluster, workers)
}

/// Waits until `slackline status` says it.
fn status_says(cluster: &Cluster<'_>, what: &str) {
    until(what, || {
        let status = cluster.status();
        assert_eq!(status.code, 0, "{}", status.error);
        status.output.contains(what).then_some(())
    });
}

#[test]
fn a_full_disk_under_the_coordinators_memory_is_named_and_waited_for() {
    let stage = Stage::new();
    let (cluster, workers) = in_the_middle(&stage);
    let coordinator = &cluster.servers[0];
    coordinator.fill_disk(true);
    coordinator.line("nothing goes on before it can be");
    status_says(&cluster, "nothing goes on before it can be");
    coordinator.fill_disk(false);
    coordinator.line("the coordinator's memory can be kept again");
    for process in workers.iter().chain(&cluster.servers) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn a_full_disk_under_a_shards_journal_is_named_and_waited_for() {
    let stage = Stage::new();
    let (cluster, workers) = in_the_middle(&stage);
    cluster.servers[1].fill_disk(true);
    cluster.servers[1].line("cannot be written");
    status_says(&cluster, "shard-00001-0000000000.journal of server 1 cannot be written");
    cluster.servers[1].fill_disk(false);
    cluster.servers[1].line("the journal of shard 1 can be written again");
    for process in workers.iter().chain(&cluster.servers) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

// Found by reading: whoever stood before a full disk heard no signal.
#[test]
fn a_coordinator_that_stands_before_a_full_disk_ends_when_it_is_told_and_goes_on_when_it_is_started_again() {
    let stage = Stage::new();
    let (cluster, workers) = in_the_middle(&stage);
    cluster.servers[0].fill_disk(true);
    cluster.servers[0].line("nothing goes on before it can be");
    cluster.servers[0].signal(Signal::SIGTERM);
    cluster.servers[0].end();
    let again = cluster.start_server(0, &[]);
    for process in workers.iter().chain([&again, &cluster.servers[1]]) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

// Found by reading: the store takes nothing more after one failure until it is opened anew, and the run stood until a restart.
#[test]
fn a_map_of_shards_that_finds_the_disk_full_is_kept_when_there_is_room_again() {
    let stage = Stage::new();
    let copies =
        [("cluster.replicas", "2"), ("cluster.durability", "\"replicated\""), ("cluster.lease_s", "1.0")];
    let cluster = Cluster::start(&stage, &[&KEPT[1..], PACED, &copies].concat());
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let coordinator = &cluster.servers[0];
    coordinator.line("shard 1 has an equal copy at server 0");
    // The events, which are some kilobytes by now, still find room; the pages of the store do not.
    coordinator.limit_files(Some(12 << 10));
    cluster.servers[1].kill();
    let said = coordinator.line("nothing goes on before it can be");
    assert!(said.contains("control.redb") && !said.contains("--fresh"), "{said}");
    coordinator.limit_files(None);
    coordinator.line("the coordinator's memory can be kept again");
    coordinator.line("in place of server 1");
    for process in workers.iter().chain([coordinator]) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}
