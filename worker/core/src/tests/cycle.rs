//! The cycle when nothing goes wrong.

use slackline_core::wire::{Evaluated, Leave, Outcome};

use super::*;
use crate::Notice;

#[test]
fn two_iterations_on_two_servers() {
    let mut rig = Rig::new(settings(2));
    assert_eq!(rig.worker.next_deadline(), Some(Moment(0)));
    assert_eq!(rig.tick_after(Duration::ZERO), [connect(0)]);
    assert_eq!(rig.greet(0, 70), [send(0, join(None))]);
    let notice = Notice::Joined { worker: ONE, incarnation: FIRST_LIFE, clock: Clock(0) };
    assert_eq!(
        rig.hear(0, joined(FIRST_LIFE)),
        [Effect::Notice(notice), send(0, register(0, 0)), connect(1)]
    );
    assert_eq!(rig.hear(0, ToPeer::Registered { has_values: false }), [initial(0)]);
    assert_eq!(rig.greet(1, 71), [send(1, register(0, 0))]);
    assert_eq!(rig.hear(1, ToPeer::Registered { has_values: true }), [send(0, ask(0, None))]);

    let first = rig.hear(0, batch(0));
    assert_eq!(first, [&[load(0)][..], &pull(0, 1, 0, 0), &pull(1, 2, 0, 0)].concat());
    assert_eq!(rig.values(0, 1, 10), []);
    assert_eq!(rig.on(Event::BatchLoaded { batch: BatchIndex(0) }), []);
    assert_eq!(rig.values(1, 2, 20), [compute(1, 0), send(0, ask(1, None))]);
    assert_eq!(rig.hear(0, batch(7)), [load(7)]);

    // The answers to the first push can move the worker up, so the pulls of the second iteration wait for them.
    assert_eq!(rig.gradient(1, None), [push(0, 1, 0, 10, 0), push(1, 1, 0, 20, 0)]);
    rig.on(Event::BatchLoaded { batch: BatchIndex(7) });
    assert_eq!(rig.pushed(0, 1, 1, applied(11)), []);
    let answered = rig.pushed(1, 1, 1, applied(21));
    assert_eq!(answered, [&[release(1)][..], &pull(0, 3, 1, 1), &pull(1, 4, 1, 1)].concat());
    rig.values(0, 3, 11);
    assert_eq!(rig.values(1, 4, 21), [compute(2, 7), send(0, ask(2, Some(0)))]);
    assert_eq!(rig.hear(0, batch(8)), [load(8)]);

    // Those of the third do not wait for the answers to the second: they go with the pushes.
    let third = rig.gradient(2, None);
    assert_eq!(third, [push_and_pull(0, 2, 1, 11, 7, 5), push_and_pull(1, 2, 1, 21, 7, 6)].concat());
    rig.on(Event::BatchLoaded { batch: BatchIndex(8) });
    rig.values(0, 5, 12);
    assert_eq!(rig.pushed(0, 2, 2, applied(12)), []);
    // All values are there: it computes, but the ask that reports the batch waits for its last answer.
    assert_eq!(rig.values(1, 6, 22), [compute(3, 8)]);
    assert_eq!(rig.pushed(1, 2, 2, applied(22)), [release(2), send(0, ask(3, Some(7)))]);
    assert_eq!(rig.gradient(3, None), [push(0, 3, 2, 12, 8), push(1, 3, 2, 22, 8)]);
    assert_eq!(rig.worker.clock(), Clock(3));
}

#[test]
fn a_gradient_waits_for_the_answers_to_the_pushes_before() {
    let mut rig = Rig::second(settings(2));
    rig.gradient(2, None);
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    rig.values(0, 5, 2);
    rig.values(1, 6, 2);
    assert_eq!(rig.gradient(3, None), []);
    assert_eq!(rig.pushed(0, 2, 2, applied(2)), []);
    let released = rig.pushed(1, 2, 2, applied(2));
    let expected = [release(2), send(0, ask(3, Some(1))), push(0, 3, 2, 2, 2), push(1, 3, 2, 2, 2)];
    assert_eq!(released, expected);
}

