//! Checkpoints saved and loaded over a folder.

use slackline_core::config::{Config, Layer, Value};
use slackline_core::ids::Moment;
use slackline_server_core::{Shard, ShardEvent};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::parts;

fn resolved(more: &[(&str, &str)]) -> Resolved {
    let keys = [
        ("workers", "1"),
        ("data.dataset", "\"digits\""),
        ("model.kind", "\"softmax\""),
        ("train.epochs", "1"),
        ("train.batch", "32"),
        ("optimizer.rate", "0.03"),
        ("cluster.shards_per_server", "3"),
        ("checkpoint.every_clocks", "10"),
        ("checkpoint.report_after_s", "0.1"),
    ];
    let value = |(key, value): &(&str, &str)| ((*key).to_owned(), Value::from_literal(value).unwrap());
    let values = keys.iter().filter(|(key, _)| more.iter().all(|(other, _)| key != other)).chain(more);
    Config::resolve(&[Layer { name: "test".to_owned(), values: values.map(value).collect() }]).unwrap()
}

fn states(resolved: &Resolved, value: impl Fn(u64) -> f32) -> Vec<ShardState> {
    let all = parts::all_shards(&resolved.config).into_values();
    let state = |settings: slackline_server_core::ShardSettings| {
        let keys = settings.keys;
        let mut shard = Shard::new(settings);
        let values = (keys.start..keys.end()).map(&value).collect();
        shard.handle(Moment(1), ShardEvent::Initialize(values), &mut Vec::new());
        shard.state()
    };
    all.map(state).collect()
}

struct Saved {
    saver: Saver,
    thread: JoinHandle<()>,
    words: UnboundedReceiver<Word>,
}

fn saver(resolved: &Resolved, at: &str, from: Option<&str>) -> Saved {
    let (sender, words) = unbounded_channel();
    let (saver, thread) = Saver::start(resolved, at.to_owned(), from.map(str::to_owned), sender).unwrap();
    saver.belongs_to(5, from.map(|_| 1));
    Saved { saver, thread, words }
}

impl Saved {
    /// Saves and commits a checkpoint.
    fn checkpoint(&mut self, number: u64, states: &[ShardState]) {
        let mut parts = Vec::new();
        for state in states {
            self.saver.save(number, state.clone());
            match self.words.blocking_recv() {
                Some(Word::Saved { shard, number: saved, entry }) if saved == number => {
                    parts.push((shard, entry))
                }
                other => panic!("{other:?}"),
            }
        }
        let (clock, position) = (Clock(number * 10), serde_json::json!({ "next": 0.1 }));
        self.saver.commit(Commit { number, clock, samples_done: 320, parts, position });
        match self.words.blocking_recv() {
            Some(Word::Committed { number: committed, outcome: Ok(()) }) if committed == number => {}
            other => panic!("{other:?}"),
        }
    }

    fn end(self) {
        self.saver.end();
        self.thread.join().unwrap();
    }
}

#[test]
fn what_is_saved_and_committed_comes_back_with_its_hash() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("checkpoints").display().to_string();
    let resolved = resolved(&[]);
    let states = states(&resolved, |key| key as f32);
    let mut saved = saver(&resolved, &at, None);
    saved.checkpoint(1, &states);
    saved.checkpoint(2, &states);
    for state in &states {
        let back = saved.saver.load(state.shard, state.keys, 2).unwrap();
        assert_eq!(back.hash(), state.hash());
    }
    saved.end();
    let manifest = resume(&at, &resolved).unwrap();
    assert_eq!((manifest.number, manifest.clock, manifest.samples_done), (2, Clock(20), 320));
    assert_eq!(manifest.coordinator["next"].as_f64(), Some(0.1));
}

// Found by reading: a store that was slow and whole lost the last checkpoint of a run, all of whose tries it was busy for.
#[test]
fn the_newest_cut_is_saved_however_busy_the_store_is_with_those_before() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("checkpoints").display().to_string();
    let resolved = resolved(&[]);
    let state = states(&resolved, |key| key as f32).remove(0);
    let mut saved = saver(&resolved, &at, None);
    (1..=50).for_each(|number| saved.saver.save(number, state.clone()));
    let mut left: std::collections::BTreeSet<u64> = (1..=50).collect();
    while !left.is_empty() {
        match saved.words.blocking_recv() {
            Some(Word::Saved { number, .. }) => assert!(left.remove(&number)),
            Some(Word::NotSaved { number, .. }) => assert!(left.remove(&number) && number < 50),
            other => panic!("{other:?}"),
        }
    }
    saved.end();
}

// A coordinator that was deposed meanwhile may have committed the second: its successor goes on with the first.
#[test]
fn an_older_checkpoint_stays_until_the_commit_of_the_newer_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("checkpoints").display().to_string();
    let resolved = resolved(&[("checkpoint.keep", "1")]);
    let states = states(&resolved, |key| key as f32);
    let mut saved = saver(&resolved, &at, None);
    saved.checkpoint(1, &states);
    saved.checkpoint(2, &states);
    let first = &states[0];
    assert_eq!(saved.saver.load(first.shard, first.keys, 1).unwrap().hash(), first.hash());
    saved.saver.tidy(2);
    saved.end();
    let committed = std::fs::read_dir(&at).unwrap().count();
    assert_eq!((committed, resume(&at, &resolved).unwrap().number), (1, 2));
}

#[test]
fn a_run_that_goes_on_elsewhere_loads_from_where_it_was_until_it_has_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let resolved = resolved(&[]);
    let first = states(&resolved, |key| key as f32);
    let mut saved = saver(&resolved, &place("first"), None);
    saved.checkpoint(1, &first);
    saved.end();
    let second = saver(&resolved, &place("second"), Some(&place("first")));
    let back = second.saver.load(first[0].shard, first[0].keys, 1).unwrap();
    assert_eq!(back.arrays, first[0].arrays);
    second.end();
}

