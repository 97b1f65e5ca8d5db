//! Processes that die without a word.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use slackline_core::ids::Clock;
use slackline_core::wire::{ToPeer, ToServer};
use slackline_net::Role;

use crate::by_hand::name_of;
use crate::cluster::{Cluster, PACED, free_address};
use crate::peer::Peer;
use crate::process::until;
use crate::stage::Stage;

#[test]
fn a_dead_worker_costs_the_others_one_lease_at_most() {
    // Case 4: one node went down and everybody else stood still. Case 9: its batches are done by others. Cases 9 and 11 of the allreduce
    // list: the others hear of it by themselves, from whoever knows, within a lease.
    const LEASE: Duration = Duration::from_secs(1);
    const STALENESS: u64 = 1;
    let stage = Stage::new();
    let over = [
        ("workers", "4"),
        ("cluster.lease_s", "1.0"),
        ("consistency.staleness", "1"),
        ("train.epochs", "40"),
    ];
    let cluster = Cluster::start(&stage, &[&over[..], PACED].concat());
    let workers: Vec<_> = (0..4).map(|index| cluster.worker(&format!("worker {index}"), &[])).collect();
    let victim = name_of(&workers[3]);
    cluster.servers[0].line("test accuracy");
    let mut observer = Peer::connect(&stage.path("keys"), Role::Observer, &cluster.addresses[0]).unwrap();
    let killed = Instant::now();
    workers[3].kill();
    // The clocks of a status are those of asks, which are up to one ahead of the steps that are done, and one behind at most.
    let mut last = Clock(0);
    until("another worker past the bound that the dead one had set", || {
        let clocks = clocks(&mut observer);
        last = last.max(clocks.get(&victim).copied().unwrap_or_default());
        let past = |(name, clock): (&String, &Clock)| *name != victim && clock.0 > last.0 + STALENESS + 3;
        clocks.iter().any(past).then_some(())
    });
    let waited = killed.elapsed();
    assert!(waited > LEASE / 2, "{waited:?}: nobody was held");
    assert!(waited < LEASE + Duration::from_secs(1), "{waited:?} until the others went on");
    for server in &cluster.servers {
        assert!(server.line("its lease is over").contains(&victim), "the dead one is named");
    }
    for worker in &workers[..3] {
        worker.end_well();
    }
    cluster.end_well();
    let summary = cluster.summary();
    assert!(summary["batches_repeated"].as_u64().unwrap() >= 1, "{summary}");
    let repeated = &summary["repeated"];
    let ranges = repeated["ranges"].as_array().unwrap();
    for range in ranges {
        let name = format!("worker {}", range["worker"]);
        assert!(name == victim && range["why"] == "lost", "{repeated}");
    }
    let samples: u64 =
        ranges.iter().map(|range| range["to"].as_u64().unwrap() - range["from"].as_u64().unwrap()).sum();
    assert!(samples > 0 && repeated["samples"] == samples && repeated["unlisted"] == 0, "{repeated}");
    assert!(cluster.has_trained_for(40));
    assert!(summary["staleness"]["clock_lead"]["max"].as_u64().unwrap() <= 2, "{summary}");
}

/// The clocks of the members, by their names.
fn clocks(observer: &mut Peer) -> BTreeMap<String, Clock> {
    observer.say(&ToServer::Status);
    let answer = observer.next();
    let Some(ToPeer::Status(status)) = answer else { panic!("{answer:?}") };
    status.members.iter().filter_map(|row| Some((row.worker.to_string(), row.clock?))).collect()
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
fn of_two_processes_with_one_index_the_older_ends_by_name_and_the_run_goes_on_with_the_newer() {
    // Case 14: two machines were started under the same identity, and unseated each other without end.
    let stage = Stage::new();
    let over = [
        ("cluster.lease_s", "1.0"),
        ("cluster.replicas", "2"),
        ("cluster.durability", "\"replicated\""),
        ("train.epochs", "20"),
    ];
    let cluster = Cluster::start(&stage, &[&over[..], PACED].concat());
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let coordinator = &cluster.servers[0];
    coordinator.line("shard 1 has an equal copy at server 0");
    coordinator.line("test accuracy");
    let address = free_address();
    let newer = cluster.start_server(1, &["--bind", &address, "--advertise", &address]);
    let ended = cluster.servers[1].end();
    assert_eq!(ended.code, 2, "{}", ended.error);
    let at = ended
        .error
        .find("error: server 0 refuses this process: server 1 is the process that calls from 127.0.0.1:");
    let reason = &ended.error[at.unwrap_or_else(|| panic!("{}", ended.error))..];
    assert!(
        reason.contains("this one, which calls from 127.0.0.1:") && reason.lines().count() <= 2,
        "{reason}"
    );
    assert!(reason.contains("was replaced; start one process an index"), "{reason}");
    coordinator.line("was replaced; start one process an index");
    coordinator.line("server 0 answers for shard 1 now, in place of server 1");
    for worker in workers {
        worker.end_well();
    }
    coordinator.end_well();
    assert!(cluster.has_trained_for(20));
    let restarts = coordinator.transcript().matches("server 1 was restarted").count();
    assert_eq!(restarts, 1, "they unseated each other");
    // The addresses of the run name the older one, so nobody could tell the newer one that the run is over.
    newer.signal(Signal::SIGTERM);
    newer.end_well();
    assert!(!newer.has_said("refuses this process"));
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
