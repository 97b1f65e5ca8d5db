//! The worker of an allreduce when something goes wrong.

use proptest::prelude::*;
use slackline_core::collective::Topology;
use slackline_core::ids::Generation;
use slackline_core::limits::GROUP_COUNT_MAX;
use slackline_core::wire::{
    Group, Leave, LinkFigures, Outcome, Refusal, RefusalCode, Report, Stepped, Text, Trouble,
};

use super::group::*;
use super::*;
use crate::{Notice, WorkerError};

const SECOND_LIFE: Incarnation = Incarnation(8);

fn regroup(generation: u64) -> ToPeer {
    ToPeer::Regroup { generation: Generation(generation) }
}

fn dissolve(generation: u64) -> Effect {
    Effect::Dissolve { generation: Generation(generation) }
}

fn fetch(generation: u64, clock: u64) -> Effect {
    Effect::FetchState { generation: Generation(generation), source: WorkerId(0), clock: Clock(clock) }
}

fn with_source(group: Group) -> Group {
    Group { source: Some(WorkerId(0)), ..group }
}

/// The same in the worker's second life.
fn reborn(mut group: Group) -> Group {
    let own = group.members.iter_mut().find(|member| member.worker == ONE).unwrap();
    own.incarnation = SECOND_LIFE;
    group
}

fn lose(rig: &mut Rig) {
    let effects = rig.on(Event::Lost { server: ServerId(0) });
    assert_eq!(silent(effects), [connect(0)]);
}

fn back(rig: &mut Rig) -> Vec<Effect> {
    rig.greet(0, 70);
    silent(rig.hear(0, ToPeer::Registered { has_values: true }))
}

/// The lease runs out and the worker comes back, until it says that it is ready.
fn fenced(rig: &mut Rig) -> Vec<Effect> {
    let text = Text::new("the lease ran out");
    let effects = rig.hear(0, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Apply { .. })));
    rig.tick_after(Duration::from_millis(100));
    let joins = rig.greet(0, 70);
    let Some(Effect::Send { message: ToServer::Join(join), .. }) = joins.first() else { panic!("{joins:?}") };
    assert_eq!(join.former, Some((ONE, FIRST_LIFE)));
    rig.hear(0, joined(SECOND_LIFE));
    silent(rig.hear(0, ToPeer::Registered { has_values: true }))
}

/// A worker of a group with worker 0 that has completed one step and computes the second.
fn second_step() -> Rig {
    let mut rig = Rig::stepping(grouped(), &[0]);
    rig.loaded(3);
    rig.whole_step(1, 0);
    rig
}

#[test]
fn a_step_under_way_is_dropped_and_done_again_in_the_next_group() {
    let mut rig = second_step();
    assert_eq!(silent(rig.hear(0, regroup(1))), [dissolve(1), ready(1, 1, 2)]);
    // What still comes of the former group is not heard.
    for effects in [rig.computed(1, 1, None), rig.gathered(1, 1), rig.reduced(1, 1, None)] {
        assert_eq!(effects, []);
    }
    // Its batch was taken to be computed with: it is loaded again, for the same units.
    let again = group(2, &[0], 1, 2);
    let formed = silent(rig.hear(0, ToPeer::Group(again.clone())));
    assert_eq!(formed, [Effect::Form { group: again, position: 1 }, load(3)]);
    rig.met(2);
    assert_eq!(rig.loaded(3), [step(2, 1, Some(3), 0.5)]);
    assert_eq!(rig.whole_step(2, 1), [apply(2, 1, 0.1)]);
}

#[test]
fn an_evaluation_is_not_made_again_with_its_step() {
    let mut settings = grouped();
    settings.group.as_mut().unwrap().evaluate_every = 20;
    let mut rig = Rig::stepping(settings, &[2]);
    rig.loaded(2);
    let evaluation = Effect::Evaluate { at_samples: 15, last: false };
    assert!(rig.whole_step(1, 0).contains(&evaluation));
    rig.on(Event::EvaluationReady { at_samples: 15, loss: 0.5, accuracy: 0.5 });
    rig.hear(0, regroup(1));
    rig.hear(0, ToPeer::Group(group(2, &[2], 1, 2)));
    assert!(!rig.met(2).contains(&evaluation));
}

