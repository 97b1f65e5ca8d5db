//! The world of an allreduce: the real coordinator and real workers in virtual time, with gradients that are really reduced between
//! them and everything that can go wrong.
//!
//! ```text
//! cargo test --test groups                         some thousand seeds
//! SLACKLINE_SEEDS=20000 cargo test --test groups   as many as you like; SLACKLINE_FIRST=n begins at n
//! SLACKLINE_SEED=17 cargo test --test groups -- --nocapture one_seed    one of them, with every event and effect
//! ```
//!
//! What must hold: every completed iteration has the same sums, bit for bit, at all members, on the same values, and they are those of
//! the plain loop over its units; each unit is in the final values exactly once, and in the record; a lost worker ends a run that is
//! not elastic within a lease, by name; an elastic one goes on, whoever joins it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agenda;
#[path = "../world/simulation/chance.rs"]
mod chance;
mod link;
mod mishaps;
mod peers;
mod process;
mod replica;
mod scenario;
#[path = "../world/simulation/trace.rs"]
mod trace;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use slackline_core::collective::{Order, Topology};
use slackline_server_core::control::End;

use scenario::{Scenario, Tamper, Weather};
use trace::Trace;
use world::{Outcome, World};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 1000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs a scenario; a broken law or invariant comes back as text.
fn try_run(scenario: &Scenario, trace: Trace) -> Result<Outcome, String> {
    let world = World::new(scenario.clone(), trace);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(violation)) => Err(violation.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
        }
    }
}

fn run(scenario: &Scenario) -> Outcome {
    try_run(scenario, Trace::Off).unwrap_or_else(|text| panic!("{text}\n{scenario:?}"))
}

/// What must hold of whole runs.
fn check(scenario: &Scenario, outcome: &Outcome) -> Result<(), String> {
    let is_calm = scenario.weather.mishap_pause == 0;
    if is_calm && outcome.end != End::Complete {
        return Err(format!("a calm run ended with {:?}", outcome.end));
    }
    let units = scenario.unit_count();
    let figures = &outcome.figures;
    if outcome.end == End::Complete
        && (figures.samples, figures.iterations) != (scenario.sample_total(), units)
    {
        return Err(format!("the record has {} samples, {} units", figures.samples, figures.iterations));
    }
    let is_steady = !scenario.weather.processes_fail && outcome.expired == 0;
    let steps = units.div_ceil(u64::from(scenario.workers));
    if is_steady && outcome.end == End::Complete {
        let counts = (figures.pushes.sent, figures.pushes.applied + figures.pushes.dropped);
        let expected = steps * u64::from(scenario.workers);
        if counts != (expected, expected) {
            return Err(format!("{counts:?} steps are told, where {expected} were made"));
        }
        if outcome.completed != steps {
            return Err(format!("{} steps were completed, in place of {steps}", outcome.completed));
        }
    }
    Ok(())
}

#[test]
fn every_law_holds_on_every_seed() {
    let seeds = number("SLACKLINE_SEEDS").unwrap_or(SEEDS);
    let (mut events, mut expired, mut seconds, mut recoveries, mut taken_over) = (0, 0, 0, 0, 0);
    let (mut turned_away, mut wrongly) = (0, 0);
    let (mut endings, mut failed) = (BTreeMap::<&str, u32>::new(), BTreeMap::new());
    let first = number("SLACKLINE_FIRST").unwrap_or_default();
    for seed in first..first + seeds {
        let scenario = Scenario::of_seed(seed);
        let outcome = try_run(&scenario, Trace::Off);
        match outcome.and_then(|outcome| check(&scenario, &outcome).map(|()| outcome)) {
            Ok(outcome) => {
                events += outcome.events;
                expired += outcome.expired;
                taken_over += outcome.taken_over;
                turned_away += outcome.turned_away;
                wrongly += outcome.turned_away_wrongly;
                seconds += outcome.ended.0 / 1_000_000_000;
                recoveries += outcome.figures.recoveries.map_or(0, |all| all.len());
                let ending = match &outcome.end {
                    End::Complete => "complete",
                    End::Failed(text) if text.contains("without it") => "lost a worker",
                    End::Failed(text) if text.starts_with("all workers") => "lost all values",
                    _ => "other",
                };
                *endings.entry(ending).or_default() += 1;
            }
            Err(text) => drop(failed.insert(seed, text)),
        }
    }
    println!(
        "{seeds} seeds: {events} events in {seconds} s of the worlds, {expired} leases ran out, {recoveries} recoveries, \
         {taken_over} states taken over, {turned_away} turned away ({wrongly} for the weather), endings {endings:?}"
    );
    let Some((seed, text)) = failed.first_key_value() else { return };
    for (seed, text) in &failed {
        println!("seed {seed}: {}", text.lines().next().unwrap_or_default());
    }
    panic!(
        "{} of {seeds} seeds fail\nthe first, seed {seed}: {text}\n{:?}\nreplay with: SLACKLINE_SEED={seed} cargo \
         test --test groups -- --nocapture one_seed",
        failed.len(),
        Scenario::of_seed(*seed)
    );
}

