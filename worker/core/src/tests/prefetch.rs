//! Values that are pulled while the iteration before is computed.

use slackline_core::ids::Generation;
use slackline_core::wire::{Leave, Outcome, Placed, Refusal, RefusalCode, Text};

use super::*;

fn ahead() -> Settings {
    Settings { prefetch: 1, ..settings(2) }
}

/// A worker that computes its second batch, 1, and has pulled ahead for its third, 2.
fn pulling_ahead() -> Rig {
    let mut rig = Rig::computing(ahead(), work(1));
    rig.gradient(1, None);
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    for shard in 0..2 {
        rig.pushed(shard, 1, 1, applied(1));
    }
    rig.values(0, 3, 1);
    assert_eq!(
        rig.values(1, 4, 1),
        [compute(2, 1), send(0, ask(2, Some(0)))],
        "the next work is not known yet"
    );
    let effects = rig.hear(0, batch(2));
    assert_eq!(effects, [&[load(2)][..], &pull_ahead(0, 5, 2, 1), &pull_ahead(1, 6, 2, 1)].concat());
    rig
}

#[test]
fn the_next_values_are_pulled_while_this_gradient_is_computed() {
    let mut rig = pulling_ahead();
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    assert_eq!(rig.values(0, 5, 1), []);
    assert_eq!(rig.values(1, 6, 1), [], "one gradient at a time");
    // The next one begins at once; no pull follows the push.
    assert_eq!(rig.gradient(2, None), [push(0, 2, 1, 1, 1), push(1, 2, 1, 1, 1), compute(3, 2)]);
    rig.pushed(0, 2, 2, applied(2));
    assert_eq!(rig.pushed(1, 2, 2, applied(2)), [release(2), send(0, ask(3, Some(1)))]);
    let effects = rig.hear(0, batch(3));
    assert_eq!(effects, [&[load(3)][..], &pull_ahead(0, 7, 3, 2), &pull_ahead(1, 8, 3, 2)].concat());
    // The version that a gradient states is that of the values that it was computed on.
    rig.on(Event::BatchLoaded { batch: BatchIndex(3) });
    rig.values(0, 7, 2);
    rig.values(1, 8, 2);
    assert_eq!(rig.gradient(3, None)[..2], [push(0, 3, 2, 1, 2), push(1, 3, 2, 1, 2)]);
    assert_eq!(rig.worker.clock(), Clock(3));
}

#[test]
fn values_that_come_later_than_the_gradient_are_waited_for_and_that_is_time_of_the_pull() {
    let mut rig = pulling_ahead();
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    rig.worker.ledger.take();
    rig.after_us(1_000).values(0, 5, 1);
    rig.after_us(1_000);
    assert_eq!(rig.gradient(2, None), [push(0, 2, 1, 1, 1), push(1, 2, 1, 1, 1)]);
    // The push is answered before the last values are there, and it is not the push that is waited for.
    rig.after_us(30).pushed(0, 2, 2, applied(2));
    rig.pushed(1, 2, 2, applied(2));
    rig.after_us(70);
    let served = Served { version: Version(1), minimum: Clock(1), lead: 1, held_us: 2_060 };
    let arrives =
        Event::ValuesArrived { server: ServerId(1), shard: ShardId(1), request: 6, served, bytes: 64 };
    assert_eq!(rig.on(arrives), [compute(3, 2), send(0, ask(3, Some(1)))]);
    let times = rig.worker.ledger.take();
    // It was made 2,000 microseconds before the push: 60 of what it was held for lie after that.
    assert_eq!((times.compute_us, times.push_us), (2_000, 0));
    assert_eq!((times.wait_for_clock_us, times.pull_us), (60, 40));
}

#[test]
fn nothing_is_pulled_ahead_of_the_first_push_nor_for_work_that_ends_or_enters() {
    let mut rig = Rig::computing(ahead(), work(1));
    let others = [
        Work::Idle,
        Work::Evaluate { at_samples: 9 },
        Work::Done,
        Work::Batch { batch: BatchIndex(2), units: 1, evaluate: None, enter: Some(Clock(7)) },
    ];
    // Its answers can move the worker up, so the pulls of the second iteration wait for them.
    assert_eq!(rig.gradient(1, None), [push(0, 1, 0, 0, 0), push(1, 1, 0, 0, 0)]);
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    rig.pushed(0, 1, 9, applied(1));
    assert_eq!(rig.pushed(1, 1, 1, applied(1))[1..], [pull(0, 3, 9, 1), pull(1, 4, 9, 1)].concat());
    rig.values(0, 3, 1);
    rig.values(1, 4, 1);
    for other in others {
        let mut rig = Rig { worker: rig.worker.clone(), now: rig.now, shelf: rig.shelf.clone() };
        let effects = rig.hear(0, ToPeer::Work(other));
        let pulls = |effect: &Effect| matches!(effect, Effect::ExpectValues { .. });
        assert!(!effects.iter().any(pulls), "{other:?}: {effects:?}");
    }
}