#[test]
fn a_batch_that_is_there_for_another_step_stays() {
    let mut rig = second_step();
    rig.loaded(5);
    rig.hear(0, regroup(1));
    assert!(rig.worker.wants_batch(BatchIndex(5)));
    // Alone from unit 5 on: unit 5 is its first.
    let alone = with_source(group(2, &[0], 3, 4));
    let formed = silent(rig.hear(0, ToPeer::Group(alone.clone())));
    assert_eq!(formed, [Effect::Form { group: alone, position: 1 }]);
    // And what nobody needs is thrown away.
    rig.hear(0, regroup(2));
    rig.hear(0, ToPeer::Group(with_source(group(3, &[0], 5, 8))));
    assert!(!rig.worker.wants_batch(BatchIndex(5)));
}

#[test]
fn a_word_that_comes_again_is_answered_again_and_an_older_one_is_not() {
    let mut rig = second_step();
    rig.hear(0, regroup(1));
    assert_eq!(rig.hear(0, regroup(1)), [ready(1, 1, 2)]);
    rig.hear(0, ToPeer::Group(group(2, &[0], 1, 2)));
    assert_eq!(rig.hear(0, regroup(1)), []);
    assert_eq!(rig.hear(0, ToPeer::Group(group(2, &[0], 1, 2))), []);
    assert_eq!(rig.hear(0, ToPeer::Group(group(1, &[0], 0, 0))), []);
}

#[test]
fn a_step_that_another_member_completed_counts_once() {
    let mut rig = second_step();
    rig.computed(1, 1, None);
    rig.hear(0, regroup(1));
    rig.hear(0, ToPeer::Group(with_source(group(2, &[0], 2, 4))));
    assert_eq!(rig.met(2), [fetch(2, 2)]);
    // The state does not come: another group, with the same values.
    assert_eq!(silent(rig.hear(0, regroup(2))), [dissolve(2), ready(2, 1, 2)]);
    rig.hear(0, ToPeer::Group(with_source(group(3, &[0], 2, 4))));
    assert_eq!(rig.met(3), [fetch(3, 2)]);
    rig.on(Event::StateArrived { generation: Generation(3) });
    rig.loaded(5);
    rig.after_us(250_000);
    rig.loaded(7);
    let effects = rig.whole_step(3, 2);
    let is_told = |effect: &Effect| match effect {
        Effect::Send { message: ToServer::Stepped(Stepped { report: Some(report), .. }), .. } => {
            assert_eq!((report.iterations, report.samples, report.pushes_applied), (3, 15, 3));
            true
        }
        _ => false,
    };
    assert!(effects.iter().any(is_told), "{effects:?}");
}

#[test]
fn steps_go_on_while_the_coordinator_is_away_and_what_was_not_heard_is_said_again() {
    let mut rig = second_step();
    rig.loaded(5);
    rig.after_us(250_000);
    let told = rig.whole_step(1, 1);
    let word =
        told.iter().find(|effect| matches!(effect, Effect::Send { message: ToServer::Stepped(_), .. }));
    let word = word.unwrap().clone();
    lose(&mut rig);
    rig.after_us(300_000);
    rig.loaded(7);
    // The next word waits until this one is heard.
    assert_eq!(rig.whole_step(1, 2), [apply(1, 2, 0.2), step(1, 3, Some(7), 0.5), load(9)]);
    assert_eq!(back(&mut rig), [word, send(0, ToServer::Renew)]);
    let next = rig.hear(0, ToPeer::Renewed);
    let Effect::Send { message: ToServer::Stepped(next), .. } = &next[0] else { panic!("{next:?}") };
    let report = next.report.as_ref().unwrap();
    assert_eq!((next.clock, report.iterations), (Clock(3), 2));
    rig.hear(0, ToPeer::Renewed);
    lose(&mut rig);
    assert_eq!(back(&mut rig), []);
}

#[test]
fn a_worker_that_is_ready_says_so_again_after_a_loss() {
    let mut rig = Rig::ready(grouped());
    lose(&mut rig);
    assert_eq!(back(&mut rig), [ready(0, 0, 0)]);
}

#[test]
fn trouble_is_told_once_and_again_after_a_loss() {
    let mut rig = second_step();
    let reason = || "the connection is lost".to_owned();
    let trouble = |generation, worker| Event::PeerTrouble {
        generation: Generation(generation),
        worker: WorkerId(worker),
        reason: reason(),
    };
    let generation = Generation(1);
    let told = Trouble { generation, worker: WorkerId(0), reason: Text::new(reason()) };
    let told = send(0, ToServer::Trouble(told));
    let first = rig.on(trouble(1, 0));
    assert_eq!(rig.on(trouble(1, 2)), []);
    assert_eq!(rig.on(trouble(7, 0)), []);
    lose(&mut rig);
    let second = back(&mut rig);
    assert_eq!((first, second), (vec![told.clone()], vec![told]));
    assert_eq!(silent(rig.hear(0, regroup(1))), [dissolve(1), ready(1, 1, 2)]);
    assert_eq!(rig.on(trouble(1, 0)), []);
}

