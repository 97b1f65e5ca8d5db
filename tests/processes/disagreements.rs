//! A worker and servers that do not belong together.

use std::time::{Duration, Instant};

use crate::cluster::{Cluster, list};
use crate::process::Ended;
use crate::stage::Stage;

/// A refusal must be known to be one: no patience is spent on it.
const AT_ONCE: Duration = Duration::from_secs(5);

fn refused(cluster: &Cluster<'_>, more: &[&str]) -> String {
    let began = Instant::now();
    let ended = cluster.worker("the odd one", more).end();
    assert!(began.elapsed() < AT_ONCE, "{:?} until it gave up\n{}", began.elapsed(), ended.error);
    assert_eq!(ended.code, 2, "{}", ended.error);
    reason(&ended)
}

/// The error of a process, which stands last and is a line or two.
fn reason(ended: &Ended) -> String {
    let at = ended.error.find("error: ").unwrap_or_else(|| panic!("no error in\n{}", ended.error));
    let reason = ended.error[at..].to_owned();
    assert!(reason.lines().count() <= 2, "{reason}");
    reason
}

#[test]
fn another_model_is_refused_at_once() {
    // Case 57: a worker tried for ever against a server that refused it.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("model.kind", "\"mlp\""), ("model.widths", "[8]")]);
    let reason = refused(&cluster, &["--set", "model.widths=[9]"]);
    assert!(reason.contains("server 0") && reason.contains("[model]"), "{reason}");
    cluster.still_trains();
}

#[test]
fn another_configuration_is_refused_at_once() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let reason = refused(&cluster, &["--set", "optimizer.rate=0.02"]);
    assert!(reason.contains("configuration") && reason.contains("slackline config show"), "{reason}");
    cluster.still_trains();
}

#[test]
fn a_server_with_another_configuration_ends_at_once() {
    // Case 57, for servers: it was refused and called again without end, and so did its log.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    cluster.servers[1].kill();
    let mlp = ["--set", "model.kind=\"mlp\"", "--set", "model.widths=[8]"];
    for (other, words) in [
        (&["--set", "optimizer.rate=0.02"][..], ["server 1's configuration", "slackline config show"]),
        (&mlp[..], ["server 1's model", "[model]"]),
    ] {
        let began = Instant::now();
        let ended = cluster.start_server(1, other).end();
        assert!(began.elapsed() < AT_ONCE, "{:?} until it gave up\n{}", began.elapsed(), ended.error);
        assert_eq!(ended.code, 2, "{}", ended.error);
        let reason = reason(&ended);
        assert!(reason.contains("server 0 refuses this process"), "{reason}");
        assert!(words.iter().all(|words| reason.contains(words)), "{reason}");
        assert!(!ended.error.contains("it is tried again"), "{}", ended.error);
    }
    // The right one is welcome after that.
    let again = cluster.start_server(1, &[]);
    for worker in ["worker a", "worker b"].map(|name| cluster.worker(name, &[])) {
        worker.end_well();
    }
    again.end_well();
    cluster.servers[0].end_well();
}

#[test]
fn keys_that_are_missing_or_of_another_authority_are_named_at_once() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let reason = refused(&cluster, &["--keys", "nowhere"]);
    assert!(reason.contains("nowhere/ca.pem") && reason.contains("slackline keys init"), "{reason}");
    assert_eq!(stage.run(&["keys", "init", "others"]).code, 0);
    let reason = refused(&cluster, &["--keys", "others"]);
    assert!(reason.contains("server 0") && reason.contains("key directory"), "{reason}");
    cluster.still_trains();
}

#[test]
fn addresses_in_the_wrong_order_are_told_apart_from_addresses_that_are_wrong() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let swapped = list(&[cluster.addresses[1].clone(), cluster.addresses[0].clone()]);
    let reason = refused(&cluster, &["--set", &swapped]);
    assert!(reason.contains("server 0 was called and server 1 answered"), "{reason}");
    let too_few = list(&cluster.addresses[..1]);
    let reason = refused(&cluster, &["--set", &too_few]);
    assert!(reason.contains("cluster.addresses"), "{reason}");
}

#[test]
fn a_server_that_is_not_there_is_named_with_its_address() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    // A socket that nobody reads: no answer, and no word from the system that there is nobody.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    for addresses in
        [[address.clone(), cluster.addresses[1].clone()], [cluster.addresses[0].clone(), address.clone()]]
    {
        let server = if addresses[0] == address { "server 0" } else { "server 1" };
        let more = ["--set", &list(&addresses), "--set", "cluster.connect_timeout_s=1"];
        let ended = cluster.worker("worker", &more).end();
        assert_eq!(ended.code, 1, "{}", ended.error);
        let reason = reason(&ended);
        assert!(reason.contains(server) && reason.contains(&address), "{reason}");
    }
}