#[test]
fn after_a_loss_it_is_pulled_again_ahead_or_with_the_push_that_went_out_meanwhile() {
    let mut rig = pulling_ahead();
    rig.values(0, 5, 1);
    rig.on(Event::Lost { server: ServerId(1) });
    assert_eq!(rig.greet(1, 71), [send(1, register(1, 1))]);
    assert_eq!(rig.hear(1, ToPeer::Registered { has_values: true })[1..], pull_ahead(1, 7, 2, 1));
    // What the former connection brought is not taken.
    assert_eq!(rig.values(1, 6, 1), []);
    rig.on(Event::Lost { server: ServerId(1) });
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    assert_eq!(rig.gradient(2, None), [push(0, 2, 1, 1, 1)]);
    rig.greet(1, 71);
    let effects = rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(
        effects[1..],
        [&[push(1, 2, 1, 1, 1)][..], &pull(1, 8, 2, 2)].concat(),
        "all its pushes are to be in it"
    );
    assert_eq!(rig.values(1, 8, 2), [compute(3, 2)]);
}

#[test]
fn what_is_pulled_ahead_follows_its_shard() {
    let mut rig = pulling_ahead();
    rig.values(0, 5, 1);
    let place = Placed { shard: ShardId(1), generation: Generation(1), server: ServerId(0) };
    rig.hear(0, ToPeer::Placed(vec![place]));
    let effects = rig.hear(0, ToPeer::Registered { has_values: true });
    let Effect::ExpectValues { server: ServerId(0), shard: ShardId(1), request: 7, .. } = effects[0] else {
        panic!("{effects:?}")
    };
    assert_eq!(rig.values(1, 6, 1), [], "the former place is not heard");
}

#[test]
fn a_worker_that_joins_anew_has_nothing_pulled_ahead() {
    let mut rig = pulling_ahead();
    rig.values(0, 5, 1);
    let text = Text::new("too late");
    rig.hear(1, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
    assert!(rig.worker.cycle.prefetch.is_none());
    assert_eq!(rig.values(1, 6, 1), [], "it belongs to no life");
    assert_eq!(rig.gradient(2, None), [release_unused(2, &[0, 1])]);
    rig.greet(0, 70);
    rig.hear(0, joined(Incarnation(8)));
    rig.hear(0, ToPeer::Registered { has_values: true });
    rig.greet(1, 71);
    rig.hear(1, ToPeer::Registered { has_values: true });
    let effects = rig.hear(0, batch(2));
    assert_eq!(effects[1..], [pull(0, 7, 0, 0), pull(1, 8, 0, 0)].concat(), "all of it anew");
}

#[test]
fn values_for_a_clock_that_the_worker_does_not_come_to_are_thrown_away() {
    let mut rig = pulling_ahead();
    rig.values(0, 5, 1);
    assert_eq!(
        rig.hear(1, ToPeer::Overtaken { open: Clock(4) }),
        [Effect::Abandon { sequence: Sequence(2) }]
    );
    assert!(rig.worker.cycle.prefetch.is_none());
    assert_eq!(rig.values(1, 6, 1), []);
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    let nothing = |shard: u32, reply| {
        let (server, shard, buffer) = (ServerId(shard), ShardId(shard), Buffer::First);
        let nothing = ToServer::PushNothing { shard, sequence: Sequence(2), clock: Clock(1), reply, have: 0 };
        [
            Effect::ExpectValues { server, shard, request: reply, buffer },
            Effect::Send { server, message: nothing },
        ]
    };
    assert_eq!(
        rig.gradient(2, None),
        [&[release_unused(2, &[0, 1])][..], &nothing(0, 7), &nothing(1, 8)].concat(),
        "all anew"
    );
}

#[test]
fn a_worker_that_is_told_to_end_pulls_nothing_more() {
    let mut rig = Rig::second(settings(2));
    rig.worker.settings.prefetch = 1;
    let leaves = rig.on(Event::Interrupt);
    let left = |effect: &Effect| {
        matches!(
            effect,
            Effect::Send { message: ToServer::Leave(Leave { outcome: Outcome::Interrupted, .. }), .. }
        )
    };
    assert!(leaves.iter().all(left), "{leaves:?}");
}
