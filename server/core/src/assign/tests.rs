//! Work is handed out once, whoever dies, asks again or loses a session.

mod cuts;

use super::*;
use proptest::prelude::*;

fn plan(batch_count: u64, ordered: bool) -> Plan {
    let cut = Cut { unit: 10, units: 1, proportional: false };
    Plan { cut, sample_total: batch_count * 10, evaluate_every: 50, ordered }
}

/// What became of a batch, as the result with this number; no result without a batch.
fn result(number: u64, batch: impl Into<Option<BatchIndex>>, fate: Fate) -> Vec<BatchResult> {
    let result = |batch| BatchResult { number, batch, clock: Clock(0), fate };
    batch.into().map(result).into_iter().collect()
}

fn reports(number: u64, batch: impl Into<Option<BatchIndex>>) -> Vec<BatchResult> {
    result(number, batch, Fate::Done { compute_us: 0 })
}

/// A worker of the model: its batches in hand with the clocks that they are for, whether it waits for work, the clock after that asked for.
#[derive(Clone, Debug, Default)]
struct Hand {
    batches: Vec<(BatchIndex, u64)>,
    waits: bool,
    clock: u64,
    results: u64,
    here: bool,
    over: bool,
    evaluates: bool,
}

fn deliver(hands: &mut [Hand], grants: Vec<(WorkerId, Work)>) {
    for (worker, work) in grants {
        let hand = &mut hands[worker.0 as usize];
        match work {
            Work::Batch { batch, enter, .. } => {
                // Who had no work goes on at the clock that it is told.
                hand.clock = enter.map_or(hand.clock, |enter| enter.0 + 1);
                hand.batches.push((batch, hand.clock - 1));
                hand.waits = false;
            }
            Work::Idle => {}
            Work::Evaluate { .. } => hand.evaluates = true,
            Work::Done => hand.over = true,
        }
    }
}

proptest! {
    // PaddlePaddle issue 19600: the data of a worker that died was never trained on.
    #[test]
    fn every_batch_is_done_once_whoever_dies(ordered: bool, count in 0..30_u64, workers in 1..5_usize, steps in prop::collection::vec((0..5_usize, 0..12_u8), 0..200)) {
        let mut assigner = Assigner::new(plan(count, ordered));
        let mut hands = vec![Hand { here: true, ..Hand::default() }; workers];
        for worker in 0..workers {
            assigner.enter(WorkerId(worker as u32));
        }
        assigner.begin();
        let mut done = Vec::new();
        let mut grants = Vec::new();
        let everyone_on = (0..2000).map(|step| (step % workers, 5_u8));
        for (worker, action) in steps.into_iter().map(|(worker, action)| (worker % workers, action)).chain(everyone_on) {
            let id = WorkerId(worker as u32);
            let hand = &mut hands[worker];
            if action == 0 {
                assigner.forget(id);
                *hand = Hand::default();
            } else if !hand.here {
                assigner.enter(id);
                *hand = Hand { here: true, ..Hand::default() };
            } else if hand.evaluates {
                hand.evaluates = false;
                assigner.evaluated(id, 10 * count);
            } else if !hand.over && (!hand.waits || !hand.batches.is_empty()) {
                // Ask ahead while one batch is in hand, as the real worker does.
                let finished = if hand.batches.len() > 1 || hand.waits { Some(hand.batches.remove(0)) } else { None };
                let finished = finished.map(|(batch, _)| batch);
                done.extend(finished);
                hand.results += u64::from(finished.is_some());
                if !hand.waits { hand.clock += 1 + u64::from(action == 7); }
                hand.waits = true;
                let again = assigner.ask(id, Clock(hand.clock - 1), &reports(hand.results, finished));
                deliver(&mut hands, again.into_iter().map(|work| (id, work)).collect());
            }
            assigner.settle(|| Clock(0), &mut grants);
            assigner.check_invariants();
            deliver(&mut hands, std::mem::take(&mut grants));
        }
        prop_assert!(assigner.is_over(), "{:?} {:?}", assigner, hands);
        let mut sorted: Vec<u64> = done.iter().map(|batch| batch.0).collect();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert!(sorted.into_iter().eq(0..count));
        prop_assert!(hands.iter().all(|hand| hand.over));
    }
}

