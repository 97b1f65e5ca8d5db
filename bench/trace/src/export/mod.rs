//! The traces of a run as a timeline in the trace event format, which Perfetto (ui.perfetto.dev) and Chrome show.
//!
//! Each worker has a track of its iterations (pull: from its first pull to the last values; compute: from there to the first push) and
//! one of its pushes (from the first that arrived to the last that was answered). Each shard has a track of its applies, and a counter
//! of the pulls that it holds.
//!
//! The size has a bound: when the whole would be larger, only every n-th iteration, apply and count is shown, and the timeline says
//! so.

mod lines;
mod tracks;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use slackline_core::trace::{Record, What};

use crate::files::{self, Trace, TraceError};
use lines::Lines;
use tracks::Tracks;

/// Bytes that a timeline has at most, unless something else is asked for. Larger ones open slowly or not at all.
pub const EXPORT_BYTES: u64 = 50_000_000;

/// Bytes of an event, as a mean over those of a run.
const EVENT_BYTES: u64 = 150;

/// A timeline that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Where.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// Events in it.
    pub events: u64,
    /// Only every so many iterations are in it; 1 for all.
    pub every: u64,
    /// It ends before the run did: its size was reached all the same.
    pub is_cut: bool,
}

/// Writes the timeline of the traces in `folder` to `out`, or into the folder of the traces as `timeline.json`. It has at most
/// `bytes_max` bytes, but a few thousand in any case.
///
/// # Errors
/// [`TraceError`] when the traces cannot be read or are damaged, or the timeline cannot be written.
pub fn export(folder: &Path, out: Option<&Path>, bytes_max: u64) -> Result<Exported, TraceError> {
    let (mut told, mut shards) = (0_u64, 0);
    for mut trace in files::open(folder)? {
        shards += 1;
        while let Some(record) = trace.next()? {
            told += u64::from(is_shown(&record));
        }
    }
    // A wait, a computation and a push for each iteration at all shards together, an apply at each; counts when pulls are held.
    let expected = (told * 3 / shards.max(1) + told).saturating_mul(EVENT_BYTES) / 2;
    let every = expected.div_ceil(bytes_max.max(1)).max(1);
    let path = out.map_or_else(|| files::place_of(folder).join("timeline.json"), Path::to_path_buf);
    let unfinished = path.with_extension("unfinished");
    let written = write(folder, &unfinished, bytes_max, every).and_then(|(bytes, events, is_cut)| {
        fs::rename(&unfinished, &path)
            .map_err(|source| TraceError::Unwritable { path: path.clone(), source })?;
        Ok(Exported { path, bytes, events, every, is_cut })
    });
    if written.is_err() {
        // Where it cannot be removed either, the first error says why.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Whether a record becomes part of the timeline.
fn is_shown(record: &Record) -> bool {
    matches!(record.what, What::Push { .. } | What::Serve { .. })
}

fn write(folder: &Path, path: &Path, bytes_max: u64, every: u64) -> Result<(u64, u64, bool), TraceError> {
    let unwritable = |source| TraceError::Unwritable { path: path.to_owned(), source };
    let traces = files::open(folder)?;
    let file = File::create(path).map_err(unwritable)?;
    let mut lines = Lines::new(std::io::BufWriter::with_capacity(1 << 18, file), bytes_max);
    let began = traces.iter().map(|trace| trace.header.began_unix_ns).min().unwrap_or(0);
    let policy = traces.first().map_or_else(String::new, |trace| trace.header.policy.clone());
    lines.begin(&policy, every).map_err(unwritable)?;
    let mut tracks = Tracks::new(&traces, every);
    tracks.name_shards(&mut lines).map_err(unwritable)?;
    let mut merged = Merged::new(traces, began)?;
    while let Some((index, at, record)) = merged.next()? {
        tracks.take(index, at, &record, &mut lines).map_err(unwritable)?;
        if lines.is_cut() {
            break;
        }
    }
    lines.end().map_err(unwritable)
}

/// The records of all shards in the order of time.
struct Merged {
    traces: Vec<Trace>,
    /// Nanoseconds of each trace's beginning after that of the first.
    offsets: Vec<u64>,
    /// The next record of each trace.
    heads: Vec<Option<Record>>,
    order: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Merged {
    fn new(traces: Vec<Trace>, began: u64) -> Result<Self, TraceError> {
        let offsets = traces.iter().map(|trace| trace.header.began_unix_ns - began).collect();
        let heads = vec![None; traces.len()];
        let mut merged = Self { traces, offsets, heads, order: BinaryHeap::new() };
        for index in 0..merged.traces.len() {
            merged.advance(index)?;
        }
        Ok(merged)
    }

    fn advance(&mut self, index: usize) -> Result<(), TraceError> {
        self.heads[index] = self.traces[index].next()?;
        if let Some(record) = self.heads[index] {
            self.order.push(Reverse((record.at.0.saturating_add(self.offsets[index]), index)));
        }
        Ok(())
    }

    /// The place of the trace, nanoseconds since the first server began, and the record.
    fn next(&mut self) -> Result<Option<(usize, u64, Record)>, TraceError> {
        let Some(Reverse((at, index))) = self.order.pop() else { return Ok(None) };
        let Some(record) = self.heads[index].take() else { return Ok(None) };
        self.advance(index)?;
        Ok(Some((index, at, record)))
    }
}

#[cfg(test)]
mod tests;
