//! The cycle when something goes wrong.

use slackline_core::consistency::DropReason;
use slackline_core::wire::{Leave, Outcome, Refusal, RefusalCode, Text};

use super::*;
use crate::{Notice, WaitKind, WorkerError};

fn lost(rig: &mut Rig, server: u32) {
    let server_id = ServerId(server);
    let effects = rig.on(Event::Lost { server: server_id });
    assert_eq!(effects, [Effect::Notice(Notice::Lost { server: server_id }), connect(server)]);
}

fn back(rig: &mut Rig, server: u32) -> Vec<Effect> {
    rig.greet(server, 70 + u64::from(server));
    let mut effects = rig.hear(server, ToPeer::Registered { has_values: true });
    assert_eq!(effects.remove(0), Effect::Notice(Notice::Resumed { server: ServerId(server) }));
    effects
}

#[test]
fn a_bad_gradient_is_dropped_named_and_its_batch_is_over() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    let notice = Notice::BadGradient {
        worker: ONE,
        clock: Clock(0),
        sequence: Sequence(1),
        key: 3,
        tensor: "weight".to_owned(),
        found_by: None,
    };
    let nothing = |shard| {
        let (shard_id, sequence) = (ShardId(shard), Sequence(1));
        send(shard, ToServer::PushNothing { shard: shard_id, sequence, clock: Clock(0), reply: 0, have: 0 })
    };
    let effects = rig.gradient(1, Some(3));
    assert_eq!(effects, [Effect::Notice(notice), release_unused(1, &[0, 1]), nothing(0), nothing(1)]);
    lost(&mut rig, 1);
    assert_eq!(back(&mut rig, 1), [nothing(1)]);
    rig.pushed(0, 1, 1, PushOutcome::Nothing);
    let finished = rig.pushed(1, 1, 1, PushOutcome::Nothing);
    assert_eq!(without_reports(finished).last(), Some(&send(0, ask(1, Some(0)))));
}

#[test]
fn a_bad_gradient_ends_the_worker_if_the_run_is_to_stop_for_it() {
    for found_by_server in [false, true] {
        let mut rig = Rig::computing(Settings { stop_on_bad_gradient: true, ..settings(2) }, Work::Idle);
        let effects = if found_by_server {
            rig.gradient(1, None);
            rig.pushed(1, 1, 1, PushOutcome::NotFinite { key: 3 })
        } else {
            rig.gradient(1, Some(3))
        };
        let error =
            WorkerError::BadGradient { worker: ONE, clock: Clock(0), key: 3, tensor: "weight".to_owned() };
        assert!(error.to_string().contains("not finite (tensor weight, key 3)"));
        let outcome = Outcome::BadGradient(Text::new(error.to_string()));
        assert_eq!(effects.len(), 1);
        let told = send(1, ToServer::Leave(Leave { outcome, report: None }));
        assert_eq!(rig.on(Event::Lost { server: ServerId(0) }), [told]);
        assert_eq!(rig.hear(1, ToPeer::Goodbye), [Effect::Exit(Err(error))]);
    }
}

#[test]
fn a_dropped_batch_is_given_back() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    rig.gradient(1, None);
    rig.pushed(0, 1, 1, PushOutcome::Dropped(DropReason::LateClock { open: Clock(4) }));
    let effects = rig.pushed(1, 1, 1, PushOutcome::Dropped(DropReason::TooStale { staleness: 9 }));
    let effects = without_reports(effects);
    assert_eq!(effects.last(), Some(&send(0, returning(1, 0))));
    assert!(effects.contains(&release_unused(1, &[0, 1])));
    // The same batch can then come again.
    let effects = rig.hear(0, batch(0));
    assert_eq!(effects[0], load(0));
}

// Done again, it would be in the first shard's values twice (found by a review: two shards did so to each other for ever).
#[test]
fn a_batch_that_one_shard_has_taken_is_done_whatever_the_others_say() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    rig.gradient(1, None);
    rig.pushed(0, 1, 1, applied(1));
    let effects = rig.pushed(1, 1, 1, PushOutcome::Dropped(DropReason::LateClock { open: Clock(4) }));
    let effects = without_reports(effects);
    assert_eq!(effects.last(), Some(&send(0, ask(1, Some(0)))));
    assert!(effects.contains(&release_unused(1, &[1])), "the other one has what was sent to it");
}