#[test]
fn under_bsp_a_clock_takes_consecutive_batches() {
    let mut assigner = Assigner::new(plan(8, true));
    for worker in 0..2 {
        assigner.enter(WorkerId(worker));
    }
    assigner.begin();
    let mut grants = Vec::new();
    // Worker 0 asks for clock 0 and, at once, for clock 1; worker 1 comes later.
    for clock in 0..2 {
        assert_eq!(assigner.ask(WorkerId(0), Clock(clock), &[]), []);
        assigner.settle(|| Clock(0), &mut grants);
    }
    assert_eq!(grants.len(), 1);
    assigner.ask(WorkerId(1), Clock(0), &[]);
    assigner.settle(|| Clock(0), &mut grants);
    let batches: Vec<(u32, u64)> = grants
        .iter()
        .map(|(worker, work)| (worker.0, if let Work::Batch { batch, .. } = work { batch.0 } else { 99 }))
        .collect();
    assert_eq!(batches, [(0, 0), (1, 1), (0, 2)]);
}

#[test]
fn a_repeated_ask_gets_the_same_batch() {
    let mut assigner = Assigner::new(plan(3, false));
    assigner.enter(WorkerId(0));
    assigner.begin();
    let mut grants = Vec::new();
    assigner.ask(WorkerId(0), Clock(0), &[]);
    assigner.settle(|| Clock(0), &mut grants);
    let again = assigner.ask(WorkerId(0), Clock(0), &[]);
    assert_eq!(again, [grants[0].1]);
    assert_eq!(assigner.batches_done() + assigner.repeated(), 0);
}

// Found by the simulated world: the batch that a repeated ask returned lay on the same desk again, and was taken from it.
#[test]
fn a_repeated_ask_returns_its_batch_once() {
    let mut assigner = Assigner::new(plan(3, false));
    assigner.enter(WorkerId(0));
    assigner.begin();
    let mut grants = Vec::new();
    assigner.ask(WorkerId(0), Clock(0), &[]);
    assigner.settle(|| Clock(0), &mut grants);
    let returned = result(1, BatchIndex(0), Fate::Returned);
    assigner.ask(WorkerId(0), Clock(1), &returned);
    assigner.settle(|| Clock(0), &mut grants);
    assert_eq!(assigner.ask(WorkerId(0), Clock(1), &returned), [grants[1].1]);
    assigner.settle(|| Clock(0), &mut grants);
    assigner.check_invariants();
    assert_eq!((grants.len(), assigner.repeated()), (2, 1));
}

// Found by the simulated world: work given to an idle worker was lost with its session, and its next ask was for another clock.
#[test]
fn what_was_given_over_a_lost_session_comes_with_the_next_ask() {
    let mut assigner = Assigner::new(plan(1, false));
    let mut grants = Vec::new();
    for worker in 0..2 {
        assigner.enter(WorkerId(worker));
        assigner.ask(WorkerId(worker), Clock(0), &[]);
    }
    assigner.begin();
    assigner.settle(|| Clock(0), &mut grants);
    assigner.forget(WorkerId(0));
    grants.clear();
    assigner.settle(|| Clock(5), &mut grants);
    let lost = Work::Batch { batch: BatchIndex(0), units: 1, evaluate: None, enter: Some(Clock(5)) };
    assert_eq!(grants, [(WorkerId(1), lost)]);
    assigner.reconnect(WorkerId(1));
    assert_eq!(assigner.ask(WorkerId(1), Clock(4), &[]), [lost]);
    assert_eq!(assigner.ask(WorkerId(1), Clock(6), &reports(1, BatchIndex(0))), []);
}

