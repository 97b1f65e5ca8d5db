//! Servers that die while a run goes on, and come back or not: nothing that was acknowledged is lost.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::cluster::{Cluster, DIGITS, PACED, configuration};
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
    // Case 1: one server was killed and the whole job hung, although replicas were asked for. Case 21 of the allreduce list: it took a quarter
    // of an hour until all was well again.
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

// Found by reading: work was given out before the copies were equal, and whoever lost a server in between lost the run.
#[test]
fn a_server_that_dies_as_soon_as_the_run_begins_is_no_loss_where_there_are_copies() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(COPIES));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("the run begins");
    cluster.servers[1].kill();
    cluster.servers[0].line("server 0 answers for shard 1 now, in place of server 1");
    let again = cluster.start_server(1, &[]);
    for process in workers.iter().chain([&cluster.servers[0], &again]) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn a_server_that_is_told_to_go_hands_its_shards_over_and_the_run_goes_on() {
    // Case 13: a server that was taken away on purpose ended the run of everybody.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(COPIES));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("shard 1 has an equal copy at server 0");
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].signal(Signal::SIGTERM);
    cluster.servers[0].line("server 1 was told to go: the run goes on without it");
    cluster.servers[0].line("server 0 answers for shard 1 now, in place of server 1");
    cluster.servers[1].end_well();
    for worker in workers {
        worker.end_well();
    }
    cluster.servers[0].end_well();
    assert!(!cluster.servers[0].has_said("server 1 was not heard for"), "no lease was waited for");
    assert!(cluster.has_trained_for(EPOCHS));
}

// Found by reading: a server that was killed was started again, and one that was told to go and went ended the run.
#[test]
fn a_server_of_a_run_on_one_machine_that_is_told_to_go_is_started_again() {
    for (over, copied) in [
        (COPIES, "has an equal copy at server 1"),
        (&[("cluster.durability", "\"disk\"")][..], "test accuracy"),
    ] {
        let stage = Stage::new();
        let config = stage.write("run.toml", &configuration(&[LONG, PACED, over].concat()));
        let out = stage.text_path("out");
        let run = stage.start("run", &["run", &config, "--log", "info", "--out", &out]);
        run.line(copied);
        run.line("test accuracy");
        let of_server_1 = |arguments: &[String]| arguments.windows(2).any(|pair| pair == ["--index", "1"]);
        let told = stage.living().into_iter().find(|living| of_server_1(&living.arguments)).unwrap();
        kill(told.pid, Signal::SIGTERM).unwrap();
        run.line("server 1 ended (exit code 0) and is started again");
        run.line("server 1 was restarted");
        run.end_well();
        assert!(stage.read("out/summary.json").contains("\"epochs\": 20.0"), "{over:?}");
        assert!(!stage.path("out/state/server-1").exists(), "what only the run could go on with is left");
        assert!(stage.living().is_empty(), "{:?}", stage.living());
    }
}

#[test]
fn servers_can_be_started_again_one_after_the_other_while_a_run_with_copies_goes_on() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(&[COPIES, &[("servers", "3")]].concat()));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let coordinator = &cluster.servers[0];
    coordinator.line("shard 1 has an equal copy at server 2");
    coordinator.line("test accuracy");
    let mut again = Vec::new();
    // Server 2 has shard 1 from server 1, and goes when that has a copy elsewhere.
    for (server, copied) in
        [(1, "shard 1 has an equal copy at server 0"), (2, "shard 1 has an equal copy at server 1")]
    {
        cluster.servers[server].signal(Signal::SIGTERM);
        cluster.servers[server].end_well();
        again.push(cluster.start_server(server, &[]));
        coordinator.line(&format!("server {server} was restarted"));
        coordinator.line(copied);
    }
    for process in workers.iter().chain([coordinator]).chain(&again) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn a_server_with_a_disk_that_is_told_to_go_is_waited_for_by_name_and_goes_on_when_it_is_back() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(&[("cluster.durability", "\"disk\"")]));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].signal(Signal::SIGTERM);
    cluster.servers[1].end_well();
    cluster.servers[0].line("server 1 was told to go: 1 of its shards wait until it is started again");
    let again = cluster.start_server(1, &[]);
    for worker in workers {
        worker.end_well();
    }
    cluster.servers[0].end_well();
    again.end_well();
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

