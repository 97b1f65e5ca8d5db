//! Files that people write, or that other programs and earlier runs have left.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use slackline_checkpoint::{PartHeader, parse_manifest, parse_part};
use slackline_core::ids::{ServerId, ShardId};
use slackline_core::schedule::Cut;
use slackline_core::stragglers::Slowness;
use slackline_core::trace;
use slackline_lab::Results;
use slackline_lab::compare::Lines;
use slackline_server_core::assign::{Assigner, Plan, Position};
use tempfile::TempDir;

use crate::configuration;
use crate::state::facts;

/// A folder of this process, for readers that take a path.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder for files")).path()
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("the folder takes a file");
}

/// A configuration file; behind a zero byte lines of `--set`, behind another one lines of environment variables.
pub(crate) fn config(bytes: &[u8]) {
    let mut parts = bytes.splitn(3, |byte| *byte == 0);
    let file = folder().join("run.toml");
    write(&file, parts.next().unwrap_or_default());
    let lines = |part: Option<&[u8]>| -> Vec<String> {
        String::from_utf8_lossy(part.unwrap_or_default()).lines().map(str::to_owned).collect()
    };
    let sets = lines(parts.next());
    let variables = lines(parts.next());
    let variables = variables.iter().map(|line| {
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        (OsString::from(format!("SLACKLINE__{name}")), OsString::from(value))
    });
    match configuration::load(&file, &sets, variables) {
        Ok(resolved) => {
            drop((resolved.show(), resolved.to_toml(), resolved.hash(), resolved.config.partition()))
        }
        Err(error) => drop(error.to_string()),
    }
}

/// A trace of one shard.
pub(crate) fn trace(bytes: &[u8]) {
    for (at, record) in bytes.as_chunks::<{ trace::RECORD_BYTES }>().0.iter().enumerate() {
        let Ok(record) = trace::Record::decode(record) else { continue };
        assert_eq!(record.encode(), bytes[at * trace::RECORD_BYTES..][..trace::RECORD_BYTES], "{record:?}");
    }
    let run = folder().join("run");
    let traces = run.join(trace::FOLDER);
    fs::create_dir_all(&traces).expect("the folder takes a folder");
    write(&traces.join(trace::file_name(ServerId(0), ShardId(0))), bytes);
    match slackline_trace::check(&run) {
        Ok(checked) => drop(format!("{checked:?}")),
        Err(error) => drop(error.to_string()),
    }
}

/// A checkpoint's manifest, as it stands and with its checksum put right, since chance does not find one.
pub(crate) fn manifest(bytes: &[u8]) {
    parsed_manifest(bytes);
    const SEAL: &str = ",\n  \"checksum\": \"";
    let text = String::from_utf8_lossy(bytes);
    let body = text.rfind(SEAL).map_or(bytes, |at| &text.as_bytes()[..at]);
    let seal = format!("{SEAL}{:016x}\"\n}}\n", xxhash_rust::xxh3::xxh3_64(body));
    parsed_manifest(&[body, seal.as_bytes()].concat());
}

fn parsed_manifest(bytes: &[u8]) {
    match parse_manifest("manifest.json", bytes) {
        Ok(manifest) => {
            let _ = (manifest.state_hash(), manifest.files().count());
            position(manifest.coordinator);
        }
        Err(damage) => drop(damage.to_string()),
    }
}

/// Where a run stood, as the coordinator reads it out of a manifest.
fn position(value: serde_json::Value) {
    let Ok(position) = serde_json::from_value::<Position>(value) else { return };
    let cut = Cut { unit: 10, units: 1, proportional: false };
    // A run over the same data as what the position says, where it can be one.
    let sample_total = position.sample_total.clamp(1, 1 << 40);
    let plan = Plan { cut, sample_total, evaluate_every: 0, ordered: false };
    match Assigner::resume(plan, &position) {
        Ok(assigner) => assigner.check_invariants(),
        Err(error) => drop(error.to_string()),
    }
}

/// A checkpoint's part.
pub(crate) fn part(bytes: &[u8]) {
    let _ = PartHeader::parse("part", bytes, bytes.len() as u64);
    match parse_part("part", bytes) {
        Ok(part) => {
            drop((part.values("values"), part.values("slots")));
            facts(part.facts());
        }
        Err(damage) => drop(damage.to_string()),
    }
}

/// A shard's journal.
pub(crate) fn journal(bytes: &[u8]) {
    let journals = folder().join("journals");
    fs::create_dir_all(&journals).expect("the folder takes a folder");
    slackline_server::fuzzing::journal(&journals, bytes);
}

/// The events that a coordinator's server has kept.
pub(crate) fn ledger(bytes: &[u8]) {
    slackline_server::fuzzing::ledger(folder(), bytes);
}

/// Recorded times of workers.
pub(crate) fn recorded(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Slowness::recorded(text) {
        Ok(slowness) => drop(format!("{slowness:?}")),
        Err(error) => drop(error.to_string()),
    }
}

/// Results of a sweep, and measurements of other programs.
pub(crate) fn results(bytes: &[u8]) {
    let folder = folder();
    write(&folder.join("results.json"), bytes);
    match Results::read(folder) {
        Ok(results) => drop(results.to_csv()),
        Err(error) => drop(error.to_string()),
    }
    let path = folder.join("peers.jsonl");
    write(&path, bytes);
    match Lines::read(&path) {
        Ok(lines) => drop(lines.is_whole()),
        Err(error) => drop(error.to_string()),
    }
}