#[test]
fn a_worker_without_work_finishes_reports_and_enters_again() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    assert_eq!(rig.gradient(1, None), [push(0, 1, 0, 0, 0), push(1, 1, 0, 0, 0)]);
    rig.pushed(0, 1, 1, applied(1));
    let finished = rig.pushed(1, 1, 1, applied(1));
    let expected =
        [release(1), send(0, ToServer::Finish), send(1, ToServer::Finish), send(0, ask(1, Some(0)))];
    assert_eq!(without_reports(finished), expected);
    assert_eq!(rig.hear(0, ToPeer::Work(Work::Idle)), []);
    assert_eq!(rig.hear(0, ToPeer::Work(Work::Idle)), []);

    let enter = Work::Batch { batch: BatchIndex(3), units: 1, evaluate: None, enter: Some(Clock(9)) };
    let again = rig.hear(0, ToPeer::Work(enter));
    let entered = ToServer::Enter { clock: Clock(9) };
    let expected =
        [&[load(3), send(0, entered.clone()), send(1, entered)][..], &pull(0, 3, 9, 1), &pull(1, 4, 9, 1)]
            .concat();
    assert_eq!(again, expected);
    rig.on(Event::BatchLoaded { batch: BatchIndex(3) });
    rig.values(0, 3, 5);
    assert_eq!(rig.values(1, 4, 5), [compute(2, 3), send(0, ask(10, Some(0)))]);
    assert_eq!(rig.gradient(2, None), [push(0, 2, 9, 5, 3), push(1, 2, 9, 5, 3)]);
}

#[test]
fn a_joiner_is_moved_up_by_the_servers() {
    let mut rig = Rig::computing(settings(2), work(1));
    rig.gradient(1, None);
    rig.pushed(0, 1, 17, applied(1));
    rig.pushed(1, 1, 15, applied(1));
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    rig.values(0, 3, 1);
    assert_eq!(rig.values(1, 4, 1), [compute(2, 1), send(0, ask(18, Some(0)))]);
    assert_eq!(rig.gradient(2, None)[0], push(0, 2, 17, 1, 1));
}

#[test]
fn an_evaluation_runs_beside_the_training() {
    let mut rig = Rig::registered(settings(2));
    let evaluated = Work::Batch { batch: BatchIndex(0), units: 1, evaluate: Some(40), enter: None };
    let begun = rig.hear(0, ToPeer::Work(evaluated));
    assert_eq!(begun, [&[load(0)][..], &pull(0, 1, 0, 0), &pull(1, 2, 0, 0)].concat());
    rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
    rig.values(0, 1, 0);
    // Not before the gate has opened: only then are those samples in the values.
    let computing = rig.values(1, 2, 0);
    assert_eq!(computing[0], compute(1, 0));
    assert_eq!(computing[1..5], [snapshot(0, 3), snapshot(1, 4)].concat());
    rig.values(1, 4, 0);
    assert_eq!(rig.values(0, 3, 0), [Effect::Evaluate { at_samples: 40, last: false }]);
    // Another one is left out while the first is under way.
    let second = Work::Batch { batch: BatchIndex(1), units: 1, evaluate: Some(50), enter: None };
    assert_eq!(rig.hear(0, ToPeer::Work(second)), [load(1)]);
    let ready = rig.on(Event::EvaluationReady { at_samples: 40, loss: 0.25, accuracy: 0.5 });
    let result = Evaluated { at_samples: 40, loss: 0.25, accuracy: 0.5, report: None };
    assert_eq!(without_reports(ready), [send(0, ToServer::Evaluated(result))]);
}

