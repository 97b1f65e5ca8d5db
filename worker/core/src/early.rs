//! Parts of a gradient that leave while the rest of it is still computed.
//!
//! Backward goes from the last layer to the first, so the parts of the last shards are final long before the gradient is. Each leaves as soon
//! as the push before it is answered (Poseidon's wait-free backpropagation, Zhang et al. 2017). It is the same push as it would be later: what
//! it is sent under does not change any more, and what a shard answers is taken in when the rest is pushed. The part that is final last goes
//! with that, and brings the next pull of its shard with it.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::config::Steps;
use slackline_core::ids::{KeyRange, Sequence, ServerId, ShardId};
use slackline_core::wire::{Pushed, TransferHeader, TransferKind};

use crate::effect::Effect;
use crate::event::Packed;
use crate::iteration::{Iteration, Phase};
use crate::worker::Worker;

/// What has left, or may leave, of a gradient that is not pushed yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Early {
    /// How the parts that are final are written.
    parts: BTreeMap<ShardId, Packed>,
    samples: u32,
    /// What those that have left were sent under.
    headers: BTreeMap<ShardId, TransferHeader>,
    /// Those that have left over the present connection, or were answered over an earlier one.
    sent: BTreeSet<ShardId>,
    answers: BTreeMap<ShardId, (ServerId, Pushed)>,
}

impl Early {
    /// What a part is sent under, if it has ever left.
    pub(crate) fn header(&self, shard: ShardId) -> Option<TransferHeader> {
        self.headers.get(&shard).copied()
    }

    /// How a part is written that was final before the rest, whether it has left or not.
    pub(crate) fn part(&self, shard: ShardId) -> Option<&Packed> {
        self.parts.get(&shard)
    }

    /// The shards that have perhaps taken their part.
    pub(crate) fn left(&self) -> BTreeSet<ShardId> {
        self.headers.keys().copied().collect()
    }

    /// Whether a part need not be sent with the rest.
    pub(crate) fn is_sent(&self, shard: ShardId) -> bool {
        self.sent.contains(&shard)
    }

    /// What the shards have answered meanwhile.
    pub(crate) fn into_answers(self) -> impl Iterator<Item = (ServerId, Pushed)> {
        self.answers.into_values()
    }
}

impl Worker {
    /// A part of the gradient that is computed is final.
    pub(crate) fn on_part(&mut self, sequence: Sequence, part: Packed, samples: u32) {
        let expected = self.cycle.sequence.next();
        if let Some(iteration) = &mut self.cycle.iteration
            && let Phase::Computing { .. } = iteration.phase
            && sequence == expected
            && iteration.pulls.get(&part.shard).is_some_and(|pull| pull.served.is_some())
        {
            iteration.early.samples = samples;
            iteration.early.parts.insert(part.shard, part);
        }
    }

    /// Sends the parts that are final, as far as their servers can be reached, once the pushes before them are answered: until then the
    /// worker can be moved up. With whole steps none leaves: shards would keep it aside for nothing.
    pub(crate) fn push_early(&mut self, effects: &mut Vec<Effect>) -> bool {
        let may_leave = |iteration: &&Iteration| {
            matches!(iteration.phase, Phase::Computing { .. }) && !iteration.is_overtaken
        };
        let is_free = self.cycle.pushing.is_none() && self.settings.steps == Steps::Parts;
        let Some(iteration) = self.cycle.iteration.as_ref().filter(may_leave).filter(|_| is_free) else {
            return false;
        };
        let early = &iteration.early;
        let unsent = early.parts.values().filter(|part| !early.is_sent(part.shard));
        let unsent = unsent.filter(|part| self.is_in_turn(part.shard, self.clock));
        let unsent: Vec<_> =
            unsent.filter_map(|part| Some((self.ready_server_of(part.shard)?, *part))).collect();
        for (server, part) in &unsent {
            let Some(header) = self.early_header(part) else { continue };
            self.record.counts().bytes_pushed += header.payload_bytes();
            if let Some(iteration) = &mut self.cycle.iteration {
                iteration.early.headers.insert(part.shard, header);
                iteration.early.sent.insert(part.shard);
            }
            effects.push(Effect::SendPush { server: *server, header });
        }
        !unsent.is_empty()
    }

    /// What a part is sent under: the same as before, where it was sent before.
    fn early_header(&self, part: &Packed) -> Option<TransferHeader> {
        let iteration = self.cycle.iteration.as_ref()?;
        let home = self.shards.get(&part.shard)?;
        let sequence = self.cycle.sequence.next();
        iteration.early.header(part.shard).or_else(|| {
            let header =
                self.push_header(iteration, (part.shard, home.keys), sequence, iteration.early.samples);
            Some(header.with_payload(part.encoding, part.words))
        })
    }

    /// What the part of an iteration's gradient for a shard is sent under, where it goes as plain values.
    pub(crate) fn push_header(
        &self,
        iteration: &Iteration,
        (shard, keys): (ShardId, KeyRange),
        sequence: Sequence,
        samples: u32,
    ) -> TransferHeader {
        let mut header = self.header(TransferKind::Push, shard, keys);
        header.sequence = sequence;
        header.clock = self.clock;
        header.version = iteration.version_of(shard);
        header.batch = iteration.batch;
        header.samples = samples;
        header
    }

    /// Keeps the answer to a part until the rest is pushed; whether it is one.
    pub(crate) fn keep_answer(&mut self, server: ServerId, pushed: &Pushed) -> bool {
        let expected = self.cycle.sequence.next();
        let Some(iteration) = self.cycle.iteration.as_mut().filter(|_| pushed.sequence == expected) else {
            return false;
        };
        let is_early = iteration.early.is_sent(pushed.shard);
        if is_early {
            // Nobody has waited for it: the worker computed.
            let answer = Pushed { held_us: 0, busy_us: 0, ..*pushed };
            iteration.early.answers.insert(pushed.shard, (server, answer));
        }
        is_early
    }

    /// The server of a shard has not what was on its way there; where the shard's state may be lost, nor what was answered.
    pub(crate) fn reopen_part(&mut self, shard: ShardId, is_lost: bool) {
        if let Some(iteration) = &mut self.cycle.iteration {
            let early = &mut iteration.early;
            if is_lost {
                early.answers.remove(&shard);
            }
            if !early.answers.contains_key(&shard) {
                early.sent.remove(&shard);
            }
        }
    }
}
