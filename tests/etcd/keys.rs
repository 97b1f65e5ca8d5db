//! TLS to etcd, as the README describes it: a folder of `slackline keys`, of which only the servers are let in.

use std::fs;

use nix::sys::signal::Signal;

use crate::keeper::Keeper;
use crate::stage::Stage;
use crate::{Apart, candidate, settings};

/// A folder with the keys of a server: its authority from one folder, its certificate and key from another.
fn mixed(stage: &Stage, name: &str, authority: &str, certificate: &str) -> String {
    fs::create_dir(stage.path(name)).unwrap();
    for (from, file) in [(authority, "ca.pem"), (certificate, "server.pem"), (certificate, "server.key")] {
        fs::copy(stage.path(from).join(file), stage.path(name).join(file)).unwrap();
    }
    name.to_owned()
}

#[test]
fn with_etcds_only_candidates_with_the_right_keys_lead_and_the_others_say_what_is_wrong() {
    let stage = Stage::new();
    for folder in ["vault", "foreign"] {
        assert_eq!(stage.run(&["keys", "init", folder]).code, 0);
    }
    let issued = stage.run(&["keys", "issue", "vault", "--role", "server", "--name", "former"]);
    assert_eq!(issued.code, 0, "{}", issued.error);
    assert_eq!(stage.run(&["keys", "revoke", "vault", "former"]).code, 0);
    let Some(keeper) = Keeper::start_with_keys(&stage.path("vault")) else { return };
    let settings = settings(&keeper, &[("cluster.store_keys", "\"vault\"")]);
    let apart = Apart::start_with(&stage, &settings);
    let leader = apart.leader();
    let others = [
        // etcd's certificate is of no authority that is trusted here.
        ("foreign".to_owned(), "is not signed by the authority in foreign/ca.pem"),
        // etcd does not trust the one that has signed this certificate.
        (mixed(&stage, "stranger", "vault", "foreign"), "accept the certificate stranger/server.pem"),
        (
            mixed(&stage, "former", "vault", "vault/machines/former"),
            "accept the certificate former/server.pem",
        ),
    ];
    for (keys, words) in others {
        let keys = format!("cluster.store_keys={keys:?}");
        let wrong = candidate(&apart.cluster, 1 - leader, &["--set", &keys, "--bind", "127.0.0.1:0"]);
        let line = wrong.line("cannot lead: ");
        assert!(line.contains(&format!("etcd at {}", keeper.address())) && line.contains(words), "{line}");
        wrong.signal(Signal::SIGTERM);
        wrong.end_well();
    }
    apart.end_well(leader);
    apart.candidates[1 - leader].end_well();
    apart.cluster.end_well();
}
