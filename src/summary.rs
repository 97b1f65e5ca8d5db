//! The summary of a run, for reading: made from `summary.json`, which is for programs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

/// Reads `summary.json` and renders it; the error says what is wrong with the file. `classes` are those that the model tells apart.
pub(crate) fn render(folder: &Path, classes: u64) -> Result<String, String> {
    let path = folder.join("summary.json");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("the run left no {}: {error}", path.display()))?;
    let summary: Value =
        serde_json::from_str(&text).map_err(|error| format!("{} is damaged: {error}", path.display()))?;
    let mut out = lines(&summary, classes);
    // Writing to a text cannot fail.
    let _ = writeln!(out, "results        {}", folder.display());
    Ok(out)
}

fn lines(summary: &Value, classes: u64) -> String {
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
    if let Some(how) = divergence(summary, classes) {
        row("warning", format!("the run diverged ({how}): lower optimizer.rate or optimizer.momentum"));
    }
    out
}

/// Share of the pushes that may be lost to gradients that are not finite before a run is called diverged.
const DROPPED_SHARE: f64 = 0.01;

/// Times the loss of a model that holds all classes for equally likely, the logarithm of their number. Untrained ones lie a little
/// above it, and training only lowers it.
const GUESSES: f64 = 2.0;

/// How one can tell that a run diverged; nothing for one that did not.
fn divergence(summary: &Value, classes: u64) -> Option<String> {
    let whole = |path: &str| summary.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    // What the policy drops is done again; a gradient that is not finite is not.
    let late = whole("/batches_repeated").saturating_mul(whole("/shards"));
    let (sent, dropped) = (whole("/pushes/sent"), whole("/pushes/dropped"));
    if dropped.saturating_sub(late) as f64 > DROPPED_SHARE * sent as f64 {
        return Some(format!("{dropped} of {sent} pushes dropped"));
    }
    // JSON has no numbers that are not finite: they are null, as is what was never measured.
    let is_measured = summary.pointer("/final/test_accuracy").is_some_and(Value::is_number);
    let lost = ["train_loss", "test_loss"].into_iter().find(|name| {
        is_measured && summary.pointer("/final").and_then(|last| last.get(*name)).is_some_and(Value::is_null)
    });
    if let Some(name) = lost {
        return Some(format!("{} is not finite", name.replace('_', " ")));
    }
    let (loss, guess) =
        (summary.pointer("/final/train_loss").and_then(Value::as_f64)?, (classes as f64).ln());
    (loss > GUESSES * guess).then(|| format!("train loss is {loss:.2}, and a blind guess has {guess:.2}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn summary(dropped: u64, repeated: u64, train_loss: f64, test_loss: f64) -> Value {
        json!({
            "shards": 2,
            "pushes": { "sent": 1804, "dropped": dropped },
            "batches_repeated": repeated,
            "final": { "train_loss": train_loss, "test_loss": test_loss, "test_accuracy": 0.1 },
        })
    }

    #[test]
    fn a_run_that_diverged_is_called_so() {
        for (diverged, how) in [
            (summary(1790, 0, 0.5, 0.5), "1790 of 1804 pushes dropped"),
            (summary(19, 0, 0.5, 0.5), "19 of 1804 pushes dropped"),
            (summary(0, 0, f64::NAN, 0.5), "train loss is not finite"),
            (summary(0, 0, 0.5, f64::INFINITY), "test loss is not finite"),
            (summary(0, 0, 6.26, 7.3), "train loss is 6.26, and a blind guess has 2.30"),
        ] {
            let text = lines(&diverged, 10);
            assert!(text.contains(&format!("warning        the run diverged ({how}): lower")), "{text}");
        }
    }

    #[test]
    fn a_run_that_lost_little_or_did_it_again_has_not_diverged() {
        let mut unmeasured = summary(0, 0, 0.5, f64::NAN);
        unmeasured["final"]["test_accuracy"] = Value::Null;
        for fine in
            [summary(0, 0, 0.5, 0.5), summary(18, 0, 0.5, 0.5), summary(100, 45, 0.5, 0.5), unmeasured]
        {
            assert!(!lines(&fine, 10).contains("diverged"), "{fine}");
        }
    }
}
