//! The servers' traces, as far as they can be checked.
//!
//! A trace of a copy that took over begins in the middle, and a server that is killed takes the last second of its trace along, so the
//! stretches of one shard cannot be joined without a hole. What is checked of each shard is its first stretch: from its beginning until the
//! first fault of its first server, or until another server answers for it. (The policy over the whole history is checked from the pushes:
//! `slackline_chaos::bound`.) The run without faults is checked whole.

use std::path::{Path, PathBuf};

use slackline_chaos::plan::Whom;
use slackline_chaos::report::TraceReport;
use slackline_core::config::Config;
use slackline_core::ids::{ServerId, ShardId};
use slackline_core::trace::{FOLDER, HEADER_BYTES, Header, RECORD_BYTES, Record, file_name};
use slackline_trace::Checked;

use super::cluster::OLD_TRACES;
use super::storm::Storm;

/// Where the first stretches are put together.
const FIRST: &str = "trace-until-the-first-fault";

/// Violations that are reported in words.
const SHOWN_MAX: usize = 5;

/// Checks the traces of both runs in `out`. One that cannot be checked is as bad as one that breaks the policy.
pub(super) fn check(out: &Path, storm: &Storm, config: &Config) -> TraceReport {
    let run = out.join("rough");
    let first = run.join(FIRST);
    let mut report = TraceReport::default();
    let all = count(&run.join(FOLDER)) + count(&run.join(OLD_TRACES));
    match cut_all(&run, &first, storm, config) {
        Ok(()) => add(&mut report, &first, ""),
        Err(error) => report.unread.push(format!("the traces cannot be put together: {error}")),
    }
    report.later = all.saturating_sub(report.checked);
    add(&mut report, &out.join("calm"), "without faults: ");
    report
}

fn add(report: &mut TraceReport, folder: &Path, prefix: &str) {
    match slackline_trace::check(folder) {
        Ok(checked) => take(report, &checked, prefix),
        Err(error) => report.unread.push(format!("{prefix}the traces cannot be checked: {error}")),
    }
}

fn take(report: &mut TraceReport, checked: &Checked, prefix: &str) {
    report.checked += checked.shards.len() as u64;
    report.violations += checked.breach_count();
    report.first.extend(checked.breaches().take(SHOWN_MAX).map(|breach| format!("{prefix}{breach}")));
}

fn count(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "trace")).count()
        as u64
}

/// Copies the first stretch of each shard.
fn cut_all(run: &Path, first: &Path, storm: &Storm, config: &Config) -> std::io::Result<()> {
    std::fs::create_dir_all(first)?;
    let partition = config.partition();
    for (shard, _) in partition.shards() {
        let server = partition.server_of(shard);
        let name = file_name(server, shard);
        // That of its first life, where it had more than one.
        let earlier = run.join(OLD_TRACES).join(format!("life-1-{name}"));
        let path = if earlier.exists() { earlier } else { run.join(FOLDER).join(&name) };
        cut(&path, &first.join(&name), end_unix_s(server, shard, storm))?;
    }
    Ok(())
}

/// When a shard's first stretch ends, in seconds since 1970.
fn end_unix_s(server: ServerId, shard: ShardId, storm: &Storm) -> f64 {
    let faults = storm.faults.iter().filter(|fault| fault.left_out.is_none());
    let its = faults.filter(|fault| (fault.fault.whom, fault.fault.index) == (Whom::Server, server.0));
    let elsewhere = storm.seen.answers.iter().find(|answer| answer.shard == shard && answer.server != server);
    let times = its.map(|fault| fault.was.from_s).chain(elsewhere.map(|answer| answer.at_s));
    storm.began_unix_s + times.fold(f64::INFINITY, f64::min)
}

/// Copies a trace as far as a time.
fn cut(from: &PathBuf, to: &Path, until_unix_s: f64) -> std::io::Result<()> {
    let bytes = std::fs::read(from)?;
    let header = bytes.first_chunk::<HEADER_BYTES>().and_then(|header| Header::decode(header).ok());
    let Some(header) = header else { return std::fs::write(to, &bytes) };
    let until_ns = (until_unix_s * 1e9) - header.began_unix_ns as f64;
    let (records, _) = bytes[HEADER_BYTES..].as_chunks::<RECORD_BYTES>();
    let is_before = |record: &[u8; RECORD_BYTES]| {
        Record::decode(record).is_ok_and(|record| (record.at.0 as f64) < until_ns)
    };
    let kept = records.iter().take_while(|record| is_before(record)).count();
    let is_whole = kept == records.len();
    let length = if is_whole { bytes.len() } else { HEADER_BYTES + kept * RECORD_BYTES };
    std::fs::write(to, &bytes[..length])
}
