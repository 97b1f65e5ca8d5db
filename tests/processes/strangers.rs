//! Peers that may not do what they try, and bytes that are none of ours. Whatever they do, a run completes afterwards.

use std::net::UdpSocket;

use slackline_core::codec::Encoding;
use slackline_core::ids::{Incarnation, KeyRange, Sequence, ShardId, WorkerId};
use slackline_core::limits::CONTROL_BYTES_MAX;
use slackline_core::wire::{
    Join, Pull, PullKind, Refusal, RefusalCode, Text, ToPeer, ToServer, TransferHeader, TransferKind,
};
use slackline_net::{ConnectError, Role};

use crate::cluster::{Cluster, resolved};
use crate::peer::{Peer, Raw, push_header};
use crate::process::until;
use crate::stage::Stage;

/// Waits until a status has counted something turned away.
fn is_counted(cluster: &Cluster<'_>, words: &str) {
    until(words, || cluster.status().output.contains(words).then_some(()));
}

#[test]
fn keys_of_another_authority_open_nothing() {
    // Case 66: anyone on the network could write weights.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    assert_eq!(stage.run(&["keys", "init", "others"]).code, 0);
    for role in [Role::Worker, Role::Admin] {
        let refused = Peer::connect(&stage.path("others"), role, &cluster.addresses[0]).err();
        assert!(matches!(refused, Some(ConnectError::OtherAuthority { .. })), "{refused:?}");
    }
    is_counted(&cluster, "turned away: 2 handshakes");
    cluster.still_trains();
}

#[test]
fn a_role_may_ask_for_its_own_part_only() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let (layout_hash, config_hash, data_hash, sample_count) = (0, 0, 0, 1);
    let join = Join { layout_hash, config_hash, data_hash, sample_count, former: None, peers_at: None };
    let pull = Pull {
        shard: ShardId(0),
        request: 1,
        have: 0,
        kind: PullKind::Gated { clock: Default::default(), after: Default::default(), ahead: 0 },
    };
    let attempts = [
        (Role::Observer, ToServer::Join(join.clone())),
        (Role::Admin, ToServer::Join(join)),
        (Role::Observer, ToServer::Pull(pull)),
        (Role::Worker, ToServer::Stop { reason: Text::new("because I can") }),
        (Role::Observer, ToServer::Stop { reason: Text::new("because I can") }),
    ];
    for (role, message) in &attempts {
        let mut peer = Peer::connect(&stage.path("keys"), *role, &cluster.addresses[0]).unwrap();
        peer.say(message);
        let answer = peer.next();
        let Some(ToPeer::Refused(Refusal { code: RefusalCode::Role, text })) = answer else {
            panic!("{answer:?}")
        };
        assert!(text.shown().contains(&role.to_string()), "{text}");
        assert_eq!(peer.next(), None, "its session is over");
    }
    is_counted(&cluster, &format!("{} for their role, 0 malformed", attempts.len()));
    cluster.still_trains();
}

#[test]
fn an_admin_may_end_a_server() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let mut admin = Peer::connect(&stage.path("keys"), Role::Admin, &cluster.addresses[1]).unwrap();
    admin.say(&ToServer::Stop { reason: Text::new("enough") });
    assert_eq!(admin.next(), Some(ToPeer::Goodbye));
    cluster.servers[1].end_well();
}

#[test]
fn foreign_bytes_on_the_port_do_no_harm() {
    // Case 56: foreign bytes on the port crashed the server. No count has them: what is no first packet of QUIC makes no connection and is
    // dropped below the server, like a datagram that was damaged on its way. Handshakes that fail and bytes that are no message are counted:
    // see `keys_of_another_authority_open_nothing` and `a_frame_that_is_no_message_ends_its_session_only`.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    for size in (0..1500).step_by(7) {
        let bytes: Vec<u8> = (0..size)
            .map(|_| {
                noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (noise >> 56) as u8
            })
            .collect();
        socket.send_to(&bytes, &cluster.addresses[0]).unwrap();
    }
    socket.send_to(b"GET / HTTP/1.1\r\nHost: slackline\r\n\r\n", &cluster.addresses[0]).unwrap();
    cluster.still_trains();
}

#[test]
fn a_frame_that_is_no_message_ends_its_session_only() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let frames = [
        ("no such message", vec![0xff; 64]),
        ("nothing", Vec::new()),
        ("a message that ends early", vec![0, 0, 0, 0, 1, 2]),
        ("a message with more behind it", vec![2, 0, 0, 0, 9]),
        ("more than any message may have", vec![0; CONTROL_BYTES_MAX + 1]),
    ];
    for (what, frame) in &frames {
        let mut peer = Peer::connect(&stage.path("keys"), Role::Worker, &cluster.addresses[0]).unwrap();
        peer.say(&Raw(frame.clone()));
        assert_eq!(peer.next(), None, "{what}");
        assert!(peer.closed().contains("malformed"), "{what}: {}", peer.closed());
    }
    is_counted(&cluster, &format!("{} malformed", frames.len()));
    cluster.still_trains();
}

