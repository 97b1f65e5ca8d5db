//! Whole steps: a shard keeps its piece of a step aside until every shard has its own.
//!
//! ```text
//! push to all shards -> Staged from each (or its answer) -> Commit to all that have not answered -> Pushed from each
//! ```
//!
//! So if any shard has heard `Commit` for a step, every shard has its piece. The word is said again whenever a shard says that it has a
//! piece of a step whose word is out: it can have been lost, and a shard whose state was restored has not heard it.

use std::collections::BTreeSet;

use slackline_core::config::Steps;
use slackline_core::ids::{Sequence, ServerId, ShardId};
use slackline_core::wire::ToServer;

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::worker::Worker;

impl Worker {
    /// A shard has its piece of a step.
    pub(crate) fn on_staged(
        &mut self,
        server: ServerId,
        shard: ShardId,
        sequence: Sequence,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let what = "a piece of a step that waits for others";
        if self.settings.steps != Steps::Whole {
            return Err(WorkerError::OutOfPlace { server, what });
        }
        if !self.answers_for(server, shard, what)? {
            return Ok(());
        }
        let Some(pushing) = self.cycle.pushing.as_mut().filter(|pushing| pushing.sequence == sequence) else {
            return Ok(());
        };
        if !pushing.unanswered.contains(&shard) {
            return Ok(());
        }
        let is_news = pushing.staged.insert(shard);
        if pushing.is_committed {
            self.send(server, ToServer::Commit { sequence }, effects);
        } else if is_news {
            self.heard_entered(server);
            self.commit_if_staged(effects);
        }
        Ok(())
    }

    /// Says that the step is whole, once every shard has its piece or has answered.
    pub(crate) fn commit_if_staged(&mut self, effects: &mut Vec<Effect>) {
        if self.settings.steps != Steps::Whole {
            return;
        }
        let Some(pushing) = &mut self.cycle.pushing else { return };
        if pushing.is_committed || !pushing.unanswered.is_subset(&pushing.staged) {
            return;
        }
        pushing.is_committed = true;
        let sequence = pushing.sequence;
        let waiting = pushing.unanswered.iter().filter_map(|shard| self.shards.get(shard));
        let servers: BTreeSet<ServerId> = waiting.map(|home| home.server).collect();
        for server in servers {
            self.send(server, ToServer::Commit { sequence }, effects);
        }
    }

    /// Repeats the word to a server that has perhaps not heard it.
    pub(crate) fn resume_commit(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        let Some(pushing) = self.cycle.pushing.as_ref().filter(|pushing| pushing.is_committed) else {
            return;
        };
        let sequence = pushing.sequence;
        let mut waiting = pushing.unanswered.iter().filter_map(|shard| self.shards.get(shard));
        if waiting.any(|home| home.server == server) {
            self.send(server, ToServer::Commit { sequence }, effects);
        }
    }

    /// Whether a server speaks for a shard. What others say comes late, from where the shard was before; or early, from where it has moved
    /// to before the worker has heard so, and then it is said again.
    pub(crate) fn answers_for(
        &self,
        server: ServerId,
        shard: ShardId,
        what: &'static str,
    ) -> Result<bool, WorkerError> {
        match self.shards.get(&shard) {
            Some(home) => Ok(home.server == server),
            None => Err(WorkerError::OutOfPlace { server, what }),
        }
    }
}