#[test]
fn what_a_lost_server_has_not_answered_is_sent_again() {
    let mut rig = Rig::second(settings(2));
    rig.gradient(2, None);
    rig.pushed(0, 2, 2, applied(2));
    lost(&mut rig, 1);
    assert_eq!(rig.on(Event::Connected { server: ServerId(1) }), []);
    let welcome = ToPeer::Welcome { protocol: PROTOCOL, server: ServerId(1), boot: 71 };
    assert_eq!(rig.hear(1, welcome), [send(1, register(1, 1))]);
    let resumed = rig.hear(1, ToPeer::Registered { has_values: true });
    let notice = Effect::Notice(Notice::Resumed { server: ServerId(1) });
    assert_eq!(resumed, [&[notice, push(1, 2, 1, 1, 1)][..], &pull(1, 7, 2, 2)].concat());
    // The values of the older pull are not taken.
    rig.values(0, 5, 2);
    rig.on(Event::BatchLoaded { batch: BatchIndex(2) });
    assert_eq!(rig.values(1, 6, 2), []);
    assert_eq!(rig.values(1, 7, 2), [compute(3, 2)]);
    assert_eq!(rig.pushed(1, 2, 2, applied(2)), [release(2), send(0, ask(3, Some(1)))]);
    lost(&mut rig, 0);
    assert_eq!(back(&mut rig, 0), [send(0, ask(3, Some(1)))]);
    rig.hear(0, batch(3));
    lost(&mut rig, 0);
    assert_eq!(back(&mut rig, 0), []);
}

// Found by the simulated world: such an attempt was waited for until the worker gave up.
#[test]
fn a_connection_that_is_lost_before_it_stood_is_made_again() {
    let mut rig = Rig::new(settings(1));
    assert_eq!(rig.tick_after(Duration::ZERO), [connect(0)]);
    rig.on(Event::Lost { server: ServerId(0) });
    assert_eq!(rig.tick_after(Duration::from_millis(200)), [connect(0)]);
}

#[test]
fn a_finished_worker_stays_finished_after_a_loss() {
    let mut rig = Rig::registered(settings(2));
    rig.hear(0, ToPeer::Work(Work::Idle));
    lost(&mut rig, 0);
    assert_eq!(back(&mut rig, 0), [send(0, ToServer::Finish), send(0, ask(0, None))]);
    lost(&mut rig, 1);
    let enter = Work::Batch { batch: BatchIndex(3), units: 1, evaluate: None, enter: Some(Clock(9)) };
    rig.hear(0, ToPeer::Work(enter));
    let expected = [&[send(1, ToServer::Enter { clock: Clock(9) })][..], &pull(1, 2, 9, 0)].concat();
    assert_eq!(back(&mut rig, 1), expected);
}

#[test]
fn a_result_of_an_evaluation_is_sent_again_until_work_follows_it() {
    let mut rig = Rig::registered(settings(2));
    rig.hear(0, ToPeer::Work(Work::Evaluate { at_samples: 100 }));
    rig.values(0, 1, 0);
    lost(&mut rig, 1);
    assert_eq!(back(&mut rig, 1), snapshot(1, 3));
    rig.values(1, 3, 0);
    let result = rig.on(Event::EvaluationReady { at_samples: 100, loss: 0.5, accuracy: 0.5 });
    lost(&mut rig, 0);
    assert_eq!(back(&mut rig, 0), [result, vec![send(0, ask(0, None))]].concat());
    rig.hear(0, batch(3));
    lost(&mut rig, 0);
    assert_eq!(back(&mut rig, 0), pull(0, 6, 0, 0));
}

#[test]
fn a_fenced_worker_joins_again_under_its_old_id() {
    let fenced = ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text: Text::new("too late") });
    let mut rig = Rig::computing(settings(2), work(1));
    let notice = Effect::Notice(Notice::Fenced { server: ServerId(1) });
    let expected = [notice.clone(), disconnect(0), disconnect(1), connect(0)];
    assert_eq!(rig.hear(1, fenced.clone()), expected);
    assert_eq!(rig.greet(0, 70), [send(0, join(Some((ONE, FIRST_LIFE))))]);
    rig.hear(0, joined(Incarnation(8)));
    rig.hear(0, ToPeer::Registered { has_values: true });
    rig.greet(1, 71);
    assert_eq!(rig.hear(1, ToPeer::Registered { has_values: true }), [send(0, ask(0, None))]);
    // The buffers are in use until the forgotten gradient is ready.
    assert_eq!(rig.hear(0, batch(5)), [load(5)]);
    let effects = rig.gradient(1, None);
    assert_eq!(effects, [&[release_unused(1, &[0, 1])][..], &pull(0, 3, 0, 0), &pull(1, 4, 0, 0)].concat());

    // A push that was not answered is released, and counts again from 1.
    rig.on(Event::BatchLoaded { batch: BatchIndex(5) });
    rig.values(0, 3, 0);
    rig.values(1, 4, 0);
    rig.gradient(1, None);
    let expected = [notice, release(1), disconnect(0), disconnect(1), connect(0)];
    assert_eq!(rig.pushed(1, 1, 0, PushOutcome::Fenced), expected);
    // Refused once more while joining: it comes as a new worker, after a wait.
    rig.greet(0, 70);
    let refused = rig.hear(0, fenced);
    assert_eq!(refused[1..], [disconnect(0)]);
    assert_eq!(rig.tick_after(Duration::from_millis(100)), [connect(0)]);
    assert_eq!(rig.greet(0, 70), [send(0, join(None))]);
}

