//! Servers that cannot or may not be connected to, or will not have this worker: whose end that is.

use slackline_core::ids::Generation;
use slackline_core::wire::{Leave, Placed, Refusal, RefusalCode, Text};

use super::*;
use crate::{Notice, WaitKind, WorkerError};

fn failed(rig: &mut Rig, server: u32, obstacle: Obstacle) -> Vec<Effect> {
    let reason = "its certificate was revoked".to_owned();
    rig.on(Event::ConnectFailed { server: ServerId(server), reason, obstacle })
}

fn refused(code: RefusalCode) -> ToPeer {
    ToPeer::Refused(Refusal { code, text: Text::new("another configuration") })
}

fn told(server: u32, reason: &str) -> Effect {
    let reason = reason.to_owned();
    Effect::Notice(Notice::ConnectFailed { server: ServerId(server), reason })
}

fn leaves(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| {
        matches!(effect, Effect::Send { message: ToServer::Leave(Leave { .. }), .. } | Effect::Exit(Err(_)))
    })
}

fn place(shard: u32, generation: u64, server: u32) -> ToPeer {
    let (shard, generation, server) = (ShardId(shard), Generation(generation), ServerId(server));
    ToPeer::Placed(vec![Placed { shard, generation, server }])
}

/// A worker of two servers that pulls, and has just lost the second one.
fn without_server_1() -> Rig {
    let mut rig = Rig::registered(settings(2));
    rig.hear(0, batch(0));
    let effects = rig.on(Event::Lost { server: ServerId(1) });
    assert_eq!(effects[1..], [connect(1)]);
    rig
}

/// Attempts within so many seconds, each of which fails.
fn attempts(rig: &mut Rig, server: u32, obstacle: Obstacle, seconds: u64) -> (usize, usize) {
    let (mut attempts, mut named) = (0, 0);
    for _ in 0..10 * seconds {
        let effects = rig.tick_after(Duration::from_millis(100));
        rig.hear(0, ToPeer::Renewed);
        for effect in effects {
            match effect {
                Effect::Connect { server: to } if to == ServerId(server) => {
                    attempts += 1;
                    assert!(!leaves(&failed(rig, server, obstacle)));
                }
                Effect::Notice(Notice::Waiting {
                    what: WaitKind::Connection, server: from, shards, ..
                }) => {
                    assert_eq!((from, shards), (ServerId(server), vec![ShardId(server)]));
                    named += 1;
                }
                effect => assert!(!leaves(&[effect])),
            }
        }
    }
    (attempts, named)
}

// Found by reading: a server whose certificate was revoked ended every worker, long before the servers with the copies took its place.
#[test]
fn a_server_that_may_not_be_connected_to_any_more_is_waited_for_by_name_until_its_shards_are_elsewhere() {
    let mut rig = without_server_1();
    assert_eq!(failed(&mut rig, 1, Obstacle::Lasting), [told(1, "its certificate was revoked")]);
    let (attempts, named) = attempts(&mut rig, 1, Obstacle::Lasting, 30);
    assert!((10..40).contains(&attempts) && named >= 5, "{attempts} attempts, {named} named");
    let effects = rig.hear(0, place(1, 1, 0));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Notice(Notice::Moved { .. }))));
    let effects = rig.hear(0, ToPeer::Registered { has_values: true });
    let Some(Effect::Send { server: ServerId(0), message: ToServer::Pull(pull) }) = effects.last() else {
        panic!("{effects:?}")
    };
    assert_eq!(pull.shard, ShardId(1));
    assert_eq!(rig.worker.member(), Some((ONE, FIRST_LIFE)));
}

#[test]
fn a_server_that_only_has_copies_ends_nobody() {
    let settings = Settings { partition: Partition::new(32, 3, 1), has_copies: true, ..settings(3) };
    let mut rig = Rig::new(settings);
    rig.worker.shards.retain(|_, home| home.server != ServerId(2));
    rig.tick_after(Duration::ZERO);
    rig.greet(0, 70);
    rig.hear(0, joined(FIRST_LIFE));
    rig.hear(0, ToPeer::Registered { has_values: true });
    // Never reached, of another protocol, of another configuration.
    assert!(!leaves(&failed(&mut rig, 2, Obstacle::Lasting)));
    rig.tick_after(Duration::from_secs(2));
    rig.on(Event::Connected { server: ServerId(2) });
    let other = ToPeer::Welcome { protocol: PROTOCOL + 1, server: ServerId(2), boot: 72 };
    let effects = rig.hear(2, other);
    assert!(effects.contains(&disconnect(2)) && !leaves(&effects), "{effects:?}");
    rig.tick_after(Duration::from_secs(2));
    rig.greet(2, 72);
    let effects = rig.hear(2, refused(RefusalCode::Mismatch));
    let reason = "it refuses this worker: another configuration";
    assert_eq!(effects[..2], [told(2, reason), disconnect(2)]);
}