// Found by reading: such a run ended with "no state", though the copy was whole.
#[test]
fn a_server_that_is_started_again_without_its_shard_waits_for_the_copy_that_is_frozen_by_name() {
    let stage = Stage::new();
    // Long enough to see that the copy's server is silent before its lease is over.
    let over = over(&[COPIES, &[("servers", "3"), ("cluster.lease_s", "3.0")]].concat());
    let long: Vec<_> = over.iter().filter(|pair| **pair != ("cluster.lease_s", "1.0")).copied().collect();
    let cluster = Cluster::start(&stage, &long);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let coordinator = &cluster.servers[0];
    coordinator.line("shard 1 has an equal copy at server 2");
    coordinator.line("test accuracy");
    cluster.servers[2].signal(Signal::SIGSTOP);
    coordinator.line("server 2 is silent for ");
    cluster.servers[1].kill();
    coordinator.line("server 2 was not heard for ");
    let again = cluster.start_server(1, &[]);
    coordinator.line("server 1 was restarted without shard 1; server 2, which has an equal copy, is away");
    let wait =
        "shard 1 waits for server 2 to come back, which has the only copy: server 1 was restarted without it";
    coordinator.line(wait);
    let status = cluster.status();
    assert!(status.output.contains(wait), "{}", status.output);
    cluster.servers[2].signal(Signal::SIGCONT);
    for process in workers.iter().chain([coordinator, &again, &cluster.servers[2]]) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

// Found by reading: the data went on where the coordinator had them, and the shards at the checkpoint: what came between was in no shard.
#[test]
fn when_all_servers_have_died_the_data_go_back_to_the_checkpoint_with_the_shards() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &over(&[("checkpoint.every_clocks", "100")]));
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("is in the store");
    let evaluations = || cluster.servers[0].transcript().matches("test accuracy").count();
    let then = evaluations();
    until("two more evaluations", || (evaluations() >= then + 2).then_some(()));
    cluster.servers.iter().for_each(crate::process::Process::kill);
    let again = [0, 1].map(|index| cluster.start_server(index, &[]));
    let line = again[0].line("the data go back to it too, ");
    let samples = line.split("the data go back to it too, ").nth(1).unwrap();
    let samples: u64 = samples.split_whitespace().next().unwrap().parse().unwrap();
    // An epoch lies between two evaluations.
    assert!(samples >= DIGITS, "{line}");
    for process in workers.iter().chain(&again) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
    let summary = cluster.summary();
    let repeated = &summary["repeated"];
    let restored = repeated["ranges"].as_array().unwrap().iter().filter(|range| range["why"] == "restored");
    let told: u64 =
        restored.map(|range| range["to"].as_u64().unwrap() - range["from"].as_u64().unwrap()).sum();
    assert_eq!(told, samples, "{repeated}");
    assert_eq!(summary["samples"], EPOCHS * DIGITS, "each is counted once: {summary}");
}

#[test]
fn a_server_that_dies_again_at_once_ends_a_run_on_one_machine_by_name() {
    // Case 5 of the allreduce list: one that ran out of memory was tried again for ever, and held what it had.
    let stage = Stage::new();
    let long = [("cluster.durability", "\"disk\""), ("cluster.lease_s", "60.0"), ("train.epochs", "100000")];
    let config = stage.write("run.toml", &configuration(&[PACED, &long].concat()));
    let out = stage.text_path("out");
    let run = stage.start("run", &["run", &config, "--log", "info", "--out", &out]);
    run.line("test accuracy");
    let of_server_1 = |arguments: &[String]| arguments.windows(2).any(|pair| pair == ["--index", "1"]);
    let server_1 = || stage.living().into_iter().find(|living| of_server_1(&living.arguments));
    let first = server_1().unwrap().pid;
    kill(first, Signal::SIGKILL).unwrap();
    run.line("server 1 ended (signal 9) and is started again");
    run.line("server 1 was restarted");
    let second = server_1().unwrap().pid;
    assert_ne!(second, first);
    kill(second, Signal::SIGKILL).unwrap();
    let ended = run.end();
    assert_ne!(ended.code, 0, "{}", ended.error);
    assert!(ended.error.contains("server 1 ended (signal 9)"), "{}", ended.error);
    assert!(stage.living().is_empty(), "{:?}", stage.living());
}
