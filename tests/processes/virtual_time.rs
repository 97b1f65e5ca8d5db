//! One configuration, once with real processes and once in virtual time, laid side by side.

use serde_json::Value;

use crate::runs::{number, run_as};
use crate::stage::{REPOSITORY, Stage};

/// Four workers that are slow at random, for long enough that what the machine adds is small beside it.
const KEYS: &[(&str, &str)] = &[
    ("workers", "4"),
    ("servers", "2"),
    ("train.batch", "32"),
    ("train.epochs", "4"),
    ("stragglers.kind", "\"exp\""),
    ("stragglers.compute_s", "0.05"),
];

/// A figure of both, for reading: on a busy machine the real one can be anything, so no time decides.
fn side_by_side(name: &str, path: &str, real: &Value, simulated: &Value) {
    let (real, simulated) = (number(real, path), number(simulated, path));
    println!(
        "{name:<24} {path:<28} real {real:>9.4}   simulated {simulated:>9.4}   ratio {:.3}",
        real / simulated
    );
}

#[test]
fn a_real_run_and_a_simulated_one_of_one_configuration_agree_in_all_but_time() {
    for (name, policy) in [("bsp", "bsp"), ("ssp", "ssp"), ("asp", "asp"), ("backup", "backup")] {
        let stage = Stage::new();
        let set = format!("consistency.policy={policy}");
        let real = run_as(&stage, "run", "real", KEYS, &["--set", &set]);
        let simulated = run_as(&stage, "sim", "simulated", KEYS, &["--set", &set]);
        assert!(real["virtual_s"].is_null() && simulated["virtual_s"].is_number());
        for path in ["/policy", "/model", "/parameters", "/shards", "/config_hash"] {
            assert_eq!(real.pointer(path), simulated.pointer(path), "{name}: {path}");
        }
        for path in ["/samples", "/epochs", "/iterations"] {
            assert_eq!(number(&real, path), number(&simulated, path), "{name}: {path}");
        }
        for measure in ["clock_lead", "version"] {
            let path = format!("/staleness/{measure}/bound");
            assert_eq!(real.pointer(&path), simulated.pointer(&path), "{name}: {path}");
            for summary in [&real, &simulated] {
                let most = number(summary, &format!("/staleness/{measure}/max"));
                let bound = summary.pointer(&path).and_then(Value::as_f64).unwrap_or(f64::INFINITY);
                assert!(most <= bound, "{name}: {measure} {most} over {bound}");
            }
        }
        let accuracy = [&real, &simulated].map(|summary| number(summary, "/final/test_accuracy"));
        assert!((accuracy[0] - accuracy[1]).abs() < 0.06, "{name}: {accuracy:?}");
        if policy == "bsp" {
            // In step, the values do not depend on time at all.
            let loss = [&real, &simulated].map(|summary| summary["final"]["test_loss"].to_string());
            assert_eq!(loss[0], loss[1], "{name}");
        }
        let time = number(&real, "/wall_s") / number(&simulated, "/virtual_s");
        println!("{name:<24} time: real / simulated = {time:.3}");
        for path in ["/time/wait_for_clock", "/staleness/version/mean", "/staleness/clock_lead/mean"] {
            side_by_side(name, path, &real, &simulated);
        }
    }
}

// Exponential times of mean one: asp makes H_P = 1 + 1/2 + ... + 1/P times the iterations of bsp.
#[test]
fn the_base_of_the_exact_laws_gives_the_harmonic_number() {
    let stage = Stage::new();
    let config = format!("{REPOSITORY}/configs/experiments/exp-law.toml");
    for workers in [4_u32, 16] {
        let speed = |policy: &str| {
            let out = stage.text_path(policy);
            let samples = format!("data.samples={}", 4_000 * workers);
            let (policy, workers) = (format!("consistency.policy={policy}"), format!("workers={workers}"));
            let sets =
                ["--set", &policy, "--set", &workers, "--set", &samples, "--set", "evaluate.every_epochs=0"];
            let ended = stage.run(&[&["sim", &config, "--timing-only", "--out", &out], &sets[..]].concat());
            assert_eq!(ended.code, 0, "{}", ended.error);
            let summary: Value = serde_json::from_str(&stage.read(&format!("{out}/summary.json"))).unwrap();
            number(&summary, "/samples_per_s")
        };
        let ratio = speed("asp") / speed("bsp");
        let harmonic: f64 = (1..=workers).map(|rank| 1.0 / f64::from(rank)).sum();
        assert!((ratio / harmonic - 1.0).abs() < 0.03, "{workers} workers: {ratio:.3}, not {harmonic:.3}");
    }
}
