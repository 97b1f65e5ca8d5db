//! What the worker reports.

use slackline_core::wire::{Refusal, RefusalCode, Report, Text, Times};

use super::*;

fn report_of(effects: &[Effect]) -> Report {
    let mut reports = effects.iter().filter_map(|effect| match effect {
        Effect::Send { message: ToServer::Ask(Ask { report, .. }), .. } => report.clone(),
        Effect::Send { message: ToServer::Leave(leave), .. } => leave.report.clone(),
        _ => None,
    });
    reports.next_back().unwrap()
}

fn served(rig: &mut Rig, shard: u32, request: u64, lead: u64, held_us: u64) -> Vec<Effect> {
    let served = Served { version: Version(1), minimum: Clock(0), lead, held_us };
    rig.on(Event::ValuesArrived {
        server: ServerId(shard),
        shard: ShardId(shard),
        request,
        served,
        bytes: 64,
    })
}

fn answer(rig: &mut Rig, shard: u32, duplicate: bool, staleness: u64, held_us: u64) {
    let outcome = PushOutcome::Applied { version: Version(2), staleness, down_weighted: false };
    let (shard_id, sequence, clock) = (ShardId(shard), Sequence(1), Clock(1));
    let pushed = Pushed { shard: shard_id, sequence, duplicate, clock, outcome, held_us, busy_us: 0 };
    rig.hear(shard, ToPeer::Pushed(pushed));
}

#[test]
fn every_microsecond_is_in_one_share() {
    let mut rig = Rig::registered(settings(2));
    rig.after_us(99_000).hear(0, batch(0));
    rig.after_us(40);
    served(&mut rig, 0, 1, 0, 30);
    rig.after_us(60);
    served(&mut rig, 1, 2, 3, 0);
    rig.after_us(11).on(Event::BatchLoaded { batch: BatchIndex(0) });
    rig.hear(0, batch(1));
    rig.after_us(2_000).gradient(1, None);
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    rig.after_us(70);
    answer(&mut rig, 0, false, 4, 50);
    rig.after_us(5);
    answer(&mut rig, 1, true, 0, 0);
    rig.after_us(200);
    served(&mut rig, 0, 3, 1, 0);
    rig.after_us(100);
    // Held for longer than the wait lasted: only the wait counts.
    served(&mut rig, 1, 4, 1, 1_000);
    rig.on(Event::Tick { wire_sent: 500, wire_received: 600 });
    let report = report_of(&rig.after_us(250_000).on(Event::Interrupt));
    let times = Times {
        compute_us: 2_000 + 250_000,
        wait_for_clock_us: 30 + 50 + 300,
        push_us: 25,
        busy_us: 0,
        pull_us: 70,
        data_us: 11,
        evaluate_us: 0,
        total_us: 252_486,
    };
    assert_eq!(report.times, times);
    assert_eq!((report.iterations, report.samples, report.loss_sum), (1, 4, 2.0));
    assert_eq!((report.pushes_sent, report.pushes_applied, report.pushes_duplicate), (2, 2, 1));
    assert_eq!((report.pulls_served, report.pulls_held, report.pushes_dropped), (4, 2, 0));
    assert_eq!((report.bytes_pushed, report.bytes_pulled), (128, 256));
    assert_eq!((report.wire_sent, report.wire_received), (500, 600));
    assert_eq!((report.clock_lead.sum(), report.version_staleness.sum()), (5, 4));
}

#[test]
fn reports_are_differences_and_come_now_and_then() {
    let mut rig = Rig::registered(settings(2));
    rig.hear(0, batch(0));
    rig.values(0, 1, 0);
    rig.on(Event::Tick { wire_sent: 10, wire_received: 0 });
    rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
    let first = report_of(&rig.after_us(250_000).values(1, 2, 0));
    assert_eq!((first.pulls_served, first.wire_sent, first.times.pull_us), (2, 10, 250_000));
    rig.hear(0, batch(1));
    rig.gradient(1, None);
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    rig.pushed(0, 1, 1, applied(1));
    rig.pushed(1, 1, 1, applied(1));
    rig.values(0, 3, 0);
    assert_eq!(rig.values(1, 4, 0)[1], send(0, ask(2, Some(0))), "no report so soon");
    let last = report_of(&rig.on(Event::Interrupt));
    assert_eq!((last.iterations, last.pulls_served, last.wire_sent), (1, 2, 0));
}

fn fence(rig: &mut Rig) {
    let text = Text::new("too late");
    rig.hear(1, ToPeer::Refused(Refusal { code: RefusalCode::Fenced, text }));
}

/// Joins again after a fence and returns the effects of the last registration.
fn join_again(rig: &mut Rig) -> Vec<Effect> {
    rig.greet(0, 70);
    rig.hear(0, joined(Incarnation(8)));
    rig.hear(0, ToPeer::Registered { has_values: true });
    rig.greet(1, 71);
    rig.hear(1, ToPeer::Registered { has_values: true })
}

/// A worker whose second ask, with a report of the first iteration, has no answer.
fn reported() -> (Rig, Report) {
    let mut rig = Rig::computing(settings(2), work(1));
    rig.on(Event::Tick { wire_sent: 10, wire_received: 20 });
    rig.after_us(300_000).gradient(1, None);
    rig.on(Event::BatchLoaded { batch: BatchIndex(1) });
    rig.pushed(0, 1, 1, applied(1));
    rig.pushed(1, 1, 1, applied(1));
    rig.values(0, 3, 1);
    let report = report_of(&rig.values(1, 4, 1));
    assert_eq!((report.iterations, report.samples, report.wire_sent), (1, 4, 10));
    (rig, report)
}

#[test]
fn a_report_that_was_never_heard_is_part_of_the_next_one() {
    let (mut rig, lost) = reported();
    rig.on(Event::Tick { wire_sent: 15, wire_received: 20 });
    fence(&mut rig);
    assert_eq!(
        report_of(&join_again(&mut rig)),
        Report { wire_sent: 15, ..lost },
        "at once, and nothing is missing"
    );
    let last = report_of(&rig.on(Event::Interrupt));
    assert_eq!((last.iterations, last.samples, last.wire_sent, last.clock_lead.count()), (0, 0, 0, 0));
}

#[test]
fn a_report_that_was_answered_counts_once() {
    let (mut rig, _) = reported();
    rig.hear(0, batch(2));
    fence(&mut rig);
    assert_eq!(join_again(&mut rig), [send(0, ask(0, None))]);
    let last = report_of(&rig.on(Event::Interrupt));
    assert_eq!((last.iterations, last.samples, last.wire_sent), (0, 0, 0));
}

#[test]
fn beside_an_evaluation_stands_a_fresh_report() {
    let mut rig = Rig::registered(settings(2));
    let evaluate = Work::Batch { batch: BatchIndex(0), units: 1, evaluate: Some(0), enter: None };
    rig.hear(0, ToPeer::Work(evaluate));
    rig.values(0, 1, 0);
    rig.values(1, 2, 0);
    let begun = rig.on(Event::BatchLoaded { batch: BatchIndex(0) });
    assert_eq!(report_of(&begun).pulls_served, 2, "though hardly any time has passed");
    rig.hear(0, ToPeer::Work(Work::Idle));
    rig.gradient(1, None);
    rig.pushed(0, 1, 1, applied(1));
    // The last ask of an iteration that none follows is complete.
    let finished = report_of(&rig.pushed(1, 1, 1, applied(1)));
    assert_eq!((finished.iterations, finished.samples, finished.pushes_applied), (1, 4, 2));
}
