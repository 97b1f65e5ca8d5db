//! A cluster whose coordinator lives in etcd's keeping, as real processes with a real etcd: any one of them may be lost for good.
//!
//! Where no etcd is installed (Debian's `etcd-server`), each test says so and has nothing to show.
#![allow(clippy::unwrap_used)]

mod checkpoints;
#[path = "../processes/cluster.rs"]
#[allow(dead_code, reason = "the tests of the other target use the rest")]
mod cluster;
mod endings;
mod keeper;
mod keys;
mod prefixes;
#[path = "../processes/process.rs"]
#[allow(dead_code, reason = "the tests of the other target use the rest")]
mod process;
#[path = "../processes/stage.rs"]
#[allow(dead_code, reason = "the tests of the other target use the rest")]
mod stage;

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use cluster::{Cluster, PACED, free_address, list};
use keeper::Keeper;
use process::{Process, until};
use stage::Stage;

const EPOCHS: u64 = 20;

/// A run that is long enough to lose something in its middle.
const LONG: &[(&str, &str)] = &[
    ("cluster.lease_s", "1.0"),
    ("train.epochs", "20"),
    ("cluster.steps", "\"whole\""),
    ("cluster.replicas", "2"),
    ("cluster.durability", "\"replicated\""),
];

/// How long another coordinator may take: until the leadership of the lost one has gone from etcd, with room for an election of etcd itself, and a lease.
const TAKEOVER: Duration = Duration::from_secs(9);

/// Two servers, two workers, two candidates.
struct Apart<'a> {
    cluster: Cluster<'a>,
    candidates: Vec<Process>,
    workers: [Process; 2],
}

impl<'a> Apart<'a> {
    fn start(stage: &'a Stage, keeper: &Keeper) -> Self {
        Self::start_with(stage, &settings(keeper, &[]))
    }

    fn start_with(stage: &'a Stage, settings: &[(String, String)]) -> Self {
        let cluster = Cluster::start(stage, &borrowed(settings));
        let candidates = (0..2).map(|index| candidate(&cluster, index, &[])).collect();
        let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
        Self { cluster, candidates, workers }
    }

    /// Which candidate leads, once the run is in its middle.
    fn leader(&self) -> usize {
        let has_begun = |index: &usize| self.candidates[*index].has_said("test accuracy");
        let leader = until("an evaluation", || (0..2).find(has_begun));
        // Both servers have all that is to be lost.
        self.candidates[leader].line("has an equal copy at");
        leader
    }

    /// Whether all samples were used, by what the last leader has written.
    fn end_well(&self, last: usize) {
        for worker in &self.workers {
            worker.end_well();
        }
        self.candidates[last].end_well();
        let metrics = self.cluster.stage.read(&format!("out{last}/metrics.jsonl"));
        let lines = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let last = lines.rev().find(|line| line["event"] == "evaluate").unwrap();
        assert_eq!(last["at_samples"], EPOCHS * 1442, "every sample of every epoch was used");
    }
}

