//! A cluster whose processes are started one by one, in any order.

use nix::sys::signal::Signal;

use crate::cluster::{Cluster, address_of, configuration, free_address, list};
use crate::process::until;
use crate::stage::Stage;

/// The name that a worker was given, from its log.
pub(crate) fn name_of(worker: &crate::process::Process) -> String {
    let line = worker.line("joined as worker ");
    let number = line.split("joined as worker ").nth(1).unwrap().split_whitespace().next().unwrap();
    format!("worker {number}")
}

#[test]
fn servers_end_by_themselves_when_the_work_is_done() {
    // Case 10: servers never exited when all workers were done.
    let stage = Stage::new();
    let addresses = [free_address(), free_address()];
    let listed = format!("{addresses:?}");
    let config = stage.write("run.toml", &configuration(&[("cluster.addresses", &listed)]));
    let made = stage.run(&["keys", "init", "keys"]);
    assert_eq!(made.code, 0, "{}", made.error);
    let servers = ["0", "1"].map(|index| {
        stage.start(&format!("server {index}"), &["server", &config, "--index", index, "--log", "info"])
    });
    for (server, address) in servers.iter().zip(&addresses) {
        assert_eq!(address_of(server), *address);
    }
    let workers = ["a", "b"].map(|name| stage.start(&format!("worker {name}"), &["worker", &config]));
    for process in workers.iter().chain(&servers) {
        process.end_well();
    }
    assert!(servers[0].has_said("all 2 workers are here, the run begins"));
    assert!(stage.read("out/summary.json").contains("\"epochs\": 4.0"));
}

#[test]
fn a_status_names_every_clock_and_who_waits_for_whom() {
    // Case 6 of the allreduce list: who is blocked, at which clock, by whom.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("cluster.lease_s", "60.0"), ("train.epochs", "40")]);
    let (slow, fast) = (cluster.worker("slow", &[]), cluster.worker("fast", &[]));
    let (slow_name, fast_name) = (name_of(&slow), name_of(&fast));
    cluster.servers[0].line("test accuracy");
    slow.signal(Signal::SIGSTOP);
    let status = until("a worker that waits for the one that is stopped", || {
        let status = cluster.status();
        assert_eq!(status.code, 0, "{}", status.error);
        status.output.contains(&format!("waits for {slow_name} at clock")).then_some(status.output)
    });
    for index in 0..2 {
        assert!(
            status.contains(&format!("server {index} at {}: running", cluster.addresses[index])),
            "{status}"
        );
    }
    for name in [&slow_name, &fast_name] {
        let row = status.lines().find(|line| line.trim().starts_with(&format!("{name} (incarnation")));
        assert!(row.is_some_and(|row| row.contains("clock ") && row.contains("heard ")), "{status}");
    }
    let waits = status.lines().find(|line| line.contains("waits for")).unwrap().trim();
    assert!(waits.starts_with("waits ") && waits.contains(&format!(": {fast_name} at clock ")), "{waits}");
    slow.signal(Signal::SIGCONT);
    slow.end_well();
    fast.end_well();
    cluster.end_well();
}

#[test]
fn a_worker_that_comes_before_any_server_waits_and_then_trains() {
    // Case 55: requests timed out since the trainer had started first.
    let stage = Stage::new();
    let address = free_address();
    let one = [("workers", "1"), ("servers", "1"), ("cluster.wait_report_s", "1.0")];
    let config = stage.write("run.toml", &configuration(&one));
    let made = stage.run(&["keys", "init", "keys"]);
    assert_eq!(made.code, 0, "{}", made.error);
    let list = list(std::slice::from_ref(&address));
    let worker = stage.start("worker", &["worker", &config, "--set", &list]);
    worker.line("waiting for a connection to server 0 for 3.");
    let server = stage.start("server", &["server", &config, "--index", "0", "--set", &list]);
    worker.end_well();
    server.end_well();
}

