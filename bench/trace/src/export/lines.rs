//! The text of a timeline, with its bound.

use std::fmt::Arguments;
use std::io::{self, Write};

use serde_json::json;

/// Bytes that are kept free for the end.
const END_BYTES: u64 = 512;

/// The group of tracks of the workers.
pub(super) const WORKERS: u32 = 1;

/// The group of tracks of the shards.
pub(super) const SHARDS: u32 = 2;

/// Writes events, one a line.
pub(super) struct Lines<W> {
    out: W,
    bytes: u64,
    bytes_max: u64,
    events: u64,
    is_cut: bool,
}

/// Microseconds, as the format counts time.
pub(super) fn microseconds(ns: u64) -> f64 {
    ns as f64 * 1e-3
}

impl<W: Write> Lines<W> {
    pub(super) const fn new(out: W, bytes_max: u64) -> Self {
        Self { out, bytes: 0, bytes_max, events: 0, is_cut: false }
    }

    /// Begins the timeline: what it is of, and whether it is all.
    pub(super) fn begin(&mut self, policy: &str, every: u64) -> io::Result<()> {
        let note = match every {
            1 => "every iteration is shown".to_owned(),
            _ => format!("one iteration of {every} is shown, to keep the size in bounds"),
        };
        let about = json!({ "policy": policy, "note": note });
        self.write(&format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[\n"))?;
        self.name(WORKERS, None, "workers")?;
        self.name(SHARDS, None, "shards")?;
        if every > 1 {
            let name = json!(note);
            self.event(format_args!(r#"{{"name":{name},"ph":"i","s":"g","ts":0,"pid":{WORKERS},"tid":0}}"#))?;
        }
        Ok(())
    }

    /// Names a group of tracks, or a track of it.
    pub(super) fn name(&mut self, group: u32, track: Option<u64>, name: &str) -> io::Result<()> {
        let (kind, tid) = match track {
            Some(track) => ("thread_name", track),
            None => ("process_name", 0),
        };
        let name = json!(name);
        self.event(format_args!(
            r#"{{"name":"{kind}","ph":"M","pid":{group},"tid":{tid},"args":{{"name":{name}}}}}"#
        ))
    }

    /// Writes an event, unless the bound is reached.
    pub(super) fn event(&mut self, event: Arguments<'_>) -> io::Result<()> {
        let separator = if self.events == 0 { "" } else { ",\n" };
        let text = format!("{separator}{event}");
        self.is_cut |= self.bytes + text.len() as u64 + END_BYTES > self.bytes_max.max(8 * END_BYTES);
        if self.is_cut {
            return Ok(());
        }
        self.events += 1;
        self.write(&text)
    }

    /// Whether an event did not fit any more.
    pub(super) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.bytes += text.len() as u64;
        self.out.write_all(text.as_bytes())
    }

    /// Ends the timeline; returns its bytes, its events and whether it was cut.
    pub(super) fn end(mut self) -> io::Result<(u64, u64, bool)> {
        let end = match self.is_cut {
            true => "\n],\"cut\":\"the largest size was reached here; the run went on\"}\n",
            false => "\n]}\n",
        };
        self.write(end)?;
        self.out.flush()?;
        Ok((self.bytes, self.events, self.is_cut))
    }
}
