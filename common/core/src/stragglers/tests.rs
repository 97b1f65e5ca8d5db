//! The drawn times against what their laws say, and against themselves.

use super::*;

const DRAWS: u64 = 100_000;

fn stragglers(slowness: Slowness) -> Stragglers {
    Stragglers { compute_s: 1.0, jitter: 0.0, slowness }
}

/// Many times of workers 0 and 1 of eight.
fn times(stragglers: &Stragglers) -> Vec<f64> {
    let draw = |place| stragglers.seconds(7, WorkerId((place % 2) as u32), place / 2, 8, 1.0);
    (0..DRAWS).map(draw).collect()
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

fn share_above(times: &[f64], bound: f64) -> f64 {
    times.iter().filter(|time| **time > bound).count() as f64 / times.len() as f64
}

fn close(left: f64, right: f64, tolerance: f64) {
    assert!((left - right).abs() <= tolerance, "{left} is not {right} to {tolerance}");
}

#[test]
fn the_means_are_one_and_the_tails_are_those_of_the_laws() {
    let exponential = times(&stragglers(Slowness::Exponential));
    close(mean(&exponential), 1.0, 0.015);
    close(share_above(&exponential, 2.0), (-2.0_f64).exp(), 0.004);
    let lognormal = times(&stragglers(Slowness::Lognormal { sigma: 0.5 }));
    close(mean(&lognormal), 1.0, 0.008);
    // Its median is exp(-sigma^2 / 2).
    close(share_above(&lognormal, (-0.125_f64).exp()), 0.5, 0.006);
    // Below a tail index of two there is no variance, and the mean of draws is too wild to test.
    let pareto = times(&stragglers(Slowness::Pareto { alpha: 3.0 }));
    close(mean(&pareto), 1.0, 0.015);
    close(share_above(&pareto, 2.0), (1.0_f64 / 3.0).powi(3), 0.003);
    assert!(pareto.iter().all(|time| *time >= 2.0 / 3.0));
    let heavy = times(&stragglers(Slowness::Pareto { alpha: 1.2 }));
    close(share_above(&heavy, 10.0), (1.0_f64 / 60.0).powf(1.2), 0.002);
}

#[test]
fn normal_numbers_have_their_moments() {
    let normal: Vec<f64> = (0..DRAWS).map(|place| Draws::at(3, 5, place).normal()).collect();
    let moment = |power| mean(&normal.iter().map(|value| value.powi(power)).collect::<Vec<_>>());
    close(moment(1), 0.0, 0.015);
    close(moment(2), 1.0, 0.02);
    close(moment(3), 0.0, 0.06);
    close(moment(4), 3.0, 0.15);
}

#[test]
fn jitter_is_uniform_around_each_factor() {
    let slowness = Slowness::Transient { probability: 0.05, factor: 10.0 };
    let times = times(&Stragglers { compute_s: 2.0, jitter: 0.05, slowness });
    close(mean(&times), 2.0 * (0.95 + 0.05 * 10.0), 0.04);
    close(share_above(&times, 10.0), 0.05, 0.004);
    let (slow, quick): (Vec<f64>, Vec<f64>) = times.iter().partition(|time| **time > 10.0);
    assert!(slow.iter().all(|time| (19.0..21.0).contains(time)), "slow ones are 20 +- 5 %");
    assert!(quick.iter().all(|time| (1.9..2.1).contains(time)), "others are 2 +- 5 %");
    close(share_above(&quick, 2.05), 0.25, 0.01);
}

#[test]
fn turns_and_permanent_slowness_fall_on_the_workers_they_are_meant_for() {
    let rotating = stragglers(Slowness::Rotating { factor: 4.0, burst: 5 });
    let permanent = stragglers(Slowness::Permanent { factor: 2.0, count: 2 });
    for worker in 0..8 {
        for clock in 0..100 {
            let at = |stragglers: &Stragglers| stragglers.seconds(1, WorkerId(worker), clock, 8, 1.0);
            let turn = clock / 5 % 8 == u64::from(worker);
            assert_eq!(at(&rotating), if turn { 4.0 } else { 1.0 });
            assert_eq!(at(&permanent), if worker < 2 { 2.0 } else { 1.0 });
            assert_eq!(at(&stragglers(Slowness::None)), 1.0);
        }
    }
}

#[test]
fn recorded_times_are_taken_as_they_are_and_begin_again() {
    let seconds = vec![vec![1.0, 2.0, 3.0], vec![10.0]];
    let slowness = Slowness::Recorded { seconds };
    let recorded = Stragglers { compute_s: 99.0, jitter: 0.5, slowness };
    let at = |worker, clock, share| recorded.seconds(1, WorkerId(worker), clock, 8, share);
    assert_eq!([at(0, 0, 1.0), at(0, 2, 1.0), at(0, 3, 1.0), at(0, 4, 1.0)], [1.0, 3.0, 1.0, 2.0]);
    assert_eq!([at(1, 7, 1.0), at(2, 1, 1.0), at(3, 0, 0.5)], [10.0, 2.0, 5.0]);
}

#[test]
fn the_share_of_a_batch_is_the_share_of_its_time() {
    let exponential = Stragglers { compute_s: 0.5, jitter: 0.0, slowness: Slowness::Exponential };
    let whole = exponential.seconds(1, WorkerId(3), 9, 8, 1.0);
    assert_eq!(exponential.seconds(1, WorkerId(3), 9, 8, 0.25), whole / 4.0);
    assert_eq!(exponential.seconds(1, WorkerId(3), 9, 8, 4.0), whole * 4.0);
    assert_eq!(whole, 0.5 * stragglers(Slowness::Exponential).seconds(1, WorkerId(3), 9, 8, 1.0));
}

#[test]
fn a_time_does_not_depend_on_what_was_asked_before_nor_on_other_workers() {
    let stragglers = stragglers(Slowness::Lognormal { sigma: 1.0 });
    let at = |worker, clock| stragglers.seconds(11, WorkerId(worker), clock, 4, 1.0);
    let forward: Vec<f64> = (0..200).map(|place| at(place % 4, u64::from(place / 4))).collect();
    let mut backward: Vec<f64> = (0..200).rev().map(|place| at(place % 4, u64::from(place / 4))).collect();
    backward.reverse();
    assert_eq!(forward, backward);
    let mut distinct = forward;
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    assert_eq!(distinct.len(), 200, "no two are the same draw");
    assert_ne!(at(0, 0), stragglers.seconds(12, WorkerId(0), 0, 4, 1.0));
}

#[test]
fn absurd_numbers_give_a_number_and_no_panic() {
    for slowness in [
        Slowness::Exponential,
        Slowness::Lognormal { sigma: 1e9 },
        Slowness::Pareto { alpha: 0.0 },
        Slowness::Rotating { factor: 1.0, burst: 0 },
        Slowness::Recorded { seconds: Vec::new() },
        Slowness::Recorded { seconds: vec![Vec::new()] },
    ] {
        let _ = stragglers(slowness).seconds(u64::MAX, WorkerId(u32::MAX), u64::MAX, 0, f64::NAN);
    }
}

/// These bits are part of what a seed means: a change of them changes every simulated and every slowed run.
#[test]
fn the_bits_of_a_seed_are_known() {
    let at = |slowness, worker, clock| {
        let stragglers = Stragglers { compute_s: 1.0, jitter: 0.1, slowness };
        stragglers.seconds(42, WorkerId(worker), clock, 8, 1.0).to_bits()
    };
    let found = [
        at(Slowness::None, 0, 0),
        at(Slowness::Exponential, 0, 0),
        at(Slowness::Exponential, 1, 0),
        at(Slowness::Exponential, 0, 1),
        at(Slowness::Lognormal { sigma: 0.5 }, 2, 1000),
        at(Slowness::Pareto { alpha: 1.5 }, 3, 1 << 40),
        at(Slowness::Transient { probability: 0.5, factor: 10.0 }, 4, 4),
        at(Slowness::Rotating { factor: 4.0, burst: 5 }, 1, 5),
        at(Slowness::Permanent { factor: 2.0, count: 1 }, 0, 6),
    ];
    assert_eq!(
        found,
        [
            0x3fed_1277_ae46_3614,
            0x3fa6_3f5d_87ed_2614,
            0x3fc7_9da3_7b5e_5de3,
            0x3fdb_75c5_ba61_f3f6,
            0x3ff7_15df_a836_0d66,
            0x3fd9_5c14_8af4_e71a,
            0x3ff1_7db9_1feb_1935,
            0x4010_0962_5e54_cd6d,
            0x4001_8ec5_5aa8_e0a6,
        ]
    );
}
