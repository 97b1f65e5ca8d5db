//! The rules between keys.

use core::net::Ipv6Addr;
use std::collections::BTreeSet;

use super::codec;
use super::keeping::keeping;
use super::problem::{Fault, Problem};
use super::resolve::{Entries, SET_LAYER};
use super::schema::KEYS;
use super::simulation::{Incident, Whom};
use super::store;
use super::transport;
use super::value::Value;
use crate::collective::Topology;
use crate::limits::GROUP_COUNT_MAX;

/// Every rule between keys that is broken. A rule is left out when one of its keys is `faulty` by itself.
pub(super) fn check(entries: &Entries, faulty: &BTreeSet<&'static str>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut rule = |keys: &[&str], broken: &dyn Fn(&Entries) -> Option<Fault>| {
        if !keys.iter().any(|key| faulty.contains(key)) {
            problems.extend(broken(entries).map(|fault| entries.problem(keys[0], fault)));
        }
    };
    rule(&["cluster.addresses", "servers", "sync.method"], &addresses);
    rule(&["model.widths", "model.kind"], &widths);
    rule(&["model.kind", "data.dataset"], &quadratic);
    rule(&["train.microbatch", "train.batch"], &microbatch);
    rule(&["optimizer.momentum_per", "optimizer.nesterov", "optimizer.kind"], &ordered);
    rule(&["local.fragments", "local.mode", "servers", "cluster.shards_per_server"], &fragments);
    rule(&["consistency.high", "consistency.low", "consistency.policy"], &bounds);
    rule(&["consistency.backup", "workers", "consistency.policy"], &backup);
    rule(&["consistency.quorum", "workers", "consistency.policy"], &quorum);
    rule(
        &[
            "consistency.prefetch",
            "consistency.policy",
            "consistency.staleness",
            "consistency.low",
            "consistency.delay",
            "consistency.drop_at",
            "local.mode",
            "sync.method",
        ],
        &prefetch,
    );
    rule(
        &["train.overlap", "sync.method", "train.threads", "local.mode", "cluster.steps", "codec.push"],
        &overlap,
    );
    rule(&["sync.topology", "workers", "sync.method"], &topology);
    rule(
        &["sync.method", "local.mode", "train.proportional", "consistency.delay", "consistency.drop_at"],
        &alone,
    );
    rule(&["workers", "sync.method"], &group);
    rule(&["sync.listen", "sync.method"], &listen);
    rule(&["sync.advertise", "sync.method"], &advertise);
    keeping(&mut rule);
    store::check(&mut rule);
    rule(&["stragglers.file", "stragglers.kind"], &recorded);
    rule(&["simulation.incidents", "workers", "servers", "sync.method"], &incidents);
    codec::check(&mut rule);
    transport::check(&mut rule);
    for key in KEYS {
        let Some((on, _)) = key.only_with else { continue };
        rule(&[key.path, on], &|entries| {
            let by_hand = entries.get(key.path).is_some_and(|entry| entry.origin == SET_LAYER);
            let void = by_hand && !entries.has_effect(key);
            void.then(|| Fault::NoEffect { key, is: entries.text(on).to_owned() })
        });
    }
    problems
}

fn addresses(entries: &Entries) -> Option<Fault> {
    let addresses = entries.list("cluster.addresses");
    let servers = entries.int("servers");
    if addresses.is_empty() {
        return None;
    }
    // An allreduce needs the first server only; a file made for more goes as well.
    let is_enough = is_allreduce(entries) && addresses.len() == 1;
    if i64::try_from(addresses.len()) != Ok(servers) && !is_enough {
        return Some(Fault::AddressCount { count: addresses.len(), servers });
    }
    for (place, address) in addresses.iter().enumerate() {
        let Value::Text(text) = address else { return Some(Fault::NotAnAddress { place }) };
        if !is_address(text) {
            return Some(Fault::NotAnAddress { place });
        }
        if let Some(first) = addresses[..place].iter().position(|earlier| earlier == address) {
            return Some(Fault::RepeatedAddress { first, second: place });
        }
    }
    None
}

/// Whether `text` is `name:port`, `1.2.3.4:port` or `[v6]:port`. Whether it leads anywhere, only dialling
/// tells.
pub(super) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || !port.parse().is_ok_and(|port: u16| port > 0) {
        return false;
    }
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inside) => {
            // A link-local address needs its zone: [fe80::1%eth0].
            let (address, zone) = inside.split_once('%').unwrap_or((inside, "0"));
            address.parse::<Ipv6Addr>().is_ok() && !zone.is_empty()
        }
        None => {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            !host.is_empty() && host.len() <= 253 && host.bytes().all(allowed)
        }
    }
}

