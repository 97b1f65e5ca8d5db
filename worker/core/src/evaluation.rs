//! Measuring a snapshot: beside the training, or of the final values.

use std::collections::BTreeMap;

use slackline_core::ids::ShardId;
use slackline_core::wire::{Evaluated, Pull, PullKind, Served, ToServer};

use crate::buffers::Buffer;
use crate::effect::Effect;
use crate::iteration::OpenPull;
use crate::worker::Worker;

/// The one evaluation that can be under way.
#[derive(Clone, Debug, Default)]
pub(crate) enum Evaluation {
    /// None is.
    #[default]
    Free,
    /// Its values are pulled.
    Pulling {
        /// Samples that the run had handed out.
        at_samples: u64,
        /// Whether these are the final values.
        last: bool,
        /// The shards' values.
        pulls: BTreeMap<ShardId, OpenPull>,
    },
    /// The shell measures.
    Measuring {
        /// Samples that the run had handed out.
        at_samples: u64,
        /// Whether these are the final values.
        last: bool,
    },
    /// The shell measures, and nobody wants the result: the lease ran out meanwhile.
    Forgotten,
}

impl Evaluation {
    /// Whether another one can begin.
    pub(crate) const fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    /// Whether no result is to come that somebody wants.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, Self::Free | Self::Forgotten)
    }

    /// Whether the worker does nothing else meanwhile.
    pub(crate) const fn is_blocking(&self) -> bool {
        matches!(self, Self::Pulling { last: true, .. } | Self::Measuring { last: true, .. })
    }
}

impl Worker {
    /// Pulls a snapshot of every shard. The caller knows that no evaluation is under way.
    pub(crate) fn begin_evaluation(&mut self, at_samples: u64, last: bool, effects: &mut Vec<Effect>) {
        let pulls = self.shards.keys().map(|shard| (*shard, OpenPull::new(self.now))).collect();
        self.evaluation = Evaluation::Pulling { at_samples, last, pulls };
        let shards: Vec<_> = self.shards.keys().copied().collect();
        self.resume_snapshots(&shards, effects);
        self.measure_if_complete(effects);
    }

    /// Sends the snapshot pulls that these shards have not answered, as far as their servers can be reached.
    pub(crate) fn resume_snapshots(&mut self, shards: &[ShardId], effects: &mut Vec<Effect>) {
        for shard in shards.iter().copied() {
            let Some(server) = self.ready_server_of(shard) else { continue };
            let Evaluation::Pulling { pulls, .. } = &mut self.evaluation else { return };
            let Some(pull) = pulls.get_mut(&shard).filter(|pull| pull.served.is_none()) else { continue };
            self.request_last += 1;
            pull.request = self.request_last;
            let request = pull.request;
            let (buffer, kind) = (Buffer::Evaluation, PullKind::Snapshot);
            let have = self.contents.take(buffer, shard);
            effects.push(Effect::ExpectValues { server, shard, request, buffer });
            self.send(server, ToServer::Pull(Pull { shard, request, have, kind }), effects);
        }
    }

    /// Values have arrived that are not for training.
    pub(crate) fn on_snapshot(
        &mut self,
        shard: ShardId,
        request: u64,
        (served, bytes): (Served, u64),
        effects: &mut Vec<Effect>,
    ) {
        let Evaluation::Pulling { pulls, .. } = &mut self.evaluation else { return };
        if let Some(pull) = pulls.get_mut(&shard)
            && pull.request == request
            && pull.served.is_none()
        {
            (pull.served, pull.answer) = (Some(served), request);
            self.contents.put(Buffer::Evaluation, shard, request);
            self.record.counts().bytes_pulled += bytes;
            self.measure_if_complete(effects);
        }
    }

    fn measure_if_complete(&mut self, effects: &mut Vec<Effect>) {
        if let Evaluation::Pulling { at_samples, last, pulls } = &self.evaluation
            && pulls.values().all(|pull| pull.served.is_some())
        {
            let (at_samples, last) = (*at_samples, *last);
            effects.push(Effect::Evaluate { at_samples, last });
            self.evaluation = Evaluation::Measuring { at_samples, last };
        }
    }

    /// The shell has measured.
    pub(crate) fn on_evaluation(
        &mut self,
        at_samples: u64,
        (loss, accuracy): (f64, f64),
        effects: &mut Vec<Effect>,
    ) {
        match self.evaluation {
            Evaluation::Measuring { at_samples: expected, last } if expected == at_samples => {
                self.evaluation = Evaluation::Free;
                let report = Some(self.record.take(self.now, self.ledger.take()));
                let evaluated = Evaluated { at_samples, loss, accuracy, report };
                if self.is_grouped() {
                    self.note_measured(last);
                    return self.tell_evaluated(evaluated, effects);
                }
                self.evaluated.push((evaluated.clone(), self.coordinator_mark()));
                self.send(self.settings.coordinator, ToServer::Evaluated(evaluated), effects);
            }
            Evaluation::Forgotten => self.evaluation = Evaluation::Free,
            _ => {}
        }
    }

    /// After a loss: a result has no answer, so it is sent again until the next work shows that it was heard.
    pub(crate) fn resume_evaluated(&mut self, effects: &mut Vec<Effect>) {
        let mark = self.coordinator_mark();
        for (_, sent) in &mut self.evaluated {
            *sent = mark;
        }
        for (evaluated, _) in self.evaluated.clone() {
            self.send(self.settings.coordinator, ToServer::Evaluated(evaluated), effects);
        }
    }

    /// The worker joins anew; the coordinator has given the evaluation to another.
    pub(crate) fn forget_evaluation(&mut self) {
        self.evaluation = match self.evaluation {
            Evaluation::Measuring { .. } | Evaluation::Forgotten => Evaluation::Forgotten,
            Evaluation::Free | Evaluation::Pulling { .. } => Evaluation::Free,
        };
    }
}
