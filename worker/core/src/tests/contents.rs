//! What a pull says of the values that the worker has. That it is so, the shelf of every rig looks at.

use super::*;

/// The pulls among the effects, each with that which it names.
fn named(effects: &[Effect]) -> Vec<(u64, u64)> {
    let pull = |effect: &Effect| match effect {
        Effect::Send { message: ToServer::Pull(Pull { request, have, .. }), .. } => Some((*request, *have)),
        Effect::Send { message: ToServer::PushNothing { reply, have, .. }, .. } => Some((*reply, *have)),
        Effect::SendPush { header, .. } => Some((header.reply, header.have)),
        _ => None,
    };
    effects.iter().filter_map(pull).filter(|(request, _)| *request > 0).collect()
}

fn ready(sequence: u64) -> Event {
    let sequence = Sequence(sequence);
    Event::GradientReady { sequence, bad_key: None, loss: 0.5, samples: 4, waited_us: 0, packed: Vec::new() }
}

/// What follows a gradient until the next one is computed: its answers, and the work after the next.
fn goes_on(rig: &mut Rig, iteration: u64) {
    rig.on(Event::BatchLoaded { batch: BatchIndex(iteration) });
    for shard in 0..2 {
        rig.pushed(shard, iteration, iteration, applied(iteration));
    }
}

#[test]
fn a_pull_names_the_one_that_the_last_values_came_with() {
    let mut rig = Rig::second(settings(2));
    for iteration in 2..20 {
        let request = 2 * iteration;
        let pulls = named(&rig.exactly(ready(iteration)));
        assert_eq!(pulls, [(request + 1, request - 1), (request + 2, request)]);
        goes_on(&mut rig, iteration);
        rig.values(0, request + 1, iteration);
        rig.values(1, request + 2, iteration);
        rig.hear(0, batch(iteration + 1));
    }
}

#[test]
fn with_two_buffers_it_names_the_one_before_the_last() {
    let mut rig = Rig::second(Settings { prefetch: 1, ..settings(2) });
    let next = |rig: &mut Rig, iteration: u64| {
        rig.on(ready(iteration));
        goes_on(rig, iteration);
        let work = Event::Message { server: ServerId(0), message: batch(iteration + 1) };
        named(&rig.exactly(work))
    };
    // Batch 2 is pulled for already, with a first use of the second buffer.
    rig.values(0, 5, 1);
    rig.values(1, 6, 1);
    assert_eq!(next(&mut rig, 2), [(7, 3), (8, 4)]);
    for iteration in 3..20 {
        let request = 2 * iteration;
        rig.values(0, request + 1, iteration - 1);
        rig.values(1, request + 2, iteration - 1);
        assert_eq!(next(&mut rig, iteration), [(request + 3, request - 1), (request + 4, request)]);
    }
}

#[test]
fn what_was_read_into_in_vain_is_not_named() {
    let mut rig = Rig::second(settings(2));
    assert_eq!(named(&rig.exactly(ready(2))), [(5, 3), (6, 4)]);
    rig.values(0, 5, 2);
    // A part of the answer can have come; that of the other shard has come, and is not computed on yet.
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 71);
    let registered = ToPeer::Registered { has_values: true };
    let effects = rig.exactly(Event::Message { server: ServerId(1), message: registered });
    assert_eq!(named(&effects), [(7, 0)]);
    goes_on(&mut rig, 2);
    assert_eq!(rig.values(1, 7, 2)[0], compute(3, 2));
    rig.hear(0, batch(3));
    assert_eq!(named(&rig.exactly(ready(3))), [(8, 5), (9, 7)], "from then on all is as before");
}

#[test]
fn values_that_were_pulled_ahead_for_nothing_are_not_named() {
    let mut rig = Rig::second(Settings { prefetch: 1, ..settings(2) });
    rig.values(0, 5, 1);
    rig.hear(1, ToPeer::Overtaken { open: Clock(4) });
    rig.values(1, 6, 1);
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    // The next iteration computes where this one has computed.
    assert_eq!(named(&rig.exactly(ready(2))), [(7, 3), (8, 4)]);
    goes_on(&mut rig, 2);
    rig.values(0, 7, 2);
    rig.values(1, 8, 2);
    let work = Event::Message { server: ServerId(0), message: batch(3) };
    assert_eq!(named(&rig.exactly(work)), [(9, 0), (10, 0)]);
}

#[test]
fn fresher_values_are_named_once_they_are_computed_on() {
    let mut rig = Rig::registered(Settings { refreshes: true, ..settings(2) });
    rig.hear(0, batch(0));
    rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
    rig.values(0, 1, 7);
    assert!(matches!(rig.values(0, 3, 9)[0], Effect::AdoptFresher { .. }));
    rig.values(1, 2, 5);
    // This one came too late.
    rig.values(0, 4, 11);
    rig.hear(0, batch(1));
    rig.on(ready(1));
    rig.pushed(0, 1, 1, applied(1));
    let pushed = Pushed {
        shard: ShardId(1),
        sequence: Sequence(1),
        duplicate: false,
        clock: Clock(1),
        outcome: applied(1),
        held_us: 0,
        busy_us: 0,
    };
    let effects = rig.exactly(Event::Message { server: ServerId(1), message: ToPeer::Pushed(pushed) });
    assert_eq!(named(&effects), [(5, 3), (6, 2)]);
}

#[test]
fn an_evaluation_names_the_one_before_it() {
    let mut rig = Rig::registered(settings(2));
    let evaluate = |at_samples| Event::Message {
        server: ServerId(0),
        message: ToPeer::Work(Work::Evaluate { at_samples }),
    };
    assert_eq!(named(&rig.exactly(evaluate(1))), [(1, 0), (2, 0)]);
    for (shard, request) in [(0, 1), (1, 2)] {
        rig.values(shard, request, 0);
    }
    rig.on(Event::EvaluationReady { at_samples: 1, loss: 0.5, accuracy: 0.5 });
    assert_eq!(named(&rig.exactly(evaluate(2))), [(3, 1), (4, 2)]);
}
