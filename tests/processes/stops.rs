//! Stops that are nobody's end: a server that stands still, a link that is slow. Each has a name, at `slackline status` and in the logs,
//! and the run goes on afterwards.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use slackline_chaos::relay::{Link, Relay, Weather};

use crate::by_hand::name_of;
use crate::cluster::{Cluster, PACED};
use crate::process::until;
use crate::stage::Stage;

/// The lease is long enough that a silence within it is named in time on a busy machine.
const KEYS: &[(&str, &str)] = &[("cluster.lease_s", "4.0"), ("train.epochs", "8")];

const EPOCHS: u64 = 8;

const COPIES: &[(&str, &str)] = &[("cluster.replicas", "2"), ("cluster.durability", "\"replicated\"")];

/// The words of a line from `from` on.
fn from<'a>(line: &'a str, from: &str) -> &'a str {
    &line[line.find(from).unwrap_or_else(|| panic!("{line}"))..]
}

/// A line about a silent server names it, for how long, the workers that need it with their clocks, and where it is.
fn names_all(line: &str, cluster: &Cluster<'_>, server: usize) {
    let words = from(line, &format!("server {server} is silent for "));
    for part in
        [" s (its process may be stopped)", "worker 0 at clock ", "worker 1 at clock ", " need its shards"]
    {
        assert!(words.contains(part), "{part} is not in {line}");
    }
    assert!(words.contains(&format!("; it is at {}", cluster.addresses[server])), "{line}");
}

#[test]
fn a_server_that_stands_still_is_named_with_all_that_need_it_and_the_run_goes_on_with_it() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[KEYS, PACED].concat());
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[1].signal(Signal::SIGSTOP);
    names_all(&cluster.servers[0].line("server 1 is silent for "), &cluster, 1);
    for worker in &workers {
        let line = worker.line(" from server 1 for ");
        assert!(line.contains("last heard ") && line.contains("clock="), "{line}");
    }
    let status = until("the end of its lease", || {
        let status = cluster.status();
        status.output.contains("its lease is over").then_some(status)
    });
    let wait = status.output.lines().find(|line| line.contains("is silent for")).unwrap();
    names_all(wait, &cluster, 1);
    for part in [
        "shard 1 has no server and waits for server 1 to come back".to_owned(),
        format!("server 1 at {}: lost, last heard ", cluster.addresses[1]),
        format!("server 1 at {}: no answer from ", cluster.addresses[1]),
    ] {
        assert!(status.output.contains(&part), "{part} is not in {}", status.output);
    }
    assert!(status.code == 1 && status.error.contains("1 of 2 servers did not answer"), "{}", status.error);
    cluster.servers[1].signal(Signal::SIGCONT);
    for process in workers.iter().chain(&cluster.servers) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn a_server_with_copies_that_stands_still_is_named_until_another_answers_and_then_with_what_its_shards_lack()
{
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[KEYS, PACED, COPIES].concat());
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let coordinator = &cluster.servers[0];
    coordinator.line("test accuracy");
    cluster.servers[1].signal(Signal::SIGSTOP);
    names_all(&coordinator.line("server 1 is silent for "), &cluster, 1);
    coordinator.line("server 0 answers for shard 1 now, in place of server 1");
    let status = cluster.status();
    let wait = status.output.lines().find(|line| line.contains("server 1 is silent for"));
    assert!(wait.is_some_and(|wait| !wait.contains("its shards")), "nobody needs it any more: {wait:?}");
    assert!(status.output.contains("no backup: no other server is there for one"), "{}", status.output);
    cluster.servers[1].signal(Signal::SIGCONT);
    for process in workers.iter().chain(&cluster.servers) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn a_coordinator_that_stands_still_is_named_by_a_status_that_ends_and_by_the_other_servers() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[KEYS, PACED].concat());
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    cluster.servers[0].line("test accuracy");
    cluster.servers[0].signal(Signal::SIGSTOP);
    let asked = Instant::now();
    let status = cluster.status();
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    let address = &cluster.addresses[0];
    assert!(status.code == 1 && status.error.contains("1 of 2 servers did not answer"), "{}", status.error);
    assert!(status.output.contains(&format!("server 0 at {address}: no answer from ")), "{}", status.output);
    // Server 1 is asked when server 0 has been silent for longer than it may be quiet.
    let wait = status.output.lines().find(|line| line.contains("server 0, the coordinator, is silent for "));
    assert!(wait.is_some_and(|wait| wait.ends_with(&format!("; it is at {address}"))), "{}", status.output);
    cluster.servers[1].line("server 0, the coordinator, is silent for ");
    cluster.servers[0].signal(Signal::SIGCONT);
    for process in workers.iter().chain(&cluster.servers) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

