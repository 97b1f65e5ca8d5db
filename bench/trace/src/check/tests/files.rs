//! Traces as files: damaged, missing, cut, of several shards.

use std::path::Path;

use slackline_core::ids::Sequence;
use slackline_core::trace::{Damage, HEADER_BYTES, RECORD_BYTES};
use tempfile::{TempDir, tempdir};

use super::*;
use crate::files::TraceError;

/// A right trace that is saved, with its folder.
fn saved(change: impl FnOnce(&mut Vec<u8>)) -> TempDir {
    let folder = tempdir().unwrap();
    let mut script = ahead();
    script.plain(What::End);
    let path = script.save(folder.path());
    let mut bytes = script.bytes();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
    folder
}

fn error(folder: &Path) -> TraceError {
    check(folder).unwrap_err()
}

/// Where the record at a place begins.
const fn byte(place: usize) -> usize {
    HEADER_BYTES + place * RECORD_BYTES
}

#[test]
fn a_run_is_told_in_figures() {
    let folder = tempdir().unwrap();
    for shard in 0..2 {
        let mut script = ahead().of_shard(shard, 2);
        script.push(1, 0).applied(1).serve(0, 2).plain(What::End);
        script.save(folder.path());
    }
    let checked = check(folder.path()).unwrap();
    assert_eq!((checked.breach_count(), checked.shards.len()), (0, 2));
    let shard = &checked.shards[1];
    assert_eq!((shard.pulls(), shard.holds(), shard.pushes(), shard.applied()), (4, 1, 3, 3));
    assert_eq!((shard.lead_max(), shard.staleness().1, shard.ending), (1, 2, Ending::Well));
    let text = checked.to_string();
    assert!(
        text.contains(
            "server 0, shard 1: 4 pulls (1 held), 3 pushes (3 applied), 3 versions, lead at most 1"
        ),
        "{text}"
    );
    assert!(text.ends_with("8 pulls, 6 pushes, bound held (policy)\n"), "{text}");
}

#[test]
fn the_folder_of_a_run_is_as_good_as_that_of_its_traces() {
    let run = tempdir().unwrap();
    let folder = run.path().join("trace");
    std::fs::create_dir(&folder).unwrap();
    let mut script = ahead();
    script.plain(What::End).save(&folder);
    assert_eq!(check(run.path()).unwrap().breach_count(), 0);
    assert_eq!(check(&folder).unwrap().breach_count(), 0);
}

#[test]
fn a_violation_is_reported_with_its_place() {
    let folder = tempdir().unwrap();
    let mut script = ahead();
    script.serve(0, 2).plain(What::End).save(folder.path());
    let checked = check(folder.path()).unwrap();
    assert_eq!(checked.breach_count(), 1);
    let text = checked.to_string();
    assert!(
        text.starts_with("violation 1, bound (server 0, shard 0): worker 0 was served version 2 at clock 2"),
        "{text}"
    );
    assert!(text.ends_with("1 violation (policy)\n"), "{text}");
}

#[test]
fn damage_is_named_with_its_place() {
    let folder = saved(|bytes| bytes[0] = b'X');
    assert!(matches!(error(folder.path()), TraceError::Header { damage: Damage::Magic, .. }));
    let folder = saved(|bytes| bytes[8] = 9);
    let wrong = error(folder.path());
    assert!(matches!(wrong, TraceError::Header { damage: Damage::Format { found: 9 }, .. }));
    assert!(
        wrong.to_string().contains("server-0-shard-0.trace, at byte 0: its format has version 9"),
        "{wrong}"
    );
    let folder = saved(|bytes| bytes.truncate(100));
    assert!(matches!(error(folder.path()), TraceError::HeaderCut { bytes: 100, .. }));
    let folder = saved(|bytes| bytes[byte(3)] = 77);
    let wrong = error(folder.path());
    assert!(matches!(wrong, TraceError::Record { place: 3, .. }), "{wrong}");
    assert!(wrong.to_string().contains("record 3 at byte 544"), "{wrong}");
}

