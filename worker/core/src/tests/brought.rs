//! Pulls that go with a push.

use super::*;

/// A worker in its third iteration: batch 2 is computed on version 2, and batch 3 is the next work.
fn third() -> Rig {
    let mut rig = Rig::second(settings(2));
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    rig.gradient(2, None);
    for shard in 0..2 {
        rig.pushed(shard, 2, 2, applied(2));
    }
    rig.values(0, 5, 2);
    assert_eq!(rig.values(1, 6, 2)[0], compute(3, 2));
    rig.hear(0, batch(3));
    rig
}

/// What a worker says and sends: control messages of each kind, and transfers.
fn counted(effects: &[Effect]) -> (usize, usize, usize) {
    let count = |is: &dyn Fn(&Effect) -> bool| effects.iter().filter(|effect| is(effect)).count();
    let pull = |effect: &Effect| matches!(effect, Effect::Send { message: ToServer::Pull(_), .. });
    let other = |effect: &Effect| matches!(effect, Effect::Send { .. }) && !pull(effect);
    (count(&pull), count(&other), count(&|effect| matches!(effect, Effect::SendPush { .. })))
}

// An iteration was a message a shard, an ask and a transfer a shard; it is the ask and the transfers.
#[test]
fn an_iteration_takes_no_message_but_the_ask_for_work() {
    let mut rig = third();
    let (mut pulls, mut others, mut pushes) = (0, 0, 0);
    for iteration in 3..43 {
        let mut effects = rig.gradient(iteration, None);
        rig.on(Event::BatchLoaded { batch: BatchIndex(iteration) });
        for shard in 0..2 {
            effects.extend(rig.pushed(shard, iteration, iteration, applied(iteration)));
        }
        for shard in 0..2 {
            let request = 2 * iteration + 1 + u64::from(shard);
            effects.extend(rig.values(shard, request, iteration));
        }
        effects.extend(rig.hear(0, batch(iteration + 1)));
        let count = counted(&effects);
        (pulls, others, pushes) = (pulls + count.0, others + count.1, pushes + count.2);
    }
    assert_eq!((pulls, others, pushes), (0, 40, 80));
}

#[test]
fn after_a_loss_a_push_is_sent_again_alone_and_its_pull_by_a_message() {
    let mut rig = third();
    let effects = rig.gradient(3, None);
    assert_eq!(effects, [push_and_pull(0, 3, 2, 2, 2, 7), push_and_pull(1, 3, 2, 2, 2, 8)].concat());
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 71);
    let effects = rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(effects[1..], [&[push(1, 3, 2, 2, 2)][..], &pull(1, 9, 3, 3)].concat());
    assert_eq!(rig.values(1, 8, 3), [], "its first number is not awaited any more");
}

// A server begins its part of the run with the first gated pull that it hears. One that was restarted while its values were computed on would
// have held the pull that a push brings for ever.
#[test]
fn the_first_pull_of_a_session_goes_by_a_message() {
    let mut rig = third();
    rig.on(Event::Lost { server: ServerId(1) });
    rig.greet(1, 99);
    rig.hear(1, ToPeer::Registered { has_values: true });
    let effects = rig.gradient(3, None);
    let expected = [&push_and_pull(0, 3, 2, 2, 2, 7)[..], &[push(1, 3, 2, 2, 2)], &pull(1, 8, 3, 3)].concat();
    assert_eq!(effects, expected);
    rig.on(Event::BatchLoaded { batch: BatchIndex(3) });
    for shard in 0..2 {
        rig.pushed(shard, 3, 3, applied(3));
        rig.values(shard, 7 + u64::from(shard), 3);
    }
    rig.hear(0, batch(4));
    assert_eq!(rig.gradient(4, None)[2..], push_and_pull(1, 4, 3, 3, 3, 10));
}

#[test]
fn a_push_to_a_server_that_is_not_reached_brings_nothing_until_it_is() {
    let mut rig = third();
    rig.on(Event::Lost { server: ServerId(1) });
    assert_eq!(rig.gradient(3, None), push_and_pull(0, 3, 2, 2, 2, 7));
    rig.greet(1, 71);
    let effects = rig.hear(1, ToPeer::Registered { has_values: true });
    assert_eq!(effects[1..], [&[push(1, 3, 2, 2, 2)][..], &pull(1, 8, 3, 3)].concat());
}