#[test]
fn one_seed_can_be_replayed_with_its_trace() {
    let (seed, trace) = number("SLACKLINE_SEED").map_or((1, Trace::Off), |seed| (seed, Trace::Printed));
    let scenario = Scenario::of_seed(seed);
    if let Err(text) = try_run(&scenario, trace).and_then(|outcome| check(&scenario, &outcome)) {
        panic!("seed {seed}: {text}\n{scenario:?}");
    }
}

#[test]
fn a_seed_gives_the_same_trace_twice() {
    for seed in 0..12 {
        let scenario = Scenario::of_seed(seed);
        let [left, right] = [(); 2].map(|()| try_run(&scenario, Trace::Kept(Vec::new())).unwrap());
        assert!(!left.lines.is_empty());
        assert!(left.lines == right.lines && left.values == right.values, "seed {seed}");
    }
}

#[test]
fn topologies_buckets_and_order_do_not_change_what_is_trained() {
    let all = [
        Topology::HalvingDoubling,
        Topology::Doubling,
        Topology::Ring,
        Topology::Hierarchical { group: 2 },
        Topology::Torus { x: 2, y: 2 },
        Topology::Auto,
    ];
    for seed in 0..6 {
        let base = Scenario::calm(seed);
        let plain = run(&base).values.unwrap();
        for topology in all {
            let scenario = Scenario { topology, bucket_bytes: 64, order: Order::Forward, ..base.clone() };
            let values = run(&scenario).values.unwrap();
            let other = Scenario { bucket_bytes: 0, order: Order::Backward, ..scenario.clone() };
            assert_eq!(run(&other).values.unwrap(), values, "seed {seed}: {topology} with one bucket");
            if matches!(topology, Topology::HalvingDoubling | Topology::Doubling) {
                assert_eq!(values, plain, "seed {seed}: {topology}");
            }
            let far = values.iter().zip(&plain).find(|(value, plain)| (*value - *plain).abs() > 1e-4);
            assert_eq!(far, None, "seed {seed}: {topology}");
        }
    }
}

#[test]
fn calm_runs_evaluate_where_runs_with_servers_do() {
    for seed in 0..20 {
        let mut scenario = Scenario::calm(seed);
        // Slow enough for each evaluation to be over before the next.
        (scenario.evaluate_every_epochs, scenario.samples, scenario.unit) = (0.5, 120, 3);
        let world = World::new(scenario.clone(), Trace::Off);
        let mut expected = world.points.clone();
        expected.insert(scenario.sample_total());
        assert_eq!(run(&scenario).evaluated, expected, "seed {seed}");
    }
}

#[test]
fn a_newcomer_that_meets_nobody_is_turned_away_and_the_run_goes_on() {
    for seed in 0..20 {
        let mut scenario = Scenario::calm(seed);
        (scenario.samples, scenario.unit, scenario.epochs, scenario.compute) = (200, 1, 3, 30_000);
        scenario.unreachable_from = Some(Duration::from_millis(1500));
        let outcome = run(&scenario);
        assert_eq!(outcome.turned_away, 1, "seed {seed}");
        check(&scenario, &outcome).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
}

/// How many of some seeds break a law when the harness makes a fault, by law.
fn found(tamper: Tamper) -> BTreeMap<String, u32> {
    let mut laws = BTreeMap::new();
    for seed in 0..12 {
        let mut scenario = Scenario::calm(seed);
        scenario.tamper = Some(tamper);
        if tamper == Tamper::FlipState {
            // Somebody must be behind.
            (scenario.samples, scenario.unit, scenario.compute) = (200, 1, 100_000);
            scenario.weather = Weather { mishap_pause: 300_000, processes_fail: true, ..Weather::CALM };
        }
        if let Err(text) = try_run(&scenario, Trace::Off) {
            println!("{tamper:?} {seed}: {}", text.lines().next().unwrap_or_default());
            *laws.entry(text.split(':').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
    }
    laws
}

#[test]
fn faults_of_the_harness_are_found() {
    let laws = found(Tamper::FlipPart);
    assert_eq!(laws.get("values"), Some(&12), "{laws:?}");
    let laws = found(Tamper::SameBatch);
    assert_eq!(laws.get("values"), Some(&12), "{laws:?}");
    let laws = found(Tamper::FlipState);
    assert!(laws.get("values").is_some_and(|times| *times >= 4), "{laws:?}");
    let laws = found(Tamper::LosePart);
    assert_eq!(laws.get("liveness"), Some(&12), "{laws:?}");
}
