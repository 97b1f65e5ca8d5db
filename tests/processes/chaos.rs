//! `slackline chaos`: what it refuses before anything runs. A whole run, which takes a minute, is a step of .ci/run.

use crate::stage::{REPOSITORY, Stage};

#[test]
fn what_could_not_be_proven_afterwards_is_refused_before_anything_runs() {
    let stage = Stage::new();
    let (file, plan) = (
        format!("{REPOSITORY}/configs/chaos/cluster.toml"),
        format!("{REPOSITORY}/configs/chaos/rough.toml"),
    );
    let out = stage.text_path("out");
    for (set, says) in [
        ("consistency.policy=bsp", "it needs a policy that applies each push alone"),
        ("optimizer.schedule=cosine", "it needs optimizer.schedule=constant"),
        ("checkpoint.every_clocks=0", "it needs checkpoints"),
        ("train.epochs=3", "--set train.epochs: has no effect, since `chaos` decides that itself"),
        ("scale=huge", "there is no scale \"huge\"; it has small, full"),
    ] {
        let ended = stage.run(&["chaos", &file, "--plan", &plan, "--out", &out, "--set", set]);
        assert_eq!(ended.code, 2, "{set}: {}", ended.error);
        assert!(ended.error.contains(says), "{set}: {}", ended.error);
    }
    assert!(!stage.path("out").exists());
}
