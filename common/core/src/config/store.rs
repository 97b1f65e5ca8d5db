//! Where the coordinator's memory is kept: on the disk of the first server, or in etcd, where any server may be lost for good.

use super::problem::Fault;
use super::resolve::Entries;
use super::rules::{is_address, is_allreduce};
use super::value::Value;
use crate::ids::ServerId;

/// What a store of the coordinator's memory may be.
const STORE: &str = "\"local\", or etcd://host:port,host:port/prefix (etcds:// for TLS), with ports from 1 to 65535 (IPv6 as [::1]:2379)";

/// Where the coordinator's memory is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// On the disk of server 0, which is the coordinator.
    #[default]
    Local,
    /// In etcd; the coordinator is a process of its own.
    Etcd(Etcd),
}

/// An etcd cluster, and the place of a run in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    /// `host:port` of its members.
    pub endpoints: Vec<String>,
    /// What the names of all rows begin with; without a slash at its end.
    pub prefix: String,
    /// Folder with `ca.pem`, `cert.pem` and `key.pem`, or one of `slackline keys`; none for a connection without TLS.
    pub keys: Option<String>,
}

impl Store {
    /// Which server coordinates: the first one, or with etcd one that is none of the servers with shards and stands behind them in the count.
    #[must_use]
    pub const fn coordinator(&self, servers: u32) -> ServerId {
        match self {
            Self::Local => ServerId(0),
            Self::Etcd(_) => ServerId(servers),
        }
    }
}

/// The parts of a URL of etcd: whether it is spoken to over TLS, its members, and the prefix; none for what is no such URL.
fn parts(text: &str) -> Option<(bool, Vec<&str>, &str)> {
    let (is_tls, rest) = match text.strip_prefix("etcds://") {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix("etcd://")?),
    };
    let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let hosts: Vec<_> = hosts.split(',').collect();
    (hosts.iter().all(|host| is_address(host)) && super::keeping::is_path(prefix))
        .then_some((is_tls, hosts, prefix))
}

/// The store that checked entries name. An allreduce has no servers that could go on without their coordinator.
pub(super) fn of(entries: &Entries) -> Store {
    let Some((is_tls, hosts, prefix)) = parts(entries.text("cluster.store")) else { return Store::Local };
    if is_allreduce(entries) {
        return Store::Local;
    }
    let prefix = if prefix.is_empty() { "slackline" } else { prefix };
    Store::Etcd(Etcd {
        endpoints: hosts.into_iter().map(str::to_owned).collect(),
        prefix: prefix.to_owned(),
        keys: is_tls.then(|| entries.text("cluster.store_keys").to_owned()),
    })
}

/// Checks the keys with `rule`, which takes the keys of a rule and the rule.
pub(super) fn check(rule: &mut impl FnMut(&[&str], &dyn Fn(&Entries) -> Option<Fault>)) {
    rule(&["cluster.store"], &|entries| {
        let text = entries.text("cluster.store");
        let is_store = text == "local" || parts(text).is_some();
        (!is_store).then_some(Fault::NotAStore { expected: STORE })
    });
    rule(&["cluster.coordinators", "cluster.store", "sync.method"], &candidates);
    rule(&["cluster.store_keys", "cluster.store", "sync.method"], &keys);
}

fn candidates(entries: &Entries) -> Option<Fault> {
    let list = entries.list("cluster.coordinators");
    if is_allreduce(entries) {
        return None;
    }
    match (entries.text("cluster.store") == "local", list.is_empty()) {
        (true, true) => return None,
        (true, false) => {
            return Some(Fault::Unfit {
                rule: "needs cluster.store = \"etcd://...\": with the local store server 0 is the coordinator",
            });
        }
        (false, true) => {
            return Some(Fault::Unfit {
                rule: "cluster.store is etcd, so the coordinator is a process of its own: give the host:port of each candidate \
                       (two or more, so that one may be lost)",
            });
        }
        (false, false) => {}
    }
    for (place, address) in list.iter().enumerate() {
        if !matches!(address, Value::Text(text) if is_address(text)) {
            return Some(Fault::NotAnAddress { place });
        }
        if list[..place].contains(address) || entries.list("cluster.addresses").contains(address) {
            return Some(Fault::Unfit {
                rule: "every candidate and every server needs an address of its own",
            });
        }
    }
    None
}

fn keys(entries: &Entries) -> Option<Fault> {
    let is_tls = parts(entries.text("cluster.store")).is_some_and(|(is_tls, ..)| is_tls);
    let rule = match (is_tls, entries.text("cluster.store_keys").is_empty()) {
        (true, true) => {
            "etcds:// needs the folder with ca.pem, cert.pem and key.pem that etcd accepts, or one of `slackline keys`"
        }
        (false, false) => "needs cluster.store = \"etcds://...\": without TLS no key is shown to etcd",
        _ => return None,
    };
    (!is_allreduce(entries)).then_some(Fault::Unfit { rule })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{layer, resolve};
    use super::*;

    #[test]
    fn a_store_is_local_or_an_etcd_cluster() {
        let many = "etcd://10.0.0.1:2379,b.c:2379,[::1]:2379/slack/run-1";
        for right in ["etcd://a:1", many, "etcd://a:1/", "etcd://a:1/x/", "etcds://a:1/x"] {
            assert!(parts(right).is_some(), "{right}");
        }
        for wrong in [
            "",
            "etcd",
            "etcd://",
            "etcd://a",
            "etcd://a:0",
            "etcd://a:1,",
            "http://a:1",
            "etcd://a:1//x",
            "etcd://a:1/../x",
        ] {
            assert!(parts(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn with_etcd_the_coordinator_stands_behind_the_servers() {
        let store = |settings: &[(&str, &str)]| {
            let config = resolve(&[layer("b.toml", settings)]).unwrap().config;
            (config.coordinator(), config.cluster.store)
        };
        assert_eq!(store(&[]), (ServerId(0), Store::Local));
        let servers = ("servers", "3");
        let candidates = ("cluster.coordinators", "[\"a:1\", \"b:1\"]");
        let (coordinator, found) =
            store(&[servers, candidates, ("cluster.store", "\"etcd://x:1,y:2/runs/\"")]);
        assert_eq!(coordinator, ServerId(3));
        let endpoints = vec!["x:1".to_owned(), "y:2".to_owned()];
        assert_eq!(found, Store::Etcd(Etcd { endpoints, prefix: "runs".to_owned(), keys: None }));
        let (_, found) =
            store(&[candidates, ("cluster.store", "\"etcds://x:1\""), ("cluster.store_keys", "\"k\"")]);
        let Store::Etcd(etcd) = found else { panic!("{found:?}") };
        assert_eq!((etcd.prefix.as_str(), etcd.keys.as_deref()), ("slackline", Some("k")));
        let allreduce = ("sync.method", "\"allreduce\"");
        let (coordinator, found) = store(&[allreduce, candidates, ("cluster.store", "\"etcd://x:1\"")]);
        assert_eq!((coordinator, found), (ServerId(0), Store::Local), "it has nothing to keep");
    }
}
