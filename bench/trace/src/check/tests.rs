//! Each law is broken once in a trace that is right otherwise, and is found under its name.

use slackline_core::consistency::Standing;
use slackline_core::ids::{Clock, Incarnation, Version, WorkerId};
use slackline_core::trace::{Dropped, PullFate, Reading, Record, Rule, Verdict, What};

use super::*;
use crate::breach::Law;
use crate::script::Script;

const SSP: Rule = Rule::Ssp { staleness: 1 };
const LATE: Verdict = Verdict::Dropped(Dropped::LateClock { open: Clock(1) });

/// The laws that are broken, each once, in the order of their names.
fn laws(script: &Script) -> Vec<Law> {
    let mut replay = Replay::new(&script.header);
    for record in &script.records {
        replay.take(*record);
    }
    replay.end(true);
    let mut laws: Vec<Law> = replay.breaches.iter().map(|breach| breach.law).collect();
    laws.sort();
    laws.dedup();
    laws
}

/// Two workers under ssp(1): worker 0 runs ahead, waits at clock 2, and is let through by the first push of worker 1.
fn ahead() -> Script {
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).read(1, 0);
    script.push(0, 0).applied(0).read(0, 1);
    script.push(0, 1).applied(0).pull(0, 2, PullFate::Held);
    script
}

/// Two workers in step: both pushes of clock 0 make version 1.
fn in_step(rule: Rule) -> Script {
    let mut script = Script::begun(rule, 2);
    script.read(0, 0).read(1, 0);
    script.push(0, 0).collected(0).push(1, 0).count(1).mean_of(&[1, 0]);
    script
}

#[test]
fn right_traces_break_no_law() {
    let mut script = ahead();
    script.push(1, 0).applied(1).serve(0, 2).push(0, 2).applied(0).plain(What::End);
    assert_eq!(laws(&script), []);
    let mut script = in_step(Rule::Bsp);
    script.read(0, 1).read(1, 1).push(1, 1).collected(1).pull(1, 2, PullFate::Held).push(0, 1).count(0);
    script.mean_of(&[1, 0]).serve(1, 2).plain(What::End);
    assert_eq!(laws(&script), []);
}

#[test]
fn a_piece_that_is_kept_aside_counts_when_all_shards_have_theirs() {
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).read(1, 0);
    script.push(0, 0).verdict(0, Verdict::Staged).push(1, 0).verdict(1, Verdict::Staged);
    // It comes again, and is still kept; then both are whole, in another order.
    script.again(0).applied(1).applied(0).read(0, 1).plain(What::End);
    assert_eq!(laws(&script), []);
    // Kept aside twice.
    let mut script = Script::begun(SSP, 1);
    script.read(0, 0).push(0, 0).applied(0).verdict(0, Verdict::Staged);
    assert!(!laws(&script).is_empty());
}

