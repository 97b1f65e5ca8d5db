//! Shards that move, servers that are other processes than before, and servers that the worker can do without.

use slackline_core::ids::Generation;
use slackline_core::wire::{Placed, Refusal, RefusalCode, Text};

use super::*;
use crate::{Notice, WaitKind, WorkerError};

fn place(shard: u32, generation: u64, server: u32) -> Placed {
    Placed { shard: ShardId(shard), generation: Generation(generation), server: ServerId(server) }
}

fn moved(shard: u32, generation: u64, from: u32, to: u32) -> Effect {
    let (from, to) = (ServerId(from), ServerId(to));
    Effect::Notice(Notice::Moved { shard: ShardId(shard), from, to, generation: Generation(generation) })
}

fn refused(code: RefusalCode) -> ToPeer {
    ToPeer::Refused(Refusal { code, text: Text::new("no") })
}

fn to(server: u32, mut effects: Vec<Effect>) -> Vec<Effect> {
    for effect in &mut effects {
        match effect {
            Effect::SendPush { server: to, .. }
            | Effect::ExpectValues { server: to, .. }
            | Effect::Send { server: to, .. } => *to = ServerId(server),
            _ => {}
        }
    }
    effects
}

fn failed(rig: &mut Rig, server: u32) -> Vec<Effect> {
    let (server, reason) = (ServerId(server), "nobody there".to_owned());
    rig.on(Event::ConnectFailed { server, reason, obstacle: Obstacle::Passing })
}

/// A worker in its second iteration whose second push is out and whose third iteration pulls.
fn pulling_and_pushing() -> Rig {
    let mut rig = Rig::second(settings(2));
    rig.gradient(2, None);
    rig
}

// Found by the simulated world: a worker registered with the clock after its unanswered push, and a restored shard without that push let
// others read what should have it. (It is at clock 2 here, and says 1.)
#[test]
fn what_a_shard_has_not_answered_goes_to_its_new_server() {
    let mut rig = pulling_and_pushing();
    rig.on(Event::Lost { server: ServerId(1) });
    let effects = rig.hear(0, ToPeer::Placed(vec![place(0, 0, 0), place(1, 1, 0)]));
    assert_eq!(effects, [moved(1, 1, 1, 0), send(0, register(1, 1))]);
    // Not before that is heard: the shard must know first what the worker has been answered.
    let effects = rig.hear(0, ToPeer::Registered { has_values: true });
    // The server gives up the pull of its other shard, too.
    assert_eq!(effects, to(0, [&[push(1, 2, 1, 1, 1)][..], &pull(0, 7, 2, 2), &pull(1, 8, 2, 2)].concat()));
    // The same place again is no news, and neither is an older one.
    assert_eq!(rig.hear(0, ToPeer::Placed(vec![place(1, 1, 0), place(1, 0, 1)])), []);
    let answer = Pushed {
        shard: ShardId(1),
        sequence: Sequence(2),
        duplicate: false,
        clock: Clock(2),
        outcome: applied(2),
        held_us: 0,
        busy_us: 0,
    };
    rig.pushed(0, 2, 2, applied(2));
    assert_eq!(rig.hear(0, ToPeer::Pushed(answer))[0], release(2));
}

#[test]
fn a_shard_that_answered_before_it_moved_is_pushed_to_again_and_counts_once() {
    let mut rig = pulling_and_pushing();
    rig.pushed(1, 2, 2, applied(2));
    rig.hear(0, ToPeer::Placed(vec![place(1, 1, 0)]));
    let effects = rig.hear(0, ToPeer::Registered { has_values: true });
    assert_eq!(effects[0], to(0, vec![push(1, 2, 1, 1, 1)])[0], "its answer can be gone with its server");
    let before = rig.worker.record.clone().counts().pushes_applied;
    rig.pushed(0, 2, 2, applied(2));
    let Effect::SendPush { .. } = effects[0] else { panic!("{effects:?}") };
    let again = Pushed {
        shard: ShardId(1),
        sequence: Sequence(2),
        duplicate: true,
        clock: Clock(2),
        outcome: applied(2),
        held_us: 0,
        busy_us: 0,
    };
    assert_eq!(rig.hear(0, ToPeer::Pushed(again))[0], release(2));
    assert_eq!(rig.worker.record.clone().counts().pushes_applied, before + 1, "that of shard 0");
}

