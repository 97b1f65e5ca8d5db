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
    // Only an allreduce can recover: its parameters are in no shard, and nothing is pulled.
    let recoveries = summary["recoveries"].as_array();
    let place = if recoveries.is_some() {
        "on every worker".to_owned()
    } else {
        format!("in {} shards", whole("/shards"))
    };
    row("model", format!("{}, {} parameters {place}", text("/model"), whole("/parameters")));
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
    if summary["topology_chosen"].is_string() {
        row("topology", text("/topology_chosen").to_owned());
    }
    for recovery in recoveries.into_iter().flatten() {
        let of = |name: &str| recovery[name].as_u64().unwrap_or(0);
        let seconds = recovery["seconds"].as_f64().unwrap_or(0.0);
        let (worker, clock) = (of("worker"), of("clock"));
        row(
            "recovery",
            format!("worker {worker} was lost at clock {clock}; {seconds:.2} s until the others went on"),
        );
    }
    if !text("/model").starts_with("quadratic") {
        let (last, best) = (percent("/final/test_accuracy"), percent("/best_test_accuracy"));
        row("accuracy", format!("{last} on the test part (best {best})"));
    }
    let loss = |path: &str| {
        number(path).map_or_else(
            || "-".to_owned(),
            |loss| if loss < 1e6 { format!("{loss:.4}") } else { format!("{loss:.3e}") },
        )
    };
    row("loss", format!("train {}, test {}", loss("/final/train_loss"), loss("/final/test_loss")));
    row(
        "speed",
        format!(
            "{:.0} samples/s; {} samples ({:.1} epochs) in {:.2} s{}",
            number("/samples_per_s").unwrap_or(0.0),
            whole("/samples"),
            number("/epochs").unwrap_or(0.0),
            number("/virtual_s").or_else(|| number("/wall_s")).unwrap_or(0.0),
            if summary["virtual_s"].is_number() { " of virtual time" } else { "" }
        ),
    );
    let spreads = [("clock lead", "/staleness/clock_lead"), ("staleness", "/staleness/version")];
    for (name, path) in spreads.into_iter().filter(|_| recoveries.is_none()) {
        let bound = summary.pointer(path).and_then(|spread| spread.get("bound")).and_then(Value::as_u64);
        let bound = bound.map_or_else(|| "no bound".to_owned(), |bound| format!("bound {bound}"));
        let mean = number(&format!("{path}/mean")).unwrap_or(0.0);
        let (p99, max) = (whole(&format!("{path}/p99")), whole(&format!("{path}/max")));
        row(name, format!("mean {mean:.2}, p99 {p99}, max {max} ({bound})"));
    }
    let shares = ["compute", "wait_for_clock", "push", "busy", "pull", "data", "evaluate"];
    let shares = shares
        .map(|name| format!("{} {:.1} %", name, 100.0 * number(&format!("/time/{name}")).unwrap_or(0.0)));
    row("worker time", shares.join(", "));
    row(
        "pushes",
        format!(
            "{} sent, {} applied, {} duplicate, {} dropped{}",
            whole("/pushes/sent"),
            whole("/pushes/applied"),
            whole("/pushes/duplicate"),
            whole("/pushes/dropped"),
            reasons(summary, "/decisions/drop", whole("/decisions/down_weight"))
        ),
    );
    let again = whole("/repeated/samples");
    if again > 0 {
        row("repeated", repeated(summary, again));
    }
    if recoveries.is_none() {
        let held = reasons(summary, "/decisions/hold", 0);
        let (served, first) = (whole("/pulls/served"), whole("/pulls/held"));
        row("pulls", format!("{served} served, {first} held first{held}"));
    }
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
    if let Some(clock) = summary.pointer("/diverged/clock").and_then(Value::as_u64) {
        let what = "lower optimizer.rate or optimizer.momentum";
        row("warning", format!("the run diverged at clock {clock}: {what}"));
    }
    out
}