#[test]
fn a_reader_that_misses_iterations_is_found_with_the_slow_worker() {
    let mut script = ahead();
    script.serve(0, 2);
    assert_eq!(laws(&script), [Law::Bound]);
    let mut replay = Replay::new(&script.header);
    script.records.iter().for_each(|record| replay.take(*record));
    let breach = &replay.breaches[0];
    let workers: Vec<_> = breach.events.iter().map(|event| event.worker.unwrap().0).collect();
    assert_eq!(workers, [0, 0, 1], "the serve, its pull, and where the slow worker stands");
    let text = breach.to_string();
    for part in
        ["bound (server 0, shard 0)", "worker 1 had completed 0", "first 1 iterations", "serve, worker 0"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn a_clock_that_was_changed_afterwards_is_found() {
    let mut script = ahead();
    script.push(1, 0).applied(1).serve(0, 2);
    script.last().clock = Clock(3);
    let found = laws(&script);
    assert!(found.contains(&Law::Bound) && found.contains(&Law::Asked), "{found:?}");
}

#[test]
fn a_worker_that_died_is_waited_for_by_nobody() {
    let mut script = ahead();
    script.remove(1).serve(0, 2);
    assert_eq!(laws(&script), []);
}

#[test]
fn a_reader_without_its_own_push_is_found() {
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).push(0, 0);
    let push = script.records.pop().unwrap();
    script.read(0, 1);
    script.records.last_mut().unwrap().sequence = push.sequence;
    let place = script.records.len() - 2;
    script.records[place].sequence = push.sequence;
    assert_eq!(laws(&script), [Law::ReadMyWrites]);
}

/// Two workers under ssp(1), of whom worker 0 pulls for clock 2 while it computes the iteration of clock 1.
fn pulled_ahead() -> Script {
    let mut script = Script::begun(SSP, 2);
    script.header.prefetch = 1;
    script.read(0, 0).read(1, 0).push(0, 0).applied(0).push(1, 0).applied(1).read(0, 1).read(1, 1);
    script.pull_ahead(0, 2, PullFate::Served, 1).serve(0, 2);
    // By then worker 0 has completed one iteration, whatever it pulls for.
    script.push(1, 1).applied(1).push(0, 1).applied(0);
    script
}

#[test]
fn values_may_be_pulled_ahead_as_far_as_the_run_says() {
    let mut script = pulled_ahead();
    script.push(0, 2).applied(0).plain(What::End);
    assert_eq!(script.records.iter().rev().nth(1).map(|record| record.pulled), Some(Version(2)));
    assert_eq!(laws(&script), []);
    script.header.prefetch = 0;
    assert_eq!(laws(&script), [Law::ReadMyWrites]);
    // It is held for others as at the clock at which it is used.
    let mut script = ahead();
    script.header.prefetch = 1;
    script.records.pop();
    script.pull_ahead(0, 2, PullFate::Held, 1);
    assert_eq!(laws(&script), []);
    script.serve(0, 2);
    assert_eq!(laws(&script), [Law::Bound]);
}

#[test]
fn a_gradient_of_values_that_lack_more_than_one_push_of_its_worker_is_found() {
    let mut script = pulled_ahead();
    script.push(0, 2).applied(0).push(0, 3).count(0);
    script.verdict(0, Verdict::Applied { staleness: script.version - 2, down_weighted: false });
    script.version += 1;
    script.last().version = Version(script.version);
    script.last().pulled = Version(2);
    let place = script.records.len() - 2;
    script.records[place].pulled = Version(2);
    assert_eq!(laws(&script), [Law::ReadMyWrites]);
}

#[test]
fn reads_before_the_start_and_before_values_are_found() {
    let mut script = Script::new(SSP);
    script.enter(0, 0, Standing::Active).pull(0, 0, PullFate::Held).serve(0, 0);
    assert_eq!(laws(&script), [Law::Start]);
}

#[test]
fn values_that_nobody_asked_for_are_found() {
    let mut script = Script::begun(SSP, 2);
    script.serve(0, 0);
    assert_eq!(laws(&script), [Law::Asked]);
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).serve(0, 0);
    assert_eq!(laws(&script), [Law::Asked]);
}

#[test]
fn fresher_values_that_are_not_fresher_are_found() {
    let fresher = |seen| {
        let mut script = Script::begun(Rule::Essp { staleness: 1 }, 1);
        script.read(0, 0).push(0, 0).applied(0).read(0, 1).read(0, 1);
        let place = script.records.len() - 2;
        let reading = Reading::Fresher;
        script.records[place].what = What::Pull { reading, fate: PullFate::Served, ahead: 0 };
        script.records[place].reached = Some(Clock(seen));
        script.last().what = What::Serve { reading, lead: 0 };
        laws(&script)
    };
    assert_eq!(fresher(0), []);
    assert_eq!(fresher(1), [Law::Asked]);
}

#[test]
fn a_pull_that_need_not_wait_is_found() {
    let mut script = Script::begun(SSP, 2);
    script.pull(0, 0, PullFate::Held);
    assert_eq!(laws(&script), [Law::NeedlessHold]);
    // What a joiner may not do: hold others up before its first push.
    let mut script = ahead();
    script.push(1, 0).applied(1).serve(0, 2).enter(2, 0, Standing::Joining).push(0, 2).applied(0);
    script.read(1, 1).push(1, 1).applied(1).pull(0, 3, PullFate::Held);
    assert_eq!(laws(&script), [Law::NeedlessHold]);
}