#[test]
fn what_the_former_server_still_says_is_not_heard_and_no_fault() {
    let mut rig = pulling_and_pushing();
    rig.hear(0, ToPeer::Placed(vec![place(1, 1, 0)]));
    rig.hear(0, ToPeer::Registered { has_values: true });
    assert_eq!(rig.pushed(1, 2, 2, applied(2)), []);
    assert_eq!(rig.values(1, 6, 2), []);
    assert_eq!(rig.hear(1, ToPeer::Overtaken { open: Clock(9) }), []);
    // Nor does it matter that the former server does not know this worker any more.
    let effects = rig.hear(1, refused(RefusalCode::Fenced));
    assert_eq!(effects, [disconnect(1), connect(1)]);
    assert_eq!(rig.worker.member(), Some((ONE, FIRST_LIFE)));
}

#[test]
fn a_shard_that_moves_to_a_server_that_is_not_reached_is_served_when_it_is() {
    let mut rig = pulling_and_pushing();
    let settings = Settings { partition: Partition::new(48, 3, 1), has_copies: false, ..settings(3) };
    rig.worker.settings.partition = settings.partition;
    let effects = rig.hear(0, ToPeer::Placed(vec![place(1, 1, 2)]));
    assert_eq!(effects, [moved(1, 1, 1, 2), connect(2)]);
    assert_eq!(rig.greet(2, 72), [send(2, register(1, 1))]);
    let effects = rig.hear(2, ToPeer::Registered { has_values: true });
    assert_eq!(effects, to(2, [&[push(1, 2, 1, 1, 1)][..], &pull(1, 7, 2, 2)].concat()));
}

#[test]
fn places_come_from_the_coordinator_and_name_servers_that_exist() {
    for (from, server) in [(1, 0), (0, 2)] {
        let mut rig = Rig::registered(settings(2));
        let effects = rig.hear(from, ToPeer::Placed(vec![place(1, 1, server)]));
        assert!(matches!(&effects[0], Effect::Send { message: ToServer::Leave(_), .. }), "{effects:?}");
    }
}

#[test]
fn a_restarted_server_is_registered_with_again_and_gets_all_of_the_step_again() {
    let mut rig = pulling_and_pushing();
    rig.pushed(1, 2, 2, applied(2));
    rig.on(Event::Lost { server: ServerId(1) });
    let effects = rig.greet(1, 99);
    assert_eq!(effects, [Effect::Notice(Notice::Restarted { server: ServerId(1) }), send(1, register(1, 1))]);
    let effects = rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(effects[1..], [&[push(1, 2, 1, 1, 1)][..], &pull(1, 7, 2, 2)].concat());
}

// Found by random orders of restarts and moves: the shard waited for a push that nobody sent again.
#[test]
fn the_step_is_not_complete_while_a_restarted_server_has_not_answered_it() {
    let mut rig = pulling_and_pushing();
    rig.pushed(1, 2, 2, applied(2));
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 99);
    // This answer would have been the last one.
    assert_eq!(rig.pushed(0, 2, 2, applied(2)), []);
    rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(rig.pushed(1, 2, 2, applied(2))[0], release(2));
}

#[test]
fn a_restarted_coordinator_has_the_open_ask_repeated_and_work_goes_on_meanwhile() {
    let mut rig = Rig::computing(settings(2), work(1));
    rig.on(Event::Lost { server: ServerId(0) });
    // The gradient is computed and goes where it can.
    assert_eq!(rig.gradient(1, None), [push(1, 1, 0, 0, 0)]);
    let effects = rig.greet(0, 99);
    assert_eq!(effects[1..], [send(0, register(0, 0))]);
    assert_eq!(rig.hear(0, ToPeer::Registered { has_values: true })[1..], [push(0, 1, 0, 0, 0)]);
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    (0..2).for_each(|shard| _ = rig.pushed(shard, 1, 1, applied(1)));
    rig.values(0, 3, 1);
    assert_eq!(rig.values(1, 4, 1)[1], send(0, ask(2, Some(0))));
    rig.on(Event::Lost { server: ServerId(0) });
    rig.greet(0, 100);
    let effects = rig.hear(0, ToPeer::Registered { has_values: true });
    assert_eq!(effects[1..], [send(0, ask(2, Some(0)))]);
}

