//! Keys as their users meet them: made, shown, renewed and revoked while a cluster runs; and what each role may say.

use std::fs;
use std::time::{Duration, Instant};

use slackline_core::ids::{Clock, Generation, Incarnation, Sequence, ShardId, WorkerId};
use slackline_core::wire::{
    Ask, Evaluated, Join, Leave, Outcome, Pull, PullKind, Ready, Refusal, RefusalCode, Register, ServerWord,
    Stepped, Text, ToPeer, ToServer, TransferHeader, TransferKind, Trouble,
};
use slackline_net::{Identity, Listener, NetworkThread, Role, Settings};

use crate::cluster::{Cluster, PACED, list, resolved};
use crate::peer::{Peer, push_header};
use crate::process::until;
use crate::stage::Stage;

/// Copies a folder as it is brought to a machine.
fn copy(stage: &Stage, from: &str, to: &str) {
    fs::create_dir_all(stage.path(to)).unwrap();
    for entry in fs::read_dir(stage.path(from)).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), stage.path(to).join(entry.file_name())).unwrap();
    }
}

const WORKER: &[Role] = &[Role::Worker];

/// A message of every kind, and who may say it: written down here, apart from the code that decides.
fn messages() -> Vec<(ToServer, &'static [Role])> {
    let (worker, incarnation, clock) = (WorkerId(0), Incarnation(1), Clock(0));
    let (layout_hash, config_hash, shard) = (0, 0, ShardId(0));
    let gated = PullKind::Gated { clock, after: Default::default(), ahead: 0 };
    vec![
        (
            ToServer::Join(Join {
                layout_hash,
                config_hash,
                data_hash: 0,
                sample_count: 1,
                former: None,
                peers_at: None,
            }),
            WORKER,
        ),
        (
            ToServer::Register(Register {
                worker,
                incarnation,
                layout_hash,
                config_hash,
                clock,
                batch_count: 1,
                answered: Default::default(),
            }),
            WORKER,
        ),
        (ToServer::Renew, WORKER),
        (ToServer::Enter { clock }, WORKER),
        (ToServer::Finish, WORKER),
        (ToServer::Ask(Ask { clock, results: Vec::new(), report: None }), WORKER),
        (ToServer::Pull(Pull { shard, request: 1, have: 0, kind: gated }), WORKER),
        (
            ToServer::Pull(Pull { shard, request: 1, have: 0, kind: PullKind::Snapshot }),
            &[Role::Worker, Role::Observer, Role::Admin],
        ),
        (ToServer::PushNothing { shard, sequence: Sequence(1), clock, reply: 0, have: 0 }, WORKER),
        (ToServer::Evaluated(Evaluated { at_samples: 0, loss: 0.0, accuracy: 1.0, report: None }), WORKER),
        (ToServer::Leave(Leave { outcome: Outcome::Done, report: None }), WORKER),
        (ToServer::Ready(Ready { generation: Generation(0), clock, units: 0, measured: None }), WORKER),
        (ToServer::Trouble(Trouble { generation: Generation(0), worker, reason: Text::new("none") }), WORKER),
        (ToServer::Stepped(Stepped { generation: Generation(0), clock, units: 0, report: None }), WORKER),
        (ToServer::Commit { sequence: Sequence(1) }, WORKER),
        (ToServer::Cluster(ServerWord::Alive), &[Role::Server]),
        (ToServer::Status, &Role::ALL),
    ]
}

#[test]
fn every_message_is_taken_of_its_roles_only() {
    // Case 66: a worker's certificate must not be enough to call `shutdown`.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let stop = ToServer::Stop { reason: Text::new("because I can") };
    let mut refused = 0;
    for (message, may) in messages().into_iter().chain([(stop, &[Role::Server, Role::Admin][..])]) {
        for role in Role::ALL {
            let is_stop = matches!(message, ToServer::Stop { .. });
            if is_stop && may.contains(&role) {
                continue;
            }
            let mut peer = Peer::connect(&stage.path("keys"), role, &cluster.addresses[0]).unwrap();
            peer.say(&message);
            // Every role may ask this, so an answer to it, or an end, comes after whatever the first message led to.
            peer.say_if_open(&ToServer::Status);
            let mut is_refused = false;
            while let Some(answer) = peer.next() {
                is_refused |= matches!(answer, ToPeer::Refused(Refusal { code: RefusalCode::Role, .. }));
                if matches!(answer, ToPeer::Status(_)) {
                    break;
                }
            }
            assert_eq!(is_refused, !may.contains(&role), "{role}: {message:?}");
            refused += u32::from(is_refused);
        }
    }
    until("all refusals to be counted", || {
        cluster.status().output.contains(&format!("{refused} for their role")).then_some(())
    });
    cluster.still_trains();
}

