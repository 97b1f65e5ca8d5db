//! What the invariants see of a run: the harness tells the truth about who sent what, whatever the cores make of it.

use std::collections::BTreeMap;
use std::fmt;

use slackline_core::ids::{Clock, Incarnation, Sequence, ShardId, Version, WorkerId};
use slackline_core::wire::{Mark, PullKind, Pushed};
use slackline_server_core::assign::Position;
use slackline_server_core::{Shard, ShardEvent};

use super::scenario::Scenario;

/// The true name of a push: one iteration of one incarnation of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PushKey {
    pub(crate) process: usize,
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: Incarnation,
    pub(crate) sequence: Sequence,
}

/// Something that the invariants can judge.
pub(crate) enum Sight<'a> {
    /// A shard is about to take an event; a push with its true name and the gradient that the worker sent.
    Before { shard: &'a Shard, event: &'a ShardEvent, origin: Option<PushKey>, sent: Option<&'a [f32]> },
    /// A shard has answered the push that it knows under this worker, incarnation and `pushed.sequence`.
    Answered { shard: &'a Shard, speaker: (WorkerId, Incarnation), pushed: &'a Pushed },
    /// A shard serves a pull; `asked` is what the worker truly asked.
    Served { shard: &'a Shard, reader: (WorkerId, Incarnation), asked: PullKind, values: &'a [f32] },
    /// A shard has done with an event.
    After { shard: &'a Shard },
    /// A worker is told what became of a push.
    Told { key: PushKey, pushed: &'a Pushed },
    /// A worker computes a gradient on values that were pulled so, each with the clock that it computes at.
    Computes { process: usize, sequence: Sequence, asked: &'a BTreeMap<ShardId, (Option<PullKind>, Clock)> },
    /// A worker sends a gradient that was computed on values of `computed_on` and says it was `claimed`.
    Sent { key: PushKey, computed_on: Version, claimed: Version },
    /// A worker keeps so many gradients.
    Keeps { process: usize, gradients: usize },
    /// A worker measures what it takes for the final values.
    Measures { values: &'a [f32] },
    /// A shard goes on from a checkpoint: what came after its cut is lost, and all of workers that came after it was made, of whom `upto` was
    /// the last before that.
    Restored { shard: &'a Shard, mark: &'a Mark, upto: Incarnation },
    /// Every shard went back to one checkpoint, and so did the coordinator's data: shards and data are one cut again.
    WentBack { checkpoint: u64 },
    /// A shard begins as the former life of the run has left it: what that life did is in it, up to the cut of its last checkpoint. What
    /// waited there can have been given up.
    Resumed { shard: &'a Shard, position: &'a Position, is_lossy: bool },
    /// A shard's history was cut where the copy that took over ends; where it is kept, nothing that was acknowledged came after.
    CutBack { shard: ShardId, is_kept: bool },
    /// A worker has left a gradient of which some shards were sent their parts before: what they make of those stands.
    Left { key: PushKey },
    /// Somebody died or was fenced, or a server lost something: laws about undisturbed runs are void.
    Disturbed,
    /// A worker came after the beginning, or was told to go once: laws about who takes part are void, those about what is done are not.
    Changed,
    /// The run is over; the coordinator's record counts so many samples.
    Over { scenario: &'a Scenario, shards: &'a [&'a Shard], recorded: u64 },
}

/// A law that was broken.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) law: &'static str,
    pub(crate) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.text)
    }
}

/// What a law says.
pub(crate) type Verdict = Result<(), Violation>;

/// Fails with a text unless something holds.
pub(crate) fn holds(law: &'static str, condition: bool, text: impl FnOnce() -> String) -> Verdict {
    if condition { Ok(()) } else { Err(Violation { law, text: text() }) }
}

/// Something that must be so in every run.
pub(crate) trait Law {
    /// Judges one sight.
    fn see(&mut self, sight: &Sight<'_>) -> Verdict;

    /// Forgets what it saw of a shard: another copy has taken over, and what is left of the shard's history comes again.
    fn forget(&mut self, _shard: ShardId) {}
}
