//! What servers say, and what becomes of them when they are stopped for a while or for good.

use nix::sys::signal::Signal;

use crate::by_hand::name_of;
use crate::cluster::Cluster;
use crate::stage::Stage;

#[test]
fn an_interrupt_of_the_coordinator_ends_the_other_servers() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("train.epochs", "100000"), ("servers", "3")]);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[0].signal(Signal::SIGINT);
    for worker in workers {
        assert_eq!(worker.end().code, 1);
    }
    cluster.servers[0].end();
    for server in &cluster.servers[1..] {
        server.end_well();
    }
}

#[test]
fn the_coordinator_says_the_result() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    cluster.still_trains();
    let line = cluster.servers[0].line("the run is complete: test accuracy ");
    assert!(
        line.contains(" samples in ") && line.contains("metrics.jsonl and config.toml are in out"),
        "{line}"
    );
}

#[test]
fn a_pull_that_is_held_for_long_is_named_in_the_log() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("cluster.lease_s", "60.0"), ("train.epochs", "40")]);
    let (slow, fast) = (cluster.worker("slow", &[]), cluster.worker("fast", &[]));
    let (slow_name, fast_name) = (name_of(&slow), name_of(&fast));
    cluster.servers[0].line("test accuracy");
    slow.signal(Signal::SIGSTOP);
    for (shard, server) in cluster.servers.iter().enumerate() {
        let line = server.line(&format!("(shard {shard})"));
        let says = |part: String| assert!(line.contains(&part), "{line}");
        says(format!("{fast_name} at clock "));
        says(format!(" waits for {slow_name} at clock "));
    }
    slow.signal(Signal::SIGCONT);
    slow.end_well();
    fast.end_well();
    cluster.end_well();
}

#[test]
fn workers_are_not_blamed_for_the_time_in_which_their_server_stood_still() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("train.epochs", "40")]);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[0].signal(Signal::SIGSTOP);
    // That is said when a worker has heard nothing for a whole lease.
    for worker in &workers {
        worker.line("waiting for a connection to server 0");
    }
    cluster.servers[0].signal(Signal::SIGCONT);
    for worker in workers {
        worker.end_well();
    }
    cluster.end_well();
    assert!(cluster.servers[0].has_said("this server stood still for "));
    assert!(!cluster.servers[0].has_said("its lease is over"));
    assert!(cluster.has_trained_for(40));
}