/// The samples that were given out again, by why: those that were really done twice, and those whose gradient was not used.
fn repeated(summary: &Value, samples: u64) -> String {
    let ranges = summary.pointer("/repeated/ranges").and_then(Value::as_array);
    let mut causes: Vec<(String, u64)> = Vec::new();
    for range in ranges.into_iter().flatten() {
        let of = |name: &str| range[name].as_u64().unwrap_or(0);
        let cause = match range["why"].as_str() {
            Some("lost") => format!("worker {} was lost", of("worker")),
            Some("left") => format!("worker {} left", of("worker")),
            Some("restored") => format!("all was restored from checkpoint {}", of("checkpoint")),
            _ => "gradients not used".to_owned(),
        };
        let count = of("to").saturating_sub(of("from"));
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, known)) => *known += count,
            None => causes.push((cause, count)),
        }
    }
    let named: Vec<String> =
        causes.iter().take(4).map(|(cause, count)| format!("{cause}: {count}")).collect();
    let more = if causes.len() > named.len() { ", ..." } else { "" };
    format!("{samples} samples given out again ({}{more}); the ranges are in summary.json", named.join(", "))
}

/// The counts of some decisions by their reasons, those of nothing left out.
fn reasons(summary: &Value, path: &str, down_weighted: u64) -> String {
    let counts = summary.pointer(path).and_then(Value::as_object);
    let named = counts.into_iter().flatten().filter_map(|(reason, count)| {
        let count = count.as_u64().filter(|count| *count > 0)?;
        Some(format!("{} {count}", reason.replace('_', " ")))
    });
    let down = (down_weighted > 0).then(|| format!("down-weighted {down_weighted}"));
    let all: Vec<String> = named.chain(down).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_that_diverged_is_called_so_and_another_not() {
        let text = lines(&json!({ "diverged": { "clock": 12 } }));
        assert!(text.contains("warning        the run diverged at clock 12: lower optimizer.rate"), "{text}");
        assert!(!lines(&json!({ "diverged": null })).contains("diverged"));
    }

    #[test]
    fn decisions_are_told_with_their_reasons() {
        let text = lines(&json!({
            "pushes": { "sent": 10, "applied": 7, "duplicate": 0, "dropped": 3 },
            "pulls": { "served": 9, "held": 4 },
            "decisions": {
                "down_weight": 2,
                "drop": { "late": 1, "abandoned": 2, "stale": 0, "not_finite": 0 },
                "hold": { "clock": 0, "round": 4, "quorum": 0 },
            },
        }));
        let pushes = "10 sent, 7 applied, 0 duplicate, 3 dropped (late 1, abandoned 2, down-weighted 2)";
        assert!(text.contains(pushes), "{text}");
        assert!(text.contains("9 served, 4 held first (round 4)"), "{text}");
    }

    #[test]
    fn an_allreduce_tells_its_topology_and_its_recoveries_and_no_pulls() {
        let text = lines(&json!({
            "model": "softmax",
            "topology_chosen": "doubling for 25.7 KiB among 4 workers",
            "recoveries": [{ "worker": 2, "clock": 17, "seconds": 1.234 }],
        }));
        for part in [
            "parameters on every worker",
            "topology       doubling for 25.7 KiB among 4 workers",
            "recovery       worker 2 was lost at clock 17; 1.23 s until the others went on",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("pulls") && !text.contains("clock lead"), "{text}");
    }

    #[test]
    fn samples_that_were_given_out_again_are_told_with_why() {
        let lost = |from, to| json!({ "from": from, "to": to, "why": "lost", "worker": 3, "incarnation": 5 });
        let unused = json!({ "from": 0, "to": 8, "why": "unused" });
        let restored = json!({ "from": 80, "to": 96, "why": "restored", "checkpoint": 3 });
        let text = lines(&json!({
            "repeated": { "samples": 56, "ranges": [lost(0, 16), lost(64, 80), restored, unused], "unlisted": 0 },
        }));
        let expected = "repeated       56 samples given out again (worker 3 was lost: 32, all was restored from checkpoint 3: 16, \
                        gradients not used: 8); the ranges are";
        assert!(text.contains(expected), "{text}");
        assert!(!lines(&json!({ "repeated": { "samples": 0, "ranges": [] } })).contains("repeated"));
    }

    #[test]
    fn virtual_time_is_told_apart() {
        let text = lines(&json!({ "wall_s": 0.5, "virtual_s": 90.0, "samples": 10 }));
        assert!(text.contains("in 90.00 s of virtual time"), "{text}");
        assert!(lines(&json!({ "wall_s": 0.5, "virtual_s": null })).contains("in 0.50 s\n"));
    }
}