#[test]
fn the_end_is_an_evaluation_and_goodbyes() {
    let mut rig = Rig::registered(settings(2));
    rig.hear(0, ToPeer::Work(Work::Idle));
    let begun = rig.hear(0, ToPeer::Work(Work::Evaluate { at_samples: 100 }));
    assert_eq!(begun, [snapshot(0, 1), snapshot(1, 2)].concat());
    rig.values(0, 1, 0);
    assert_eq!(rig.values(1, 2, 0), [Effect::Evaluate { at_samples: 100, last: true }]);
    assert_eq!(rig.hear(0, ToPeer::Work(Work::Done)), []);
    rig.after_us(1_000);
    let effects = rig.on(Event::EvaluationReady { at_samples: 100, loss: 0.25, accuracy: 0.5 });
    let [result, first] = &effects[..] else { panic!("{effects:?}") };
    let Effect::Send { message: ToServer::Evaluated(Evaluated { report: Some(report), .. }), .. } = result
    else {
        panic!("{result:?}")
    };
    assert_eq!((report.times.evaluate_us, report.bytes_pulled), (1_000, 128));
    let Effect::Send { message: ToServer::Leave(leave), .. } = first else { panic!("{first:?}") };
    assert!(leave.outcome == Outcome::Done && leave.report.is_some());
    let second = send(1, ToServer::Leave(Leave { outcome: Outcome::Done, report: None }));
    assert_eq!(rig.hear(0, ToPeer::Goodbye), [second]);
    assert_eq!(rig.hear(1, ToPeer::Goodbye), [Effect::Exit(Ok(()))]);
    assert_eq!(rig.tick_after(Duration::from_secs(9)), []);
    assert_eq!(rig.worker.next_deadline(), None);
}

#[test]
fn a_signal_ends_it_without_waiting_for_silent_servers() {
    let mut rig = Rig::computing(settings(2), work(1));
    let effects = rig.on(Event::Interrupt);
    assert_eq!(effects.len(), 1);
    assert_eq!(rig.worker.next_deadline(), Some(rig.now.after(Duration::from_secs(2))));
    assert_eq!(rig.hear(0, ToPeer::Goodbye), [left(1)]);
    assert_eq!(rig.tick_after(Duration::from_secs(2)), [Effect::Exit(Ok(()))]);
}

fn left(server: u32) -> Effect {
    send(server, ToServer::Leave(Leave { outcome: Outcome::Interrupted, report: None }))
}

// Seed 1699 of the simulated world: a server that had heard the goodbye told the coordinator of it before the worker's last result was there.
#[test]
fn the_other_servers_hear_that_it_goes_once_the_coordinator_has_or_never_will() {
    for says in [
        Event::Message { server: ServerId(0), message: ToPeer::Goodbye },
        Event::Lost { server: ServerId(0) },
    ] {
        let mut rig = Rig::computing(settings(2), work(1));
        assert_eq!(rig.on(Event::Interrupt).len(), 1);
        assert_eq!(rig.on(says), [left(1)]);
        assert_eq!(rig.hear(1, ToPeer::Goodbye), [Effect::Exit(Ok(()))]);
    }
    let mut rig = Rig::computing(settings(2), work(1));
    rig.on(Event::Interrupt);
    assert_eq!(rig.tick_after(Duration::from_secs(2)), [left(1), Effect::Exit(Ok(()))]);
}

#[test]
fn a_server_without_keys_is_left_alone_unless_it_coordinates() {
    let mut settings = settings(3);
    settings.partition = Partition::new(16, 3, 1);
    let owner = settings.partition.shards().map(|(shard, _)| settings.partition.server_of(shard)).next();
    assert_eq!(owner, Some(ServerId(2)));
    let mut rig = Rig::new(settings);
    rig.tick_after(Duration::ZERO);
    rig.greet(0, 70);
    let joined = rig.hear(0, joined(FIRST_LIFE));
    assert_eq!(joined[1..], [send(0, register(0, 0)), connect(2)]);
    assert_eq!(rig.hear(0, ToPeer::Registered { has_values: false }), []);
    rig.greet(2, 72);
    assert_eq!(rig.hear(2, ToPeer::Registered { has_values: true }), [send(0, ask(0, None))]);
}
