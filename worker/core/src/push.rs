//! The push of an iteration, until every shard has answered it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use slackline_core::consistency::DropReason;
use slackline_core::ids::{BatchIndex, Clock, Moment, Sequence, ServerId, ShardId};
use slackline_core::wire::{Fate, Guarded, PushOutcome, Pushed, Report, ToServer, TransferHeader};

use crate::early::Early;
use crate::effect::Effect;
use crate::error::WorkerError;
use crate::iteration::{Gradient, Iteration, Phase};
use crate::notice::Notice;
use crate::worker::Worker;

/// How long a worker pauses whose push came too often. The guards count by seconds, so nothing changes before that; without a pause it
/// would compute and send the same batch again and again.
const PAUSE: Duration = Duration::from_secs(1);

/// Pushes that lack answers. Until they have them, they are sent again after every loss.
#[derive(Clone, Debug)]
pub(crate) struct Pushing {
    pub(crate) sequence: Sequence,
    pub(crate) batch: BatchIndex,
    /// Iterations completed before this one.
    pub(crate) clock: Clock,
    pub(crate) since: Moment,
    /// What is sent to each shard again: the pull that went with it is not. A shard that has answered can lose that answer with its state, and is sent its part again.
    headers: BTreeMap<ShardId, TransferHeader>,
    /// The shards without an answer.
    pub(crate) unanswered: BTreeSet<ShardId>,
    /// The shards whose answer was counted: a second one is not.
    counted: BTreeSet<ShardId>,
    /// Those of the shards with an answer whose values do not have their part.
    unused: Vec<ShardId>,
    /// Those of the shards without an answer that have their piece, where steps are whole.
    pub(crate) staged: BTreeSet<ShardId>,
    /// All shards have had their pieces.
    pub(crate) is_committed: bool,
    /// A shard took it for one out of its window, and was told anew what the worker has been answered.
    was_out_of_window: bool,
    /// Whether there is a gradient; without one the shards are told that there is nothing.
    pub(crate) has_gradient: bool,
    /// Samples and mean loss, to be counted when it is done.
    samples: u32,
    loss: f64,
    /// Microseconds that the gradient took.
    compute_us: u64,
    /// Whether a shard dropped its part, or the worker left it.
    is_dropped: bool,
    /// The shards whose parts left before the rest, which is perhaps not pushed.
    left: BTreeSet<ShardId>,
    /// Whether a shard took its part: then the batch is not done again, or that shard would have it twice.
    is_taken: bool,
}

impl Pushing {
    /// Its gradient is not needed any more. Of a shard that has not answered it is not known whether its values have its part: what is kept
    /// then can lack something, and never has it twice.
    pub(crate) fn release(self) -> Effect {
        Effect::ReleaseGradient { sequence: self.sequence, unused: self.unused }
    }
}

impl Worker {
    /// A gradient of which nothing was sent but the parts that `left` is not needed any more.
    pub(crate) fn release_unsent(&self, sequence: Sequence, left: &BTreeSet<ShardId>) -> Effect {
        let unused = self.shards.keys().filter(|shard| !left.contains(shard));
        Effect::ReleaseGradient { sequence, unused: unused.copied().collect() }
    }

