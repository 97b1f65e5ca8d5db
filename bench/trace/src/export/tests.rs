//! What a timeline shows, and that it stays within its bound.

use serde_json::Value;
use slackline_core::trace::{PullFate, Rule, What};
use tempfile::{TempDir, tempdir};

use super::*;
use crate::script::Script;

/// Two shards of a run of two workers over some clocks, with a hold in each.
fn run(clocks: u64) -> TempDir {
    let folder = tempdir().unwrap();
    for shard in 0..2 {
        let mut script = Script::begun(Rule::Ssp { staleness: 0 }, 2).of_shard(shard, 2);
        script.read(0, 0).read(1, 0);
        for clock in 0..clocks {
            script.push(0, clock).applied(0).pull(0, clock + 1, PullFate::Held);
            script.wait(50_000).push(1, clock).applied(1).serve(0, clock + 1).read(1, clock + 1);
        }
        script.plain(What::End).save(folder.path());
    }
    folder
}

fn events(exported: &Exported) -> Vec<Value> {
    let timeline: Value = serde_json::from_slice(&fs::read(&exported.path).unwrap()).unwrap();
    timeline["traceEvents"].as_array().unwrap().clone()
}

fn count(events: &[Value], name: &str) -> usize {
    events.iter().filter(|event| event["name"] == name).count()
}

#[test]
fn a_timeline_shows_iterations_applies_and_holds() {
    let folder = run(5);
    let exported = export(folder.path(), None, EXPORT_BYTES).unwrap();
    assert_eq!(exported.path, folder.path().join("timeline.json"));
    assert_eq!((exported.every, exported.is_cut), (1, false));
    assert_eq!(exported.bytes, fs::metadata(&exported.path).unwrap().len());
    let events = events(&exported);
    assert_eq!(exported.events, events.len() as u64);
    assert_eq!(count(&events, "compute"), 10);
    assert_eq!(
        count(&events, "wait"),
        4,
        "worker 0 waits before each clock but the first, of those it pushed"
    );
    assert_eq!(count(&events, "push"), 10);
    assert_eq!(count(&events, "apply"), 20);
    assert_eq!(count(&events, "held by shard 1"), 10);
    let names: Vec<_> = events.iter().filter(|event| event["ph"] == "M").collect();
    for name in ["workers", "shards", "worker 1", "worker 1, pushes", "shard 1 of server 0"] {
        assert!(names.iter().any(|event| event["args"]["name"] == name), "{name}");
    }
}

#[test]
fn spans_of_one_track_follow_each_other() {
    let folder = run(20);
    let exported = export(folder.path(), None, EXPORT_BYTES).unwrap();
    let events = events(&exported);
    for track in 1..=4 {
        let spans = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == track);
        let mut spans: Vec<(f64, f64)> =
            spans.map(|span| (span["ts"].as_f64().unwrap(), span["dur"].as_f64().unwrap())).collect();
        spans.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(!spans.is_empty());
        // A thousandth of a microsecond is lost to rounding.
        assert!(
            spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 0.002),
            "{track}: {spans:?}"
        );
    }
}

#[test]
fn a_large_timeline_is_thinned_and_says_so() {
    let folder = run(2000);
    let out = folder.path().join("thin.json");
    let exported = export(folder.path(), Some(&out), 200_000).unwrap();
    assert!(exported.bytes <= 200_000, "{exported:?}");
    assert!(exported.every > 1 && !exported.is_cut, "{exported:?}");
    assert!(exported.bytes > 50_000, "{exported:?}");
    let events = events(&exported);
    let note = format!("one iteration of {} is shown, to keep the size in bounds", exported.every);
    assert_eq!(count(&events, &note), 1);
    let last = events.iter().rev().find(|event| event["name"] == "compute").unwrap();
    assert!(last["args"]["clock"].as_u64().unwrap() > 1900, "it reaches to the end of the run");
    assert!(!out.with_extension("unfinished").exists());
}

#[test]
fn the_bound_holds_also_where_the_thinning_was_too_weak() {
    let folder = run(50);
    let exported = export(folder.path(), None, 4100).unwrap();
    assert!(exported.bytes <= 4100 && exported.is_cut, "{exported:?}");
    assert!(!events(&exported).is_empty());
}

#[test]
fn damage_leaves_no_timeline() {
    let folder = run(3);
    let path = folder.path().join("server-0-shard-1.trace");
    let mut bytes = fs::read(&path).unwrap();
    bytes.drain(300..400);
    fs::write(&path, bytes).unwrap();
    assert!(export(folder.path(), None, EXPORT_BYTES).is_err());
    assert!(!folder.path().join("timeline.json").exists());
    let whole = run(3);
    let nowhere = whole.path().join("no").join("where.json");
    let error = export(whole.path(), Some(&nowhere), EXPORT_BYTES).unwrap_err();
    assert!(matches!(error, TraceError::Unwritable { .. }), "{error}");
}
