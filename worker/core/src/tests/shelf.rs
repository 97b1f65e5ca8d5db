//! What lies in the buffers of a shell that does as it is told: whatever is said of that must be so.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::ids::ShardId;
use slackline_core::wire::{Pull, ToServer, TransferHeader};

use crate::buffers::Buffer;
use crate::worker::Worker;
use crate::{Effect, Event};

/// What an answer is for, of which one is awaited at a time for each shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    Training,
    Evaluation,
}

impl Purpose {
    fn of(buffer: Buffer) -> Self {
        if buffer == Buffer::Evaluation { Self::Evaluation } else { Self::Training }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    /// The number of the pull whose whole answer lies there; none where it is or was read into and that did not end.
    contents: BTreeMap<(Buffer, ShardId), Option<u64>>,
    awaited: BTreeMap<(Purpose, ShardId), (u64, Buffer)>,
    /// What lay where the answer to a pull goes.
    before: BTreeMap<u64, Option<u64>>,
    /// Fresher values beside the buffers: those that are awaited or have come, and those that are to be used.
    fresher: BTreeMap<ShardId, u64>,
    adopted: BTreeMap<ShardId, u64>,
    /// Whether the evaluation buffer is lent, and what of the others is.
    is_evaluated: bool,
    lent: BTreeSet<(Buffer, ShardId)>,
    /// The buffer that was computed on last.
    computed: Buffer,
}

impl Shelf {
    pub(crate) fn take_in(&mut self, event: &Event) {
        match event {
            Event::ValuesArrived { shard, request, .. } => {
                for purpose in [Purpose::Training, Purpose::Evaluation] {
                    if let Some((awaited, buffer)) = self.awaited.get(&(purpose, *shard))
                        && awaited == request
                    {
                        self.contents.insert((*buffer, *shard), Some(*request));
                    }
                }
            }
            Event::GradientReady { .. } => self.lent.clear(),
            Event::EvaluationReady { .. } => self.is_evaluated = false,
            _ => {}
        }
    }

    pub(crate) fn perform(&mut self, worker: &Worker, effect: &Effect) {
        match effect {
            Effect::ExpectValues { shard, request, buffer, .. } => {
                let is_lent = self.lent.contains(&(*buffer, *shard));
                assert!(!is_lent, "{shard} of {buffer:?} is being computed on");
                assert!(!self.is_evaluated || *buffer != Buffer::Evaluation, "it is being measured");
                let before = self.contents.insert((*buffer, *shard), None).flatten();
                self.before.insert(*request, before);
                self.awaited.insert((Purpose::of(*buffer), *shard), (*request, *buffer));
                if Purpose::of(*buffer) == Purpose::Training {
                    self.fresher.remove(shard);
                    self.adopted.remove(shard);
                }
            }
            Effect::ExpectFresher { shard, request, .. } => {
                self.fresher.insert(*shard, *request);
            }
            Effect::AdoptFresher { shard } => {
                self.adopted.extend(self.fresher.remove(shard).map(|request| (*shard, request)));
            }
            Effect::Compute { buffer, missing, .. } => {
                for (shard, request) in std::mem::take(&mut self.adopted) {
                    self.contents.insert((*buffer, shard), Some(request));
                }
                let Some(iteration) = &worker.cycle.iteration else { panic!("nothing is to be computed") };
                self.computed = *buffer;
                let here = iteration.pulls.keys().filter(|shard| !missing.contains(shard));
                here.for_each(|shard| self.lend(*shard));
            }
            Effect::Deliver { shard } => self.lend(*shard),
            Effect::Evaluate { .. } => self.is_evaluated = true,
            Effect::Send { message: ToServer::Pull(Pull { request, have, .. }), .. } => {
                self.names(*request, *have);
            }
            Effect::Send { message: ToServer::PushNothing { reply, have, .. }, .. }
            | Effect::SendPush { header: TransferHeader { reply, have, .. }, .. }
                if *reply > 0 =>
            {
                self.names(*reply, *have);
            }
            _ => {}
        }
    }

    fn lend(&mut self, shard: ShardId) {
        let is_whole = self.contents.get(&(self.computed, shard)).copied().flatten().is_some();
        assert!(is_whole, "{shard} is computed on and is not all there");
        assert!(self.lent.insert((self.computed, shard)), "{shard} is there twice");
    }

    fn names(&mut self, request: u64, have: u64) {
        let before = self.before.get(&request).copied().flatten();
        assert!(have == 0 || before == Some(have), "pull {request} names {have}, and there lies {before:?}");
    }
}

/// An effect without the buffers that it names, which most tests are not about.
pub(crate) fn unnamed(effect: &mut Effect) {
    match effect {
        Effect::ExpectValues { buffer, .. } if *buffer == Buffer::Second => *buffer = Buffer::First,
        Effect::Compute { buffer, .. } => *buffer = Buffer::First,
        Effect::Send {
            message: ToServer::Pull(Pull { have, .. }) | ToServer::PushNothing { have, .. },
            ..
        }
        | Effect::SendPush { header: TransferHeader { have, .. }, .. } => *have = 0,
        _ => {}
    }
}
