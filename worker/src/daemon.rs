//! The worker's loop: events to the pure worker, its effects to the network and the computing threads.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackline_core::config::{OnBadGradient, Resolved};
use slackline_core::ids::{BatchIndex, Clock, KeyRange, Moment, Sequence, ShardId};
use slackline_core::schedule::DataOrder;
use slackline_core::wire::{RefusalCode, ToPeer, TransferHeader, Work};
use slackline_net::{Connector, Identity, KeysError, NetworkStopped, NetworkThread, Settings, SharedValues};
use slackline_worker_core::{Effect, Event, Notice, Worker, WorkerError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::buffers::{Buffer, Fresher};
use crate::compute::{Compute, Done, EvaluationJob, GradientJob, Place};
use crate::dataset::{self, DataSettings, Dataset, DatasetError};
use crate::inbox::{Inbox, Incoming};
use crate::link::{Expected, Links, Purpose};
use crate::loader::{Loader, LoaderError};
use crate::model::{self, Batch};

/// Events that may wait for the driver; when it is full, connections are read no further.
const EVENTS_MAX: usize = 1024;

/// How often the wire's byte counts are looked at, and the least pace of ticks.
const TICK_MAX: Duration = Duration::from_millis(100);

/// What a worker is started with.
pub struct WorkerOptions {
    /// The configuration of the run.
    pub resolved: Resolved,
    /// Addresses of the servers, in order.
    pub addresses: Vec<String>,
    /// Folder of the keys.
    pub keys: PathBuf,
}

/// Why a worker ended without finishing.
#[derive(Debug, thiserror::Error)]
pub enum WorkerFailure {
    /// The keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The data.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The loader.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// The machine gives no thread.
    #[error("the system gives no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The network thread is gone.
    #[error(transparent)]
    Stopped(#[from] NetworkStopped),
    /// A computing thread is gone.
    #[error("a computing thread has ended; see the log above")]
    ComputeEnded,
    /// A batch is to be computed with and is not there.
    #[error("{0} is not in memory where it is needed: a fault of this program")]
    BatchMissing(BatchIndex),
    /// The run.
    #[error("{error}{known}")]
    Worker {
        /// What the worker gave up for.
        error: WorkerError,
        /// What only this process knows about it, in words: the address that was dialled.
        known: String,
    },
}

impl WorkerFailure {
    /// Whether the one who started it can mend it (exit code 2), and not the world (1).
    #[must_use]
    pub const fn is_users(&self) -> bool {
        match self {
            Self::Keys(_) | Self::Dataset(_) => true,
            Self::Worker { error, .. } => match error {
                WorkerError::Connect { .. }
                | WorkerError::Protocol { .. }
                | WorkerError::WrongServer { .. } => true,
                WorkerError::Refused { code, .. } => {
                    matches!(code, RefusalCode::Role | RefusalCode::Mismatch)
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// Runs a worker until its work is done; blocks the calling thread.
///
/// # Errors
/// [`WorkerFailure`]; nothing is left running.
pub fn run(options: WorkerOptions) -> Result<(), WorkerFailure> {
    let WorkerOptions { resolved, addresses, keys } = options;
    let config = &resolved.config;
    let identity = Identity::load(&keys, slackline_net::Role::Worker)?;
    let network = Settings::new(&config.transport, Duration::from_secs_f64(config.cluster.lease_s));
    let dataset = Arc::new(dataset::load(&DataSettings {
        spec: config.data.dataset,
        dir: config.data.dir.as_ref().map(PathBuf::from),
        limit: config.data.limit,
    })?);
    let (train, samples) = (&config.train, dataset.train.len() as u64);
    let order = DataOrder::new(config.seed, samples, config.cut().unit, train.epochs);
    let settings = worker_settings(&resolved, &dataset, &order);
    let (loaded, batches_loaded) = mpsc::channel(EVENTS_MAX);
    let batch_count = order.batch_count();
    let loader = Loader::start(dataset.clone(), order, move |index, units| {
        // Fails only when the driver has ended, and then nobody needs to know.
        let _ = loaded.blocking_send((index, units));
    })?;
    let (done, jobs_done) = mpsc::channel(4);
    let compute = Compute::start(config, &dataset, batch_count, done)?;
    let partition = config.partition();
    let flat = KeyRange::new(0, partition.key_count());
    let mut initial = vec![0.0; flat.len as usize];
    model::build(&config.model, dataset.input_count, dataset.class_count, 1)
        .initialize(config.seed, &mut initial);
    let net = NetworkThread::start("network")?;
    let (events, tagged) = mpsc::channel(EVENTS_MAX);
    let links = Links::new(Connector::new(&identity, &network)?, addresses, network, &partition, events);
    let began = Instant::now();
    let driver = Driver {
        worker: Worker::new(settings, Moment(0)),
        began,
        flat,
        initial: SharedValues::from(initial),
        links,
        loader,
        compute,
        training: Buffer::default(),
        fresher: Fresher::new(partition),
        evaluation: Buffer::default(),
        loading: BTreeMap::new(),
        loaded: BTreeMap::new(),
        gradients: BTreeMap::new(),
        unsent: None,
        spare: Vec::new(),
        reclaiming: Vec::new(),
        events: VecDeque::new(),
        failure: None,
        exit: None,
    };
    let inbox = Inbox { tagged, batches_loaded, jobs_done, has_loader: true };
    let outcome = net.block_on(driver.run(inbox))?;
    net.stop();
    outcome
}

fn worker_settings(
    resolved: &Resolved,
    dataset: &Dataset,
    order: &DataOrder,
) -> slackline_worker_core::Settings {
    let config = &resolved.config;
    slackline_worker_core::Settings {
        partition: config.partition(),
        layout: config.layout(),
        config_hash: resolved.hash(),
        data_hash: dataset.fingerprint(),
        sample_count: dataset.train.len() as u64,
        batch_count: order.batch_count(),
        units_max: u32::try_from(config.cut().units_max()).unwrap_or(u32::MAX),
        refreshes: config.consistency.policy.refreshes(),
        fragments: config.local.map_or(1, |local| local.fragments),
        lease: Duration::from_secs_f64(config.cluster.lease_s),
        connect_timeout: Duration::from_secs_f64(config.cluster.connect_timeout_s),
        wait_report: Duration::from_secs_f64(config.cluster.wait_report_s),
        stop_on_bad_gradient: config.consistency.on_bad_gradient == OnBadGradient::Stop,
    }
}

struct Driver {
    worker: Worker,
    began: Instant,
    flat: KeyRange,
    initial: SharedValues,
    links: Links,
    loader: Loader,
    compute: Compute,
    training: Buffer,
    fresher: Fresher,
    evaluation: Buffer,
    /// Batches that are being read, with their units. An index can come again with others.
    loading: BTreeMap<BatchIndex, u64>,
    loaded: BTreeMap<BatchIndex, Batch>,
    /// Gradients that servers have not answered yet, for sending again.
    gradients: BTreeMap<Sequence, SharedValues>,
    /// The gradient that was handed over last, as long as no part of it was sent.
    unsent: Option<Sequence>,
    spare: Vec<Vec<f32>>,
    /// Released gradients that QUIC may still hold.
    reclaiming: Vec<SharedValues>,
    /// Events that came of effects, to be handled next.
    events: VecDeque<Event>,
    /// What this process itself fails with; the worker then leaves first.
    failure: Option<WorkerFailure>,
    exit: Option<Result<(), WorkerFailure>>,
}

impl Driver {
    async fn run(mut self, mut inbox: Inbox) -> Result<(), WorkerFailure> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        self.tick();
        loop {
            if let Some(exit) = self.exit.take() {
                self.links.close().await;
                return exit;
            }
            let next = self.next_tick();
            tokio::select! {
                incoming = inbox.next() => self.take(incoming),
                () = tokio::time::sleep_until(next.into()) => self.tick(),
                _ = interrupt.recv() => self.handle(Event::Interrupt),
                _ = terminate.recv() => self.handle(Event::Interrupt),
            }
        }
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Tagged((server, number, event)) => {
                if self.links.is_present(server, number) {
                    self.message(event);
                }
            }
            Incoming::Loaded((batch, units)) => self.batch_loaded(batch, units),
            Incoming::LoaderEnded => self.fail(LoaderError::ThreadEnded),
            Incoming::Done(done) => self.job_done(done),
        }
        self.handle_rest();
    }

    fn next_tick(&self) -> Instant {
        let latest = Instant::now() + TICK_MAX;
        let wanted = self.worker.next_deadline().map(|moment| self.began + Duration::from_nanos(moment.0));
        wanted.map_or(latest, |wanted| wanted.min(latest))
    }

    fn tick(&mut self) {
        let (wire_sent, wire_received) = self.links.wire_bytes();
        self.handle(Event::Tick { wire_sent, wire_received });
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
        self.events.push_back(event);
        self.handle_rest();
    }

    /// Handles the events that wait, and those that come of them.
    fn handle_rest(&mut self) {
        while let Some(event) = self.events.pop_front() {
            let now = Moment(self.began.elapsed().as_nanos() as u64);
            let mut effects = Vec::new();
            self.worker.handle(now, event, &mut effects);
            for effect in effects {
                self.perform(effect);
            }
            let broken = self.links.take_broken();
            self.events.extend(broken.into_iter().map(|server| Event::Lost { server }));
        }
    }

    /// This process cannot go on: the worker leaves, and ends with that. Effects can fail, so the event waits for its turn.
    fn fail(&mut self, failure: impl Into<WorkerFailure>) {
        let failure = failure.into();
        self.events.push_back(Event::Broken { reason: failure.to_string() });
        self.failure.get_or_insert(failure);
    }

    fn batch_loaded(&mut self, index: BatchIndex, units: u64) {
        match self.loader.take(index, units) {
            Ok(batch) if self.loading.get(&index) != Some(&units) => self.loader.give_back(batch),
            Ok(batch) => {
                self.loading.remove(&index);
                self.loaded.insert(index, batch);
                self.handle(Event::BatchLoaded { batch: index });
                self.give_back_unwanted();
            }
            Err(error) => self.fail(error),
        }
    }

    /// Batches of before a fence are computed by others.
    fn give_back_unwanted(&mut self) {
        let worker = &self.worker;
        for (_, batch) in self.loaded.extract_if(.., |index, _| !worker.wants_batch(*index)) {
            self.loader.give_back(batch);
        }
    }

    fn job_done(&mut self, done: Done) {
        match done {
            Done::Ended => self.fail(WorkerFailure::ComputeEnded),
            Done::Gradient { job, loss, bad_key } => {
                let GradientJob { sequence, batch, values, gradient, .. } = *job;
                let samples = batch.samples() as u32;
                self.loader.give_back(batch);
                self.training.spare = values;
                self.gradients.insert(sequence, SharedValues::from(gradient));
                self.handle(Event::GradientReady { sequence, bad_key, loss, samples });
            }
            Done::Evaluation { job, loss, accuracy } => {
                self.evaluation.spare = job.values;
                self.handle(Event::EvaluationReady { at_samples: job.at_samples, loss, accuracy });
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Connect { server } => self.links.connect(server),
            Effect::Disconnect { server } => self.links.disconnect(server),
            Effect::Send { server, message } => self.links.send(server, message),
            Effect::ExpectValues { server, shard, request, snapshot } => {
                let (buffer, purpose) = if snapshot {
                    (&mut self.evaluation, Purpose::Evaluation)
                } else {
                    self.fresher.forget(shard);
                    (&mut self.training, Purpose::Training)
                };
                if let Some(destination) = buffer.destination(self.flat) {
                    self.links.expect(server, shard, purpose, Expected { request, destination });
                }
            }
            Effect::ExpectFresher { server, shard, request } => {
                if let Some(destination) = self.fresher.destination(shard) {
                    self.links.expect(server, shard, Purpose::Fresher, Expected { request, destination });
                }
            }
            Effect::AdoptFresher { shard } => self.fresher.adopt(shard),
            Effect::SendPush { server, header } => {
                if let Some(gradient) = self.gradients.get(&header.sequence) {
                    self.unsent = self.unsent.filter(|sequence| *sequence != header.sequence);
                    self.links.transfer(server, header, part(gradient, &header));
                }
            }
            Effect::SendInitial { server, header } => {
                self.links.transfer(server, header, part(&self.initial, &header));
            }
            Effect::LoadBatch { batch, units } => {
                let units = u64::from(units);
                self.loading.insert(batch, units);
                if let Err(error) = self.loader.request(batch, units) {
                    self.fail(error);
                }
            }
            Effect::Compute { sequence, batch, clock, adopted } => {
                self.start_gradient(sequence, batch, clock, adopted)
            }
            Effect::Abandon { sequence } => self.compute.abandon(sequence),
            Effect::ReleaseGradient { sequence } => self.release(sequence),
            Effect::Evaluate { at_samples, .. } => {
                let values = self.evaluation.lend(self.flat);
                if !self.compute.evaluation(EvaluationJob { at_samples, values }) {
                    self.fail(WorkerFailure::ComputeEnded);
                }
            }
            Effect::Notice(notice) => {
                if matches!(notice, Notice::Fenced { .. }) {
                    self.give_back_unwanted();
                }
                self.say(&notice);
            }
            Effect::Exit(outcome) => {
                let failure = self.failure.take();
                let outcome = outcome.map_err(|error| match (error, failure) {
                    (WorkerError::Broken { .. }, Some(failure)) => failure,
                    (error, _) => WorkerFailure::Worker { known: self.known_about(&error), error },
                });
                self.exit.get_or_insert(outcome);
            }
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

    fn start_gradient(&mut self, sequence: Sequence, index: BatchIndex, clock: Clock, adopted: Vec<ShardId>) {
        let Some(batch) = self.loaded.remove(&index) else {
            self.fail(WorkerFailure::BatchMissing(index));
            return;
        };
        let gradient = self.spare_gradient();
        let mut values = self.training.lend(self.flat);
        self.fresher.write_to(&mut values);
        // Only a member computes. Were it none, it would be some worker at the beginning of a life: nothing depends on which.
        let (worker, incarnation) = self.worker.member().unwrap_or_default();
        let is_after_unsent = self.unsent.replace(sequence).is_some();
        let place = Place { worker, incarnation, clock, batch: index, adopted, is_after_unsent };
        if !self.compute.gradient(GradientJob { sequence, place, batch, values, gradient }) {
            self.fail(WorkerFailure::ComputeEnded);
        }
    }

    /// A buffer for a gradient: one that QUIC has let go, or a new one. Two or three go round.
    fn spare_gradient(&mut self) -> Vec<f32> {
        for gradient in std::mem::take(&mut self.reclaiming) {
            match gradient.try_reclaim() {
                Ok(buffer) => self.spare.push(buffer),
                Err(held) => self.reclaiming.push(held),
            }
        }
        self.spare.pop().unwrap_or_else(|| vec![0.0; self.flat.len as usize])
    }

    fn release(&mut self, sequence: Sequence) {
        self.reclaiming.extend(self.gradients.remove(&sequence));
    }

    fn say(&self, notice: &Notice) {
        // What is not known (who it is, before it has joined) is left out of the line.
        let worker = self.worker.member().map(|(worker, _)| worker.0);
        let clock = worker.map(|_| self.worker.clock().0);
        match notice {
            Notice::BadGradient { worker, clock, tensor, .. } => {
                tracing::warn!(worker = worker.0, clock = clock.0, tensor, "{notice}");
            }
            Notice::Joined { worker, clock, .. } => {
                tracing::info!(worker = worker.0, clock = clock.0, "{notice}");
            }
            Notice::Resumed { .. } => tracing::info!(worker, clock, "{notice}"),
            _ => tracing::warn!(worker, clock, "{notice}"),
        }
    }
}

fn part(values: &SharedValues, header: &TransferHeader) -> SharedValues {
    values.slice(header.keys.as_indices())
}
