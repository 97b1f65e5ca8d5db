//! The cost model against hand-made figures and against the schedules.

use std::collections::BTreeMap;

use super::*;
use crate::collective::cost::{Rates, choose, crossover, formula, time};

/// 100 microseconds, 1 GB/s, 4 GB/s added.
const LAN: Rates = Rates { alpha_s: 1e-4, beta_s_per_byte: 1e-9, gamma_s_per_byte: 0.25e-9 };

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

/// The schedule in lockstep: each step takes as long as its slowest member's messages and additions.
fn lockstep(topology: Topology, members: u32, bytes: f64, rates: Rates) -> f64 {
    let schedule = schedule(topology, members);
    let part = bytes / f64::from(schedule.parts());
    let mut steps: BTreeMap<u32, BTreeMap<u32, [f64; 3]>> = BTreeMap::new();
    for transfer in schedule.transfers() {
        let bytes = part * transfer.parts.len() as f64;
        let step = steps.entry(transfer.step).or_default();
        step.entry(transfer.from).or_default()[0] += bytes;
        let receiver = step.entry(transfer.to).or_default();
        receiver[1] += bytes;
        receiver[2] += if transfer.action == Action::Add { bytes } else { 0.0 };
    }
    let most =
        |step: &BTreeMap<u32, [f64; 3]>, of: fn(&[f64; 3]) -> f64| step.values().map(of).fold(0.0, f64::max);
    let seconds = |step: &BTreeMap<u32, [f64; 3]>| {
        rates.alpha_s
            + rates.beta_s_per_byte * most(step, |member| member[0].max(member[1]))
            + rates.gamma_s_per_byte * most(step, |member| member[2])
    };
    steps.values().map(seconds).sum()
}

#[test]
fn the_formulas_are_what_the_schedules_take_in_lockstep() {
    for members in 1..=17 {
        for topology in fitting(members) {
            for bytes in [64, 31_400, 2_143_272] {
                let (formula, run) = (
                    time(topology, members, bytes, LAN).unwrap(),
                    lockstep(topology, members, bytes as f64, LAN),
                );
                assert!(close(formula, run), "{topology} with {members} members: {formula} {run}");
            }
        }
    }
}

#[test]
fn the_formulas_give_the_figures_made_by_hand() {
    // Four members, 4 MB: alpha-beta-gamma by hand.
    let at = |topology| time(topology, 4, 4_000_000, LAN).unwrap();
    assert!(close(at(Topology::Ring), 6e-4 + 6e-3 + 0.75e-3));
    assert!(close(at(Topology::HalvingDoubling), 4e-4 + 6e-3 + 0.75e-3));
    assert!(close(at(Topology::Doubling), 2e-4 + 8e-3 + 2e-3));
    assert!(close(at(Topology::Hierarchical { group: 2 }), 6e-4 + 12e-3 + 1.5e-3));
    assert!(close(at(Topology::Torus { x: 2, y: 2 }), 4e-4 + 6e-3 + 0.75e-3));
    // Six members, two of whom are folded.
    let folded = time(Topology::HalvingDoubling, 6, 4_000_000, LAN).unwrap();
    assert!(close(folded, 6e-4 + 14e-3 + 1.75e-3));
}

#[test]
fn steps_of_the_papers_examples() {
    let steps = |topology, members| formula(topology, members).unwrap().steps;
    // Jia et al. 2018: groups of 16 make 186 steps of 2046.
    assert_eq!(steps(Topology::Ring, 1024), 2046.0);
    assert_eq!(steps(Topology::Hierarchical { group: 16 }, 1024), 186.0);
    // Mikami et al. 2018: 2(x - 1) + 2(y - 1), where a ring has 2(xy - 1).
    assert_eq!(steps(Topology::Torus { x: 64, y: 34 }, 2176), 126.0 + 66.0);
    assert_eq!(steps(Topology::HalvingDoubling, 1024), 20.0);
    assert_eq!(steps(Topology::Doubling, 1024), 10.0);
}

#[test]
fn two_topologies_take_the_same_time_where_they_cross() {
    // 2 log p against log p steps and 2(p-1)/p against log p gradients: for four members, 200 us against (0.5 + 0.3125) ns a byte.
    let bytes = crossover(Topology::Doubling, Topology::HalvingDoubling, 4, LAN).unwrap().unwrap();
    assert!(close(bytes, 2e-4 / 0.8125e-9));
    for members in 2..=17 {
        for one in fitting(members) {
            for other in fitting(members) {
                let Some(bytes) = crossover(one, other, members, LAN).unwrap() else { continue };
                let at = |topology| lockstep(topology, members, bytes, LAN);
                assert!(close(at(one), at(other)), "{one} and {other} with {members} members at {bytes}");
            }
        }
    }
    // The same bytes, fewer steps: never slower.
    assert_eq!(crossover(Topology::Ring, Topology::HalvingDoubling, 8, LAN), Ok(None));
    assert!(crossover(Topology::Ring, Topology::Auto, 8, LAN).is_err());
}

#[test]
fn a_small_gradient_takes_few_steps_and_a_large_one_few_bytes() {
    for members in [4, 8, 16] {
        let small = choose(members, 1000, LAN).unwrap();
        assert_eq!(small.topology, Topology::Doubling, "{}", small.why);
        assert!(small.why.contains("so few steps count"), "{}", small.why);
        let large = choose(members, 100_000_000, LAN).unwrap();
        assert_eq!(large.topology, Topology::HalvingDoubling, "{}", large.why);
        assert!(large.why.contains("so few bytes count"), "{}", large.why);
    }
    // Folding costs bytes: with other numbers the ring or, where there is one, a torus.
    for members in [3, 5, 6, 7, 9, 12] {
        let large = choose(members, 1_000_000_000, LAN).unwrap();
        assert_eq!(large.topology, Topology::Ring, "{}", large.why);
    }
    assert_eq!(choose(6, 4_000_000, LAN).unwrap().topology, Topology::Torus { x: 2, y: 3 });
}

#[test]
fn a_choice_says_why() {
    let choice = choose(4, 4 << 20, LAN).unwrap();
    assert_eq!(
        choice.why,
        "halving-doubling for 4.0 MiB among 4 workers: 7.48 ms predicted, 4 steps and 1.50 times the bytes per worker; \
         latency is 5 % of it, so few bytes count; next torus(2, 2) 7.48 ms, ring 7.68 ms, doubling 10.69 ms"
    );
    assert_eq!(choice.rejected.len(), 4);
    assert!(choice.rejected.is_sorted_by_key(|(_, seconds)| *seconds));
    assert!(choice.rejected.iter().all(|(topology, seconds)| {
        *topology != choice.topology && *seconds >= choice.seconds * 0.99 && topology.fits(4).is_ok()
    }));
}

#[test]
fn rates_that_are_none_do_no_harm() {
    let wild = Rates { alpha_s: f64::NAN, beta_s_per_byte: -1.0, gamma_s_per_byte: f64::INFINITY };
    for members in [1, 2, 7, 512] {
        let choice = choose(members, u64::MAX, wild).unwrap();
        assert_eq!(choice.seconds, 0.0);
    }
    assert!(choose(1, 100, LAN).unwrap().why.contains("a worker alone sends nothing"));
    assert_eq!(choose(0, 100, LAN), Err(Misfit::Members { members: 0 }));
    assert!(choose(513, 100, LAN).is_err());
    assert!(time(Topology::Auto, 4, 100, LAN).is_err());
}