#[test]
fn versions_that_do_not_rise_by_one_are_found() {
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).push(0, 0);
    script.version = 1;
    script.applied(0);
    assert!(laws(&script).contains(&Law::VersionStep));
    // Two pushes that each should have made one.
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).read(1, 0).push(0, 0).applied(0);
    script.push(1, 0).count(1).verdict(1, Verdict::Applied { staleness: 0, down_weighted: false });
    let at = script.records[script.records.len() - 3].at;
    script.records.iter_mut().rev().take(2).for_each(|record| record.at = at);
    let found = laws(&script);
    assert!(found.contains(&Law::VersionStep), "{found:?}");
}

#[test]
fn a_version_that_is_not_the_shards_is_found() {
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0);
    script.last().version = Version(1);
    assert_eq!(laws(&script), [Law::VersionStated]);
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).push(0, 0);
    script.last().pulled = Version(7);
    assert!(laws(&script).contains(&Law::VersionStated), "a gradient of values that were never there");
}

#[test]
fn a_push_that_counts_twice_is_found() {
    let mut script = ahead();
    script.again(0).applied(0);
    let found = laws(&script);
    assert!(found.contains(&Law::Once), "{found:?}");
    // The same without the push coming again.
    let mut script = ahead();
    script.applied(0);
    let found = laws(&script);
    assert!(found.contains(&Law::Once), "{found:?}");
}

#[test]
fn an_answer_that_is_given_again_is_the_first_one() {
    let repeat = |verdict| {
        let mut script = ahead();
        script.again(0).verdict(0, verdict);
        script.last().what = What::Verdict { verdict, duplicate: true };
        laws(&script)
    };
    assert_eq!(repeat(Verdict::Applied { staleness: 0, down_weighted: false }), []);
    assert_eq!(repeat(Verdict::Nothing), [Law::FirstAnswer]);
}

#[test]
fn a_dropped_push_that_is_applied_is_found() {
    let drop = Verdict::Dropped(Dropped::TooStale { staleness: 0 });
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).push(0, 0).count(0).verdict(0, drop);
    assert_eq!(laws(&script), []);
    let mut again = script.clone();
    again.again(0).applied(0);
    assert!(laws(&again).contains(&Law::FirstAnswer));
    script.applied(0);
    assert!(laws(&script).contains(&Law::FirstAnswer));
}

#[test]
fn a_push_that_was_dropped_without_cause_is_found() {
    let mut script = in_step(Rule::Bsp);
    script.read(0, 1).push(0, 1).count(0).verdict(0, LATE);
    assert_eq!(laws(&script), [Law::DropCause], "clock 1 is the open one");
    let mut script = ahead();
    script.push(0, 2).count(0).verdict(0, LATE);
    assert!(laws(&script).contains(&Law::DropCause), "ssp closes no clocks");
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).push(0, 0).count(0);
    script.verdict(0, Verdict::Dropped(Dropped::TooStale { staleness: 3 }));
    assert_eq!(laws(&script), [Law::DropCause]);
}

#[test]
fn a_push_without_an_answer_and_an_answer_without_a_push_are_found() {
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).push(0, 0).plain(What::End);
    assert_eq!(laws(&script), [Law::Answered]);
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).push(0, 0);
    script.records.pop();
    script.verdict(0, Verdict::Nothing);
    assert_eq!(laws(&script), [Law::Answered]);
}

#[test]
fn a_push_that_is_kept_may_come_again() {
    let mut script = Script::begun(Rule::Bsp, 2);
    script.read(0, 0).read(1, 0).push(0, 0).collected(0).again(0).push(1, 0).count(1).mean_of(&[0, 1]);
    assert_eq!(laws(&script), []);
}

