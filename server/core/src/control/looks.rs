//! What others may know of control: who a session speaks for, where the run is, and how it ended.

use slackline_core::ids::{Incarnation, Moment, SessionId, WorkerId};
use slackline_core::wire::{Phase, RefusedCounts, Text};

use super::coordinator::Coordinator;
use super::{Cluster, Control, End};
use crate::record::Record;

impl Control {
    /// The worker that a session speaks for.
    #[must_use]
    pub fn worker_of(&self, session: SessionId) -> Option<(WorkerId, Incarnation)> {
        self.sessions.get(&session)?.worker
    }

    /// The record of the run; only on server 0, once the first worker has joined.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.coordinator.as_ref()?.record()
    }

    /// Batches that were handed out again, after a crash or a drop.
    #[must_use]
    pub fn batches_repeated(&self) -> u64 {
        self.coordinator.as_ref().map_or(0, Coordinator::batches_repeated)
    }

    /// Peers and messages turned away so far.
    #[must_use]
    pub const fn refused(&self) -> RefusedCounts {
        self.refused
    }

    /// Whether the run has begun.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        self.started
    }

    /// The name of the run: drawn when it began first, kept in the coordinator's state and in checkpoints. Only on server 0, where there are
    /// shards.
    #[must_use]
    pub fn run(&self) -> Option<u64> {
        self.cluster.as_ref().map(Cluster::run)
    }

    /// The checkpoint that the run went on from when it began first.
    #[must_use]
    pub fn resumed(&self) -> Option<u64> {
        self.cluster.as_ref()?.resumed()
    }

    /// How it ended, if it did.
    #[must_use]
    pub const fn ended(&self) -> Option<&End> {
        self.ended.as_ref()
    }

    /// Where the run is.
    #[must_use]
    pub fn phase(&self, now: Moment) -> Phase {
        match &self.ended {
            Some(End::Failed(text) | End::Refused(text)) => Phase::Failed(Text::new(text.clone())),
            Some(_) => Phase::Finished,
            None if !self.started => Phase::Waiting {
                here: self.members.registered(),
                wanted: self.settings.workers,
                since_ms: now.since(self.began).as_millis() as u64,
            },
            None if self.is_left() => Phase::Left(self.final_values()),
            None => Phase::Running,
        }
    }
}