#[test]
fn a_peer_of_another_run_ends_the_worker_with_its_name() {
    let mut rig = second_step();
    let reason = "worker 0 belongs to another run".to_owned();
    let effects = silent(rig.on(Event::PeerRefused { reason: reason.clone() }));
    let outcome = Outcome::Failed(Text::new(reason.clone()));
    let [left, Effect::Send { message: ToServer::Leave(leave), .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((left, &leave.outcome), (&dissolve(1), &outcome));
    assert_eq!(rig.hear(0, ToPeer::Goodbye), [Effect::Exit(Err(WorkerError::Peer { reason }))]);
}

#[test]
fn a_signal_dissolves_the_group_on_this_side_and_says_so() {
    let mut rig = second_step();
    let effects = silent(rig.on(Event::Interrupt));
    let [left, Effect::Send { message: ToServer::Leave(Leave { outcome, report }), .. }] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((left, outcome), (&dissolve(1), &Outcome::Interrupted));
    assert_eq!(report.as_ref().unwrap().iterations, 1);
    assert_eq!(rig.hear(0, ToPeer::Goodbye), [Effect::Exit(Ok(()))]);
}

#[test]
fn a_fenced_worker_says_what_its_values_are_and_counts_what_was_not_heard_once() {
    let mut rig = second_step();
    rig.after_us(250_000);
    rig.whole_step(1, 1);
    assert_eq!(fenced(&mut rig), [ready(1, 2, 4)]);
    // Nobody went on without it: its values are those of all.
    rig.hear(0, ToPeer::Group(reborn(group(2, &[0], 2, 4))));
    rig.met(2);
    rig.loaded(5);
    rig.after_us(250_000);
    let effects = rig.whole_step(2, 2);
    let is_told = |effect: &Effect| match effect {
        Effect::Send { message: ToServer::Stepped(Stepped { report: Some(report), .. }), .. } => {
            assert_eq!((report.iterations, report.samples), (3, 15));
            true
        }
        _ => false,
    };
    assert!(effects.iter().any(is_told), "{effects:?}");
}

#[test]
fn a_fenced_worker_does_not_trust_its_values_when_a_group_went_on_without_it() {
    let mut rig = second_step();
    fenced(&mut rig);
    // The clock is the same, and yet generation 2 may have come there in another way.
    let formed = with_source(reborn(group(3, &[0], 1, 2)));
    rig.hear(0, ToPeer::Group(formed.clone()));
    assert_eq!(rig.met(3), [fetch(3, 1)]);
    // Until it has them, it stands where that group began and nowhere else.
    assert_eq!(silent(rig.hear(0, regroup(3))), [dissolve(3), ready(3, 1, 2)]);
    let refused =
        rig.hear(0, ToPeer::Group(Group { generation: Generation(4), source: None, ..formed.clone() }));
    assert!(matches!(refused.last(), Some(Effect::Send { message: ToServer::Leave(_), .. })), "{refused:?}");
}

#[test]
fn a_worker_that_is_fenced_again_before_it_got_the_values_says_which_it_has() {
    let mut rig = second_step();
    fenced(&mut rig);
    rig.hear(0, ToPeer::Group(with_source(reborn(group(3, &[0], 1, 2)))));
    let text = Text::new("the lease ran out");
    rig.hear(0, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
    rig.tick_after(Duration::from_millis(100));
    rig.greet(0, 70);
    rig.hear(0, joined(Incarnation(9)));
    // Of generation 3 it has nothing: it must not be taken for one of those who stand for it.
    assert_eq!(silent(rig.hear(0, ToPeer::Registered { has_values: true })), [ready(1, 1, 2)]);
}

#[test]
fn a_fenced_worker_that_is_ahead_of_the_others_goes_back() {
    let mut rig = second_step();
    fenced(&mut rig);
    rig.hear(0, ToPeer::Group(with_source(reborn(group(2, &[0, 2], 0, 0)))));
    assert_eq!(rig.met(2), [fetch(2, 0)]);
    assert_eq!(silent(rig.hear(0, regroup(2))), [dissolve(2), ready(2, 0, 0)]);
    rig.hear(0, ToPeer::Group(with_source(reborn(group(3, &[0], 0, 0)))));
    assert_eq!(rig.met(3), [fetch(3, 0)]);
    rig.on(Event::StateArrived { generation: Generation(3) });
    assert_eq!(rig.worker.clock(), Clock(0));
    assert_eq!(rig.loaded(1), [step(3, 0, Some(1), 0.5), load(3)]);
}

#[test]
fn whoever_is_left_at_the_end_evaluates_in_place_of_position_0() {
    let (mut rig, _) = finished(&[0]);
    rig.hear(0, ToPeer::Renewed);
    assert_eq!(silent(rig.hear(0, regroup(1))), [dissolve(1), ready(1, 1, 2)]);
    // It waits for nobody: the others can be gone as well.
    let effects = rig.hear(0, ToPeer::Group(group(2, &[3], 1, 2)));
    assert!(effects.contains(&Effect::Evaluate { at_samples: 10, last: true }), "{effects:?}");
    // It is evaluated once, whatever becomes of the group meanwhile.
    rig.hear(0, regroup(2));
    let effects = rig.hear(0, ToPeer::Group(group(3, &[], 1, 2)));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Evaluate { .. })), "{effects:?}");
}

