//! One iteration: pull every shard, compute, hand over to the push.

use std::collections::{BTreeMap, BTreeSet};

use slackline_core::ids::{BatchIndex, Clock, Moment, Sequence, ServerId, ShardId, Version};
use slackline_core::wire::{Pull, PullKind, Served, ToServer, Work};

use crate::buffers::Buffer;
use crate::early::Early;
use crate::effect::Effect;
use crate::error::WorkerError;
use crate::evaluation::Evaluation;
use crate::event::Packed;
use crate::forgotten::Forgotten;
use crate::ledger::Category;
use crate::prefetch::Prefetch;
use crate::push::Pushing;
use crate::work::Queued;
use crate::worker::Worker;

/// A pull, from its request to its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenPull {
    /// Its number; zero while its server is not registered.
    pub(crate) request: u64,
    /// When it was first wanted.
    pub(crate) since: Moment,
    /// The facts of the answer.
    pub(crate) served: Option<Served>,
    /// The number of the pull that the values are of: its own, or that of one for fresher values.
    pub(crate) answer: u64,
    /// The number of a pull for fresher values, while one is under way.
    pub(crate) fresher: Option<u64>,
}

impl OpenPull {
    pub(crate) const fn new(since: Moment) -> Self {
        Self { request: 0, since, served: None, answer: 0, fresher: None }
    }
}

/// A gradient that is computed and not pushed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gradient {
    /// Microseconds that it took.
    pub(crate) compute_us: u64,
    pub(crate) bad_key: Option<u64>,
    pub(crate) loss: f64,
    pub(crate) samples: u32,
}

/// How far an iteration has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    /// Values or the batch are missing.
    Pulling,
    /// The shell computes.
    Computing {
        /// When it began.
        since: Moment,
        /// Iterations completed then: answers to the push before can move the worker up meanwhile.
        clock: Clock,
    },
    /// The pushes before it still lack an answer.
    Ready(Gradient),
    /// Its clock was closed before it was computed: the shards are told that there is nothing.
    Left,
}

/// The iteration that is not pushed yet.
#[derive(Clone, Debug)]
pub(crate) struct Iteration {
    pub(crate) batch: BatchIndex,
    /// When it began.
    pub(crate) since: Moment,
    pub(crate) loaded: bool,
    pub(crate) pulls: BTreeMap<ShardId, OpenPull>,
    /// They were made while the iteration before was computed.
    pub(crate) is_prefetched: bool,
    pub(crate) phase: Phase,
    /// Whether the work after this one has been asked for.
    pub(crate) has_asked: bool,
    /// Its clock was closed without it.
    pub(crate) is_overtaken: bool,
    /// How the parts of its gradient are written that are not plain.
    pub(crate) packed: BTreeMap<ShardId, Packed>,
    /// What of its gradient need not wait for the rest.
    pub(crate) early: Early,
    /// The samples before its batch, where values are to be evaluated that have learned from those.
    pub(crate) evaluate: Option<u64>,
}

impl Iteration {
    pub(crate) fn has_values(&self) -> bool {
        self.pulls.values().all(|pull| pull.served.is_some())
    }

    /// The shards that were asked for what comes after the values that were computed on, and have not sent it.
    pub(crate) fn awaits_fresher(&self) -> BTreeSet<ShardId> {
        let asked = self.pulls.iter().filter(|(_, pull)| pull.fresher.is_some());
        asked.map(|(shard, _)| *shard).collect()
    }

    pub(crate) fn version_of(&self, shard: ShardId) -> Version {
        self.pulls.get(&shard).and_then(|pull| pull.served).map_or(Version(0), |served| served.version)
    }
}

/// The iteration under way and the pushes of the one before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cycle {
    pub(crate) iteration: Option<Iteration>,
    /// What is pulled for the iteration after it.
    pub(crate) prefetch: Option<Prefetch>,
    pub(crate) pushing: Option<Pushing>,
    /// What is computed on.
    pub(crate) buffer: Buffer,
    /// Number of the last push.
    pub(crate) sequence: Sequence,
    /// Number of the last push before the worker entered the clock tables.
    pub(crate) entered_after: Sequence,
    /// The version of each shard that the worker computed on last.
    pub(crate) adopted: BTreeMap<ShardId, Version>,
    /// A gradient that was being computed when the lease ran out. Its buffers are in use until it is ready.
    pub(crate) forgotten: Option<Forgotten>,
}

