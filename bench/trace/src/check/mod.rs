//! Replays the traces of a run against the definition of its policy.
//!
//! `replay` takes the records of a shard in; `clocks` counts what each worker has completed, from its pushes; `reads` looks at pulls
//! and what they were served, `writes` at pushes and their answers, `applies` at what made each version, `across` at all shards
//! together. `promise` says what each policy promises.

mod across;
mod applies;
mod clocks;
mod promise;
mod reads;
mod replay;
mod writes;

use std::fmt;
use std::path::Path;

use slackline_core::ids::{ServerId, ShardId};

use crate::breach::Breach;
use crate::files::{self, Ending, Trace, TraceError};
use promise::Promise;
use replay::{Figures, Replay};

/// What the replay of one shard has shown.
#[derive(Clone, Debug)]
pub struct ShardChecked {
    /// The server.
    pub server: ServerId,
    /// The shard.
    pub shard: ShardId,
    /// How the trace ends.
    pub ending: Ending,
    /// The first breaches, in the order in which they were met.
    pub breaches: Vec<Breach>,
    /// All breaches.
    pub breach_count: u64,
    figures: Figures,
}

impl ShardChecked {
    /// Pulls for training that were served.
    #[must_use]
    pub const fn pulls(&self) -> u64 {
        self.figures.served
    }

    /// Pulls for training that waited.
    #[must_use]
    pub const fn holds(&self) -> u64 {
        self.figures.held
    }

    /// Pushes that were taken.
    #[must_use]
    pub const fn pushes(&self) -> u64 {
        self.figures.pushes
    }

    /// Pushes that were applied.
    #[must_use]
    pub const fn applied(&self) -> u64 {
        self.figures.applied
    }

    /// The largest lead of a served reader above the minimum clock.
    #[must_use]
    pub const fn lead_max(&self) -> u64 {
        self.figures.lead_max
    }

    /// Mean and largest version staleness of the applied pushes.
    #[must_use]
    pub fn staleness(&self) -> (f64, u64) {
        let Figures { staleness_sum, staleness_max, applied, .. } = self.figures;
        (staleness_sum as f64 / applied.max(1) as f64, staleness_max)
    }
}

/// What the replay of a run has shown. It prints itself.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The policy, as the server names it.
    pub policy: String,
    /// Workers that the run began with.
    pub workers: u32,
    /// The shards, in order.
    pub shards: Vec<ShardChecked>,
    /// Breaches that only all shards together show.
    pub across: Vec<Breach>,
    is_bounded: bool,
}

impl Checked {
    /// Breaches of all laws at all shards.
    #[must_use]
    pub fn breach_count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.breach_count).sum::<u64>() + self.across.len() as u64
    }

    /// The breaches that are kept with their records.
    pub fn breaches(&self) -> impl Iterator<Item = &Breach> {
        self.shards.iter().flat_map(|shard| &shard.breaches).chain(&self.across)
    }
}

/// Replays the traces in `folder`, that of a run or that of its traces.
///
/// # Errors
/// [`TraceError`] when they cannot be read, are damaged, or are not those of one whole run. Broken laws are no error: see
/// [`Checked::breach_count`].
pub fn check(folder: &Path) -> Result<Checked, TraceError> {
    let traces = files::open(folder)?;
    let header = traces.first().map(|trace| trace.header.clone());
    let header = header.ok_or_else(|| TraceError::None { folder: folder.to_owned() })?;
    let (mut shards, mut known) = (Vec::new(), Vec::new());
    for trace in traces {
        let (checked, heard) = check_shard(trace)?;
        shards.push(checked);
        known.push(heard);
    }
    let is_bounded = Promise::of(header.rule).reads.staleness.is_some();
    let across = across::check(&known);
    Ok(Checked { policy: header.policy, workers: header.workers, shards, across, is_bounded })
}

fn check_shard(mut trace: Trace) -> Result<(ShardChecked, across::Known), TraceError> {
    let mut replay = Replay::new(&trace.header);
    while let Some(record) = trace.next()? {
        replay.take(record);
    }
    let ending = trace.ending();
    replay.end(ending == Ending::Well);
    let (server, shard) = (trace.header.server, trace.header.shard);
    let Replay { lives, figures, breaches, breach_count, .. } = replay;
    let known = across::Known { server, shard, lives, ending };
    Ok((ShardChecked { server, shard, ending, breaches, breach_count, figures }, known))
}

/// Breaches that a report shows; the others are counted.
const SHOWN_MAX: usize = 20;

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.breach_count();
        for (number, breach) in self.breaches().take(SHOWN_MAX).enumerate() {
            writeln!(f, "violation {}, {breach}", number + 1)?;
        }
        if count > SHOWN_MAX as u64 {
            writeln!(f, "and {} violations more", count - SHOWN_MAX as u64)?;
        }
        for shard in &self.shards {
            writeln!(f, "{shard}")?;
        }
        let (pulls, pushes) = self
            .shards
            .iter()
            .fold((0, 0), |(pulls, pushes), shard| (pulls + shard.pulls(), pushes + shard.pushes()));
        let verdict = match (count, self.is_bounded) {
            (0, true) => format!("bound held ({})", self.policy),
            (0, false) => format!("{} has no bound, and keeps its rules", self.policy),
            (1, _) => format!("1 violation ({})", self.policy),
            (count, _) => format!("{count} violations ({})", self.policy),
        };
        writeln!(f, "{pulls} pulls, {pushes} pushes, {verdict}")
    }
}

impl fmt::Display for ShardChecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { records, served, held, pushes, applied, dropped, repeated, versions, lead_max, .. } =
            self.figures;
        let (mean, most) = self.staleness();
        write!(
            f,
            "{}, {}: {served} pulls ({held} held), {pushes} pushes ({applied} applied",
            self.server, self.shard
        )?;
        for (count, what) in [(dropped, "left out"), (repeated, "repeated")] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        write!(
            f,
            "), {versions} versions, lead at most {lead_max}, staleness {mean:.2} on average and {most} at most"
        )?;
        match self.ending {
            Ending::Well => Ok(()),
            Ending::Full => {
                write!(f, "; the trace was full after {records} records and the rest is not known")
            }
            Ending::Cut { partial: 0 } => {
                write!(
                    f,
                    "; the trace ends after {records} records without its last one: the server was killed or still runs"
                )
            }
            Ending::Cut { partial } => write!(
                f,
                "; the trace is cut off within record {records}, of which {partial} bytes are there: the server was killed or still \
                 runs"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