#[test]
fn a_staleness_that_is_misstated_is_found() {
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).read(1, 0).push(0, 0).applied(0).push(1, 0).applied(1);
    assert_eq!(laws(&script), []);
    script.last().what =
        What::Verdict { verdict: Verdict::Applied { staleness: 0, down_weighted: false }, duplicate: false };
    assert_eq!(laws(&script), [Law::StalenessStated]);
}

#[test]
fn a_push_that_is_kept_where_none_is_kept_is_found() {
    let mut script = Script::begun(SSP, 2);
    script.read(0, 0).push(0, 0).collected(0);
    assert_eq!(laws(&script), [Law::Gathering]);
}

#[test]
fn a_clock_that_closes_without_a_worker_is_found() {
    let mut script = Script::begun(Rule::Bsp, 2);
    script.read(0, 0).read(1, 0).push(0, 0).count(0).mean_of(&[0]);
    assert_eq!(laws(&script), [Law::WholeClock]);
    // A backup worker less is what the policy allows.
    script.header.rule = Rule::Backup { late: 1 };
    assert_eq!(laws(&script), []);
}

#[test]
fn a_mean_of_two_clocks_and_one_that_leaves_a_push_out_are_found() {
    let mut script = in_step(Rule::Bsp);
    script.read(0, 1).read(1, 1).push(0, 1).collected(0).push(1, 1).count(1).mean_of(&[1]);
    assert_eq!(laws(&script), [Law::WholeClock]);
    let mut script = Script::begun(Rule::Bsp, 2);
    script.read(0, 0).read(1, 0).push(0, 0).collected(0).push(1, 1).count(1).mean_of(&[1, 0]);
    assert!(laws(&script).contains(&Law::WholeClock));
}

#[test]
fn a_clock_that_closes_again_is_found() {
    let mut script = in_step(Rule::Bsp);
    script.enter(2, 0, Standing::Joining).push(2, 0);
    script.count(2).mean_of(&[2]);
    let found = laws(&script);
    assert!(found.contains(&Law::ClockOrder), "{found:?}");
}

#[test]
fn an_apply_below_its_quorum_is_found() {
    let quorum = |count, grace_ns| Rule::Quorum { count, grace_ns, holds: false };
    let mut script = Script::begun(quorum(Some(2), 0), 3);
    script.read(0, 0).read(1, 0).push(0, 0).count(0).mean_of(&[0]);
    assert_eq!(laws(&script), [Law::Quorum]);
    // All of them, when no number is given.
    let mut script = Script::begun(quorum(None, 0), 2);
    script.read(0, 0).read(1, 0).push(0, 0).count(0).mean_of(&[0]);
    assert_eq!(laws(&script), [Law::Quorum]);
    // A quorum is never larger than those that are there.
    let mut script = Script::begun(quorum(Some(5), 0), 1);
    script.read(0, 0).push(0, 0).count(0).mean_of(&[0]);
    assert_eq!(laws(&script), []);
}

#[test]
fn a_quorum_that_is_waited_for_long_enough_is_taken_as_it_is() {
    let after = |nanoseconds, count| {
        let mut script = Script::begun(Rule::Quorum { count, grace_ns: 0, holds: true }, 3);
        script.read(0, 0).read(1, 0).push(0, 0).collected(0).wait(nanoseconds).mean_of(&[0]);
        laws(&script)
    };
    assert_eq!(after(250_000_000, Some(2)), []);
    assert_eq!(after(249_999_999, Some(2)), [Law::Quorum]);
    assert_eq!(after(250_000_000, None), [Law::Quorum], "all are all");
}

#[test]
fn a_quorum_that_does_not_wait_for_its_grace_is_found() {
    let rule = Rule::Quorum { count: Some(1), grace_ns: 5000, holds: false };
    let mut hasty = Script::begun(rule, 2);
    hasty.read(0, 0).push(0, 0).collected(0).wait(4999).mean_of(&[0]);
    assert_eq!(laws(&hasty), [Law::Grace]);
    let mut patient = Script::begun(rule, 2);
    patient.read(0, 0).push(0, 0).collected(0).wait(5000).mean_of(&[0]);
    assert_eq!(laws(&patient), []);
}