#[test]
fn trouble_at_the_end_is_the_trouble_of_those_who_are_not_done() {
    let (mut rig, _) = finished(&[0]);
    let (generation, reason) = (Generation(1), "closed".to_owned());
    assert_eq!(rig.on(Event::PeerTrouble { generation, worker: WorkerId(0), reason }), []);
}

#[test]
fn a_group_that_cannot_be_is_refused_by_name() {
    let good = || group(1, &[0, 2], 0, 0);
    let many: Vec<u32> = (2..GROUP_COUNT_MAX + 3).collect();
    let mut unsorted = good();
    unsorted.members.swap(0, 2);
    let mut doubled = good();
    doubled.members[0] = doubled.members[1].clone();
    let mut strangers = good();
    strangers.members.remove(1);
    let cases = [
        ("too large", group(1, &many, 0, 0)),
        ("out of order", unsorted),
        ("out of order", doubled),
        ("without this worker", strangers),
        ("without this worker", Group { members: Vec::new(), ..good() }),
        ("another lifetime", reborn(good())),
        ("topology does not fit", Group { topology: Topology::Torus { x: 2, y: 2 }, ..good() }),
        ("topology does not fit", Group { topology: Topology::Hierarchical { group: 0 }, ..good() }),
        ("beyond the end", Group { clock: Clock(u64::MAX), ..good() }),
        ("beyond the end", Group { units: u64::MAX, ..good() }),
        ("source outside", Group { source: Some(WorkerId(9)), ..good() }),
        ("nobody to get the values from", group(1, &[0], 3, 6)),
        ("nobody to get the values from", Group { source: Some(ONE), ..group(1, &[0], 3, 6) }),
    ];
    for (what, group) in cases {
        let mut rig = Rig::ready(grouped());
        let effects = rig.hear(0, ToPeer::Group(group));
        let Some(Effect::Send { message: ToServer::Leave(leave), .. }) = effects.last() else {
            panic!("{what}")
        };
        let Outcome::Failed(text) = &leave.outcome else { panic!("{leave:?}") };
        assert!(text.shown().contains(what), "{text} is not about {what:?}");
    }
}

#[test]
fn what_belongs_to_the_other_method_is_refused() {
    let is_out_of_place = |effects: &[Effect]| {
        matches!(
            effects.last(),
            Some(Effect::Send { message: ToServer::Leave(Leave { outcome: Outcome::Failed(_), .. }), .. })
        )
    };
    let mut pushing = Rig::computing(settings(2), Work::Idle);
    assert!(is_out_of_place(&pushing.hear(0, ToPeer::Group(group(1, &[], 0, 0)))));
    let mut pushing = Rig::computing(settings(2), Work::Idle);
    assert!(is_out_of_place(&pushing.hear(1, regroup(1))));
    let mut grouped = second_step();
    assert!(is_out_of_place(&grouped.hear(0, batch(1))));
    let mut early = second_step();
    assert!(is_out_of_place(&early.hear(0, ToPeer::Group(group(2, &[0], 1, 2)))));
}

#[test]
fn waits_have_names() {
    let mut rig = second_step();
    rig.computed(1, 1, None);
    let mut waited = Vec::new();
    for _ in 0..30 {
        waited.extend(rig.tick_after(Duration::from_millis(500)));
        rig.hear(0, ToPeer::Renewed);
    }
    let is_named = |effect: &Effect| match effect {
        Effect::Notice(notice) => notice.to_string().starts_with("waiting for the other workers' gradients"),
        _ => false,
    };
    assert!(waited.iter().any(is_named), "{waited:?}");
    rig.hear(0, regroup(1));
    let mut waited = Vec::new();
    for _ in 0..30 {
        waited.extend(rig.tick_after(Duration::from_millis(500)));
        rig.hear(0, ToPeer::Renewed);
    }
    let is_named = |effect: &Effect| {
        matches!(effect, Effect::Notice(Notice::Waiting { what: crate::WaitKind::Group, .. }))
    };
    assert!(waited.iter().any(is_named), "{waited:?}");
}