#[test]
fn a_server_that_is_not_ready_is_asked_again_without_a_word() {
    let mut rig = Rig::new(settings(2));
    rig.tick_after(Duration::ZERO);
    rig.greet(0, 70);
    rig.hear(0, joined(FIRST_LIFE));
    for wait in [100, 200, 400] {
        assert_eq!(rig.hear(0, refused(RefusalCode::NotReady)), [disconnect(0)]);
        let effects = rig.tick_after(Duration::from_millis(wait));
        assert_eq!(effects, [connect(0)]);
        assert_eq!(rig.greet(0, 70), [send(0, register(0, 0))]);
    }
    // It is named when it lasts.
    rig.hear(0, refused(RefusalCode::NotReady));
    let effects = rig.tick_after(Duration::from_secs(5));
    let named = effects.iter().any(|effect| {
        matches!(effect, Effect::Notice(Notice::Waiting { what: WaitKind::Readiness, shards, .. }) if shards.len() == 1)
    });
    assert!(named, "{effects:?}");
    rig.greet(0, 70);
    assert_eq!(rig.hear(0, ToPeer::Registered { has_values: true }), []);
}

#[test]
fn a_server_without_values_in_the_middle_of_a_run_is_waited_for_and_then_named() {
    let mut rig = pulling_and_pushing();
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 99);
    let empty = ToPeer::Registered { has_values: false };
    assert_eq!(rig.hear(1, empty.clone()), [disconnect(1)]);
    let mut seconds = 0;
    while rig.worker.leaving.is_none() {
        rig.tick_after(Duration::from_secs(5));
        seconds += 5;
        rig.hear(0, ToPeer::Renewed);
        rig.greet(1, 99);
        rig.hear(1, empty.clone());
    }
    assert_eq!(seconds, 60);
    let exits = rig.hear(0, ToPeer::Goodbye);
    assert_eq!(exits, [Effect::Exit(Err(WorkerError::Restarted { server: ServerId(1) }))]);
}

/// A worker of two servers with keys and a third, which has copies.
fn with_copies() -> Rig {
    let mut rig = Rig::new(Settings {
        partition: Partition::new(32, 3, 1),
        has_copies: true,
        wait_report: Duration::from_secs(1000),
        ..settings(3)
    });
    let owners: Vec<_> = rig.worker.shards.values().map(|home| home.server.0).collect();
    assert_eq!(owners, [1, 2]);
    rig.tick_after(Duration::ZERO);
    rig.greet(0, 70);
    rig.hear(0, joined(FIRST_LIFE));
    rig
}

#[test]
fn with_copies_a_worker_registers_everywhere_and_waits_only_for_who_has_shards() {
    let mut settings = settings(4);
    (settings.partition, settings.has_copies) = (Partition::new(16, 4, 1), true);
    let mut rig = Rig::new(settings);
    rig.tick_after(Duration::ZERO);
    rig.greet(0, 70);
    let joined = rig.hear(0, joined(FIRST_LIFE));
    assert_eq!(joined[2..], [connect(1), connect(2), connect(3)]);
    rig.hear(0, ToPeer::Registered { has_values: true });
    rig.greet(3, 73);
    // Servers 1 and 2 have nothing of this worker.
    assert_eq!(rig.hear(3, ToPeer::Registered { has_values: true }), [send(0, ask(0, None))]);
    assert_eq!(rig.greet(1, 71), [send(1, register(0, 0))]);
    assert_eq!(rig.hear(1, ToPeer::Registered { has_values: false }), [], "it brings nothing there");
    // The last of them never comes: it is named once, and the worker goes on.
    let told: usize = (0..40)
        .map(|_| {
            let told = failed(&mut rig, 2).len();
            rig.tick_after(Duration::from_secs(3));
            [0, 1, 3].into_iter().for_each(|server| _ = rig.hear(server, ToPeer::Renewed));
            told
        })
        .sum();
    assert_eq!(told, 1);
    assert!(rig.worker.next_deadline().is_some() && rig.worker.member().is_some());
}

