//! The worker's loop: events to the pure worker, its effects to the network and the computing threads. What becomes of gradients is the
//! business of a [`Road`]; the rest is the same on all of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use slackline_core::ids::{BatchIndex, Moment, ServerId};
use slackline_core::wire::{ToPeer, Work};
use slackline_worker_core::{Effect, Event, Notice, Worker, WorkerError};
use tokio::signal::unix::{SignalKind, signal};

use crate::allreduce::Allreduce;
use crate::compute::{Compute, Done, EvaluationJob};
use crate::daemon::WorkerFailure;
use crate::inbox::{Inbox, Incoming};
use crate::link::Links;
use crate::loader::{Loader, LoaderError};
use crate::model::Batch;
use crate::servers::Servers;

/// How often the wire's byte counts are looked at, and the least pace of ticks.
const TICK_MAX: Duration = Duration::from_millis(100);

/// What becomes of gradients.
pub(crate) enum Road {
    /// They are pushed to servers, which apply them.
    Servers(Box<Servers>),
    /// They are averaged among the workers, and each applies the mean.
    Allreduce(Box<Allreduce>),
}

/// What both roads stand on.
pub(crate) struct Base {
    pub(crate) worker: Worker,
    began: Instant,
    pub(crate) links: Links,
    loader: Loader,
    pub(crate) compute: Compute,
    /// Batches that are being read, with their units. An index can come again with others.
    loading: BTreeMap<BatchIndex, u64>,
    loaded: BTreeMap<BatchIndex, Batch>,
    /// Events that came of effects, to be handled next.
    events: VecDeque<Event>,
    /// What this process itself fails with; the worker then leaves first.
    failure: Option<WorkerFailure>,
}

impl Base {
    pub(crate) fn new(
        worker: Worker,
        began: Instant,
        links: Links,
        loader: Loader,
        compute: Compute,
    ) -> Self {
        Self {
            worker,
            began,
            links,
            loader,
            compute,
            loading: BTreeMap::new(),
            loaded: BTreeMap::new(),
            events: VecDeque::new(),
            failure: None,
        }
    }

    /// An event for the pure worker, handled in its turn.
    pub(crate) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// This process cannot go on: the worker leaves, and ends with that. Effects can fail, so the event waits for its turn.
    pub(crate) fn fail(&mut self, failure: impl Into<WorkerFailure>) {
        let failure = failure.into();
        self.tell(Event::Broken { reason: failure.to_string() });
        self.failure.get_or_insert(failure);
    }

    /// A batch that is in memory, to be computed with.
    pub(crate) fn take_batch(&mut self, index: BatchIndex) -> Option<Batch> {
        let batch = self.loaded.remove(&index);
        if batch.is_none() {
            self.fail(WorkerFailure::BatchMissing(index));
        }
        batch
    }

    /// The memory of a batch that was computed with.
    pub(crate) fn give_back(&mut self, batch: Batch) {
        self.loader.give_back(batch);
    }

    /// Has the evaluation thread measure values.
    pub(crate) fn evaluate(&mut self, at_samples: u64, values: Vec<f32>) {
        if !self.compute.evaluation(EvaluationJob { at_samples, values }) {
            self.fail(WorkerFailure::ComputeEnded);
        }
    }

    fn load(&mut self, batch: BatchIndex, units: u64) {
        self.loading.insert(batch, units);
        if let Err(error) = self.loader.request(batch, units) {
            self.fail(error);
        }
    }

    fn batch_loaded(&mut self, index: BatchIndex, units: u64) {
        match self.loader.take(index, units) {
            Ok(batch) if self.loading.get(&index) != Some(&units) => self.loader.give_back(batch),
            Ok(batch) => {
                self.loading.remove(&index);
                self.loaded.insert(index, batch);
                self.tell(Event::BatchLoaded { batch: index });
            }
            Err(error) => self.fail(error),
        }
    }

    /// Batches of before a fence or of a former group are not computed here.
    fn give_back_unwanted(&mut self) {
        let worker = &self.worker;
        for (_, batch) in self.loaded.extract_if(.., |index, _| !worker.wants_batch(*index)) {
            self.loader.give_back(batch);
        }
    }

    /// What makes an error of the pure worker, which knows no addresses, one that can be acted on.
    fn known_about(&self, error: &WorkerError) -> String {
        match error {
            WorkerError::Unreachable { server, .. }
            | WorkerError::Connect { server, .. }
            | WorkerError::WrongServer { server, .. } => {
                let address = self.links.address_of(*server);
                format!(" (entry {} is {address})", server.0)
            }
            _ => String::new(),
        }
    }