#[test]
fn incremental_checkpoints_come_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display().to_string();
    for kind in ["\"incremental\"", "\"priority\""] {
        let at = format!("{at}/{kind}");
        let resolved = resolved(&[("checkpoint.kind", kind), ("checkpoint.block", "16")]);
        let mut saved = saver(&resolved, &at, None);
        saved.checkpoint(1, &states(&resolved, |key| key as f32));
        let last = states(&resolved, |key| if key % 100 == 0 { -1.0 } else { key as f32 });
        saved.checkpoint(2, &last);
        if kind == "\"incremental\"" {
            for state in &last {
                let back = saved.saver.load(state.shard, state.keys, 2).unwrap();
                assert_eq!(back.arrays, state.arrays);
            }
        }
        saved.end();
        assert_eq!(resume(&at, &resolved).unwrap().number, 2, "{kind}");
    }
}

// Case 45 (alibaba/x-deeplearning#134): everything stood still while a checkpoint was not taken.
#[test]
fn a_place_that_takes_nothing_holds_nobody_up_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"no folder").unwrap();
    let at = file.join("checkpoints").display().to_string();
    let resolved = resolved(&[]);
    let state = states(&resolved, |key| key as f32).remove(0);
    let mut saved = saver(&resolved, &at, None);
    let mut trouble = None;
    for number in 1.. {
        saved.saver.save(number, state.clone());
        match saved.words.blocking_recv() {
            Some(Word::NotSaved { .. }) => {}
            Some(Word::StoreTrouble(Some(text))) => {
                trouble = Some(text);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let text = trouble.unwrap();
    assert!(text.contains("no checkpoint was taken") && text.contains("file"), "{text}");
    saved.end();
}

#[test]
fn a_run_that_begins_anew_is_refused_where_checkpoints_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("checkpoints").display().to_string();
    assert_eq!(clear(&at, false), Ok(()));
    let resolved = resolved(&[]);
    let mut saved = saver(&resolved, &at, None);
    saved.checkpoint(1, &states(&resolved, |key| key as f32));
    saved.end();
    let text = clear(&at, false).unwrap_err();
    assert!(text.contains(&at) && text.contains("--resume") && text.contains("--fresh"), "{text}");
    let other = folder.path().join("checkpoints/notes.txt");
    std::fs::write(&other, "of the user").unwrap();
    assert_eq!(clear(&at, true), Ok(()));
    assert_eq!(clear(&at, false), Ok(()));
    assert!(other.exists(), "what is no checkpoint stays");
}

#[test]
fn the_run_has_one_name_in_all_its_files_and_another_run_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("checkpoints").display().to_string();
    let resolved = resolved(&[]);
    let all = states(&resolved, |key| key as f32);
    let mut saved = saver(&resolved, &at, None);
    saved.checkpoint(1, &all);
    let manifest = resume(&at, &resolved).unwrap();
    assert_eq!(manifest.stamp.run, RunId(5));
    // The same configuration and seed, and all the same another run.
    saved.saver.belongs_to(6, None);
    let error = saved.saver.load(all[0].shard, all[0].keys, 1).unwrap_err();
    assert!(error.contains("0000000000000005") && error.contains("manifest.json"), "{error}");
    saved.end();
    let mine = Manifest { stamp: Stamp { run: RunId(6), ..manifest.stamp }, ..manifest.clone() };
    assert!(may_follow(&at, &mine, &resolved).is_err());
    assert_eq!(may_follow(&at, &manifest, &resolved), Ok(()));
}

#[test]
fn a_part_whose_entry_is_too_long_for_a_message_is_committed_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("checkpoints").display().to_string();
    let one = [("servers", "1"), ("cluster.shards_per_server", "1")];
    let more = [&one[..], &[("model.kind", "\"mlp\""), ("model.widths", "[1024, 1024]")]].concat();
    let over = [&more[..], &[("checkpoint.kind", "\"incremental\""), ("checkpoint.block", "16")]].concat();
    let resolved = resolved(&over);
    let mut saved = saver(&resolved, &at, None);
    saved.checkpoint(1, &states(&resolved, |key| key as f32));
    // Every other block, so that no run of them is one.
    let last = states(&resolved, |key| if key / 16 % 2 == 0 { -1.0 } else { key as f32 });
    saved.checkpoint(2, &last);
    let beside = folder.path().join("checkpoints/0000000002/shard-00000.entry.json");
    let length = std::fs::metadata(beside).unwrap().len();
    assert!(length > slackline_core::limits::PART_ENTRY_BYTES_MAX as u64, "{length} bytes");
    for state in &last {
        let back = saved.saver.load(state.shard, state.keys, 2).unwrap();
        assert_eq!(back.arrays, state.arrays);
    }
    saved.end();
}

#[test]
fn what_other_shards_saved_is_loaded_for_the_shards_of_now() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("checkpoints").display().to_string();
    let three = resolved(&[]);
    let mut saved = saver(&three, &at, None);
    saved.checkpoint(1, &states(&three, |key| key as f32));
    saved.end();
    let five = resolved(&[("cluster.shards_per_server", "5")]);
    assert_eq!(resume(&at, &five).unwrap().number, 1);
    let saved = saver(&five, &at, Some(&at));
    for state in states(&five, |key| key as f32) {
        let back = saved.saver.load(state.shard, state.keys, 1).unwrap();
        assert_eq!((back.arrays, back.version), (state.arrays, state.version));
    }
    saved.end();
}
