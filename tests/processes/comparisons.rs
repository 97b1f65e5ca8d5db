//! `slackline compare`: a shipped comparison at its small scale, and what is refused before anything runs.

use serde_json::Value;

use crate::stage::{REPOSITORY, Stage};

const FILE: &str = "configs/experiments/allreduce-wins.toml";

#[test]
fn a_shipped_comparison_holds_what_it_says() {
    let stage = Stage::new();
    let (file, out) = (format!("{REPOSITORY}/{FILE}"), stage.text_path("out"));
    let compare = ["compare", &file, "--out", &out, "--set", "scale=small", "--check"];
    let ended = stage.run(&compare);
    assert_eq!(ended.code, 0, "{}\n{}", ended.output, ended.error);
    for part in ["Equal tuning budget", "link of two gradients", "time to target [s]", "report         "] {
        assert!(ended.output.contains(part), "{part} is not in\n{}", ended.output);
    }
    let results: Value = serde_json::from_str(&stage.read(&format!("{out}/results.json"))).unwrap();
    let row = |name: &str| {
        let rows = results["rows"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    let first = row("link of two gradients")["first"].clone();
    assert!(first.as_array().unwrap().contains(&Value::from("ring")), "{first}");
    // All of it is there: nothing is made again, and the page is drawn from what is kept.
    let page = stage.read(&format!("{out}/report.html"));
    let again = stage.run(&[&compare[..], &["--resume", "--jobs", "1"]].concat());
    assert_eq!((again.code, again.output == ended.output), (0, true), "{}", again.error);
    assert_eq!(stage.run(&["report", &out]).code, 0);
    assert_eq!(stage.read(&format!("{out}/report.html")), page);
}

#[test]
fn peers_and_virtual_time_do_not_go_together() {
    let stage = Stage::new();
    let (file, out) = (format!("{REPOSITORY}/{FILE}"), stage.text_path("out"));
    let ended = stage.run(&["compare", &file, "--out", &out, "--with-peers"]);
    assert_eq!(ended.code, 2, "{}", ended.error);
    assert!(ended.error.contains("--with-peers: other programs run in real time only"), "{}", ended.error);
    assert!(!stage.path("out").exists());
}
