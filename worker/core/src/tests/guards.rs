//! Pushes that a guard of a server leaves out, and servers that are busy.

use slackline_core::wire::{Guarded, Leave, Outcome, Times};

use super::*;
use crate::Notice;

fn notices(effects: &[Effect]) -> Vec<String> {
    let texts = effects.iter().filter_map(|effect| match effect {
        Effect::Notice(notice) => Some(notice.to_string()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn a_gradient_beyond_the_largest_norm_is_named_counted_and_not_computed_again() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    rig.gradient(1, None);
    rig.pushed(0, 1, 1, PushOutcome::Guarded(Guarded::Norm));
    let effects = rig.pushed(1, 1, 1, PushOutcome::Guarded(Guarded::Norm));
    let Some(Effect::Send { message: ToServer::Ask(Ask { results, report: Some(report), .. }), .. }) =
        effects.last()
    else {
        panic!("{effects:?}")
    };
    assert_eq!(*results, [plain(BatchIndex(0), Fate::Done { compute_us: 0 })]);
    assert_eq!((report.pushes_dropped, report.dropped_guarded, report.pushes_applied), (2, 2, 0));
}

// Case tensorflow#14494: stopping is a policy too.
#[test]
fn a_gradient_beyond_the_largest_norm_stops_the_run_where_that_is_asked_for() {
    let mut rig = Rig::computing(Settings { stop_on_norm: true, ..settings(2) }, Work::Idle);
    rig.gradient(1, None);
    let effects = rig.pushed(0, 1, 1, PushOutcome::Guarded(Guarded::Norm));
    let why = effects.iter().find_map(|effect| match effect {
        Effect::Send {
            message: ToServer::Leave(Leave { outcome: Outcome::BadGradient(text), .. }), ..
        } => Some(text.shown()),
        _ => None,
    });
    let why = why.unwrap_or_else(|| panic!("{effects:?}"));
    assert!(
        why.starts_with("the gradient of worker 1 at clock 0 (push 1) is beyond guard.norm_max at shard 0"),
        "{why}"
    );
}

#[test]
fn a_gradient_that_came_too_often_is_computed_again_unless_some_shard_took_it() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    rig.gradient(1, None);
    rig.pushed(0, 1, 1, PushOutcome::Guarded(Guarded::Rate));
    let effects = without_reports(rig.pushed(1, 1, 1, PushOutcome::Guarded(Guarded::Rate)));
    assert_eq!(effects.last(), Some(&send(0, returning(1, 0))));

    let mut rig = Rig::computing(settings(2), Work::Idle);
    rig.gradient(1, None);
    rig.pushed(0, 1, 1, applied(1));
    let effects = without_reports(rig.pushed(1, 1, 1, PushOutcome::Guarded(Guarded::Rate)));
    assert_eq!(effects.last(), Some(&send(0, ask(1, Some(0)))));
}

#[test]
fn a_worker_that_pushed_too_often_begins_nothing_for_a_second() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    rig.gradient(1, None);
    rig.pushed(0, 1, 1, PushOutcome::Guarded(Guarded::Rate));
    rig.pushed(1, 1, 1, PushOutcome::Guarded(Guarded::Rate));
    let until = rig.now.after(Duration::from_secs(1));
    let is_pull = |effect: &Effect| matches!(effect, Effect::Send { message: ToServer::Pull(_), .. });
    assert!(!rig.hear(0, batch(0)).iter().any(is_pull));
    assert!(!rig.tick_after(Duration::from_millis(999)).iter().any(is_pull));
    assert!(rig.worker.next_deadline().is_some_and(|deadline| deadline <= until));
    assert!(rig.tick_after(Duration::from_millis(1)).iter().any(is_pull));
    assert!(
        rig.worker.next_deadline().is_none_or(|deadline| deadline > rig.now),
        "it is not woken for it again"
    );
}

#[test]
fn a_guard_is_told_with_worker_step_and_tensors_once_an_interval() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    rig.gradient(1, None);
    let told = notices(&rig.pushed(0, 1, 1, PushOutcome::Guarded(Guarded::Norm)));
    let text = "the gradient of worker 1 at clock 0 (push 1) for shard 0 of server 0 (tensor bias to weight) is beyond guard.norm_max; \
                it is left out";
    assert_eq!(told, [text]);
    let effects = rig.pushed(1, 1, 1, PushOutcome::Guarded(Guarded::Norm));
    assert!(effects.iter().all(|effect| !matches!(effect, Effect::Notice(_))), "the next is only counted");
}

// Case 65 (Angel-ML/angel#827): a server that was busy failed the task. Here its worker waits, and that is told apart.
#[test]
fn the_time_that_a_push_lay_at_a_busy_server_is_a_share_of_its_own() {
    let mut rig = Rig::computing(settings(2), Work::Idle);
    rig.gradient(1, None);
    let answer = |shard: u32, held_us, busy_us| {
        let (sequence, clock, outcome) = (Sequence(1), Clock(1), applied(1));
        ToPeer::Pushed(Pushed {
            shard: ShardId(shard),
            sequence,
            duplicate: false,
            clock,
            outcome,
            held_us,
            busy_us,
        })
    };
    rig.after_us(100).hear(0, answer(0, 30, 20));
    let effects = rig.after_us(50).hear(1, answer(1, 0, 60));
    let Some(Effect::Send { message: ToServer::Ask(Ask { report: Some(report), .. }), .. }) = effects.last()
    else {
        panic!("{effects:?}")
    };
    let expected =
        Times { wait_for_clock_us: 30, busy_us: 60, push_us: 60, total_us: 150, ..Times::default() };
    assert_eq!(report.times, expected);
}

#[test]
fn an_unanswered_push_is_named_with_its_server_and_when_that_was_heard_last() {
    let mut rig = Rig::computing(settings(2), work(1));
    rig.gradient(1, None);
    rig.pushed(0, 1, 1, applied(1));
    rig.after_us(4_900_000).hear(1, ToPeer::Renewed);
    let texts = notices(&rig.tick_after(Duration::from_millis(100)));
    let text = "waiting for answers to pushes from server 1 for 5.0 s (shard 1), last heard 0.1 s ago";
    assert!(texts.contains(&text.to_owned()), "{texts:?}");
    let is_named = |effect: &Effect| matches!(effect, Effect::Notice(Notice::Waiting { .. }));
    assert!(!rig.tick_after(Duration::from_secs(4)).iter().any(is_named), "each interval once");
}
