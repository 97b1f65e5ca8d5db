//! The summary of a run, for reading: made from `summary.json`, which is for programs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

/// Reads `summary.json` and renders it; the error says what is wrong with the file.
pub(crate) fn render(folder: &Path) -> Result<String, String> {
    let path = folder.join("summary.json");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("the run left no {}: {error}", path.display()))?;
    let summary: Value =
        serde_json::from_str(&text).map_err(|error| format!("{} is damaged: {error}", path.display()))?;
    let mut out = lines(&summary);
    // Writing to a text cannot fail.
    let _ = writeln!(out, "results        {}", folder.display());
    Ok(out)
}

fn lines(summary: &Value) -> String {
    let number = |path: &str| summary.pointer(path).and_then(Value::as_f64);
    let whole = |path: &str| summary.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let text = |path: &str| summary.pointer(path).and_then(Value::as_str).unwrap_or("").to_owned();
    let percent =
        |path: &str| number(path).map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", 100.0 * share));
    let mut out = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<14} {value}");
    };
    row(
        "model",
        format!("{}, {} parameters in {} shards", text("/model"), whole("/parameters"), whole("/shards")),
    );
    row(
        "policy",
        format!(
            "{}, {} workers, {} servers, seed {}",
            text("/policy"),
            whole("/workers"),
            whole("/servers"),
            whole("/seed")
        ),
    );
    row(
        "accuracy",
        format!(
            "{} on the test part (best {})",
            percent("/final/test_accuracy"),
            percent("/best_test_accuracy")
        ),
    );
    let loss = |path: &str| number(path).map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4}"));
    row("loss", format!("train {}, test {}", loss("/final/train_loss"), loss("/final/test_loss")));
    row(
        "speed",
        format!(
            "{:.0} samples/s; {} samples ({:.1} epochs) in {:.2} s",
            number("/samples_per_s").unwrap_or(0.0),
            whole("/samples"),
            number("/epochs").unwrap_or(0.0),
            number("/wall_s").unwrap_or(0.0)
        ),
    );
    for (name, path) in [("clock lead", "/staleness/clock_lead"), ("staleness", "/staleness/version")] {
        let bound = summary.pointer(path).and_then(|spread| spread.get("bound")).and_then(Value::as_u64);
        let bound = bound.map_or_else(|| "no bound".to_owned(), |bound| format!("bound {bound}"));
        let mean = number(&format!("{path}/mean")).unwrap_or(0.0);
        let (p99, max) = (whole(&format!("{path}/p99")), whole(&format!("{path}/max")));
        row(name, format!("mean {mean:.2}, p99 {p99}, max {max} ({bound})"));
    }
    let shares = ["compute", "wait_for_clock", "push", "pull", "data", "evaluate"];
    let shares = shares
        .map(|name| format!("{} {:.1} %", name, 100.0 * number(&format!("/time/{name}")).unwrap_or(0.0)));
    row("worker time", shares.join(", "));
    row(
        "pushes",
        format!(
            "{} sent, {} applied, {} duplicate, {} dropped",
            whole("/pushes/sent"),
            whole("/pushes/applied"),
            whole("/pushes/duplicate"),
            whole("/pushes/dropped")
        ),
    );
    row("pulls", format!("{} served, {} held first", whole("/pulls/served"), whole("/pulls/held")));
    let mib = |path: &str| whole(path) as f64 / f64::from(1 << 20);
    row(
        "bytes",
        format!(
            "pushed {:.1} MiB, pulled {:.1} MiB; on the wire {:.1} MiB out, {:.1} MiB in",
            mib("/bytes/pushed"),
            mib("/bytes/pulled"),
            mib("/bytes/wire_sent"),
            mib("/bytes/wire_received")
        ),
    );
    out
}