#[test]
fn a_buffer_is_applied_when_it_is_full() {
    let gathered = Verdict::Gathered { staleness: 0, down_weighted: false };
    let mut script = Script::begun(Rule::Buffer { count: Some(2) }, 3);
    script.read(0, 0).read(1, 0).push(0, 0).count(0).verdict(0, gathered).read(0, 1);
    let mut early = script.clone();
    early.version = 1;
    early.plain(What::Mean);
    assert_eq!(laws(&early), [Law::Quorum]);
    script.push(1, 0).count(1).verdict(1, gathered);
    script.version = 1;
    script.plain(What::Mean).read(1, 1);
    assert_eq!(laws(&script), []);
}

#[test]
fn what_is_done_for_a_worker_after_its_end_is_found() {
    let mut script = ahead();
    script.remove(0).serve(0, 2);
    assert_eq!(laws(&script), [Law::Membership]);
    let mut script = ahead();
    script.remove(0).push(0, 2).applied(0);
    assert_eq!(laws(&script), [Law::Membership]);
    let mut script = ahead();
    script.push(1, 0).verdict(1, Verdict::Fenced);
    assert_eq!(laws(&script), [Law::Membership], "a member is not fenced");
    let mut script = ahead();
    script.remove(1).push(1, 0).verdict(1, Verdict::Fenced);
    script.last().reached = Some(Clock(0));
    assert_eq!(laws(&script), [], "but one that was removed is");
}

#[test]
fn a_joiner_that_gates_or_enters_below_the_minimum_is_found() {
    let mut script = ahead();
    script.enter(2, 0, Standing::Active);
    assert!(laws(&script).contains(&Law::JoinerGates));
    let mut script = Script::begun(SSP, 1);
    script.read(0, 0).push(0, 0).applied(0).read(0, 1).push(0, 1).applied(0);
    script.enter(1, 0, Standing::Joining).read(1, 0).push(1, 0).applied(1);
    assert_eq!(laws(&script), []);
    script.last().reached = Some(Clock(1));
    let found = laws(&script);
    assert!(found.contains(&Law::JoinerBelow), "{found:?}");
}

#[test]
fn an_incarnation_that_does_not_rise_is_found() {
    let mut script = ahead();
    script.remove(1).enter(1, 0, Standing::Joining);
    assert_eq!(laws(&script), [Law::Incarnation]);
    script.last().incarnation = Incarnation(2);
    assert_eq!(laws(&script), []);
}

#[test]
fn an_iteration_that_counted_as_complete_is_not_pushed_later() {
    let mut script = ahead();
    script.push(0, 1).applied(0);
    assert_eq!(
        laws(&script),
        [Law::ReadMyWrites, Law::ClockBack],
        "it is computed on what was read for the first"
    );
}

#[test]
fn clocks_that_are_misstated_are_found() {
    let change = |change: fn(&mut Record)| {
        let mut script = ahead();
        script.push(1, 0).applied(1).serve(0, 2);
        change(script.last());
        laws(&script)
    };
    assert_eq!(change(|_| {}), []);
    assert_eq!(change(|serve| serve.minimum = Some(Clock(2))), [Law::ClockStated]);
    assert_eq!(change(|serve| serve.minimum = None), [Law::ClockStated]);
    let mut script = ahead();
    script.push(1, 0).applied(1);
    script.last().reached = Some(Clock(4));
    assert_eq!(laws(&script), [Law::ClockStated]);
    let mut script = ahead();
    script.records.retain(|record| record.worker != Some(WorkerId(1)));
    assert!(laws(&script).contains(&Law::ClockStated), "the pull was held for nobody");
}

#[test]
fn asp_promises_nothing_but_a_readers_own_pushes() {
    let mut script = Script::begun(Rule::Asp, 2);
    for clock in 0..20 {
        script.read(0, clock).push(0, clock).applied(0);
    }
    assert_eq!(laws(&script), []);
    script.header.rule = Rule::Ssp { staleness: 18 };
    assert_eq!(laws(&script), [Law::Bound]);
}

mod files;