#[test]
fn a_worker_that_is_missing_is_named() {
    // Case 49: nothing happened at the start, and no one said who was missing.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("workers", "4")]);
    let mut workers: Vec<_> = (0..3).map(|index| cluster.worker(&format!("worker {index}"), &[])).collect();
    cluster.servers[0].line("waiting for workers: 3 of 4 here, worker 3 missing");
    let status = cluster.status();
    assert!(status.output.contains("waiting for workers, 3 of 4 here"), "{}", status.output);
    let wait = "waiting for workers: 3 of 4 here, worker 3 missing";
    assert!(status.output.contains(wait), "{}", status.output);
    workers.push(cluster.worker("worker 3", &[]));
    for worker in workers {
        worker.end_well();
    }
    cluster.end_well();
}

#[test]
fn a_status_says_which_server_does_not_answer() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    cluster.servers[1].kill();
    let status = cluster.status();
    assert_eq!(status.code, 1, "{}", status.output);
    let expected = format!("server 1 at {}: no answer", cluster.addresses[1]);
    assert!(status.output.contains(&expected) && status.output.contains("server 0 at"), "{}", status.output);
    assert!(status.error.contains("1 of 2 servers did not answer"), "{}", status.error);
}

#[test]
fn a_server_is_found_under_a_name() {
    // Case 50: host names were not accepted. A name can have addresses of both families, and the server one of them.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let named: Vec<_> =
        cluster.addresses.iter().map(|address| address.replace("127.0.0.1", "localhost")).collect();
    let workers = ["a", "b"].map(|name| cluster.worker(name, &["--set", &list(&named)]));
    for worker in workers {
        worker.end_well();
    }
    cluster.end_well();
}

#[test]
fn a_server_says_the_address_that_others_reach_it_at() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let server = cluster.start_server(1, &["--advertise", "node7", "--bind", "127.0.0.1:0"]);
    let line = server.line(" is ready: node7:");
    assert!(line.contains("bound to 127.0.0.1:"), "{line}");
}

#[test]
fn servers_that_stay_say_that_they_have_finished_until_an_admin_ends_them() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("cluster.exit_when_done", "false")]);
    for worker in ["a", "b"].map(|name| cluster.worker(name, &[])) {
        worker.end_well();
    }
    until("the end of the run", || cluster.status().output.contains(": finished").then_some(()));
    assert!(cluster.summary()["final"]["test_accuracy"].as_f64().unwrap() > 0.8);
    let stopped = cluster.stop(&["--reason", "enough"]);
    assert_eq!(stopped.code, 0, "{}", stopped.error);
    for (server, address) in cluster.servers.iter().zip(&cluster.addresses) {
        assert!(stopped.output.contains(&format!("the server at {address} ends")), "{}", stopped.output);
        server.end_well();
    }
}

#[test]
fn an_admin_stops_a_cluster_in_the_middle_of_its_run() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("train.epochs", "100000")]);
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    assert_eq!(cluster.stop(&["--reason", "enough of it"]).code, 0);
    for worker in workers {
        let ended = worker.end();
        assert_eq!(ended.code, 1, "{}", ended.error);
        assert!(ended.error.contains("ends: enough of it"), "{}", ended.error);
    }
    for server in &cluster.servers {
        server.end_well();
    }
    // Now there is nobody to tell.
    let again = cluster.stop(&[]);
    assert_eq!(again.code, 1, "{}", again.output);
    assert!(again.error.contains("2 of 2 servers were not told to end"), "{}", again.error);
}

#[test]
fn a_name_of_this_machine_alone_is_bound_on_loopback_alone() {
    let stage = Stage::new();
    let address = free_address().replace("127.0.0.1", "localhost");
    let listed = format!("[{address:?}]");
    let over = [("servers", "1"), ("workers", "1"), ("cluster.addresses", listed.as_str())];
    let config = stage.write("run.toml", &configuration(&over));
    assert_eq!(stage.run(&["keys", "init", "keys"]).code, 0);
    let server = stage.start("server", &["server", &config, "--index", "0", "--log", "info"]);
    let line = server.line(" is ready: ");
    assert!(line.contains(&format!("is ready: {address} (bound to ")), "{line}");
    assert!(line.contains("127.0.0.1:") || line.contains("[::1]:"), "{line}");
    stage.start("worker", &["worker", &config]).end_well();
    server.end_well();
    assert!(!server.has_said("correct cluster.addresses"));
}