fn widths(entries: &Entries) -> Option<Fault> {
    let given = !entries.list("model.widths").is_empty();
    match entries.text("model.kind") {
        "mlp" if !given => Some(Fault::NoWidths),
        "softmax" if given => Some(Fault::NeedlessWidths),
        _ => None,
    }
}

fn microbatch(entries: &Entries) -> Option<Fault> {
    let (microbatch, batch): (i64, i64) = (entries.int("train.microbatch"), entries.int("train.batch"));
    (microbatch > 0 && batch % microbatch != 0).then_some(Fault::NotADivisor { batch })
}

fn quadratic(entries: &Entries) -> Option<Fault> {
    let is_quadratic = entries.text("model.kind") == "quadratic";
    let is_noise = entries.text("data.dataset") == "noise";
    (is_quadratic != is_noise).then_some(Fault::Unfit {
        rule: "the quadratic goes with data.dataset = \"noise\", and noise with nothing else",
    })
}

fn ordered(entries: &Entries) -> Option<Fault> {
    let ordered =
        entries.text("optimizer.kind") == "momentum" && entries.text("optimizer.momentum_per") == "ordered";
    (ordered && entries.flag("optimizer.nesterov")).then_some(Fault::Unfit {
        rule: "ordered momentum has no form of Nesterov; set optimizer.nesterov = false",
    })
}

fn fragments(entries: &Entries) -> Option<Fault> {
    let fragments: i64 = entries.int("local.fragments");
    let shards = entries.int::<i64>("servers") * entries.int::<i64>("cluster.shards_per_server");
    (entries.text("local.mode") == "difference" && fragments > shards)
        .then_some(Fault::TooMany { most: shards, of: "shards (servers times cluster.shards_per_server)" })
}

fn bounds(entries: &Entries) -> Option<Fault> {
    let (low, high): (i64, i64) = (entries.int("consistency.low"), entries.int("consistency.high"));
    (entries.text("consistency.policy") == "dssp" && high < low)
        .then_some(Fault::Unfit { rule: "must be at least consistency.low" })
}

fn backup(entries: &Entries) -> Option<Fault> {
    let (late, workers): (i64, i64) = (entries.int("consistency.backup"), entries.int("workers"));
    (entries.text("consistency.policy") == "backup" && late >= workers).then_some(Fault::TooMany {
        most: workers - 1,
        of: "workers, less the one that a clock cannot do without",
    })
}

fn quorum(entries: &Entries) -> Option<Fault> {
    let workers: i64 = entries.int("workers");
    let takes_it = ["quorum", "buffer"].contains(&entries.text("consistency.policy"));
    let count: i64 = entries.number("consistency.quorum").unwrap_or(0);
    (takes_it && count > workers).then_some(Fault::TooMany { most: workers, of: "workers" })
}

/// Values that are pulled ahead lack the worker's own last pushes.
fn prefetch(entries: &Entries) -> Option<Fault> {
    let ahead: i64 = entries.int("consistency.prefetch");
    if ahead == 0 || is_allreduce(entries) {
        return None;
    }
    let drop_at: i64 = entries.int("consistency.drop_at");
    let rule = match entries.text("consistency.policy") {
        "bsp" | "backup" | "quorum" => {
            "goes with ssp, essp, dssp, asp and buffer: under the others a pull waits for the very push that would be missing; set \
             consistency.prefetch = 0, or another consistency.policy"
        }
        "ssp" | "essp" if entries.int::<i64>("consistency.staleness") < ahead => {
            "what is pulled ahead is stale, and the bound is below that; set consistency.staleness = 1 or more, or \
             consistency.prefetch = 0"
        }
        "dssp" if entries.int::<i64>("consistency.low") < ahead => {
            "what is pulled ahead is stale, and the lower bound is below that; set consistency.low = 1 or more, or \
             consistency.prefetch = 0"
        }
        _ if entries.text("local.mode") != "off" => {
            "goes without local.mode: local steps begin where the servers are after the last push; raise local.steps where pulls take long"
        }
        _ if entries.text("consistency.delay").starts_with("compensate") => {
            "goes without consistency.delay = \"compensate\" and \"compensate-adaptive\": a shard keeps the values that a worker read last, \
             and here these are not those that its next gradient was computed on"
        }
        _ if (1..=ahead).contains(&drop_at) => {
            "what is pulled ahead is stale, and consistency.drop_at drops that; set consistency.drop_at = 2 or more, or 0"
        }
        _ => return None,
    };
    Some(Fault::Unfit { rule })
}

