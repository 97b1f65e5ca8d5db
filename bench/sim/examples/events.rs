//! How fast the simulator is: events a second without gradients, for some numbers of workers and policies.
//!
//! ```text
//! cargo run --release -p slackline-sim --example events            1,024 workers for 1,000 iterations each, and smaller ones
//! cargo run --release -p slackline-sim --example events -- 64 300  64 workers, 300 iterations each
//! ```

use std::process::ExitCode;

use slackline_core::config::{Config, Layer, Value};
use slackline_sim::{Options, simulate};

const POLICIES: [&str; 4] = ["asp", "ssp", "bsp", "quorum"];

fn main() -> ExitCode {
    let given: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let sizes = match given.as_slice() {
        [workers, iterations, ..] => vec![(*workers, *iterations)],
        _ => vec![(8, 20_000), (64, 5000), (256, 2000), (1024, 1000)],
    };
    println!(
        "{:>8} {:>10} {:>8} {:>10} {:>10} {:>8} {:>12}",
        "workers", "iterations", "policy", "virtual s", "events", "s", "events/s"
    );
    for (workers, iterations) in sizes {
        for policy in POLICIES {
            match row(workers, iterations, policy) {
                Ok(row) => println!("{row}"),
                Err(text) => {
                    eprintln!("{text}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}

fn row(workers: u64, iterations: u64, policy: &str) -> Result<String, String> {
    let values = [
        ("workers", workers.to_string()),
        ("servers", "1".to_owned()),
        ("data.dataset", "\"fashion-mnist\"".to_owned()),
        ("data.limit", (workers * iterations).min(60_000).to_string()),
        ("model.kind", "\"softmax\"".to_owned()),
        ("train.batch", "1".to_owned()),
        ("train.epochs", (workers * iterations).div_ceil(60_000).to_string()),
        ("optimizer.kind", "\"sgd\"".to_owned()),
        ("optimizer.rate", "0.1".to_owned()),
        ("consistency.policy", format!("\"{policy}\"")),
        ("evaluate.every_epochs", "0.0".to_owned()),
        ("stragglers.kind", "\"exp\"".to_owned()),
        ("stragglers.compute_s", "1.0".to_owned()),
    ];
    let values: Vec<_> = values
        .into_iter()
        .filter_map(|(key, literal)| Some((key.to_owned(), Value::from_literal(&literal)?)))
        .collect();
    let resolved = Config::resolve(&[Layer { name: "example".to_owned(), values }])
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    let options = Options { timing_only: true, ..Options::default() };
    let outcome = simulate(&resolved, &options).map_err(|failure| failure.to_string())?;
    let (seconds, rate) = (outcome.wall_s, outcome.events as f64 / outcome.wall_s);
    let events = outcome.events;
    Ok(format!(
        "{workers:>8} {iterations:>10} {policy:>8} {:>10.0} {events:>10} {seconds:>8.2} {rate:>12.0}",
        outcome.virtual_s
    ))
}