    /// Pushes a computed gradient once the pushes before it are answered and the next work is asked for.
    pub(crate) fn push_if_ready(&mut self, effects: &mut Vec<Effect>) -> Result<bool, WorkerError> {
        let is_settled = self.cycle.pushing.is_none();
        let is_ready = |iteration: &Iteration| {
            iteration.has_asked && matches!(iteration.phase, Phase::Ready(_) | Phase::Left)
        };
        let Some(mut iteration) = self.cycle.iteration.take_if(|iteration| is_settled && is_ready(iteration))
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
            effects.push(self.release_unsent(sequence, &iteration.early.left()));
        }
        let early = std::mem::take(&mut iteration.early);
        self.push(&iteration, &early, (sequence, used), effects);
        for (server, pushed) in early.into_answers() {
            self.on_pushed(server, pushed, effects)?;
        }
        Ok(true)
    }

    fn push(
        &mut self,
        iteration: &Iteration,
        early: &Early,
        (sequence, gradient): (Sequence, Option<Gradient>),
        effects: &mut Vec<Effect>,
    ) {
        let batch = iteration.batch;
        let samples = gradient.map_or(0, |gradient| gradient.samples);
        let clock = self.clock;
        let headers = self.shards.iter().map(|(shard, home)| {
            let header = early.header(*shard).unwrap_or_else(|| {
                let header = self.push_header(iteration, (*shard, home.keys), sequence, samples);
                // One that was final early and could not leave is not told of again.
                let packed = iteration.packed.get(shard).or_else(|| early.part(*shard));
                packed.map_or(header, |packed| header.with_payload(packed.encoding, packed.words))
            });
            (*shard, header)
        });
        let headers: BTreeMap<_, _> = headers.collect();
        let in_turn = headers.keys().filter(|shard| self.is_in_turn(**shard, clock));
        let (left, held): (Vec<&ShardId>, Vec<&ShardId>) =
            in_turn.partition(|shard| early.header(**shard).is_some());
        let counts = self.record.counts();
        counts.pushes_sent += (left.len() + held.len()) as u64;
        if gradient.is_none() {
            // What becomes of the parts that have left is for their answers to say.
            drop_unsent(counts, iteration.is_overtaken, held.len() as u64);
        }
        self.cycle.sequence = sequence;
        self.clock = self.clock.next();
        self.cycle.pushing = Some(Pushing {
            sequence,
            batch,
            clock,
            since: self.now,
            unanswered: headers.keys().copied().collect(),
            headers,
            counted: BTreeSet::new(),
            unused: Vec::new(),
            staged: BTreeSet::new(),
            is_committed: false,
            was_out_of_window: false,
            has_gradient: gradient.is_some(),
            samples,
            loss: gradient.map_or(0.0, |gradient| gradient.loss),
            compute_us: gradient.map_or(0, |gradient| gradient.compute_us),
            is_dropped: iteration.is_overtaken,
            is_taken: false,
            left: early.left(),
        });
        self.ledger.begin_phases();
        let shards: Vec<_> = self.shards.keys().copied().filter(|shard| !early.is_sent(*shard)).collect();
        self.begin_next(effects);
        // A message is there before the push, and takes the place of what would be sent in vain.
        let apart = iteration.awaits_fresher();
        self.send_pushes(&shards, |shard| !apart.contains(&shard), effects);
        self.pull_unasked(effects);
        self.complete_if_answered(effects);
    }

    /// Sends the pushes that these shards have not answered once more, as far as their servers can be reached.
    pub(crate) fn resume_pushes(&mut self, shards: &[ShardId], effects: &mut Vec<Effect>) {
        shards.iter().for_each(|shard| self.reopen_part(*shard, false));
        self.send_pushes(shards, |_| false, effects);
    }

    /// Those that may bring the next pull of their shard with them do: one message less, and the answer comes as soon as it can.
    fn send_pushes(
        &mut self,
        shards: &[ShardId],
        may_bring: impl Fn(ShardId) -> bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(pushing) = &self.cycle.pushing else { return };
        let has_gradient = pushing.has_gradient;
        let open = shards.iter().filter(|shard| pushing.unanswered.contains(shard));
        let headers =
            open.filter_map(|shard| Some((self.ready_server_of(*shard)?, *pushing.headers.get(shard)?)));
        for (server, mut header) in headers.collect::<Vec<_>>() {
            if may_bring(header.shard) {
                (header.reply, header.have) = self.bring_pull(server, header.shard, effects);
            }
            if has_gradient && self.is_in_turn(header.shard, header.clock) {
                self.record.counts().bytes_pushed += header.payload_bytes();
                effects.push(Effect::SendPush { server, header });
            } else {
                let TransferHeader { shard, sequence, clock, reply, have, .. } = header;
                self.send(server, ToServer::PushNothing { shard, sequence, clock, reply, have }, effects);
            }
        }
    }

    /// A shard has perhaps lost what it was sent and what it said.
    pub(crate) fn reopen_push(&mut self, shard: ShardId) {
        self.reopen_part(shard, true);
        if let Some(pushing) = &mut self.cycle.pushing
            && pushing.headers.contains_key(&shard)
        {
            pushing.unanswered.insert(shard);
            pushing.staged.remove(&shard);
        }
    }

    /// The last push that every shard has answered.
    pub(crate) fn answered(&self) -> Sequence {
        let last = self.cycle.sequence;
        if self.cycle.pushing.is_some() { Sequence(last.0.saturating_sub(1)) } else { last }
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
        let clock = self.cycle.pushing.as_ref().map_or(self.clock, |pushing| pushing.clock);
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
        if !self.answers_for(server, shard, "an answer for a shard that does not exist")? {
            return Ok(());
        }
        if pushed.outcome == PushOutcome::Fenced {
            self.fence(server, effects);
            return Ok(());
        }
        if self.keep_answer(server, &pushed) {
            return Ok(());
        }
        self.record.counts().pushes_duplicate += u64::from(pushed.duplicate);
        let is_open = self
            .cycle
            .pushing
            .as_ref()
            .is_some_and(|pushing| pushing.sequence == sequence && pushing.unanswered.contains(&shard));
        if !is_open {
            return Ok(());
        }
        if pushed.outcome == PushOutcome::OutOfWindow {
            return self.on_out_of_window(server, shard, effects);
        }
        self.heard_entered(server);
        self.adopt(server, pushed.clock)?;
        self.ledger.push_held(pushed.held_us, pushed.busy_us);
        if self.cycle.pushing.as_mut().is_some_and(|pushing| pushing.counted.insert(shard)) {
            self.take_outcome(server, pushed, effects)?;
        }
        if let Some(pushing) = &mut self.cycle.pushing {
            pushing.unanswered.remove(&shard);
            pushing.staged.remove(&shard);
        }
        self.commit_if_staged(effects);
        self.complete_if_answered(effects);
        Ok(())
    }

    /// A shard whose state is of before expects another push, unless it hears what the worker has been answered: with a registration. A
    /// second time says that there is another reason.
    fn on_out_of_window(
        &mut self,
        server: ServerId,
        shard: ShardId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let is_first = |pushing: &mut Pushing| !std::mem::replace(&mut pushing.was_out_of_window, true);
        if self.cycle.pushing.as_mut().is_some_and(is_first) {
            self.come_again(server, effects);
            return Ok(());
        }
        Err(WorkerError::PushRefused { server, shard, what: "it is outside the window of pushes" })
    }

    fn take_outcome(
        &mut self,
        server: ServerId,
        pushed: Pushed,
        effects: &mut Vec<Effect>,
    ) -> Result<(), WorkerError> {
        let Pushed { shard, sequence, .. } = pushed;
        let refused = |what| Err(WorkerError::PushRefused { server, shard, what });
        let is_unused = matches!(
            pushed.outcome,
            PushOutcome::Dropped(_) | PushOutcome::NotFinite { .. } | PushOutcome::Guarded(_)
        );
        if let Some(pushing) = self.cycle.pushing.as_mut().filter(|_| is_unused) {
            pushing.unused.push(shard);
        }
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
            PushOutcome::Guarded(guard) => {
                counts.pushes_dropped += 1;
                counts.dropped_guarded += 1;
                self.meet_guard(server, shard, guard, effects);
                if guard == Guarded::Norm && self.settings.stop_on_norm {
                    let worker = self.member.unwrap_or_default().worker;
                    let pushing = self.cycle.pushing.as_ref();
                    let clock = pushing.map_or(self.clock, |pushing| pushing.clock);
                    let sequence = pushed.sequence;
                    return Err(WorkerError::BeyondNorm { worker, clock, sequence, shard });
                }
            }
            PushOutcome::WrongKeys => return refused("its keys are not the shard's"),
            // What had left in vain is counted now; other parts that are nothing were when that was said.
            PushOutcome::Nothing => {
                let left = |pushing: &&Pushing| pushing.left.contains(&shard);
                let left = self.cycle.pushing.as_ref().filter(left);
                if let Some(is_dropped) = left.map(|pushing| pushing.is_dropped) {
                    drop_unsent(counts, is_dropped, 1);
                }
            }
            // These were dealt with before.
            PushOutcome::Fenced | PushOutcome::OutOfWindow => {}
        }
        Ok(())
    }

    /// A guard of a server has left a shard's part out. One beyond the largest norm would be so again; one that came too often is
    /// computed again, like one that came too late, but after a pause.
    fn meet_guard(&mut self, server: ServerId, shard: ShardId, guard: Guarded, effects: &mut Vec<Effect>) {
        let worker = self.member.unwrap_or_default().worker;
        let Some(pushing) = &mut self.cycle.pushing else { return };
        if guard == Guarded::Rate {
            pushing.is_dropped = true;
            self.paused_until = Some(self.now.after(PAUSE));
        }
        let (clock, sequence) = (pushing.clock, pushing.sequence);
        let is_told = self
            .guard_told
            .is_some_and(|(told, when)| told == guard && self.now.since(when) < self.settings.wait_report);
        if is_told {
            return;
        }
        self.guard_told = Some((guard, self.now));
        let keys = self.shards.get(&shard).map(|home| home.keys).unwrap_or_default();
        let name = |key| self.settings.layout.tensor_of(key).map(|tensor| tensor.path.clone());
        let (first, last) = (name(keys.start), name(keys.end().saturating_sub(1)));
        let tensors = (first.unwrap_or_default(), last.unwrap_or_default());
        effects.push(Effect::Notice(Notice::Guarded {
            worker,
            clock,
            sequence,
            shard,
            tensors,
            guard,
            server,
        }));
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
            self.asking.settle(pushing.batch, pushing.clock, Fate::Returned);
        } else {
            let compute_us = pushing.compute_us;
            self.asking.settle(pushing.batch, pushing.clock, Fate::Done { compute_us });
            if pushing.has_gradient && pushing.loss.is_finite() {
                counts.samples += u64::from(pushing.samples);
                counts.loss_sum += pushing.loss * f64::from(pushing.samples);
            }
        }
        if pushing.has_gradient {
            effects.push(pushing.release());
        }
    }
}

/// Counts parts of a gradient that is left, or that is not finite.
fn drop_unsent(counts: &mut Report, is_overtaken: bool, parts: u64) {
    counts.pushes_dropped += parts;
    *if is_overtaken { &mut counts.dropped_abandoned } else { &mut counts.dropped_not_finite } += parts;
}
