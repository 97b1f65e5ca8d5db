//! Computing that begins with the values of the first layers.

use super::*;
use slackline_core::wire::{Refusal, RefusalCode, Text};

fn early() -> Settings {
    Settings { begins_early: true, ..settings(2) }
}

/// A worker that has its first batch, and no values.
fn asked() -> Rig {
    let mut rig = Rig::registered(early());
    rig.hear(0, batch(0));
    rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
    rig
}

/// What is computed while a shard is missing.
fn begun(sequence: u64, batch: u64) -> Effect {
    let mut effect = compute(sequence, batch);
    if let Effect::Compute { missing, .. } = &mut effect {
        missing.push(ShardId(1));
    }
    effect
}

const fn deliver(shard: u32) -> Effect {
    Effect::Deliver { shard: ShardId(shard) }
}

#[test]
fn it_begins_with_the_first_shard_and_is_told_when_another_has_come() {
    let mut rig = asked();
    assert_eq!(rig.values(0, 1, 0)[0], begun(1, 0));
    rig.hear(0, batch(1));
    assert_eq!(rig.gradient(1, None), [], "it cannot be ready");
    assert_eq!(rig.values(1, 2, 0), [deliver(1)]);
    assert_eq!(rig.values(1, 2, 0), [], "once");
    assert_eq!(rig.gradient(1, None), [push(0, 1, 0, 0, 0), push(1, 1, 0, 0, 0)]);
}

#[test]
fn it_does_not_begin_with_another_shard_than_the_first() {
    let mut rig = asked();
    assert_eq!(rig.values(1, 2, 0), []);
    let all = rig.values(0, 1, 0);
    assert_eq!(all[0], compute(1, 0), "nothing is missing any more");
}

#[test]
fn a_push_names_the_version_that_came_late() {
    let mut rig = asked();
    rig.values(0, 1, 0);
    rig.hear(0, batch(1));
    rig.values(1, 2, 7);
    let sent = rig.gradient(1, None).into_iter().filter_map(|effect| match effect {
        Effect::SendPush { header, .. } => Some((header.shard.0, header.version.0)),
        _ => None,
    });
    assert_eq!(sent.collect::<Vec<_>>(), [(0, 0), (1, 7)]);
}

// Its part is not final before its values are there, whatever the shell says.
#[test]
fn no_part_leaves_whose_values_are_missing() {
    let mut rig = asked();
    rig.values(0, 1, 0);
    let part = |shard| {
        let part = crate::Packed {
            shard: ShardId(shard),
            encoding: slackline_core::codec::Encoding::F32,
            words: 16,
        };
        Event::PartReady { sequence: Sequence(1), part, samples: 4 }
    };
    assert_eq!(rig.on(part(1)), []);
    rig.values(1, 2, 0);
    assert_eq!(rig.on(part(1)), [push(1, 1, 0, 0, 0)]);
}

#[test]
fn a_lost_server_is_asked_again_while_the_rest_is_computed_on() {
    let mut rig = asked();
    rig.values(0, 1, 0);
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 71);
    let effects = rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(effects[1..], pull(1, 3, 0, 0));
    assert_eq!(rig.values(1, 2, 0), [], "its first number is not awaited any more");
    assert_eq!(rig.values(1, 3, 0), [deliver(1)]);
}

// The answers to the push before move a worker up that is behind; what it computes on then is gated as it was begun (a simulated world, seed 732).
#[test]
fn what_is_asked_again_is_gated_at_the_clock_at_which_computing_began() {
    let mut rig = Rig::second(early());
    rig.gradient(2, None);
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    assert_eq!(rig.values(0, 5, 2)[0], begun(3, 2));
    rig.pushed(0, 2, 4, applied(2));
    assert_eq!(rig.worker.clock(), Clock(4), "it is moved up");
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 71);
    let effects = rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(effects[effects.len() - 2..], pull(1, 7, 2, 2));
}

// It would wait for values that nobody sends any more.
#[test]
fn what_waits_for_values_is_given_up_with_the_lease() {
    let mut rig = asked();
    rig.values(0, 1, 0);
    let text = Text::new("the lease ran out");
    let effects = rig.hear(1, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text: text.clone() }));
    assert!(effects.contains(&Effect::Abandon { sequence: Sequence(1) }), "{effects:?}");
    let mut whole = asked();
    whole.values(0, 1, 0);
    whole.values(1, 2, 0);
    let effects = whole.hear(1, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
    assert!(!effects.contains(&Effect::Abandon { sequence: Sequence(1) }), "it ends by itself: {effects:?}");
}

#[test]
fn values_are_evaluated_when_all_of_them_are_there() {
    let mut rig = Rig::registered(early());
    rig.hear(0, ToPeer::Work(Work::Batch { batch: BatchIndex(0), units: 1, enter: None, evaluate: Some(8) }));
    rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
    let is_snapshot = |effect: &Effect| {
        matches!(effect, Effect::Send { message: ToServer::Pull(Pull { kind: PullKind::Snapshot, .. }), .. })
    };
    assert!(!rig.values(0, 1, 0).iter().any(is_snapshot));
    assert_eq!(rig.values(1, 2, 0).into_iter().filter(is_snapshot).count(), 2);
}

#[test]
fn the_time_of_a_gradient_is_without_what_it_waited() {
    let mut rig = asked();
    rig.values(0, 1, 0);
    rig.hear(0, batch(1));
    rig.after_us(40).values(1, 2, 0);
    let ready = Event::GradientReady {
        sequence: Sequence(1),
        bad_key: None,
        loss: 0.5,
        samples: 4,
        waited_us: 30,
        packed: Vec::new(),
    };
    rig.after_us(60).on(ready);
    rig.pushed(0, 1, 1, applied(1));
    let effects = rig.exactly(Event::Message {
        server: ServerId(1),
        message: ToPeer::Pushed(Pushed {
            shard: ShardId(1),
            sequence: Sequence(1),
            duplicate: false,
            clock: Clock(1),
            outcome: applied(1),
            held_us: 0,
            busy_us: 0,
        }),
    });
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    let asks = effects.into_iter().chain(rig.values_exactly(0, 3)).chain(rig.values_exactly(1, 4));
    let took = asks.into_iter().find_map(|effect| match effect {
        Effect::Send { message: ToServer::Ask(ask), .. } => ask.results.last().map(|result| result.fate),
        _ => None,
    });
    assert_eq!(took, Some(Fate::Done { compute_us: 70 }));
}

impl Rig {
    fn values_exactly(&mut self, shard: u32, request: u64) -> Vec<Effect> {
        let served = Served { version: Version(1), minimum: Clock(1), lead: 0, held_us: 0 };
        let (server, shard) = (ServerId(shard), ShardId(shard));
        self.exactly(Event::ValuesArrived { server, shard, request, served, bytes: 64 })
    }
}