/// One of many things that can happen, with small numbers.
fn happening(kind: u8, generation: u64, number: u64) -> Event {
    let message = |message| Event::Message { server: ServerId((number % 7 / 6) as u32), message };
    let (generation_id, clock) = (Generation(generation), Clock(number % 12));
    match kind {
        0 => Event::Met { generation: generation_id },
        1 => {
            let figures = LinkFigures { latency_s: 1.0, bytes_per_s: 1.0 };
            Event::Measured { generation: generation_id, figures }
        }
        2 => Event::StateArrived { generation: generation_id },
        3 => Event::StepComputed { generation: generation_id, clock, bad_key: None, loss: 0.5, samples: 5 },
        4 => Event::Gathered { generation: generation_id, clock },
        5 => Event::Reduced {
            generation: generation_id,
            clock,
            bad_key: (number == 7).then_some(1),
            sent: 1,
            received: 1,
        },
        6 => Event::PeerTrouble { generation: generation_id, worker: WorkerId(0), reason: String::new() },
        7 => Event::Lost { server: ServerId(0) },
        8 => Event::Connected { server: ServerId(0) },
        9 => message(ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(0), boot: 70 }),
        10 => message(joined(FIRST_LIFE)),
        11 => message(ToPeer::Registered { has_values: true }),
        12 => message(regroup(generation)),
        13 | 14 => {
            let others: &[u32] = [&[0][..], &[0, 2], &[2], &[]][number as usize % 4];
            let topology = [Topology::Ring, Topology::Auto, Topology::Doubling][number as usize % 3];
            let source = number.is_multiple_of(2).then_some(WorkerId(0)).filter(|_| others.contains(&0));
            message(ToPeer::Group(Group {
                topology,
                source,
                ..group(generation, others, number % 12, number)
            }))
        }
        15 => message(ToPeer::Renewed),
        16 => Event::EvaluationReady { at_samples: number, loss: 0.5, accuracy: 0.5 },
        17 => {
            let text = Text::new("fenced");
            message(ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }))
        }
        18 => Event::Tick { wire_sent: 0, wire_received: 0 },
        _ => Event::BatchLoaded { batch: BatchIndex(number % 20) },
    }
}

proptest! {
    #[test]
    fn nothing_that_comes_in_any_order_panics(happenings in prop::collection::vec((0..24_u8, 0..6_u64, 0..40_u64), 0..120)) {
        let mut settings = grouped();
        settings.group.as_mut().unwrap().evaluate_every = 20;
        let mut rig = Rig::ready(settings);
        for (kind, generation, number) in happenings {
            rig.after_us(10_000 * number);
            // The harness checks the invariants after each.
            rig.on(happening(kind, generation, number));
        }
    }

    #[test]
    fn each_step_is_told_exactly_once_whatever_is_lost(happenings in prop::collection::vec((0..10_u8, 0..400_u64), 0..80)) {
        let mut rig = Rig::stepping(Settings { batch_count: 1 << 40, ..grouped() }, &[0]);
        // What the coordinator counts: a word that is equal to the last one is known.
        let (mut heard, mut last, mut steps) = (Report::default(), None, 0);
        let mut count = |effects: &[Effect]| for effect in effects {
            if let Effect::Send { message: ToServer::Stepped(stepped), .. } = effect
                && last.replace(stepped.clone()).as_ref() != Some(stepped)
            {
                heard.merge(stepped.report.as_ref().unwrap());
            }
        };
        let mut is_lost = false;
        for (kind, millis) in happenings {
            rig.after_us(1000 * millis);
            match kind {
                0 if !is_lost => { lose(&mut rig); is_lost = true; }
                1 | 2 if is_lost => { count(&back(&mut rig)); is_lost = false; }
                3 | 4 if !is_lost => count(&rig.hear(0, ToPeer::Renewed)),
                _ => {
                    count(&rig.loaded(2 * steps + 3));
                    count(&rig.whole_step(1, steps));
                    steps += 1;
                }
            }
        }
        if is_lost { count(&back(&mut rig)); }
        let left = rig.on(Event::Interrupt);
        let Some(Effect::Send { message: ToServer::Leave(leave), .. }) = left.last() else { panic!("{left:?}") };
        count(&left);
        let in_leave = leave.report.as_ref().unwrap().iterations;
        prop_assert_eq!(heard.iterations + in_leave, steps);
    }
}