#[test]
fn a_push_of_another_role_is_no_push_whatever_it_claims() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("cluster.lease_s", "20.0")]);
    let run = resolved(&[("cluster.lease_s", "20.0")]);
    let (shard, keys) = run.config.partition().shards().next().unwrap();
    let mut worker = Peer::connect(&stage.path("keys"), Role::Worker, &cluster.addresses[0]).unwrap();
    let member = worker.join(&run);
    // They know a member's name and incarnation; the session's registration speaks, and none of them can register.
    for role in [Role::Observer, Role::Admin, Role::Server] {
        for kind in [TransferKind::Push, TransferKind::Initial, TransferKind::Values, TransferKind::Part] {
            let peer = Peer::connect(&stage.path("keys"), role, &cluster.addresses[0]).unwrap();
            let header = TransferHeader { kind, ..push_header(member, shard, keys) };
            peer.push(header, vec![7.0; keys.len as usize]);
            let closed = peer.closed();
            assert!(closed.contains("malformed"), "{role} {kind:?}: {closed}");
        }
    }
    worker.say(&ToServer::Leave(Leave { outcome: Outcome::Done, report: None }));
    drop(worker);
    cluster.still_trains();
}

#[test]
fn a_worker_refuses_a_server_that_shows_a_workers_certificate() {
    // Case 57: a worker retried for ever against a server that could not be its own.
    let stage = Stage::new();
    assert_eq!(stage.run(&["keys", "init", "keys"]).code, 0);
    let config = stage.write("run.toml", &crate::cluster::configuration(&[("servers", "1")]));
    let network = NetworkThread::start("impostor").unwrap();
    let identity = Identity::load(&stage.path("keys"), Role::Worker).unwrap();
    let impostor = {
        let _inside = network.handle().enter();
        Listener::bind("127.0.0.1:0".parse().unwrap(), &identity, &Settings::default()).unwrap()
    };
    let address = impostor.local_address().to_string();
    network.handle().spawn(async move {
        while let Some(handshake) = impostor.accept().await {
            tokio::spawn(handshake.complete());
        }
    });
    let began = Instant::now();
    let addresses = list(&[address]);
    let ended = stage.run(&["worker", &config, "--set", &addresses]);
    assert_ne!(ended.code, 0);
    assert!(ended.error.contains("is not a server's"), "{}", ended.error);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_revoked_machine_is_put_out_while_the_others_train_on() {
    let stage = Stage::new();
    // Nobody's training is over before the list of revoked keys has been read.
    let over = [PACED, &[("train.epochs", "20"), ("cluster.lease_s", "2.0")]].concat();
    let cluster = Cluster::start(&stage, &over);
    let issued = stage.run(&["keys", "issue", "keys", "--role", "worker", "--name", "gpu7"]);
    assert!(
        issued.code == 0 && issued.output.contains("worker gpu7 (serial "),
        "{}{}",
        issued.output,
        issued.error
    );
    // Its own copy: no later list reaches it, so that only the servers keep it out.
    copy(&stage, "keys/machines/gpu7", "gpu7");
    let (good, bad) = (cluster.worker("good", &[]), cluster.worker("bad", &["--keys", "gpu7"]));
    cluster.servers[0].line("test accuracy");

    let revoked = stage.run(&["keys", "revoke", "keys", "gpu7"]);
    assert!(
        revoked.code == 0 && revoked.output.contains("revoked worker gpu7"),
        "{}{}",
        revoked.output,
        revoked.error
    );
    let began = Instant::now();
    let out = bad.end();
    assert!(out.code != 0 && out.error.contains("gpu7") && out.error.contains("revoked"), "{}", out.error);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let again = cluster.worker("again", &["--keys", "gpu7"]).end();
    assert!(again.code != 0 && again.error.contains("revoked"), "{}", again.error);
    cluster.servers[0].line("was revoked");

    // The keys of the others are renewed meanwhile, and a newcomer comes with the new ones.
    let renewed = stage.run(&["keys", "renew", "keys"]);
    assert_eq!(renewed.code, 0, "{}", renewed.error);
    let late = cluster.worker("late", &[]);
    good.end_well();
    late.end_well();
    cluster.end_well();
    let shown = stage.run(&["keys", "show", "keys"]);
    assert!(
        shown.output.contains("revoked on ") && shown.output.contains("replaced, still good"),
        "{}",
        shown.output
    );
}

// Found by reading: each worker called the revoked server at once, found what it may not be, and ended, long before the servers with the
// copies took its place.
#[test]
fn a_revoked_server_is_put_out_while_the_workers_train_on_with_the_copies() {
    let stage = Stage::new();
    let copies = [("cluster.replicas", "2"), ("cluster.durability", "\"replicated\"")];
    let long = [("servers", "3"), ("train.epochs", "40"), ("cluster.lease_s", "1.0")];
    let mut cluster = Cluster::start(&stage, &[PACED, &long, &copies].concat());
    let issued = stage.run(&["keys", "issue", "keys", "--role", "server", "--name", "rack1"]);
    assert_eq!(issued.code, 0, "{}", issued.error);
    copy(&stage, "keys/machines/rack1", "rack1");
    cluster.servers[1].kill();
    cluster.servers[1] = cluster.start_server(1, &["--keys", "rack1"]);
    cluster.servers[1].line(" is ready: ");
    let workers = ["a", "b"].map(|name| cluster.worker(name, &[]));
    let coordinator = &cluster.servers[0];
    coordinator.line("shard 1 has an equal copy at");
    coordinator.line("test accuracy");

    let revoked = stage.run(&["keys", "revoke", "keys", "rack1"]);
    assert_eq!(revoked.code, 0, "{}", revoked.error);
    coordinator.line("answers for shard 1 now, in place of server 1");
    for worker in &workers {
        let line = worker.line("server 1 is not reached yet: ");
        assert!(line.contains("revoked"), "{line}");
    }
    for process in workers.iter().chain([coordinator, &cluster.servers[2]]) {
        process.end_well();
    }
    assert!(cluster.has_trained_for(40));
    assert!(cluster.servers[1].has_said("revoked"), "it knows why nobody answers");
}

#[test]
fn an_authority_is_rotated_step_by_step_from_the_command_line() {
    let stage = Stage::new();
    assert_eq!(stage.run(&["keys", "init", "keys", "--days", "30", "--authority-days", "60"]).code, 0);
    let again = stage.run(&["keys", "init", "keys"]);
    assert_eq!(again.code, 2, "{}", again.error);
    let rotated = stage.run(&["keys", "rotate", "keys"]);
    assert!(rotated.code == 0 && rotated.output.contains("--finish"), "{}{}", rotated.output, rotated.error);
    let early = stage.run(&["keys", "rotate", "keys", "--finish"]);
    assert!(early.code == 2 && early.error.contains("keys renew"), "{}", early.error);
    assert_eq!(stage.run(&["keys", "renew", "keys", "--days", "30"]).code, 0);
    let finished = stage.run(&["keys", "rotate", "keys", "--finish"]);
    assert!(finished.code == 0 && finished.output.contains("not trusted any more"), "{}", finished.error);
    for (arguments, words) in [
        (
            &["keys", "issue", "keys", "--role", "root", "--name", "x"][..],
            "server, worker, observer or admin",
        ),
        (&["keys", "issue", "keys", "--role", "worker", "--name", "../x"], "is no name"),
        (&["keys", "revoke", "keys", "nobody"], "keys show"),
        (&["keys", "renew", "elsewhere"], "keys init"),
    ] {
        let refused = stage.run(arguments);
        assert!(refused.code == 2 && refused.error.contains(words), "{arguments:?}: {}", refused.error);
    }
}
