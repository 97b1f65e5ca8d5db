//! Which spans and counts the records of a run are.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use slackline_core::ids::{Incarnation, WorkerId};
use slackline_core::trace::{PullFate, Reading, Record, Verdict, What};

use super::lines::{Lines, SHARDS, WORKERS, microseconds};
use crate::files::Trace;

/// Iterations of one life of a worker that may be open at once: one is computed, the next is pulled for.
const OPEN_MAX: usize = 4;

/// Pushes of one life of a worker that may be open at once.
const PUSHES_MAX: usize = 8;

/// An iteration that was not pushed yet.
#[derive(Clone, Copy, Debug)]
struct Iteration {
    clock: u64,
    pulled_at: u64,
    served_at: Option<u64>,
    held: bool,
}

/// A push that was not answered by all shards yet.
#[derive(Clone, Copy, Debug)]
struct Pushing {
    sequence: u64,
    clock: u64,
    since: u64,
    answers: usize,
}

/// A worker in one of its lives.
#[derive(Debug, Default)]
struct Worker {
    iterations: Vec<Iteration>,
    pushes: Vec<Pushing>,
    /// When its last computation ended: a pull that was sent ahead of the push waits from there on.
    computed_at: u64,
    pushed_at: u64,
    last_sequence: u64,
}

/// A shard.
#[derive(Debug)]
struct Shard {
    name: String,
    number: u32,
    /// Pulls that wait, by reader.
    held: BTreeSet<WorkerId>,
    counted: u64,
}

/// The tracks of a run, as far as it was told.
#[derive(Debug)]
pub(super) struct Tracks {
    every: u64,
    shards: Vec<Shard>,
    workers: BTreeMap<(WorkerId, Incarnation), Worker>,
    /// Workers whose tracks have a name.
    named: BTreeSet<WorkerId>,
}

impl Tracks {
    pub(super) fn new(traces: &[Trace], every: u64) -> Self {
        let shard = |trace: &Trace| Shard {
            name: format!("{} of {}", trace.header.shard, trace.header.server),
            number: trace.header.shard.0,
            held: BTreeSet::new(),
            counted: 0,
        };
        let shards = traces.iter().map(shard).collect();
        Self { every, shards, workers: BTreeMap::new(), named: BTreeSet::new() }
    }

    pub(super) fn name_shards<W: Write>(&self, lines: &mut Lines<W>) -> io::Result<()> {
        self.shards
            .iter()
            .try_for_each(|shard| lines.name(SHARDS, Some(u64::from(shard.number)), &shard.name))
    }

    /// Takes the next record in; `at` is in nanoseconds since the first server began.
    pub(super) fn take<W: Write>(
        &mut self,
        index: usize,
        at: u64,
        record: &Record,
        lines: &mut Lines<W>,
    ) -> io::Result<()> {
        match (record.what, record.worker) {
            (What::Mean, _) => self.applied(index, at, record, None, lines),
            (_, None) => Ok(()),
            (What::Pull { reading: Reading::Gated, fate, .. }, Some(worker)) => {
                self.pulled(worker, at, record, fate);
                self.hold(index, at, worker, fate == PullFate::Held, lines)
            }
            (What::Serve { reading: Reading::Gated, .. }, Some(worker)) => {
                let life = self.workers.entry((worker, record.incarnation)).or_default();
                let clock = record.clock.0;
                if let Some(open) = life.iterations.iter_mut().find(|open| open.clock == clock) {
                    open.served_at = Some(at);
                }
                self.hold(index, at, worker, false, lines)
            }
            (What::Push { .. }, Some(worker)) => self.pushed(worker, at, record, lines),
            (What::Verdict { verdict: Verdict::Collected | Verdict::Staged, .. }, _) => Ok(()),
            (What::Verdict { verdict, duplicate }, Some(worker)) => {
                self.answered(worker, at, record, lines)?;
                match verdict {
                    Verdict::Applied { staleness, .. } if !duplicate => {
                        self.applied(index, at, record, Some((worker, staleness)), lines)
                    }
                    _ => Ok(()),
                }
            }
            (What::Enter(_), Some(worker)) => self.mark(index, at, worker, "enters", lines),
            (What::Reenter, Some(worker)) => self.mark(index, at, worker, "has work again", lines),
            (What::Finish, Some(worker)) => self.mark(index, at, worker, "has no work", lines),
            (What::Remove, Some(worker)) => {
                self.workers.remove(&(worker, record.incarnation));
                self.hold(index, at, worker, false, lines)?;
                self.mark(index, at, worker, "is removed", lines)
            }
            _ => Ok(()),
        }
    }

    fn pulled(&mut self, worker: WorkerId, at: u64, record: &Record, fate: PullFate) {
        let life = self.workers.entry((worker, record.incarnation)).or_default();
        let (clock, held) = (record.clock.0, fate == PullFate::Held);
        match life.iterations.iter_mut().find(|open| open.clock == clock) {
            Some(open) => open.held |= held,
            None => {
                if life.iterations.len() == OPEN_MAX {
                    life.iterations.remove(0);
                }
                life.iterations.push(Iteration { clock, pulled_at: at, served_at: None, held });
            }
        }
    }