impl Cycle {
    /// Whether nothing is under way.
    pub(crate) const fn is_idle(&self) -> bool {
        self.iteration.is_none() && self.pushing.is_none()
    }

    /// Whether the push under way is the first since the worker entered the clock tables.
    pub(crate) fn is_first_push(&self) -> bool {
        self.pushing.as_ref().is_some_and(|pushing| pushing.sequence == self.entered_after.next())
    }

    /// Whether a batch is under way.
    pub(crate) fn holds(&self, batch: BatchIndex) -> bool {
        self.iteration.as_ref().is_some_and(|iteration| iteration.batch == batch)
            || self.pushing.as_ref().is_some_and(|pushing| pushing.batch == batch)
    }

    /// The gradient that the shell computes, with the time it began at. One that lacks values waits for those.
    pub(crate) fn computing(&self) -> Option<(BatchIndex, Moment)> {
        match &self.iteration {
            Some(iteration) if !iteration.has_values() => None,
            Some(Iteration { batch, phase: Phase::Computing { since, .. }, .. }) => Some((*batch, *since)),
            _ => self.forgotten.as_ref().map(|forgotten| (forgotten.batch, forgotten.since)),
        }
    }

    /// What the worker's time is spent on, evaluations aside.
    pub(crate) fn category(&self) -> Category {
        match (&self.iteration, &self.pushing) {
            (Some(Iteration { phase: Phase::Computing { .. }, .. }), _) => Category::Compute,
            (Some(Iteration { phase: Phase::Ready(_) | Phase::Left, .. }), _) => Category::Push,
            (Some(iteration), _) if iteration.has_values() => Category::Data,
            // The answers to the push are not what it waits for: with the values it goes on.
            (Some(Iteration { is_prefetched: true, .. }), _) => Category::Pull,
            (_, Some(_)) => Category::Push,
            (Some(_), None) => Category::Pull,
            (None, None) => Category::Data,
        }
    }
}

impl Worker {
    /// Takes every step that is possible now. Each step leaves a state that the same step does not fit, so
    /// this ends.
    pub(crate) fn step(&mut self, effects: &mut Vec<Effect>) -> Result<(), WorkerError> {
        if self.is_grouped() {
            self.advance_group(effects);
            return Ok(());
        }
        while self.leaving.is_none()
            && self.stopping.is_none()
            && (self.begin_compute(effects)
                || self.ask_ahead(effects)
                || self.prefetch(effects)
                || self.push_early(effects)
                || self.push_if_ready(effects)?
                || self.begin_work(effects)?)
        {}
        Ok(())
    }

    /// Begins what the coordinator has given, once it can be begun.
    fn begin_work(&mut self, effects: &mut Vec<Effect>) -> Result<bool, WorkerError> {
        if self.cycle.iteration.is_some() {
            return Ok(false);
        }
        let Some(queued) = self.asking.front() else {
            if self.cycle.pushing.is_none() && self.asking.is_answered() && self.asking.has_result() {
                self.flush_result(effects);
            }
            return Ok(false);
        };
        if !self.can_begin(queued.work) {
            return Ok(false);
        }
        self.asking.pop();
        match queued.work {
            Work::Batch { batch, enter, evaluate, .. } => {
                if self.finished || enter.is_some() {
                    self.enter(enter, effects)?;
                }
                self.begin_iteration(batch, queued.loaded, evaluate, effects);
                self.pull_unasked(effects);
            }
            Work::Idle => self.finish(effects),
            Work::Evaluate { at_samples } => {
                self.flush_result(effects);
                self.begin_evaluation(at_samples, true, effects);
            }
            Work::Done => {
                self.flush_result(effects);
                self.leave_done(effects);
            }
        }
        Ok(true)
    }

    /// Begins the iteration after one whose push goes out now, so that its pulls can go with that: they are not sent here.
    pub(crate) fn begin_next(&mut self, effects: &mut Vec<Effect>) {
        if let Some(Queued { work: work @ Work::Batch { batch, enter: None, evaluate, .. }, loaded }) =
            self.asking.front()
            && !self.finished
            && self.can_begin(work)
        {
            self.asking.pop();
            self.begin_iteration(batch, loaded, evaluate, effects);
        }
    }