    /// That a server is busy, in words: it does not take what is sent to it.
    fn backlog(&self, server: ServerId) -> Option<String> {
        let (count, waited) = self.links.backlog(server)?;
        let pushes = if count == 1 { "one transfer" } else { "transfers" };
        let many = if count == 1 { String::new() } else { format!("{count} ") };
        Some(format!("the server is busy and has not taken {many}{pushes} for {:.1} s", waited.as_secs_f64()))
    }

    /// What is not known (who it is, before it has joined) is left out of a line of the log.
    fn place(&self) -> (Option<u32>, Option<u64>) {
        let worker = self.worker.member().map(|(worker, _)| worker.0);
        (worker, worker.map(|_| self.worker.clock().0))
    }

    /// Says what the pure worker wants said, and what is known here besides.
    fn say(&self, notice: &Notice, known: &str) {
        let (worker, clock) = self.place();
        match notice {
            Notice::BadGradient { worker, clock, tensor, .. } => {
                tracing::warn!(worker = worker.0, clock = clock.0, tensor, "{notice}");
            }
            Notice::Guarded { worker, clock, tensors: (tensor, _), .. } => {
                tracing::warn!(worker = worker.0, clock = clock.0, tensor, "{notice}");
            }
            Notice::Joined { worker, clock, .. } => {
                tracing::info!(worker = worker.0, clock = clock.0, "{notice}");
            }
            Notice::Resumed { .. } => tracing::info!(worker, clock, "{notice}"),
            Notice::Grouped { .. } => tracing::info!(worker, clock, "{notice}"),
            _ => tracing::warn!(worker, clock, "{notice}{known}"),
        }
    }
}

/// A worker at work.
pub(crate) struct Driver {
    base: Base,
    road: Road,
    was_interrupted: bool,
    exit: Option<Result<(), WorkerFailure>>,
}

impl Driver {
    pub(crate) const fn new(base: Base, road: Road) -> Self {
        Self { base, road, was_interrupted: false, exit: None }
    }