#[test]
fn a_refusal_ends_the_worker_with_the_servers_words() {
    let mut rig = Rig::registered(settings(2));
    let text = Text::new("layouts differ\u{1b}[31m");
    let effects = rig.hear(0, ToPeer::Refused(Refusal { code: RefusalCode::Mismatch, text: text.clone() }));
    let code = RefusalCode::Mismatch;
    let error = WorkerError::Refused { server: ServerId(0), code, text: text.shown() };
    assert_eq!(error.to_string(), "server 0 refused: layouts differ [31m");
    let outcome = Outcome::Failed(Text::new(error.to_string()));
    assert_eq!(effects, [send(1, ToServer::Leave(Leave { outcome, report: None }))]);
    assert_eq!(rig.hear(1, ToPeer::Goodbye), [Effect::Exit(Err(error))]);
}

#[test]
fn a_server_is_looked_for_until_patience_ends() {
    let mut rig = Rig::new(settings(2));
    rig.tick_after(Duration::ZERO);
    let failed = |rig: &mut Rig| {
        let reason = "refused".to_owned();
        rig.on(Event::ConnectFailed { server: ServerId(0), reason, obstacle: Obstacle::Passing })
    };
    let (mut attempts, mut told, mut waits) = (0, 0, 0);
    assert_eq!(failed(&mut rig).len(), 1);
    let exit = loop {
        let deadline = rig.worker.next_deadline().unwrap();
        assert!(deadline > rig.now);
        let wait = deadline.since(rig.now);
        for effect in rig.tick_after(wait) {
            match effect {
                Effect::Connect { .. } => {
                    attempts += 1;
                    told += failed(&mut rig).len();
                }
                Effect::Notice(Notice::Waiting {
                    what: WaitKind::Connection, server: ServerId(0), ..
                }) => {
                    waits += 1;
                }
                _ => {}
            }
        }
        if rig.worker.next_deadline().is_none() {
            break rig.now;
        }
    };
    assert_eq!(exit, Moment(60_000_000_000));
    // 0.1, 0.2, 0.4, 0.8, 1.6 s, then every two seconds.
    assert_eq!((attempts, waits), (33, 11));
    // One failure is told again only when the time for a report has passed: with every third attempt.
    assert_eq!(told, 10);
}

// Found by reading: after a cut was mended, a worker paused for up to a quarter of a lease more, though its attempt had waited for longer.
#[test]
fn an_attempt_that_waited_in_vain_for_longer_than_the_pause_is_followed_at_once() {
    let mut rig = Rig::new(settings(2));
    assert!(rig.tick_after(Duration::ZERO).contains(&connect(0)));
    rig.now = rig.now.after(Duration::from_secs(5));
    let failed = Event::ConnectFailed {
        server: ServerId(0),
        reason: "no answer".to_owned(),
        obstacle: Obstacle::Passing,
    };
    assert!(rig.on(failed).contains(&connect(0)));
}

#[test]
fn a_server_that_appears_late_is_found() {
    let mut rig = Rig::new(settings(2));
    rig.tick_after(Duration::ZERO);
    rig.greet(0, 70);
    rig.hear(0, joined(FIRST_LIFE));
    rig.hear(0, ToPeer::Registered { has_values: true });
    for _ in 0..14 {
        let reason = "nobody there".to_owned();
        rig.on(Event::ConnectFailed { server: ServerId(1), reason, obstacle: Obstacle::Passing });
        rig.tick_after(Duration::from_secs(2));
        rig.hear(0, ToPeer::Renewed);
    }
    rig.greet(1, 71);
    assert_eq!(rig.hear(1, ToPeer::Registered { has_values: true }).last(), Some(&send(0, ask(0, None))));
}

#[test]
fn a_wrong_server_or_protocol_is_named() {
    let cases = [
        (PROTOCOL + 1, 0, WorkerError::Protocol { server: ServerId(0), theirs: PROTOCOL + 1 }),
        (PROTOCOL, 1, WorkerError::WrongServer { server: ServerId(0), answered: ServerId(1) }),
    ];
    for (protocol, server, error) in cases {
        let mut rig = Rig::new(settings(2));
        rig.tick_after(Duration::ZERO);
        rig.on(Event::Connected { server: ServerId(0) });
        let effects = rig.hear(0, ToPeer::Welcome { protocol, server: ServerId(server), boot: 1 });
        assert_eq!(effects, [Effect::Exit(Err(error))]);
    }
}