    fn can_begin(&self, work: Work) -> bool {
        let is_answered = self.cycle.pushing.is_none();
        match work {
            // Whoever enters again begins a new count: all before must be settled. And the answers to the first push after
            // entering can move the worker up: a pull before that would be gated by a clock that is not its own.
            Work::Batch { enter, .. } => {
                (is_answered || (enter.is_none() && !self.cycle.is_first_push()))
                    && self.cycle.forgotten.is_none()
                    && !self.evaluation.is_blocking()
                    && self.paused_until.is_none()
            }
            Work::Idle => is_answered,
            Work::Evaluate { .. } => is_answered && self.evaluation.is_free(),
            Work::Done => is_answered && self.evaluation.is_over(),
        }
    }

    /// There is no work now: out of the clock tables, and the last batch is reported.
    fn finish(&mut self, effects: &mut Vec<Effect>) {
        if !self.finished {
            self.finished = true;
            for server in self.servers() {
                if let Some(session) = self.sessions.get_mut(&server) {
                    session.entering = None;
                }
                self.send(server, ToServer::Finish, effects);
            }
        }
        self.flush_result(effects);
    }

    /// Wants the values of every shard, unless they were pulled while the iteration before was computed. Pulls are not sent here.
    fn begin_iteration(
        &mut self,
        batch: BatchIndex,
        loaded: bool,
        evaluate: Option<u64>,
        effects: &mut Vec<Effect>,
    ) {
        let prefetched = self.cycle.take_prefetched(self.clock);
        let is_prefetched = prefetched.is_some();
        if is_prefetched {
            self.cycle.buffer = self.cycle.buffer.next();
        }
        let pulls = prefetched.unwrap_or_else(|| {
            let wanted = self.shards.keys().filter(|shard| self.is_wanted(**shard));
            wanted.map(|shard| (*shard, OpenPull::new(self.now))).collect()
        });
        self.cycle.iteration = Some(Iteration {
            batch,
            since: self.now,
            loaded,
            pulls,
            is_prefetched,
            phase: Phase::Pulling,
            has_asked: false,
            is_overtaken: false,
            packed: BTreeMap::new(),
            early: Early::default(),
            evaluate,
        });
        if is_prefetched {
            // From here on the worker waits for those that have no answer yet.
            let shards: Vec<_> = self.shards.keys().copied().collect();
            shards.into_iter().for_each(|shard| self.pull_fresher(shard, effects));
        }
    }

    /// Sends the pulls that are wanted and were not asked for, as far as their servers can be reached.
    pub(crate) fn pull_unasked(&mut self, effects: &mut Vec<Effect>) {
        let Some(iteration) = &self.cycle.iteration else { return };
        let unasked = iteration.pulls.iter().filter(|(_, pull)| pull.request == 0);
        let shards: Vec<_> = unasked.map(|(shard, _)| *shard).collect();
        self.resume_pulls(&shards, effects);
    }

    /// The number of the pull that goes with the push to a shard, and that of the one whose answer is there; zero where none does. The first
    /// pull of a session goes by a message: it tells the server that the run has begun.
    pub(crate) fn bring_pull(
        &mut self,
        server: ServerId,
        shard: ShardId,
        effects: &mut Vec<Effect>,
    ) -> (u64, u64) {
        let buffer = self.cycle.buffer;
        let knows = self.sessions.get(&server).is_some_and(|session| session.has_pulled);
        match self.cycle.unserved(shard) {
            Some((pull, None)) if knows && pull.request == 0 => {
                self.request_last += 1;
                let request = self.request_last;
                pull.request = request;
                effects.push(Effect::ExpectValues { server, shard, request, buffer });
                (request, self.contents.take(buffer, shard))
            }
            _ => (0, 0),
        }
    }

    /// Sends the pulls that these shards have not answered, as far as their servers can be reached.
    pub(crate) fn resume_pulls(&mut self, shards: &[ShardId], effects: &mut Vec<Effect>) {
        // All of an iteration's values are gated at one clock.
        let begun = match self.cycle.iteration.as_ref().map(|iteration| iteration.phase) {
            Some(Phase::Computing { clock, .. }) => Some(clock),
            _ => None,
        };
        let (completed, after, computed) = (self.clock, self.cycle.sequence, self.cycle.buffer);
        for shard in shards.iter().copied() {
            let Some(server) = self.ready_server_of(shard) else { continue };
            if let Some((pull, next)) = self.cycle.unserved(shard) {
                self.request_last += 1;
                let request = self.request_last;
                pull.request = request;
                let clock = next.or(begun).unwrap_or(completed);
                let kind = PullKind::Gated { clock, after, ahead: clock.0.saturating_sub(completed.0) };
                let buffer = if next.is_some() { computed.next() } else { computed };
                let have = self.contents.take(buffer, shard);
                effects.push(Effect::ExpectValues { server, shard, request, buffer });
                self.send(server, ToServer::Pull(Pull { shard, request, have, kind }), effects);
                if let Some(session) = self.sessions.get_mut(&server) {
                    session.has_pulled = true;
                }
            } else if self.open_pull(shard).is_some_and(|pull| pull.fresher.is_some()) {
                self.pull_fresher(shard, effects);
            }
        }
    }