#[test]
fn a_transfer_that_lies_ends_its_session_only() {
    // Case 32, and trap 5: lengths and places that were not checked.
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[("cluster.lease_s", "1.0")]);
    let run = resolved(&[("cluster.lease_s", "1.0")]);
    let (shard, keys) = run.config.partition().shards().next().unwrap();
    let more = KeyRange::new(keys.start, keys.len + 1);
    let elsewhere = KeyRange::new(keys.start + 1, keys.len);
    let spoil: [(&str, &dyn Fn(TransferHeader) -> TransferHeader); 7] = [
        ("does not lie on", &|header| TransferHeader { shard: ShardId(1), ..header }),
        ("does not lie on", &|header| TransferHeader { shard: ShardId(u32::MAX), ..header }),
        ("exactly its keys", &|header| {
            TransferHeader { keys: more, ..header }.with_payload(Encoding::F32, more.len)
        }),
        ("exactly its keys", &|header| TransferHeader { keys: elsewhere, ..header }),
        ("does not speak for", &|header| TransferHeader { worker: WorkerId(77), ..header }),
        ("does not speak for", &|header| TransferHeader { incarnation: Incarnation(99), ..header }),
        ("takes no values", &|header| TransferHeader { kind: TransferKind::Values, ..header }),
    ];
    for (words, spoil) in spoil {
        let mut peer = Peer::connect(&stage.path("keys"), Role::Worker, &cluster.addresses[0]).unwrap();
        let member = peer.join(&run);
        let header = spoil(push_header(member, shard, keys));
        peer.push(header, vec![0.0; header.words as usize]);
        let closed = peer.closed();
        assert!(closed.contains("malformed") && closed.contains(words), "{words}: {closed}");
    }
    is_counted(&cluster, "7 malformed");
    cluster.still_trains();
}

#[test]
fn a_transfer_of_a_stranger_ends_its_session_only() {
    let stage = Stage::new();
    let cluster = Cluster::start(&stage, &[]);
    let (shard, keys) = resolved(&[]).config.partition().shards().next().unwrap();
    for role in [Role::Worker, Role::Observer, Role::Admin, Role::Server] {
        let peer = Peer::connect(&stage.path("keys"), role, &cluster.addresses[0]).unwrap();
        let header = push_header((WorkerId(0), Incarnation(1)), shard, keys);
        peer.push(TransferHeader { kind: TransferKind::Initial, ..header }, vec![7.0; keys.len as usize]);
        let closed = peer.closed();
        assert!(closed.contains("does not speak for"), "{role}: {closed}");
    }
    is_counted(&cluster, "4 malformed");
    cluster.still_trains();
}

#[test]
fn initial_values_that_are_not_finite_are_refused() {
    let stage = Stage::new();
    let over = [("cluster.lease_s", "1.0")];
    let cluster = Cluster::start(&stage, &over);
    let run = resolved(&over);
    let (shard, keys) = run.config.partition().shards().next().unwrap();
    let mut peer = Peer::connect(&stage.path("keys"), Role::Worker, &cluster.addresses[0]).unwrap();
    let member = peer.join(&run);
    let header = TransferHeader { kind: TransferKind::Initial, ..push_header(member, shard, keys) };
    let mut values = vec![0.0; keys.len as usize];
    values[5] = f32::NAN;
    peer.push(header, values);
    let closed = peer.closed();
    assert!(closed.contains("initial values for shard 0 are not all finite: key 5 is NaN"), "{closed}");
    is_counted(&cluster, "1 malformed");
    cluster.still_trains();
}

#[test]
fn a_push_far_out_of_order_is_refused_and_the_run_goes_on() {
    let stage = Stage::new();
    let over = [("workers", "1"), ("cluster.lease_s", "1.0")];
    let cluster = Cluster::start(&stage, &over);
    let run = resolved(&over);
    let (shard, keys) = run.config.partition().shards().next().unwrap();
    let mut peer = Peer::connect(&stage.path("keys"), Role::Worker, &cluster.addresses[0]).unwrap();
    let member = peer.join(&run);
    let header = TransferHeader { sequence: Sequence(u64::MAX), ..push_header(member, shard, keys) };
    peer.push(header, vec![0.0; keys.len as usize]);
    let answer = peer.next();
    assert!(matches!(answer, Some(ToPeer::Pushed(_) | ToPeer::Refused(_))), "{answer:?}");
    drop(peer);
    cluster.servers[0].line("its lease is over");
    cluster.still_trains();
}
