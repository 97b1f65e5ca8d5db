//! A cluster as somebody starts it by hand: keys, servers one by one, workers when they like.

use slackline_core::config::{Config, Layer, Resolved, Value};

use crate::process::{Ended, Process};
use crate::stage::Stage;

/// A small run over two servers: every key that the tests do not leave to its default.
pub(crate) const SMALL: &[(&str, &str)] = &[
    ("workers", "2"),
    ("servers", "2"),
    ("cluster.lease_s", "2.0"),
    ("cluster.wait_report_s", "0.5"),
    ("data.dataset", "\"digits\""),
    ("model.kind", "\"softmax\""),
    ("train.epochs", "4"),
    ("train.batch", "32"),
    ("optimizer.rate", "0.03"),
    ("metrics.every_s", "0.05"),
];

/// Every iteration takes its time, so that the middle of a run is not over before a test gets to it, on the fastest of machines too.
/// An epoch of two workers is a quarter of a second at least.
pub(crate) const PACED: &[(&str, &str)] =
    &[("stragglers.kind", "\"permanent\""), ("stragglers.slow", "0"), ("stragglers.compute_s", "0.01")];

/// The text of a configuration: `SMALL` with `over` over it.
pub(crate) fn configuration(over: &[(&str, &str)]) -> String {
    let keys = SMALL.iter().filter(|(key, _)| over.iter().all(|(other, _)| key != other)).chain(over);
    keys.map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// Samples that the digits have for training.
pub(crate) const DIGITS: u64 = 1442;

/// The same, as the program resolves it.
pub(crate) fn resolved(over: &[(&str, &str)]) -> Resolved {
    let layer = |keys: &[(&str, &str)]| Layer {
        name: "test".to_owned(),
        values: keys
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Value::from_literal(value).unwrap()))
            .collect(),
    };
    Config::resolve(&[layer(SMALL), layer(over)]).unwrap()
}

/// Servers that run, with what is needed to join them.
pub(crate) struct Cluster<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) config: String,
    pub(crate) servers: Vec<Process>,
    pub(crate) addresses: Vec<String>,
}

impl<'a> Cluster<'a> {
    /// Makes keys and starts the servers of `SMALL` with `over` over it. Each must know where the others are, before any of them is there.
    pub(crate) fn start(stage: &'a Stage, over: &[(&str, &str)]) -> Self {
        Self::start_with(stage, over, &[])
    }

    /// The same, with more arguments for every server.
    pub(crate) fn start_with(stage: &'a Stage, over: &[(&str, &str)], more: &[&str]) -> Self {
        let config = stage.write("run.toml", &configuration(over));
        let made = stage.run(&["keys", "init", "keys"]);
        assert_eq!(made.code, 0, "{}", made.error);
        let servers = resolved(over).config.servers as usize;
        let addresses: Vec<_> = (0..servers).map(|_| free_address()).collect();
        let mut cluster = Self { stage, config, servers: Vec::new(), addresses };
        cluster.servers = (0..servers).map(|index| cluster.start_server(index, more)).collect();
        for (server, address) in cluster.servers.iter().zip(&cluster.addresses) {
            assert_eq!(address_of(server), *address);
        }
        cluster
    }

    /// Starts a server at its address.
    pub(crate) fn start_server(&self, index: usize, more: &[&str]) -> Process {
        let (number, list) = (index.to_string(), list(&self.addresses));
        let bind = if more.contains(&"--bind") { &[][..] } else { &["--bind", &self.addresses[index]] };
        let arguments = ["server", &self.config, "--log", "info", "--index", &number, "--set", &list];
        // A file that may not grow is refused to the program, as on a full disk; without this it would be ended.
        let first = "trap '' XFSZ";
        self.stage.start_after(&format!("server {index}"), first, &[&arguments, bind, more].concat())
    }

    pub(crate) fn worker(&self, name: &str, more: &[&str]) -> Process {
        self.worker_at(name, &self.addresses, more)
    }

    /// A worker that reaches the servers at these addresses.
    pub(crate) fn worker_at(&self, name: &str, addresses: &[String], more: &[&str]) -> Process {
        let list = list(addresses);
        let arguments = ["worker", &self.config, "--log", "info", "--set", &list];
        self.stage.start(name, &[&arguments, more].concat())
    }

    /// What `slackline status` says.
    pub(crate) fn status(&self) -> Ended {
        self.stage.run(&["status", &self.config, "--set", &list(&self.addresses)])
    }

    /// Tells all servers to end, by `slackline stop`.
    pub(crate) fn stop(&self, more: &[&str]) -> Ended {
        let list = list(&self.addresses);
        self.stage.run(&[&["stop", &self.config, "--set", &list], more].concat())
    }

    /// Waits for all servers, which must end well by themselves.
    pub(crate) fn end_well(&self) {
        for server in &self.servers {
            server.end_well();
        }
    }

    /// The summary of the run.
    pub(crate) fn summary(&self) -> serde_json::Value {
        serde_json::from_str(&self.stage.read("out/summary.json")).unwrap()
    }

    /// Whether all samples were used: the last evaluation is made when the last batch is done. (The samples of the summary are those
    /// that workers have reported; a worker that dies takes its last report with it.)
    pub(crate) fn has_trained_for(&self, epochs: u64) -> bool {
        let metrics = self.stage.read("out/metrics.jsonl");
        let mut lines = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let last = lines.rfind(|line| line["event"] == "evaluate").unwrap();
        last["at_samples"] == epochs * DIGITS
    }

    /// Trains with two workers until all is over: the proof that whatever happened before did no harm.
    pub(crate) fn still_trains(&self) {
        let workers = [self.worker("worker a", &[]), self.worker("worker b", &[])];
        for worker in workers {
            worker.end_well();
        }
        self.end_well();
        let accuracy = self.summary()["final"]["test_accuracy"].as_f64().unwrap();
        assert!(accuracy > 0.6, "{accuracy}");
    }
}

/// `cluster.addresses`, for `--set`.
pub(crate) fn list(addresses: &[String]) -> String {
    format!("cluster.addresses={addresses:?}")
}

/// An address of this machine that nobody had a moment ago.
pub(crate) fn free_address() -> String {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Where a server says that it is.
pub(crate) fn address_of(server: &Process) -> String {
    let line = server.line(" is ready: ");
    line.split(" is ready: ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
}