/// The long run with its memory in this etcd, two candidates for its coordinator, and `over` over it.
fn settings(keeper: &Keeper, over: &[(&str, &str)]) -> Vec<(String, String)> {
    let store = format!("{:?}", keeper.url());
    let coordinators = format!("{:?}", [free_address(), free_address()]);
    let keys = [("cluster.store", store.as_str()), ("cluster.coordinators", coordinators.as_str())];
    let is_own = |(key, _): &&(&str, &str)| over.iter().all(|(other, _)| other != key);
    let all = [LONG, PACED, &keys].concat();
    let all = all.iter().filter(is_own).chain(over);
    all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn borrowed(settings: &[(String, String)]) -> Vec<(&str, &str)> {
    settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn candidate(cluster: &Cluster<'_>, index: usize, more: &[&str]) -> Process {
    let (number, out) = (index.to_string(), format!("out{index}"));
    let list = list(&cluster.addresses);
    let arguments =
        ["coordinator", &cluster.config, "--log", "info", "--index", &number, "--set", &list, "--out", &out];
    cluster.stage.start(&format!("candidate {index}"), &[&arguments, more].concat())
}

#[test]
fn another_coordinator_takes_the_place_of_one_that_dies() {
    let Some(keeper) = Keeper::start() else { return };
    let stage = Stage::new();
    let apart = Apart::start(&stage, &keeper);
    let leader = apart.leader();
    let other = 1 - leader;
    let killed = Instant::now();
    apart.candidates[leader].kill();
    let took = apart.candidates[other].time_of("leads, and goes on").duration_since(killed);
    println!("another coordinator leads after {:.2} s", took.as_secs_f64());
    assert!(took < TAKEOVER, "{took:?}");
    apart.end_well(other);
    apart.cluster.end_well();
}

#[test]
fn with_the_coordinator_apart_server_0_may_die_like_any_other() {
    let Some(keeper) = Keeper::start() else { return };
    let stage = Stage::new();
    let apart = Apart::start(&stage, &keeper);
    let leader = apart.leader();
    apart.cluster.servers[0].kill();
    apart.end_well(leader);
    apart.cluster.servers[1].end_well();
    // The other one has stood by all the time, and ends with the run.
    let ended = apart.candidates[1 - leader].end_well();
    assert!(ended.error.contains("the run is complete"), "{}", ended.error);
}

#[test]
fn a_coordinator_that_was_frozen_is_harmless_when_it_thaws() {
    let Some(keeper) = Keeper::start() else { return };
    let stage = Stage::new();
    let apart = Apart::start(&stage, &keeper);
    let leader = apart.leader();
    apart.candidates[leader].signal(Signal::SIGSTOP);
    apart.candidates[1 - leader].line("leads, and goes on");
    apart.candidates[leader].signal(Signal::SIGCONT);
    apart.candidates[leader].line("coordinates no more");
    apart.end_well(1 - leader);
    apart.candidates[leader].end_well();
    apart.cluster.end_well();
}

#[test]
fn a_run_waits_by_name_for_an_etcd_that_is_away_and_goes_on() {
    let Some(mut keeper) = Keeper::start() else { return };
    let stage = Stage::new();
    let apart = Apart::start(&stage, &keeper);
    let leader = apart.leader();
    keeper.kill();
    let line = apart.candidates[leader].line("nothing goes on before it can be");
    assert!(line.contains(&keeper.address()), "{line}");
    // Whoever asks is told why, by the leader, and by candidates once nobody leads.
    let says = |words: &str| {
        let output = apart.cluster.status().output;
        (output.contains(&format!("etcd at {}", keeper.address())) && output.contains(words)).then_some(())
    };
    assert!(says("the coordinator's memory cannot be kept").is_some());
    until("a status in which no candidate can lead", || says("cannot lead"));
    keeper.start_again();
    for worker in &apart.workers {
        worker.end_well();
    }
    for candidate in &apart.candidates {
        candidate.end_well();
    }
    let has_result = |index: usize| stage.path(&format!("out{index}/summary.json")).exists();
    apart.end_well((0..2).find(|index| has_result(*index)).unwrap());
}

#[test]
fn an_etcd_of_three_may_lose_the_member_that_leads_it() {
    let Some(keeper) = Keeper::start_many(3) else { return };
    let stage = Stage::new();
    let apart = Apart::start(&stage, &keeper);
    let leader = apart.leader();
    keeper.kill_leader();
    // Nobody can write or renew anything until the others have elected one, which is shorter than a leadership: the same candidate goes on.
    apart.end_well(leader);
    apart.candidates[1 - leader].end_well();
    apart.cluster.end_well();
}

#[test]
fn a_candidate_that_cannot_begin_gives_the_leadership_back_and_a_signal_ends_each() {
    let Some(keeper) = Keeper::start() else { return };
    let stage = Stage::new();
    let settings = settings(&keeper, &[]);
    let cluster = Cluster::start(&stage, &borrowed(&settings));
    stage.write("out0", "a file where its results should go");
    let failed = candidate(&cluster, 0, &[]).end();
    assert!(failed.code != 0 && failed.error.contains("out0"), "{}", failed.error);
    let leader = candidate(&cluster, 1, &[]);
    leader.line(" leads");
    assert!(!leader.has_said("stands by"), "nobody has to wait for the end of a lease");
    std::fs::remove_file(stage.path("out0")).unwrap();
    let other = candidate(&cluster, 0, &[]);
    other.line("stands by");
    for candidate in [other, leader] {
        candidate.signal(Signal::SIGTERM);
        candidate.end_well();
    }
}