#[test]
fn a_hole_is_named_with_its_place() {
    let folder = saved(|bytes| _ = bytes.drain(byte(4)..byte(5)));
    assert!(matches!(error(folder.path()), TraceError::Hole { place: 4, found: 5, .. }));
    // Bytes that are lost within a record make another one of the next.
    let folder = saved(|bytes| _ = bytes.drain(byte(4) + 10..byte(4) + 20));
    assert!(matches!(error(folder.path()), TraceError::Record { .. } | TraceError::Hole { .. }));
    let folder = saved(|bytes| bytes[byte(6) + 16..byte(6) + 24].fill(0));
    assert!(matches!(error(folder.path()), TraceError::Backwards { place: 6, .. }));
    let folder = saved(|bytes| bytes.extend([0; 7]));
    assert!(matches!(error(folder.path()), TraceError::AfterEnd { .. }));
}

#[test]
fn a_trace_that_a_killed_server_left_is_checked_as_far_as_it_goes() {
    let folder = saved(|bytes| bytes.truncate(byte(10) + 34));
    let checked = check(folder.path()).unwrap();
    assert_eq!((checked.breach_count(), checked.shards[0].ending), (0, Ending::Cut { partial: 34 }));
    let text = checked.to_string();
    assert!(text.contains("cut off within record 10, of which 34 bytes are there"), "{text}");
    let folder = saved(|bytes| bytes.truncate(byte(9)));
    let text = check(folder.path()).unwrap().to_string();
    assert!(text.contains("ends after 9 records without its last one"), "{text}");
    // Its last push lacks its answer; that is no fault of the server's.
    let mut script = ahead();
    script.push(1, 0);
    let folder = tempdir().unwrap();
    script.save(folder.path());
    assert_eq!(check(folder.path()).unwrap().breach_count(), 0);
}

#[test]
fn a_full_trace_is_checked_as_far_as_it_goes() {
    let mut script = ahead();
    script.push(1, 0).plain(What::Full);
    let folder = tempdir().unwrap();
    script.save(folder.path());
    let checked = check(folder.path()).unwrap();
    assert_eq!((checked.breach_count(), checked.shards[0].ending), (0, Ending::Full));
    assert!(checked.to_string().contains("the trace was full after"), "{checked}");
}

#[test]
fn a_shard_that_is_missing_and_files_of_two_runs_are_named() {
    let folder = tempdir().unwrap();
    assert!(matches!(error(folder.path()), TraceError::None { .. }));
    let mut script = ahead();
    script.plain(What::End);
    script.clone().of_shard(1, 3).save(folder.path());
    script.clone().of_shard(0, 3).save(folder.path());
    let missing = error(folder.path());
    assert!(matches!(missing, TraceError::Missing { found: 2, key: 20, shards: 3, .. }), "{missing}");
    let mut other = script.clone().of_shard(2, 3);
    other.header.config_hash = 9;
    other.save(folder.path());
    assert!(matches!(error(folder.path()), TraceError::Mixed { .. }));
    other.header.config_hash = 1;
    other.save(folder.path());
    assert_eq!(check(folder.path()).unwrap().shards.len(), 3);
    std::fs::write(folder.path().join("copy.trace"), other.bytes()).unwrap();
    assert!(matches!(error(folder.path()), TraceError::Twice { .. }));
    assert!(matches!(error(&folder.path().join("nowhere")), TraceError::Unreadable { .. }));
}

/// Two shards, with the pushes of worker 0 that reach each.
fn pushes(at: [&[u64]; 2]) -> Checked {
    let folder = tempdir().unwrap();
    for (shard, sequences) in at.into_iter().enumerate() {
        let mut script = Script::begun(Rule::Asp, 1).of_shard(shard as u32, 2);
        for sequence in sequences {
            script.push(0, sequence - 1);
            script.last().sequence = Sequence(*sequence);
            script.applied(0);
            script.last().sequence = Sequence(*sequence);
        }
        script.plain(What::End).save(folder.path());
    }
    check(folder.path()).unwrap()
}

#[test]
fn a_push_that_a_shard_never_saw_is_found() {
    let laws = |checked: &Checked| checked.breaches().map(|breach| breach.law).collect::<Vec<_>>();
    let whole = pushes([&[1, 2, 3], &[1, 2, 3]]);
    assert_eq!(laws(&whole), []);
    let last = pushes([&[1, 2, 3], &[1, 2]]);
    assert_eq!(laws(&last), [], "the worker may have died on its way");
    let hole = pushes([&[1, 2, 3], &[1, 3]]);
    assert_eq!(laws(&hole), [Law::EveryShard]);
    let text = hole.to_string();
    assert!(
        text.contains("push 2 of worker 0 (incarnation 1) reached shard 0 of server 0, and never shard 1"),
        "{text}"
    );
}
