//! Checkpoints that save some of the blocks, with the others in files of earlier ones: what is gone on from is put together of several.

use nix::sys::signal::{Signal, kill};
use slackline_checkpoint::{Kind, Manifest};

use crate::cluster::PACED;
use crate::process::Process;
use crate::resume::{BITS, EPOCH, kill_all, newest, outcome, start};
use crate::runs::number;
use crate::stage::Stage;

/// A layer with 256 weights for each pixel; those of pixels that are dark in every picture never change.
const BLOCKS: &[(&str, &str)] =
    &[("model.kind", "\"mlp\""), ("model.widths", "[256]"), ("checkpoint.block", "16")];

const INCREMENTAL: &[(&str, &str)] = &[("checkpoint.kind", "\"incremental\"")];
const PRIORITY: &[(&str, &str)] = &[("checkpoint.kind", "\"priority\""), ("checkpoint.share", "0.25")];

/// Kills a run once it has a checkpoint that stands on others.
fn killed_on_bases(stage: &Stage, run: &Process, number: u64, over: &[(&str, &str)]) -> Manifest {
    run.line(&format!("checkpoint {number} of clock"));
    kill_all(stage, run);
    assert!(!run.has_said("was given up"), "one was given up");
    let saved = newest(stage, "broken", over);
    assert!(!saved.bases.is_empty() && saved.parts.iter().all(|part| part.blocks.is_some()), "{saved:?}");
    saved
}

#[test]
fn bsp_from_an_incremental_checkpoint_is_the_uninterrupted_run_bit_for_bit_on_any_number_of_servers() {
    let stage = Stage::new();
    let full = [BITS, BLOCKS].concat();
    start(&stage, "whole", &full, &[]).end_well();
    let expected = outcome(&stage, "whole", &full);
    let over = [&full[..], INCREMENTAL].concat();
    let run = start(&stage, "broken", &over, &[]);
    let saved = killed_on_bases(&stage, &run, 5, &over);
    assert_eq!(saved.kind, Kind::Incremental);
    for servers in ["2", "1", "3"] {
        let out = format!("on-{servers}");
        let other = [&over[..], &[("servers", servers)]].concat();
        start(&stage, &out, &other, &["--resume", &stage.text_path("broken")]).end_well();
        assert_eq!(outcome(&stage, &out, &other), expected, "{servers} servers");
    }
}

/// Samples and test loss of each evaluation that the results list.
fn evaluations(stage: &Stage, out: &str) -> Vec<(u64, f64)> {
    let lines = stage.read(&format!("{out}/metrics.jsonl"));
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let evaluations = lines.filter(|line| line["event"] == "evaluate");
    evaluations
        .map(|line| (line["at_samples"].as_u64().unwrap(), number(&line, "/final/test_loss")))
        .collect()
}

#[test]
fn a_priority_checkpoint_is_gone_on_from_on_other_servers_at_about_the_loss_that_was_reached() {
    let stage = Stage::new();
    let over = [BITS, BLOCKS, PRIORITY].concat();
    let run = start(&stage, "broken", &over, &[]);
    // Ten clocks each: two evaluations have been made.
    let saved = killed_on_bases(&stage, &run, 20, &over);
    assert_eq!((saved.kind, saved.state_hash()), (Kind::Priority { share: 0.25 }, None), "of mixed age");
    let before = evaluations(&stage, "broken");
    let other = [&over[..], &[("servers", "3")]].concat();
    let resumed = start(&stage, "on-3", &other, &["--resume", &stage.text_path("broken")]);
    for shard in 0..3 {
        let words = format!("shard {shard} is restored from checkpoint {} at {};", saved.number, saved.clock);
        resumed.line(&words);
    }
    resumed.end_well();
    let after = evaluations(&stage, "on-3");
    let ((last, reached), (first, found)) = (*before.last().unwrap(), after[0]);
    // What was lost of blocks that had moved little can be worth more than the batches between the two.
    assert!(
        last < first && found < 1.05 * reached,
        "a loss of {found} after {first}, and before of {reached} after {last}"
    );
    let last = newest(&stage, "on-3", &other);
    assert_eq!(
        (last.samples_done, last.stamp.run),
        (40 * EPOCH, saved.stamp.run),
        "no sample twice, none left out"
    );
}

// SCAR (Qiao et al. 2019): what one server has lost comes back alone, put together of several files, while the others keep what they have.
#[test]
fn a_killed_server_gets_its_shard_back_from_checkpoints_of_some_blocks() {
    for kind in [INCREMENTAL, PRIORITY] {
        let stage = Stage::new();
        let long = [
            ("train.epochs", "10"),
            ("cluster.lease_s", "1.0"),
            ("cluster.steps", "\"whole\""),
            ("checkpoint.every_clocks", "20"),
        ];
        let run = start(&stage, "out", &[&long, PACED, BLOCKS, kind].concat(), &[]);
        run.line("checkpoint 3 of clock");
        let of_server_1 = |arguments: &[String]| arguments.windows(2).any(|pair| pair == ["--index", "1"]);
        let victim = stage.living().into_iter().find(|living| of_server_1(&living.arguments)).unwrap();
        kill(victim.pid, Signal::SIGKILL).unwrap();
        run.line("server 1 ended (signal 9) and is started again");
        run.line("shard 1 is restored from checkpoint ");
        run.end_well();
        assert!(!run.has_said("shard 0 is restored") && !run.has_said("could not be restored"), "{kind:?}");
        assert!(stage.read("out/summary.json").contains("\"epochs\": 10.0"), "{kind:?}");
    }
}