#[test]
fn the_coordinator_and_a_needed_server_that_was_never_registered_with_end_the_worker_at_once() {
    for obstacle in [Obstacle::Lasting, Obstacle::Own] {
        let mut rig = without_server_1();
        rig.on(Event::Lost { server: ServerId(0) });
        assert!(leaves(&failed(&mut rig, 0, obstacle)));

        let mut rig = Rig::new(settings(2));
        rig.tick_after(Duration::ZERO);
        rig.greet(0, 70);
        rig.hear(0, joined(FIRST_LIFE));
        rig.hear(0, ToPeer::Registered { has_values: true });
        assert!(leaves(&failed(&mut rig, 1, obstacle)));
    }
    for code in [RefusalCode::Mismatch, RefusalCode::RunOver, RefusalCode::Stopped] {
        let mut rig = without_server_1();
        assert!(leaves(&rig.hear(0, refused(code))));
    }
}

#[test]
fn a_newcomer_hears_where_the_shards_are_before_it_ends_with_a_server_of_the_partition() {
    let start = || {
        let mut rig = Rig::new(settings(2));
        rig.tick_after(Duration::ZERO);
        rig.greet(0, 70);
        rig.hear(0, joined(FIRST_LIFE));
        rig.after_us(1000);
        assert!(!leaves(&failed(&mut rig, 1, Obstacle::Lasting)));
        rig.hear(0, ToPeer::Registered { has_values: true });
        rig
    };
    let mut rig = start();
    rig.hear(0, place(1, 1, 0));
    let effects = rig.tick_after(Duration::from_millis(200));
    assert!(effects.contains(&connect(1)));
    assert!(!leaves(&failed(&mut rig, 1, Obstacle::Lasting)));
    let mut rig = start();
    assert!(rig.tick_after(Duration::from_millis(200)).contains(&connect(1)));
    assert!(leaves(&failed(&mut rig, 1, Obstacle::Lasting)));
}

#[test]
fn a_server_that_comes_back_and_refuses_is_asked_again_with_pauses() {
    let mut rig = without_server_1();
    let reason = "it refuses this worker: another configuration";
    rig.greet(1, 99);
    assert_eq!(rig.hear(1, refused(RefusalCode::Mismatch)), [told(1, reason), disconnect(1)]);
    let mut attempts = 0;
    for _ in 0..100 {
        if rig.tick_after(Duration::from_millis(100)).contains(&connect(1)) {
            attempts += 1;
            rig.greet(1, 99);
            assert!(!leaves(&rig.hear(1, refused(RefusalCode::Mismatch))));
        }
        rig.hear(0, ToPeer::Renewed);
    }
    assert!((4..10).contains(&attempts), "{attempts}");
    // So is one that answers in another protocol, or under another name.
    for (protocol, server) in [(PROTOCOL + 1, 1), (PROTOCOL, 0)] {
        let mut rig = without_server_1();
        rig.on(Event::Connected { server: ServerId(1) });
        let effects = rig.hear(1, ToPeer::Welcome { protocol, server: ServerId(server), boot: 9 });
        assert!(effects.contains(&disconnect(1)) && !leaves(&effects), "{effects:?}");
    }
}

#[test]
fn a_server_that_says_that_the_run_ends_or_what_was_out_of_place_is_believed_where_it_is_needed() {
    for code in [RefusalCode::Stopped, RefusalCode::OutOfPlace] {
        let mut rig = Rig::registered(settings(2));
        assert!(leaves(&rig.hear(1, refused(code))));
        let mut rig = Rig::registered(settings(2));
        rig.hear(0, place(1, 1, 0));
        let effects = rig.hear(1, refused(code));
        assert!(effects.contains(&disconnect(1)) && !leaves(&effects), "{effects:?}");
        assert!(rig.tick_after(Duration::from_millis(200)).contains(&connect(1)));
    }
}

#[test]
fn a_worker_whose_certificate_one_server_does_not_accept_asks_the_coordinator_once_who_is_wrong() {
    let mut rig = without_server_1();
    let effects = failed(&mut rig, 1, Obstacle::Own);
    assert_eq!(effects[1..], [disconnect(0), connect(0)]);
    // The coordinator accepts it: the server is waited for.
    let mut accepted = Rig { worker: rig.worker.clone(), now: rig.now, shelf: rig.shelf.clone() };
    accepted.greet(0, 70);
    accepted.hear(0, ToPeer::Registered { has_values: true });
    let (again, _) = attempts(&mut accepted, 1, Obstacle::Own, 10);
    assert!(again > 0 && accepted.worker.is_registered(ServerId(0)));
    // The coordinator does not: nobody waits for a worker that cannot do its steps.
    let effects = failed(&mut rig, 0, Obstacle::Own);
    assert!(matches!(&effects[..], [Effect::Exit(Err(WorkerError::Connect { server: ServerId(0), .. }))]));
}