    /// The pull of a shard for the iteration under way.
    fn open_pull(&mut self, shard: ShardId) -> Option<&mut OpenPull> {
        self.cycle.iteration.as_mut().and_then(|iteration| iteration.pulls.get_mut(&shard))
    }

    /// A shard answers from another place: what the former one still sends is not taken.
    pub(crate) fn reopen_pulls(&mut self, shard: ShardId) {
        if let Some((pull, _)) = self.cycle.unserved(shard) {
            pull.request = 0;
        }
        if let Evaluation::Pulling { pulls, .. } = &mut self.evaluation
            && let Some(pull) = pulls.get_mut(&shard)
            && pull.served.is_none()
        {
            pull.request = 0;
        }
    }

    /// Values have arrived; for training, for an evaluation, or for a pull that is not wanted any more.
    pub(crate) fn on_values(
        &mut self,
        shard: ShardId,
        request: u64,
        (served, bytes): (Served, u64),
        effects: &mut Vec<Effect>,
    ) {
        let Some(server) = self.shards.get(&shard).map(|home| home.server) else { return };
        if let Some((pull, next)) = self.cycle.unserved(shard).filter(|(pull, _)| pull.request == request) {
            (pull.served, pull.answer) = (Some(served), request);
            let (since, is_present) = (pull.since, next.is_none());
            self.record.pulled(&served, bytes);
            self.heard_entered(server);
            // What is held while the worker computes on others holds nobody up.
            if is_present {
                self.ledger.pull_held(served.held_us, since);
                self.deliver(shard, effects);
            }
            self.pull_fresher(shard, effects);
            return;
        }
        match self.open_pull(shard) {
            Some(pull) if pull.fresher == Some(request) => {
                pull.fresher = None;
                self.on_fresher((shard, request), (&served, bytes), effects);
            }
            _ => self.on_snapshot(shard, request, (served, bytes), effects),
        }
    }

    /// A batch is in memory.
    pub(crate) fn on_loaded(&mut self, batch: BatchIndex) {
        self.asking.loaded(batch);
        self.group.loaded(batch.0);
        if let Some(iteration) = &mut self.cycle.iteration
            && iteration.batch == batch
        {
            iteration.loaded = true;
        }
    }

    /// Asks for the next work while this one is computed, so that no time is lost. It waits for the answers
    /// to the pushes before: the ask reports their batch.
    fn ask_ahead(&mut self, effects: &mut Vec<Effect>) -> bool {
        match &mut self.cycle.iteration {
            Some(iteration)
                if !matches!(iteration.phase, Phase::Pulling)
                    && !iteration.has_asked
                    && self.cycle.pushing.is_none() =>
            {
                iteration.has_asked = true;
                self.ask(Clock(self.clock.0 + 1), effects);
                true
            }
            _ => false,
        }
    }

    /// A gradient is computed.
    pub(crate) fn on_gradient(
        &mut self,
        sequence: Sequence,
        (mut gradient, waited_us): (Gradient, u64),
        packed: Vec<Packed>,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(forgotten) = self.cycle.forgotten.take_if(|forgotten| forgotten.sequence == sequence) {
            self.ledger.stalled(waited_us);
            effects.push(self.release_unsent(sequence, &forgotten.left));
            return;
        }
        let expected = self.cycle.sequence.next();
        if let Some(iteration) = &mut self.cycle.iteration
            && let Phase::Computing { since, .. } = iteration.phase
            && sequence == expected
            && (iteration.has_values() || iteration.is_overtaken)
        {
            self.ledger.stalled(waited_us);
            let lasted_us = self.now.since(since).as_micros() as u64;
            gradient.compute_us = lasted_us.saturating_sub(waited_us);
            iteration.phase = Phase::Ready(gradient);
            iteration.packed = packed.into_iter().map(|packed| (packed.shard, packed)).collect();
        }
    }
}
