//! How fast allreduce is simulated: steps of the whole group a second, with and without gradients.
//!
//! ```text
//! cargo run --release -p slackline-sim --example allreduce           8 and 64 workers, all topologies that fit both
//! ```

use std::process::ExitCode;

use slackline_core::config::{Config, Layer, Value};
use slackline_sim::{Options, simulate};

const TOPOLOGIES: [&str; 5] = ["ring", "halving-doubling", "doubling", "hierarchical(4)", "torus(4, 2)"];

fn main() -> ExitCode {
    println!(
        "{:>8} {:>18} {:>8} {:>12} {:>10} {:>8} {:>10}",
        "workers", "topology", "steps", "gradients", "virtual s", "s", "steps/s"
    );
    for (workers, counts) in [(8_u64, [2000_u64, 500]), (64, [200, 40])] {
        for topology in TOPOLOGIES {
            let topology =
                if workers == 64 { topology.replace("(4, 2)", "(8, 8)") } else { topology.to_owned() };
            for (timing_only, count) in [(true, counts[0]), (false, counts[1])] {
                match row(workers, &topology, count, timing_only) {
                    Ok(row) => println!("{row}"),
                    Err(text) => {
                        eprintln!("{text}");
                        return ExitCode::FAILURE;
                    }
                }
            }
        }
    }
    ExitCode::SUCCESS
}

fn row(workers: u64, topology: &str, steps: u64, timing_only: bool) -> Result<String, String> {
    let samples = workers * steps * 8;
    let values = [
        ("sync.method", "\"allreduce\"".to_owned()),
        ("sync.topology", format!("\"{topology}\"")),
        ("sync.bucket_kib", "0".to_owned()),
        ("workers", workers.to_string()),
        ("data.dataset", "\"digits\"".to_owned()),
        ("model.kind", "\"mlp\"".to_owned()),
        ("model.widths", "[128, 64]".to_owned()),
        ("train.batch", "8".to_owned()),
        ("train.epochs", (samples / 1442).max(1).to_string()),
        ("optimizer.rate", "0.01".to_owned()),
        ("evaluate.every_epochs", "0.0".to_owned()),
        ("stragglers.kind", "\"exp\"".to_owned()),
        ("simulation.bandwidth_mbps", "1000.0".to_owned()),
        ("simulation.latency_s", "0.0001".to_owned()),
    ];
    let values: Vec<_> = values
        .into_iter()
        .filter_map(|(key, literal)| Some((key.to_owned(), Value::from_literal(&literal)?)))
        .collect();
    let resolved = Config::resolve(&[Layer { name: "example".to_owned(), values }])
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
    let outcome = simulate(&resolved, &Options { timing_only, ..Options::default() })
        .map_err(|failure| failure.to_string())?;
    let iterations = outcome.summary.get("iterations").and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let done = iterations / workers as f64;
    let (with, seconds) = (if timing_only { "none" } else { "real" }, outcome.wall_s);
    let (virtual_s, rate) = (outcome.virtual_s, done / seconds);
    Ok(format!(
        "{workers:>8} {topology:>18} {done:>8.0} {with:>12} {virtual_s:>10.1} {seconds:>8.2} {rate:>10.0}"
    ))
}