#[test]
fn a_server_with_shards_that_was_never_reached_ends_the_worker_and_one_that_was_does_not() {
    let mut rig = with_copies();
    rig.hear(0, ToPeer::Registered { has_values: true });
    rig.greet(1, 71);
    rig.hear(1, ToPeer::Registered { has_values: true });
    rig.on(Event::Lost { server: ServerId(1) });
    let mut left = None;
    for second in 0..70 {
        (1..3).for_each(|server| _ = failed(&mut rig, server));
        rig.hear(0, ToPeer::Renewed);
        let effects = rig.tick_after(Duration::from_secs(1));
        let leaves = |effect: &Effect| matches!(effect, Effect::Send { message: ToServer::Leave(_), .. });
        if left.is_none() && effects.iter().any(leaves) {
            left = Some(second);
        }
    }
    assert!(left.is_some(), "server 2 was never reached");

    let mut rig = Rig::computing(settings(2), work(1));
    rig.on(Event::Lost { server: ServerId(1) });
    let mut named = 0;
    for _ in 0..600 {
        failed(&mut rig, 1);
        rig.hear(0, ToPeer::Renewed);
        for effect in rig.tick_after(Duration::from_secs(1)) {
            if let Effect::Notice(Notice::Waiting { what: WaitKind::Connection, server, shards, .. }) = effect
            {
                assert_eq!((server, shards), (ServerId(1), vec![ShardId(1)]));
                named += 1;
            }
        }
    }
    assert!(named >= 100, "every five seconds: {named}");
    assert_eq!(rig.worker.member(), Some((ONE, FIRST_LIFE)));
}

#[test]
fn a_coordinator_that_stays_away_ends_the_worker() {
    let mut rig = Rig::computing(settings(2), work(1));
    rig.on(Event::Lost { server: ServerId(0) });
    let mut seconds = 0;
    while rig.worker.leaving.is_none() {
        failed(&mut rig, 0);
        rig.hear(1, ToPeer::Renewed);
        rig.tick_after(Duration::from_secs(1));
        seconds += 1;
        assert!(seconds < 100);
    }
    assert_eq!(seconds, 60);
    let exits = rig.hear(1, ToPeer::Goodbye);
    let [Effect::Exit(Err(WorkerError::Unreachable { server: ServerId(0), .. }))] = &exits[..] else {
        panic!("{exits:?}")
    };
}

#[test]
fn a_push_out_of_the_window_is_told_anew_once_and_refused_the_second_time() {
    let mut rig = pulling_and_pushing();
    assert_eq!(rig.pushed(1, 2, 0, PushOutcome::OutOfWindow), [disconnect(1), connect(1)]);
    assert_eq!(rig.greet(1, 71), [send(1, register(1, 1))]);
    let effects = rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(effects[1], push(1, 2, 1, 1, 1));
    let effects = rig.pushed(1, 2, 0, PushOutcome::OutOfWindow);
    assert!(matches!(&effects[0], Effect::Send { message: ToServer::Leave(_), .. }), "{effects:?}");
}

#[test]
fn a_coordinator_behind_the_servers_lets_in_and_gives_work_and_server_0_is_one_of_many() {
    let mut rig = Rig::new(Settings { coordinator: ServerId(2), ..settings(2) });
    assert_eq!(rig.tick_after(Duration::ZERO), [connect(2)]);
    rig.greet(2, 70);
    let effects = rig.hear(2, joined(FIRST_LIFE));
    assert!(effects.contains(&connect(0)) && effects.contains(&connect(1)), "{effects:?}");
    rig.hear(2, ToPeer::Registered { has_values: true });
    for server in [0, 1] {
        rig.greet(server, 71);
        rig.hear(server, ToPeer::Registered { has_values: true });
    }
    // Where it joined it asks, and nobody else may say where shards are.
    let effects = rig.on(Event::Lost { server: ServerId(2) });
    assert!(effects.contains(&connect(2)), "{effects:?}");
    let effects = rig.hear(0, ToPeer::Placed(vec![place(1, 1, 0)]));
    assert!(matches!(&effects[0], Effect::Send { message: ToServer::Leave(_), .. }), "{effects:?}");
}
