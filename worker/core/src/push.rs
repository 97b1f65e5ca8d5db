//! The push of an iteration, until every shard has answered it.

use std::collections::BTreeMap;

use slackline_core::consistency::DropReason;
use slackline_core::ids::{BatchIndex, Moment, Sequence, ServerId, ShardId};
use slackline_core::wire::{PushOutcome, Pushed, ToServer, TransferHeader, TransferKind};

use crate::effect::Effect;
use crate::error::WorkerError;
use crate::iteration::{Gradient, Iteration, Phase};
use crate::notice::Notice;
use crate::worker::Worker;

/// Pushes that lack answers. Until they have them, they are sent again after every loss.
#[derive(Clone, Debug)]
pub(crate) struct Pushing {
    pub(crate) sequence: Sequence,
    pub(crate) batch: BatchIndex,
    pub(crate) since: Moment,
    /// The shards without an answer, with what is sent to them.
    pub(crate) unanswered: BTreeMap<ShardId, TransferHeader>,
    /// Whether there is a gradient; without one the shards are told that there is nothing.
    pub(crate) has_gradient: bool,
    /// Samples and mean loss, to be counted when it is done.
    samples: u32,
    loss: f64,
    /// Microseconds that the gradient took.
    compute_us: u64,
    /// Whether a shard dropped its part, or the worker left it.
    is_dropped: bool,
    /// Whether a shard took its part: then the batch is not done again, or that shard would have it twice.
    is_taken: bool,
}

impl Worker {
    /// Pushes a computed gradient once the pushes before it are answered and the next work is asked for.
    pub(crate) fn push_if_ready(&mut self, effects: &mut Vec<Effect>) -> Result<bool, WorkerError> {
        let is_settled = self.cycle.pushing.is_none();
        let is_ready = |iteration: &Iteration| {
            iteration.has_asked && matches!(iteration.phase, Phase::Ready(_) | Phase::Left)
        };
        let Some(iteration) = self.cycle.iteration.take_if(|iteration| is_settled && is_ready(iteration))
        else {
            return Ok(false);
        };
        let sequence = self.cycle.sequence.next();
        let gradient = match iteration.phase {
            Phase::Ready(gradient) => Some(gradient),
            _ => None,
        };
        let bad_key = gradient.and_then(|gradient| gradient.bad_key).filter(|_| !iteration.is_overtaken);
        if let Some(key) = bad_key {
            self.meet_bad_gradient(sequence, key, None, effects)?;
        }
        let used = gradient.filter(|_| bad_key.is_none() && !iteration.is_overtaken);
        if gradient.is_some() && used.is_none() {
            effects.push(Effect::ReleaseGradient { sequence });
        }
        self.push(&iteration, sequence, used, effects);
        Ok(true)
    }

    fn push(
        &mut self,
        iteration: &Iteration,
        sequence: Sequence,
        gradient: Option<Gradient>,
        effects: &mut Vec<Effect>,
    ) {
        let batch = iteration.batch;
        let samples = gradient.map_or(0, |gradient| gradient.samples);
        let headers = self.shards.iter().map(|(shard, (_, keys))| {
            let mut header = self.header(TransferKind::Push, *shard, *keys);
            header.sequence = sequence;
            header.clock = self.clock;
            header.version = iteration.version_of(*shard);
            header.batch = batch;
            header.samples = samples;
            (*shard, header)
        });
        let unanswered: BTreeMap<_, _> = headers.collect();
        let in_turn = unanswered.keys().filter(|shard| self.is_in_turn(**shard, self.clock)).count() as u64;
        let counts = self.record.counts();
        counts.pushes_sent += in_turn;
        if gradient.is_none() {
            counts.pushes_dropped += in_turn;
            let reason = if iteration.is_overtaken {
                &mut counts.dropped_abandoned
            } else {
                &mut counts.dropped_not_finite
            };
            *reason += in_turn;
        }
        self.cycle.sequence = sequence;
        self.clock = self.clock.next();
        self.cycle.pushing = Some(Pushing {
            sequence,
            batch,
            since: self.now,
            unanswered,
            has_gradient: gradient.is_some(),
            samples,
            loss: gradient.map_or(0.0, |gradient| gradient.loss),
            compute_us: gradient.map_or(0, |gradient| gradient.compute_us),
            is_dropped: iteration.is_overtaken,
            is_taken: false,
        });
        self.ledger.begin_phases();
        for server in self.servers() {
            self.resume_pushes(server, effects);
        }
        self.complete_if_answered(effects);
    }

    /// Sends the pushes that one server has not answered, if it is registered.
    pub(crate) fn resume_pushes(&mut self, server: ServerId, effects: &mut Vec<Effect>) {
        if !self.is_registered(server) {
            return;
        }
        let Some(pushing) = &self.cycle.pushing else { return };
        let has_gradient = pushing.has_gradient;
        let here = |shard: &ShardId| self.shards.get(shard).is_some_and(|(owner, _)| *owner == server);
        let headers: Vec<_> =
            pushing.unanswered.iter().filter(|(shard, _)| here(shard)).map(|(_, header)| *header).collect();
        for header in headers {
            if has_gradient && self.is_in_turn(header.shard, header.clock) {
                self.record.counts().bytes_pushed += header.payload_bytes();
                effects.push(Effect::SendPush { server, header });
            } else {
                let TransferHeader { shard, sequence, clock, .. } = header;
                self.send(server, ToServer::PushNothing { shard, sequence, clock }, effects);
            }
        }
    }