#[test]
fn what_is_out_of_place_ends_the_worker_and_never_panics() {
    let mut effects = Rig::registered(settings(2)).hear(1, batch(0));
    let out_of_place =
        |effects: &[Effect]| matches!(&effects[0], Effect::Send { message: ToServer::Leave(_), .. });
    assert!(out_of_place(&effects));
    effects = Rig::computing(settings(2), work(1)).pushed(1, 1, u64::MAX, applied(1));
    assert_eq!(effects, [], "an answer to nothing says nothing");
    let mut rig = Rig::computing(settings(2), work(1));
    rig.gradient(1, None);
    assert!(out_of_place(&rig.pushed(1, 1, u64::MAX, applied(1))));
    let mut rig = Rig::computing(settings(2), work(1));
    (2..5).for_each(|index| assert_eq!(rig.hear(0, batch(index)), [load(index)]));
    assert!(out_of_place(&rig.hear(0, batch(5))));
}

#[test]
fn silence_is_broken_by_signs_of_life_and_waits_are_named() {
    let mut rig = Rig::registered(settings(2));
    rig.hear(0, batch(0));
    assert_eq!(rig.worker.next_deadline(), Some(Moment(3_000_000_000)));
    let renews = rig.tick_after(Duration::from_secs(3));
    assert_eq!(renews, [send(0, ToServer::Renew), send(1, ToServer::Renew)]);
    rig.values(1, 2, 0);
    let waits = rig.tick_after(Duration::from_secs(2));
    let waiting = Notice::Waiting {
        what: WaitKind::Pulls,
        server: ServerId(0),
        shards: vec![ShardId(0)],
        waited: Duration::from_secs(5),
        heard: Some(Duration::from_secs(5)),
    };
    let text = "waiting for values from server 0 for 5.0 s (shard 0), last heard 5.0 s ago";
    assert_eq!(waiting.to_string(), text);
    assert_eq!(waits, [Effect::Notice(waiting)]);
    assert_eq!(rig.tick_after(Duration::from_millis(900)), []);
}

#[test]
fn a_wait_for_many_shards_names_the_first_of_them() {
    let shards = (2..40).map(ShardId).collect();
    let (what, server, waited) = (WaitKind::Answers, ServerId(1), Duration::from_secs(5));
    let text = Notice::Waiting { what, server, shards, waited, heard: None }.to_string();
    let expected = "waiting for answers to pushes from server 1 for 5.0 s (shard 2, shard 3, shard 4, shard 5 and 34 more)";
    assert_eq!(text, expected);
}

#[test]
fn a_gradient_that_takes_long_is_named_each_interval_even_when_nobody_wants_it() {
    let mut rig = Rig::computing(settings(2), work(1));
    let named = |rig: &mut Rig, seconds| {
        for server in 0..2 {
            rig.hear(server, ToPeer::Renewed);
        }
        let mut effects = rig.tick_after(Duration::from_secs(seconds));
        effects.retain(|effect| matches!(effect, Effect::Notice(_)));
        effects
    };
    let computing = |lasted| {
        Effect::Notice(Notice::Computing { batch: BatchIndex(0), lasted: Duration::from_secs(lasted) })
    };
    assert_eq!(named(&mut rig, 4), []);
    assert_eq!(named(&mut rig, 1), [computing(5)]);
    assert_eq!(named(&mut rig, 4), []);
    assert_eq!(named(&mut rig, 1), [computing(10)]);
    rig.hear(1, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text: Text::default() }));
    assert!(named(&mut rig, 5).contains(&computing(15)));
    rig.gradient(1, None);
    assert!(
        !named(&mut rig, 5).iter().any(|effect| matches!(effect, Effect::Notice(Notice::Computing { .. })))
    );
}

#[test]
fn a_broken_process_leaves_and_says_why() {
    let mut rig = Rig::computing(settings(2), work(1));
    let reason = "a computing thread has ended".to_owned();
    let mut effects = rig.on(Event::Broken { reason: reason.clone() });
    effects.extend(rig.hear(0, ToPeer::Goodbye));
    let outcomes = effects.iter().map(|effect| match effect {
        Effect::Send { message: ToServer::Leave(leave), .. } => leave.outcome.clone(),
        _ => panic!("{effect:?}"),
    });
    assert_eq!(outcomes.collect::<Vec<_>>(), vec![Outcome::Failed(Text::new(reason.clone())); 2]);
    assert_eq!(rig.hear(1, ToPeer::Goodbye), [Effect::Exit(Err(WorkerError::Broken { reason }))]);
}

#[test]
fn a_fence_leaves_no_batch_wanted() {
    let mut rig = Rig::computing(settings(2), work(1));
    assert!(rig.worker.wants_batch(BatchIndex(1)));
    rig.hear(1, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text: Text::default() }));
    assert!((0..2).all(|index| !rig.worker.wants_batch(BatchIndex(index))));
}