// Found by reading: a coordinator that was started again took its own time for that of the run, and named no silence.
#[test]
fn a_coordinator_that_was_started_again_names_a_silent_server_within_its_lease() {
    let stage = Stage::new();
    let kept = [("cluster.lease_s", "4.0"), ("train.epochs", "20"), ("cluster.durability", "\"disk\"")];
    let cluster = Cluster::start(&stage, &[&kept[..], PACED].concat());
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    // At a quarter of a second each the run is two seconds old.
    let evaluations = || cluster.servers[0].transcript().matches("test accuracy").count();
    until("eight evaluations", || (evaluations() >= 8).then_some(()));
    cluster.servers[0].kill();
    let again = cluster.start_server(0, &[]);
    again.line("test accuracy");
    cluster.servers[1].signal(Signal::SIGSTOP);
    let line = again.line("server 1 is silent for ");
    assert!(!line.contains("its lease is over"), "{line}");
    names_all(&line, &cluster, 1);
    cluster.servers[1].signal(Signal::SIGCONT);
    for process in workers.iter().chain([&again, &cluster.servers[1]]) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(20));
}

/// The links of one process to all servers.
pub(crate) struct Links {
    pub(crate) addresses: Vec<String>,
    links: Vec<Link>,
    /// Ends the thread that they live on.
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Links {
    pub(crate) fn to(servers: &[String]) -> Self {
        let servers: Vec<std::net::SocketAddr> =
            servers.iter().map(|server| server.parse().unwrap()).collect();
        let (opened, open) = std::sync::mpsc::channel();
        let (end, ended) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut relays = Vec::new();
                for (seed, server) in servers.into_iter().enumerate() {
                    relays.push(Relay::open(server, seed as u64).await.unwrap());
                }
                let all = relays.iter().map(|relay| (relay.address.to_string(), relay.link.clone()));
                opened.send(all.unzip()).unwrap();
                let _: Result<(), _> = ended.await;
            });
        });
        let (addresses, links) = open.recv().unwrap();
        Self { addresses, links, _end: end }
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.links.iter().for_each(|link| link.set(weather));
    }

    /// Packets that were lost on purpose.
    pub(crate) fn lost(&self) -> u64 {
        self.links.iter().map(|link| link.counts().1).sum()
    }
}

/// Trap 8 of the sources (Angel): what was to find slow workers never did. Of three workers one has a bad link: `slackline status` names it, and who waits for it; then it is good again, and the run ends well.
fn slow_link(weather: Weather) {
    let stage = Stage::new();
    let three = [("workers", "3"), ("cluster.lease_s", "20.0"), ("train.epochs", "8")];
    let cluster = Cluster::start(&stage, &[&three[..], PACED].concat());
    let links = Links::to(&cluster.addresses);
    let near = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let far = cluster.worker_at("far", &links.addresses, &[]);
    let name = name_of(&far);
    cluster.servers[0].line("test accuracy");
    links.set(weather);
    until("the slow link and who waits for it", || {
        let status = cluster.status();
        assert_eq!(status.code, 0, "{}", status.error);
        let says = |part: String| status.output.contains(&part);
        (says(format!("the link to {name} is slow: ")) && says(format!(" waits for {name} at clock ")))
            .then_some(())
    });
    cluster.servers[0].line(&format!("the link to {name} is slow: "));
    links.set(Weather::default());
    for process in near.iter().chain([&far]).chain(&cluster.servers) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(EPOCHS));
}

#[test]
fn a_link_with_a_long_way_is_named_with_those_that_wait_for_its_worker() {
    slow_link(Weather { delay: Duration::from_millis(100), ..Weather::default() });
}

#[test]
fn a_link_that_lets_few_bytes_through_is_named_with_those_that_wait_for_its_worker() {
    slow_link(Weather { rate: Some(20_000), ..Weather::default() });
}