    /// The first push of an iteration ends its computation.
    fn pushed<W: Write>(
        &mut self,
        worker: WorkerId,
        at: u64,
        record: &Record,
        lines: &mut Lines<W>,
    ) -> io::Result<()> {
        let life = self.workers.entry((worker, record.incarnation)).or_default();
        let (sequence, clock) = (record.sequence.0, record.clock.0);
        if sequence <= life.last_sequence {
            return Ok(());
        }
        life.last_sequence = sequence;
        if life.pushes.len() == PUSHES_MAX {
            life.pushes.remove(0);
        }
        life.pushes.push(Pushing { sequence, clock, since: at, answers: 0 });
        let open = life.iterations.iter().position(|open| open.clock == clock);
        let open = open.map(|place| life.iterations.remove(place));
        let Some(Iteration { pulled_at, served_at: Some(served_at), held, .. }) = open else { return Ok(()) };
        // What was pulled while it still computed the iteration before is there when that ends, or waited for from then on.
        let from = pulled_at.max(life.computed_at);
        let served_at = served_at.max(from);
        life.computed_at = at;
        let track = self.track(worker, lines)?;
        if clock % self.every == 0 {
            let name = if held { "wait" } else { "pull" };
            span(lines, track, name, (from, served_at), clock)?;
            span(lines, track, "compute", (served_at, at), clock)?;
        }
        Ok(())
    }

    /// With the answer of the last shard, a push is over.
    fn answered<W: Write>(
        &mut self,
        worker: WorkerId,
        at: u64,
        record: &Record,
        lines: &mut Lines<W>,
    ) -> io::Result<()> {
        let shards = self.shards.len();
        let Some(life) = self.workers.get_mut(&(worker, record.incarnation)) else { return Ok(()) };
        let sequence = record.sequence.0;
        let Some(place) = life.pushes.iter().position(|open| open.sequence == sequence) else {
            return Ok(());
        };
        life.pushes[place].answers += 1;
        if life.pushes[place].answers < shards {
            return Ok(());
        }
        let Pushing { clock, since, .. } = life.pushes.remove(place);
        let from = since.max(life.pushed_at);
        life.pushed_at = at;
        let track = self.track(worker, lines)? + 1;
        if clock % self.every == 0 {
            span(lines, track, "push", (from, at), clock)?;
        }
        Ok(())
    }

    fn applied<W: Write>(
        &self,
        index: usize,
        at: u64,
        record: &Record,
        of: Option<(WorkerId, u64)>,
        lines: &mut Lines<W>,
    ) -> io::Result<()> {
        let (version, shard) = (record.version.0, self.shards[index].number);
        if version % self.every != 0 {
            return Ok(());
        }
        let more = of.map_or_else(String::new, |(worker, staleness)| {
            format!(r#","worker":{},"staleness":{staleness}"#, worker.0)
        });
        lines.event(format_args!(
            r#"{{"name":"apply","ph":"i","s":"t","ts":{:.3},"pid":{SHARDS},"tid":{shard},"args":{{"version":{version}{more}}}}}"#,
            microseconds(at)
        ))
    }

    /// Counts the pulls that a shard holds.
    fn hold<W: Write>(
        &mut self,
        index: usize,
        at: u64,
        worker: WorkerId,
        holds: bool,
        lines: &mut Lines<W>,
    ) -> io::Result<()> {
        let shard = &mut self.shards[index];
        let changed = match holds {
            true => shard.held.insert(worker),
            false => shard.held.remove(&worker),
        };
        shard.counted += u64::from(changed);
        if !changed || !shard.counted.is_multiple_of(self.every) {
            return Ok(());
        }
        let (number, count) = (shard.number, shard.held.len());
        lines.event(format_args!(
            r#"{{"name":"held by shard {number}","ph":"C","ts":{:.3},"pid":{SHARDS},"tid":{number},"args":{{"pulls":{count}}}}}"#,
            microseconds(at)
        ))
    }

    /// What happens to a worker, as the first of the shards saw it.
    fn mark<W: Write>(
        &mut self,
        index: usize,
        at: u64,
        worker: WorkerId,
        what: &str,
        lines: &mut Lines<W>,
    ) -> io::Result<()> {
        if index > 0 {
            return Ok(());
        }
        let track = self.track(worker, lines)?;
        lines.event(format_args!(
            r#"{{"name":"{what}","ph":"i","s":"t","ts":{:.3},"pid":{WORKERS},"tid":{track}}}"#,
            microseconds(at)
        ))
    }

    /// The track of a worker's iterations; that of its pushes is the next.
    fn track<W: Write>(&mut self, worker: WorkerId, lines: &mut Lines<W>) -> io::Result<u64> {
        let track = 2 * u64::from(worker.0) + 1;
        if self.named.insert(worker) {
            lines.name(WORKERS, Some(track), &worker.to_string())?;
            lines.name(WORKERS, Some(track + 1), &format!("{worker}, pushes"))?;
        }
        Ok(track)
    }
}

fn span<W: Write>(
    lines: &mut Lines<W>,
    track: u64,
    name: &str,
    (from, to): (u64, u64),
    clock: u64,
) -> io::Result<()> {
    lines.event(format_args!(
        r#"{{"name":"{name}","ph":"X","ts":{:.3},"dur":{:.3},"pid":{WORKERS},"tid":{track},"args":{{"clock":{clock}}}}}"#,
        microseconds(from),
        microseconds(to.saturating_sub(from))
    ))
}