    /// A gradient that is not finite, found here or by a server: named, and an error if the run is to stop
    /// for it.
    fn meet_bad_gradient(
        &mut self,
        sequence: Sequence,
        key: u64,
        found_by: Option<ServerId>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let worker = self.member.unwrap_or_default().worker;
        let pushed = self.cycle.pushing.as_ref().and_then(|pushing| pushing.unanswered.values().next());
        let clock = pushed.map_or(self.clock, |header| header.clock);
        let tensor = self.settings.layout.tensor_of(key);
        let tensor = tensor.map_or_else(|| "unknown".to_owned(), |tensor| tensor.path.clone());
        if self.settings.stop_on_bad_gradient {
            return Err(WorkerError::BadGradient { worker, clock, key, tensor });
        }
        effects.push(Effect::Notice(Notice::BadGradient { worker, clock, sequence, key, tensor, found_by }));
        Ok(())
    }

    /// A push was answered.
    pub(crate) fn on_pushed(
        &mut self,
        server: ServerId,
        pushed: Pushed,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let Pushed { shard, sequence, .. } = pushed;
        if self.shards.get(&shard).is_none_or(|(owner, _)| *owner != server) {
            return Err(WorkerError::OutOfPlace { server, what: "an answer for a shard of another server" });
        }
        if pushed.outcome == PushOutcome::Fenced {
            self.fence(server, effects);
            return Ok(());
        }
        self.record.counts().pushes_duplicate += u64::from(pushed.duplicate);
        let is_open =
            self.cycle.pushing.as_ref().is_some_and(|pushing| {
                pushing.sequence == sequence && pushing.unanswered.contains_key(&shard)
            });
        if !is_open {
            return Ok(());
        }
        self.heard_entered(server);
        self.adopt(server, pushed.clock)?;
        self.ledger.push_held(pushed.held_us);
        self.take_outcome(server, pushed, effects)?;
        if let Some(pushing) = &mut self.cycle.pushing {
            pushing.unanswered.remove(&shard);
        }
        self.complete_if_answered(effects);
        Ok(())
    }

    fn take_outcome(
        &mut self,
        server: ServerId,
        pushed: Pushed,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let Pushed { shard, sequence, .. } = pushed;
        let refused = |what| Err(WorkerError::PushRefused { server, shard, what });
        let counts = self.record.counts();
        match pushed.outcome {
            PushOutcome::Applied { staleness, down_weighted, .. }
            | PushOutcome::Gathered { staleness, down_weighted } => {
                counts.pushes_applied += 1;
                counts.pushes_down_weighted += u64::from(down_weighted);
                counts.version_staleness.record(staleness);
                if let Some(pushing) = &mut self.cycle.pushing {
                    pushing.is_taken = true;
                }
            }
            PushOutcome::Dropped(reason) => {
                counts.pushes_dropped += 1;
                *match reason {
                    DropReason::LateClock { .. } => &mut counts.dropped_late,
                    DropReason::TooStale { .. } => &mut counts.dropped_stale,
                } += 1;
                if let Some(pushing) = &mut self.cycle.pushing {
                    pushing.is_dropped = true;
                }
            }
            PushOutcome::NotFinite { key } => {
                counts.pushes_dropped += 1;
                counts.dropped_not_finite += 1;
                self.meet_bad_gradient(sequence, key, Some(server), effects)?;
            }
            PushOutcome::OutOfWindow => return refused("it is outside the window of pushes"),
            PushOutcome::WrongKeys => return refused("its keys are not the shard's"),
            // What has nothing was counted when it was sent; the fence was dealt with before.
            PushOutcome::Nothing | PushOutcome::Fenced => {}
        }
        Ok(())
    }

    /// When every shard has answered, the iteration is over and its batch is to be reported.
    fn complete_if_answered(&mut self, effects: &mut Vec<Effect>) {
        let pushing = match self.cycle.pushing.take() {
            Some(pushing) if pushing.unanswered.is_empty() => pushing,
            unfinished => {
                self.cycle.pushing = unfinished;
                return;
            }
        };
        let counts = self.record.counts();
        counts.iterations += 1;
        if pushing.is_dropped && !pushing.is_taken {
            self.asking.returned = Some(pushing.batch);
        } else {
            self.asking.done = Some(pushing.batch);
            self.asking.compute_us = pushing.compute_us;
            if pushing.has_gradient && pushing.loss.is_finite() {
                counts.samples += u64::from(pushing.samples);
                counts.loss_sum += pushing.loss * f64::from(pushing.samples);
            }
        }
        if pushing.has_gradient {
            effects.push(Effect::ReleaseGradient { sequence: pushing.sequence });
        }
    }
}