// Found by the simulated world: "nothing now" was lost with its session, and the worker never reported its last batch.
#[test]
fn a_repeated_ask_hears_again_that_there_is_nothing() {
    let mut assigner = Assigner::new(plan(1, false));
    let mut grants = Vec::new();
    for worker in 0..2 {
        assigner.enter(WorkerId(worker));
        assigner.ask(WorkerId(worker), Clock(0), &[]);
    }
    assigner.begin();
    for _ in 0..2 {
        assigner.settle(|| Clock(0), &mut grants);
        assert_eq!(grants.pop(), Some((WorkerId(1), Work::Idle)));
        assigner.ask(WorkerId(1), Clock(0), &[]);
    }
}

// Found by the simulated world: an evaluation of the middle of the run ended late and was taken for the last one.
#[test]
fn only_the_evaluation_of_all_samples_ends_the_run() {
    let mut assigner = Assigner::new(plan(1, false));
    let mut grants = Vec::new();
    assigner.enter(WorkerId(0));
    assigner.begin();
    assigner.ask(WorkerId(0), Clock(0), &[]);
    assigner.settle(|| Clock(0), &mut grants);
    assigner.ask(WorkerId(0), Clock(1), &reports(1, BatchIndex(0)));
    assigner.settle(|| Clock(0), &mut grants);
    assigner.evaluated(WorkerId(0), 5);
    assert!(!assigner.is_over());
    assigner.evaluated(WorkerId(0), 10);
    assigner.settle(|| Clock(0), &mut grants);
    assert!(assigner.is_over() && grants.contains(&(WorkerId(0), Work::Done)));
    // The word was lost, so the result comes again.
    grants.clear();
    assigner.evaluated(WorkerId(0), 10);
    assigner.settle(|| Clock(0), &mut grants);
    assert_eq!(grants, [(WorkerId(0), Work::Done)]);
}

#[test]
fn evaluation_is_due_every_so_many_samples_and_once_at_the_end() {
    let mut assigner = Assigner::new(plan(12, false));
    let due: Vec<u64> = (0..12)
        .filter_map(|_| match assigner.take(WorkerId(0), None) {
            Some(Work::Batch { evaluate, .. }) => evaluate,
            _ => None,
        })
        .collect();
    assert_eq!(due, [40, 90]);
}

/// Units of the first batch that each worker gets once the speeds are known, from times for 64 samples in microseconds.
fn units_by_speed(times: [u64; 2]) -> [u32; 2] {
    let cut = Cut::proportional(64);
    assert_eq!((cut.unit, cut.units), (4, 16));
    let mut assigner = Assigner::new(Plan { cut, sample_total: 6_400, evaluate_every: 0, ordered: false });
    for worker in 0..2 {
        assigner.enter(WorkerId(worker));
    }
    assigner.begin();
    let mut ask = |worker: usize, clock, results: &[BatchResult]| {
        assigner.ask(WorkerId(worker as u32), Clock(clock), results);
        let mut grants = Vec::new();
        assigner.settle(|| Clock(0), &mut grants);
        assigner.check_invariants();
        grants.iter().find_map(|(_, work)| match work {
            Work::Batch { batch, units, .. } => Some((*batch, *units)),
            _ => None,
        })
    };
    let first = [0, 1].map(|worker| ask(worker, 0, &[]).unwrap());
    assert_eq!(first.map(|(_, units)| units), [16, 16], "nothing is known");
    for (worker, compute_us) in times.into_iter().enumerate() {
        ask(worker, 1, &result(1, first[worker].0, Fate::Done { compute_us }));
    }
    // What comes next is cut with both speeds known.
    [0, 1].map(|worker| ask(worker, 2, &[]).unwrap().1)
}

#[test]
fn equal_speeds_get_equal_batches_and_a_worker_of_half_the_speed_half_as_large_ones() {
    assert_eq!(units_by_speed([1_000, 1_000]), [16, 16]);
    // Speeds 2 : 1, mean 1.5: shares of 4/3 and 2/3.
    assert_eq!(units_by_speed([1_000, 2_000]), [21, 11]);
    let [fast, slow] = units_by_speed([1, 1_000_000]);
    assert_eq!((fast, slow), (32, 1), "never nothing");
}