    /// Until the worker has ended.
    pub(crate) async fn run(mut self, mut inbox: Inbox) -> Result<(), WorkerFailure> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        self.tick();
        loop {
            if let Some(exit) = self.exit.take() {
                self.base.links.close().await;
                if let Road::Allreduce(allreduce) = self.road {
                    allreduce.close(exit.is_ok() && !self.was_interrupted).await;
                }
                return exit;
            }
            let next = self.next_tick();
            tokio::select! {
                incoming = inbox.next() => self.take(incoming),
                () = tokio::time::sleep_until(next.into()) => self.tick(),
                _ = interrupt.recv() => self.interrupt(),
                _ = terminate.recv() => self.interrupt(),
            }
        }
    }

    fn interrupt(&mut self) {
        self.was_interrupted = true;
        self.handle(Event::Interrupt);
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Tagged((server, number, event)) => {
                if self.base.links.is_present(server, number) {
                    self.note_answer(&event);
                    self.message(event);
                }
            }
            Incoming::Loaded((batch, units)) => {
                self.base.batch_loaded(batch, units);
                self.handle_rest();
                self.base.give_back_unwanted();
            }
            Incoming::LoaderEnded => self.base.fail(LoaderError::ThreadEnded),
            Incoming::Done(done) => self.job_done(done),
            Incoming::Logged(logged) => {
                if let Road::Servers(servers) = &mut self.road {
                    servers.logged(&mut self.base, logged);
                }
            }
            Incoming::Replica(done) => {
                if let Road::Allreduce(allreduce) = &mut self.road {
                    allreduce.job_done(&mut self.base, done);
                }
            }
            Incoming::Peers(news) => {
                if let Road::Allreduce(allreduce) = &mut self.road {
                    allreduce.take(&mut self.base, news);
                }
            }
        }
        self.handle_rest();
    }

    /// Every answer goes into the push log, whatever is made of it.
    fn note_answer(&self, event: &Event) {
        if let Event::Message { server, message: ToPeer::Pushed(pushed) } = event
            && let (Road::Servers(servers), Some(member)) = (&self.road, self.base.worker.member())
        {
            servers.answered(*server, member, *pushed);
        }
    }

    fn next_tick(&self) -> Instant {
        let latest = Instant::now() + TICK_MAX;
        let wanted = self.base.worker.next_deadline();
        let wanted = wanted.map(|moment| self.base.began + Duration::from_nanos(moment.0));
        wanted.map_or(latest, |wanted| wanted.min(latest))
    }

    fn tick(&mut self) {
        let counts = self.counts();
        self.handle(counts);
    }

    /// The wire's byte counts as they are now.
    fn counts(&self) -> Event {
        let (mut wire_sent, mut wire_received) = self.base.links.wire_bytes();
        if let Road::Allreduce(allreduce) = &self.road {
            let (sent, received) = allreduce.wire_bytes();
            (wire_sent, wire_received) = (wire_sent + sent, wire_received + received);
        }
        Event::Tick { wire_sent, wire_received }
    }

    /// Before what ends in a report, the byte counts are brought up to date.
    fn message(&mut self, event: Event) {
        if let Event::Message {
            message: ToPeer::Work(Work::Idle | Work::Done | Work::Evaluate { .. }), ..
        } = event
        {
            self.tick();
        }
        self.handle(event);
    }

    fn handle(&mut self, event: Event) {
        self.base.tell(event);
        self.handle_rest();
    }

    /// Handles the events that wait, and those that come of them.
    fn handle_rest(&mut self) {
        while let Some(event) = self.base.events.pop_front() {
            // An allreduce may report after each of these, and end after the last.
            if let (Road::Allreduce(_), Event::Reduced { .. } | Event::EvaluationReady { .. }) =
                (&self.road, &event)
            {
                let counts = self.counts();
                self.give(counts);
            }
            self.give(event);
        }
    }

    fn give(&mut self, event: Event) {
        let now = Moment(self.base.began.elapsed().as_nanos() as u64);
        let mut effects = Vec::new();
        self.base.worker.handle(now, event, &mut effects);
        for effect in effects {
            self.perform(effect);
        }
        for server in self.base.links.take_broken() {
            self.base.tell(Event::Lost { server });
        }
    }

    fn job_done(&mut self, done: Done) {
        match done {
            Done::Ended => self.base.fail(WorkerFailure::ComputeEnded),
            Done::Part { sequence, shard, payload, samples } => {
                if let Road::Servers(servers) = &mut self.road {
                    servers.part_done(&mut self.base, sequence, (shard, payload), samples);
                }
            }
            Done::Gradient { job, loss, bad_key } => {
                if let Road::Servers(servers) = &mut self.road {
                    servers.gradient_done(&mut self.base, *job, loss, bad_key);
                }
            }
            Done::Evaluation { job, loss, accuracy } => {
                if let Road::Servers(servers) = &mut self.road {
                    servers.keep_evaluated(job.values);
                }
                self.base.tell(Event::EvaluationReady { at_samples: job.at_samples, loss, accuracy });
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        let base = &mut self.base;
        match effect {
            Effect::Connect { server } => base.links.connect(server),
            Effect::Disconnect { server } => base.links.disconnect(server),
            Effect::Send { server, message } => base.links.send(server, message),
            Effect::LoadBatch { batch, units } => base.load(batch, u64::from(units)),
            Effect::Notice(notice) => {
                if matches!(notice, Notice::Fenced { .. }) {
                    base.give_back_unwanted();
                }
                // The pure worker knows since when others are waited for, and not whom; and not what a server has not even taken.
                let known = match (&notice, &self.road) {
                    (Notice::WaitingForPeers { .. }, Road::Allreduce(allreduce)) => allreduce.awaited(),
                    (Notice::Waiting { server, .. }, Road::Servers(_)) => base.backlog(*server),
                    _ => None,
                };
                base.say(&notice, &known.map_or_else(String::new, |known| format!(": {known}")));
            }
            Effect::Exit(outcome) => {
                let failure = base.failure.take();
                let outcome = outcome.map_err(|error| match (error, failure) {
                    (WorkerError::Broken { .. }, Some(failure)) => failure,
                    (error, _) => WorkerFailure::Worker { known: base.known_about(&error), error },
                });
                self.exit.get_or_insert(outcome);
            }
            effect => match &mut self.road {
                Road::Servers(servers) => servers.perform(base, effect),
                Road::Allreduce(allreduce) => {
                    allreduce.perform(base, effect);
                    base.give_back_unwanted();
                }
            },
        }
    }
}