/// Parts of a gradient leave before it is whole only where a part is all that its shard needs.
fn overlap(entries: &Entries) -> Option<Fault> {
    let rule = if !entries.flag("train.overlap") || is_allreduce(entries) {
        return None;
    } else if entries.int::<i64>("train.threads") > 1 {
        "goes with train.threads = 1: several threads have all parts of their sum at the end; leave one of the two out"
    } else if entries.text("local.mode") != "off" {
        "goes without local.mode: what local steps push is known after the last of them; leave one of the two out"
    } else if entries.text("cluster.steps") == "whole" {
        "goes without cluster.steps = \"whole\", where the pieces of a step wait for each other; leave one of the two out"
    } else if entries.text("codec.push") == "sufficient-factor" {
        "goes without codec.push = \"sufficient-factor\": what a gradient is made of is known when all of it is; leave one of the two out"
    } else {
        return None;
    };
    Some(Fault::Unfit { rule })
}

pub(super) fn is_allreduce(entries: &Entries) -> bool {
    entries.text("sync.method") == "allreduce"
}

fn topology(entries: &Entries) -> Option<Fault> {
    let workers: u32 = entries.int("workers");
    if !is_allreduce(entries) || workers > GROUP_COUNT_MAX {
        return None;
    }
    let problem = match entries.text("sync.topology").parse::<Topology>() {
        Err(unknown) => unknown.to_string(),
        Ok(topology) => topology.fits(workers).err()?.to_string(),
    };
    Some(Fault::Topology { problem })
}

/// What only parameter servers can do.
fn alone(entries: &Entries) -> Option<Fault> {
    let has_more = entries.text("local.mode") != "off"
        || entries.flag("train.proportional")
        || entries.text("consistency.delay") != "none"
        || entries.int::<i64>("consistency.drop_at") != 0;
    (is_allreduce(entries) && has_more).then_some(Fault::Unfit {
        rule: "goes without local.mode, train.proportional, consistency.delay and consistency.drop_at: all workers make each step \
               together",
    })
}

fn group(entries: &Entries) -> Option<Fault> {
    let most = i64::from(GROUP_COUNT_MAX);
    let is_large = entries.int::<i64>("workers") > most;
    (is_allreduce(entries) && is_large)
        .then_some(Fault::TooMany { most, of: "workers that one allreduce takes" })
}

fn listen(entries: &Entries) -> Option<Fault> {
    let is_right = entries.text("sync.listen").parse::<core::net::SocketAddr>().is_ok();
    (is_allreduce(entries) && !is_right).then_some(Fault::Unfit {
        rule: "expected an address and a port, such as \"0.0.0.0:0\" or \"[::]:7100\"",
    })
}

fn advertise(entries: &Entries) -> Option<Fault> {
    let advertise = entries.text("sync.advertise");
    (is_allreduce(entries) && !advertise.is_empty() && !is_address(advertise)).then_some(Fault::Unfit {
        rule: "expected host:port with a port from 1 to 65535 (IPv6 as [::1]:7000)",
    })
}

fn recorded(entries: &Entries) -> Option<Fault> {
    let missing = entries.text("stragglers.kind") == "recorded" && entries.text("stragglers.file").is_empty();
    missing.then_some(Fault::Unfit { rule: "stragglers.kind = \"recorded\" needs a file" })
}

fn incidents(entries: &Entries) -> Option<Fault> {
    let (workers, servers): (u32, u32) = (entries.int("workers"), entries.int("servers"));
    let servers = if is_allreduce(entries) { 1 } else { servers };
    let is_right = |value: &Value| {
        let Value::Text(text) = value else { return false };
        text.parse::<Incident>().is_ok_and(|incident| match incident.whom {
            Whom::Worker(number) => number.is_none_or(|number| number < workers),
            Whom::Server(number) => number.is_none_or(|number| number < servers),
            // The run of an allreduce has nothing that it could go on from.
            Whom::Run => !is_allreduce(entries),
        })
    };
    let place = entries.list("simulation.incidents").iter().position(|value| !is_right(value))?;
    Some(Fault::NotAnIncident { place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for right in ["a:1", "10.0.0.1:65535", "ps-0.ps.svc_x:7000", "[::1]:7000", "[fe80::1%eth0]:7000"] {
            assert!(is_address(right), "{right}");
        }
        for wrong in [
            "",
            ":",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "a:+1",
            "a:1:2",
            "::1:7000",
            "[::1]",
            "[]:1",
            "[::1%]:1",
            "a b:1",
            "https://a:1",
            "a/b:1",
        ] {
            assert!(!is_address(wrong), "{wrong}");
        }
    }
}
